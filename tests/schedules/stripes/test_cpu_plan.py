"""Which chains are walked by stripes on recorded machines, and how."""

import pytest
from tests.recorded_cpus import MACHINES, planner_of

from ftuner.core.cpu.schedule import DepthwiseKernel
from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import ACCUMULATOR
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import panel_problem
from ftuner.schedules.stripes.cpu_cost import (
    Extents,
    PartSeconds,
    StripesProblem,
    capacities,
    least_tasks,
)
from ftuner.schedules.stripes.cpu_plan import (
    ProductWork,
    StripesPlanner,
    kernel_work,
    stripes_planner,
)

WALKED = {
    # (side, channels, wide, columns, stride): machines on which the chain is walked by stripes
    (320, 16, 96, 24, 2): set(MACHINES),
    (112, 16, 96, 24, 2): set(MACHINES),
    (7, 16, 96, 24, 1): set(),
    (14, 64, 96, 64, 1): set(),
}


def stripes_of(
    name: str, channels: int, wide: int, columns: int, stride: int
) -> tuple[StripesPlanner, CpuHardware]:
    """A pointwise convolution to `wide` channels, a depthwise one, another to `columns`."""
    planner = planner_of(name)
    library, machine = planner.library, planner.library.hardware
    width, isa = library.widths[0], library.isa
    kernel = DepthwiseKernel(FLOAT32, None, (3, 3), (stride, stride), (1, 1), ACCUMULATOR)
    chain = (
        ProductWork(planner, panel_problem(wide, channels, width, 1, 1)),
        kernel_work(kernel, wide, machine, isa),
        ProductWork(planner, panel_problem(columns, wide, width, 1, 1)),
    )
    return stripes_planner(chain, machine, isa), machine


def problem_of(side: int, stride: int, images: int = 1, workers: int = 1) -> StripesProblem:
    after = (side - 1) // stride + 1
    extents = (
        Extents(side, side, side, side, 0),
        Extents(after, after, side, side, 1),
        Extents(after, after, after, after, 0),
    )
    return StripesProblem(images, extents, workers)


@pytest.mark.parametrize("shape", WALKED)
def test_where_stripes_are_faster(shape: tuple[int, ...]) -> None:
    side, *chain, stride = shape
    channels, wide, columns = chain
    found = set()
    for name in MACHINES:
        planner, _ = stripes_of(name, channels, wide, columns, stride)
        if planner.stripes(problem_of(side, stride)) is not None:
            found.add(name)
    assert found == WALKED[shape]


@pytest.mark.parametrize("name", MACHINES)
def test_what_passes_between_steps_fits_its_share_of_l2(name: str) -> None:
    planner, machine = stripes_of(name, 16, 96, 24, 2)
    for side in (112, 160, 224, 320):
        stripes = planner.stripes(problem_of(side, 2))
        assert stripes is not None
        wide_row, narrow_row = side * 96 * 4, (side - 1) // 2 * 96 * 4
        taken = stripes.capacities[0] * wide_row + stripes.capacities[1] * narrow_row
        room = machine.tuning.stripes_share_of_l2 * machine.levels[1].capacity_bytes
        assert stripes.rows == 1 or taken <= room


@pytest.mark.parametrize("workers", [2, 3, 16])
@pytest.mark.parametrize("images", [1, 2, 5])
def test_workers_have_equally_many_tasks(images: int, workers: int) -> None:
    planner, _ = stripes_of("epyc-milan-2", 16, 96, 24, 2)
    stripes = planner.stripes(problem_of(320, 2, images, workers))
    assert stripes is not None
    assert images * stripes.parts % workers == 0


def test_memory_holds_what_a_stripe_reads() -> None:
    planner, _ = stripes_of("epyc-milan-2", 16, 96, 24, 2)
    assert capacities(planner.chain, 1) == (3, 1)
    assert capacities(planner.chain, 4) == (9, 4)


def test_nothing_is_walked_without_elements() -> None:
    planner, _ = stripes_of("epyc-milan-2", 16, 96, 24, 2)
    assert planner.stripes(problem_of(320, 2, images=0)) is None
    empty = Extents(0, 0, 0, 0, 0)
    assert planner.stripes(StripesProblem(1, (empty, empty, empty), 1)) is None


def test_what_was_found_is_kept() -> None:
    planner, _ = stripes_of("epyc-milan-2", 16, 96, 24, 2)
    problem = problem_of(320, 2)
    values = (1, 1, *(n for extents in problem.extents for n in extents))
    found = planner.at(values)
    assert found == planner.stripes(problem)
    assert planner.at(values) is found


@pytest.mark.parametrize("waited", [0.1, 0.25, 1.0])
def test_the_number_of_tasks_takes_least_time(waited: float) -> None:
    part, problem = PartSeconds(3e-3, 2e-5), problem_of(320, 2, images=2, workers=4)
    rows_s = part.rows * problem.images / problem.workers

    def seconds(tasks: float) -> float:
        return (tasks + waited) * (rows_s / tasks + part.border)

    best = least_tasks(part, problem, waited)
    assert all(seconds(best) <= seconds(best * factor) for factor in (0.5, 0.9, 1.1, 2.0))
