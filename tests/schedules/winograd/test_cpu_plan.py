"""Which convolutions are Winograd's products on recorded machines, and how their tiles are cut."""

import pytest
from tests.recorded_cpus import MACHINES, planner_of

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.core.winograd import OUTPUTS
from ftuner.hardware.model import CpuHardware
from ftuner.schedules.winograd.cpu_cost import WinogradProblem, block_bytes
from ftuner.schedules.winograd.cpu_plan import (
    LARGEST_BLOCK,
    faster_winograd,
    outputs_of,
    winograd_plan,
)

CHOSEN = {
    # (images, rows, positions, channels, columns): machines on which they are faster
    (1, 56, 56, 64, 64): set(MACHINES),
    (1, 28, 28, 128, 128): set(MACHINES),
    (1, 14, 14, 256, 256): set(MACHINES),
    (1, 7, 7, 512, 512): set(MACHINES),
    (1, 112, 112, 8, 8): set(),
    (1, 2, 2, 64, 64): set(),
}


def problem_of(shape: tuple[int, ...], workers: int = 1) -> WinogradProblem:
    images, rows, positions, channels, columns = shape
    return WinogradProblem(images, rows, positions, channels, columns, max(OUTPUTS), workers)


@pytest.mark.parametrize("shape", CHOSEN)
def test_where_products_of_tiles_are_faster(shape: tuple[int, ...]) -> None:
    found = set()
    for name in MACHINES:
        planner = planner_of(name)
        if faster_winograd(planner, planner, problem_of(shape), 0.0):
            found.add(name)
    assert found == CHOSEN[shape]


def test_tiles_of_known_extents_have_the_fewest_multiplications() -> None:
    assert outputs_of(2, 2) == 2
    assert outputs_of(3, 3) == outputs_of(56, 56) == 4
    assert outputs_of(symbol("H"), 2) == 4


@pytest.mark.parametrize("shape", CHOSEN)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_blocks_fit_and_all_workers_have_some(
    recorded: CpuHardware, shape: tuple[int, ...], workers: int
) -> None:
    planner, problem = planner_of(recorded), problem_of(shape, workers)
    (block, channels), _ = winograd_plan(planner, problem, 0.0)
    assert 1 <= channels <= problem.channels
    assert block <= -(-problem.tiles // workers)
    library = planner.library
    nr = library.widths[0] * library.lanes
    main = planner.cover(library.widths[0], False, problem.channels)[1].main
    l2_bytes = recorded.levels[min(1, len(recorded.levels) - 1)].capacity_bytes
    held = block_bytes(problem, block, nr, FLOAT32.itemsize)
    assert block <= main or held <= LARGEST_BLOCK * l2_bytes


def test_more_work_takes_longer(recorded: CpuHardware) -> None:
    planner = planner_of(recorded)
    shapes = [(1, 8, 8, 16, 16), (1, 16, 8, 16, 16), (1, 16, 8, 32, 16), (2, 16, 8, 32, 48)]
    seconds = [winograd_plan(planner, problem_of(shape), 0.0).estimate.seconds for shape in shapes]
    assert seconds == sorted(seconds)
