"""Which convolutions are Winograd's products along lines on recorded machines, and how rows are
cut."""

import math

import pytest
from tests.recorded_cpus import MACHINES, planner_of

from ftuner.core.product import ReadWindow
from ftuner.hardware.model import CpuHardware
from ftuner.schedules.line_winograd.cpu_cost import LineProblem
from ftuner.schedules.line_winograd.cpu_plan import faster_lines, line_plan

CHOSEN = {
    # (rows, positions, channels, columns, window, stride): machines on which they are faster
    (112, 112, 3, 64, 7, 2): set(MACHINES),
    (112, 112, 3, 192, 7, 2): set(MACHINES),
    (28, 28, 64, 64, 5, 2): set(MACHINES),
    (1, 1, 64, 64, 7, 2): set(),
}
TAPS = {(7, 2): 4, (5, 2): 3}


def problem_of(shape: tuple[int, ...], workers: int = 1) -> LineProblem:
    rows, positions, channels, columns, window, stride = shape
    taps, run = TAPS[window, stride], channels * stride
    return LineProblem(1, rows, positions, taps, run, window, stride, columns, workers)


@pytest.mark.parametrize("shape", CHOSEN)
def test_where_products_of_lines_are_faster(shape: tuple[int, ...]) -> None:
    found = set()
    *_, channels, _, window, stride = shape
    read = ReadWindow(2, channels, window**2 / stride**2)
    for name in MACHINES:
        planner = planner_of(name)
        width, k = planner.library.widths[0], window**2 * channels
        if faster_lines(planner, planner, problem_of(shape), width, read, k, 0.0):
            found.add(name)
    assert found == CHOSEN[shape]


@pytest.mark.parametrize("shape", CHOSEN)
@pytest.mark.parametrize("workers", [1, 3])
def test_blocks_are_of_rows_that_exist(
    recorded: CpuHardware, shape: tuple[int, ...], workers: int
) -> None:
    planner, problem = planner_of(recorded), problem_of(shape, workers)
    plan = line_plan(planner, problem, planner.library.widths[0], 0.0)
    assert 1 <= plan.block <= problem.rows
    assert math.isfinite(plan.estimate.seconds)


def test_more_work_takes_longer(recorded: CpuHardware) -> None:
    planner = planner_of(recorded)
    shapes = [(8, 8, 3, 16), (16, 8, 3, 16), (16, 16, 3, 16), (16, 16, 3, 48), (16, 16, 8, 48)]
    seconds = [
        line_plan(planner, problem_of((*shape, 7, 2)), planner.library.widths[0], 0.0)
        .estimate.seconds
        for shape in shapes
    ]  # fmt: skip
    assert seconds == sorted(seconds)
