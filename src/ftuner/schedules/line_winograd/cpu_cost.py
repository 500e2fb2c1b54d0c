"""The cost of convolutions by Winograd's products along one axis.

A task transforms the inputs of a line for a block of rows, multiplies them by the weight of each
point, and transforms the sums back. The terms are those of `ftuner.cost.step.Estimate`.
"""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.winograd import LINE_OUTPUTS, line_operations
from ftuner.cost.cpu.product import UKernels
from ftuner.cost.functions import simple_per_cycle
from ftuner.cost.step import Estimate, Machine, Stream, estimate_of, rate_bytes_per_s


class LineProblem(NamedTuple):
    """A convolution of two spatial axes at known extents."""

    images: int
    rows: int
    """Of the result, as are `positions`."""
    positions: int
    taps: int
    """Elements of the window in each phase."""
    run: int
    """Elements of x for each element of a phase: channels by the stride."""
    kernel_rows: int
    stride: int
    """Rows between windows."""
    columns: int
    """Channels of the result."""
    workers: int

    @property
    def outputs(self) -> int:
        """The outputs of a line."""
        return LINE_OUTPUTS[self.taps]

    @property
    def points(self) -> int:
        return self.outputs + self.taps - 1

    @property
    def lines(self) -> int:
        """The lines of a row."""
        return -(-self.positions // self.outputs)

    @property
    def k(self) -> int:
        """Rows of the weight of a point."""
        return self.kernel_rows * self.run

    def read_rows(self, block: int) -> int:
        """Rows of x that a block of rows of the result reads."""
        return (block - 1) * self.stride + self.kernel_rows


def line_terms(
    machine: Machine, ukernels: UKernels, problem: LineProblem, block: int,
    epilogue_cycles: float,
) -> Estimate:  # fmt: skip
    """The terms of the busiest worker, of tasks of `block` rows. `epilogue_cycles`: of the epilogue
    of one vector."""
    isa, tuning = machine.isa, machine.hardware.tuning
    types, lanes, *_ = ukernels
    m, n, k = problem.outputs, problem.points, problem.k
    size = types.c.itemsize
    blocks = -(-problem.rows // block)
    lines = problem.images * problem.lines
    tasks = lines * blocks
    busiest = -(-tasks // problem.workers)
    share = busiest / tasks
    of_inputs, of_sums = line_operations(problem.taps)
    inputs = n / isa.load_per_cycle + n / isa.store_per_cycle
    inputs += of_inputs / simple_per_cycle(isa)
    sums = n / isa.load_per_cycle + m * (1.0 / isa.store_per_cycle + epilogue_cycles)
    sums += of_sums / simple_per_cycle(isa)
    read_rows = (blocks - 1) * problem.read_rows(block)
    read_rows += problem.read_rows(problem.rows - (blocks - 1) * block)
    vectors = -(-problem.run // lanes), -(-problem.columns // lanes)
    fixed = read_rows * vectors[0] * (inputs + tuning.loop_cycles)
    fixed += problem.rows * vectors[1] * (sums + tuning.loop_cycles)
    fixed *= lines * share * tuning.winograd_transform_ratio
    fixed += busiest * _spilled_line_cycles(machine, ukernels, problem, block)
    each = lines * share * n
    heights = (block, each * (problem.rows // block)), (problem.rows % block, each)
    issue, step, tiles = ukernels.cycles(problem.columns, k, *heights)
    weight_bytes = n * k * problem.columns * size
    positions = problem.images * problem.rows * problem.positions
    x_bytes = positions * problem.stride * problem.run * size
    moved = x_bytes + positions * problem.columns * size
    streams = [Stream(busiest * weight_bytes, weight_bytes), Stream(moved * share, moved)]
    workers = max(min(tasks, problem.workers), 1)
    return estimate_of(machine, workers, issue, step - issue, fixed + tiles, streams)


def _spilled_line_cycles(
    machine: Machine, ukernels: UKernels, problem: LineProblem, block: int
) -> float:
    """Cycles of a task in which the part of its inputs and sums that a cache does not hold moves
    between it and the next level."""
    hardware, size = machine.hardware, ukernels.types.c.itemsize
    nr = ukernels.width * ukernels.lanes
    panels = -(-problem.columns // nr)
    inputs = problem.points * problem.read_rows(block) * problem.run * size
    sums = problem.points * block * nr * size
    moved = inputs * (1 + panels) + 2 * sums * panels
    found = 0.0
    for level, after in zip(hardware.levels[:2], hardware.levels[1:], strict=False):
        share = hardware.tuning.winograd_share_of_l2
        spilled = max(1.0 - share * level.capacity_bytes / (inputs + sums), 0.0)
        rate = rate_bytes_per_s(after, problem.workers)
        found += spilled * moved * hardware.clock_hz / rate
    return found
