"""The cost of convolutions by Winograd's products of tiles.

Tiles are cut into blocks. The inputs of a block are transformed, multiplied by all matrices of the
weight, and the sums are transformed back. The terms are those of `ftuner.cost.step.Estimate`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ftuner.core.winograd import WINDOW
from ftuner.cost.cpu.product import UKernels
from ftuner.cost.functions import simple_per_cycle
from ftuner.cost.step import Estimate, Machine, Stream, estimate_of, rate_bytes_per_s

INPUT_OPERATIONS = {2: 4, 4: 16}
"""Vector operations of one transform along an axis, by outputs of a tile. Derived: those that
`schedules/winograd/cpu_kernel.py` writes."""
SUM_OPERATIONS = {2: 4, 4: 12}
"""The same of a transform of sums."""
WEIGHT_OPERATIONS = {2: 4, 4: 10}
"""The same of a transform of weights."""


class WinogradProblem(NamedTuple):
    """A convolution by windows of 3 x 3 at known extents."""

    images: int
    rows: int
    """Of the result, as are `positions`."""
    positions: int
    channels: int
    columns: int
    """Channels of the result."""
    outputs: int
    """Along both axes of a tile."""
    workers: int

    @property
    def tiles(self) -> int:
        return self.images * -(-self.rows // self.outputs) * -(-self.positions // self.outputs)

    @property
    def matrices(self) -> int:
        return (self.outputs + WINDOW - 1) ** 2


class WinogradBlocks(NamedTuple):
    """How the work is cut."""

    tiles: int
    """Of a task; the last one may have fewer."""
    channels: int
    """Of x, whose weight is transformed at a time."""


def winograd_terms(
    machine: Machine, ukernels: UKernels, problem: WinogradProblem,
    blocks: WinogradBlocks, epilogue_cycles: float,
) -> Estimate:  # fmt: skip
    """The terms of the busiest worker. `epilogue_cycles`: of the epilogue of one vector."""
    isa, tuning = machine.isa, machine.hardware.tuning
    types, lanes, *_ = ukernels
    m, matrices = problem.outputs, problem.matrices
    n = m + WINDOW - 1
    tiles, size = problem.tiles, types.c.itemsize
    block = blocks.tiles
    tasks = -(-tiles // block)
    busiest = -(-tasks // problem.workers)
    mine = min(busiest * block, tiles)
    through = matrices / isa.load_per_cycle + matrices / isa.store_per_cycle
    inputs = through + 2 * n * INPUT_OPERATIONS[m] / simple_per_cycle(isa)
    outputs = m * m * (1.0 / isa.load_per_cycle + 2.0 / isa.store_per_cycle)
    sums = matrices / isa.load_per_cycle + (n + m) * SUM_OPERATIONS[m] / simple_per_cycle(isa)
    sums += outputs + m * m * epilogue_cycles
    vectors = -(-problem.channels // lanes), -(-problem.columns // lanes)
    transforms = mine * (vectors[0] * inputs + vectors[1] * sums)
    transforms += mine * (vectors[0] + vectors[1] + 2 * m * m) * tuning.loop_cycles
    weights = WINDOW**2 / isa.load_per_cycle + matrices / isa.store_per_cycle
    weights += (n + WINDOW) * WEIGHT_OPERATIONS[m] / simple_per_cycle(isa)
    transforms += busiest * problem.channels * vectors[1] * weights
    # Each block of channels enters all tiles again, and reads and writes their sums.
    channel_blocks = -(-problem.channels // blocks.channels)
    more = (channel_blocks - 1) * matrices * mine * vectors[1]
    transforms += more * (1.0 / isa.load_per_cycle + 1.0 / isa.store_per_cycle)
    transforms *= tuning.winograd_transform_ratio
    transforms += _spilled_cycles(machine, ukernels, problem, blocks, mine)
    heights = (block, mine // block * matrices), (mine % block, matrices)
    issue, step, fixed = ukernels.cycles(problem.columns, problem.channels, *heights)
    transforms += channel_blocks * fixed
    weight_bytes = WINDOW**2 * problem.channels * problem.columns * size
    x_bytes = problem.images * problem.rows * problem.positions * problem.channels * size
    out_bytes = problem.images * problem.rows * problem.positions * problem.columns * size
    share = mine / tiles
    streams = [
        Stream(busiest * weight_bytes, weight_bytes),
        Stream((x_bytes + out_bytes) * share, x_bytes + out_bytes),
    ]
    workers = max(min(tasks, problem.workers), 1)
    return estimate_of(machine, workers, issue, step - issue, transforms, streams)


def _spilled_cycles(
    machine: Machine, ukernels: UKernels, problem: WinogradProblem,
    blocks: WinogradBlocks, mine: int,
) -> float:  # fmt: skip
    """Cycles in which the part of the inputs and sums of `mine` tiles that L2 does not hold moves
    between it and the next level. What is written there is read before and after."""
    hardware, size = machine.hardware, ukernels.types.c.itemsize
    levels = hardware.levels
    if len(levels) < 3:
        return 0.0
    l2_bytes = hardware.tuning.winograd_share_of_l2 * levels[1].capacity_bytes
    private = block_bytes(problem, blocks.tiles, ukernels.width * ukernels.lanes, size)
    spilled = max(1.0 - l2_bytes / private, 0.0)
    channel_blocks = -(-problem.channels // blocks.channels)
    moves = 3 * problem.channels + (1 + 2 * channel_blocks) * problem.columns
    moved = moves * problem.matrices * mine * size
    return spilled * moved * hardware.clock_hz / rate_bytes_per_s(levels[2], problem.workers)


def block_bytes(problem: WinogradProblem, block: int, nr: int, itemsize: int) -> int:
    """Bytes that pass between the transforms: the inputs of a block, and the sums of a panel."""
    return math.prod((problem.matrices, block, problem.channels + nr, itemsize))
