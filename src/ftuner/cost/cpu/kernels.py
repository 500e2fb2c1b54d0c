"""The costs of steps that are one kernel: windows of single channels, and the best elements of
rows."""

from __future__ import annotations

import math
from typing import NamedTuple

from ftuner.core.cpu.schedule import DepthwiseKernel
from ftuner.cost.functions import expression_cycles, expression_operations
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of
from ftuner.hardware.model import Isa
from ftuner.hardware.tuning import CpuTuning


class DepthwiseProblem(NamedTuple):
    """A depthwise convolution at known extents."""

    shape: tuple[int, ...]
    """Of the result: images, rows, positions, channels."""
    x_elements: int
    kernel: DepthwiseKernel


class VectorCycles(NamedTuple):
    """Cycles of one vector of the result."""

    issue: float
    fixed: float
    """Of loops."""


def vector_cycles(kernel: DepthwiseKernel, isa: Isa, tuning: CpuTuning) -> VectorCycles:
    """All elements of a window are multiplied and added; an element of x is loaded once for all
    windows of a row that are computed together."""
    taps = math.prod(kernel.window) * kernel.group
    together = kernel.together(isa.vector_registers)
    reach = (together - 1) * kernel.strides[1] + kernel.window[1]
    loads = kernel.window[0] * (reach + kernel.window[1] * kernel.group) / together
    if kernel.group > 1:
        # A shuffle for each channel of a group.
        loads += kernel.window[0] * reach * kernel.group / together
    cycles = max(taps / isa.fma_per_cycle, loads / isa.load_per_cycle)
    cycles += expression_cycles(kernel.epilogue, kernel.dtype, isa, tuning)
    return VectorCycles(cycles, tuning.loop_cycles * kernel.window[0] / together)


def depthwise_cost(problem: DepthwiseProblem, machine: Machine) -> StepCost:
    """What the busiest worker takes, which shares rows with the others."""
    kernel = problem.kernel
    images, rows, positions, channels = problem.shape
    size, taps = kernel.dtype.itemsize, math.prod(kernel.window) * kernel.group
    mine = math.ceil(images * rows / machine.workers) / max(images * rows, 1)
    cycles = vector_cycles(kernel, machine.isa, machine.hardware.tuning)
    vectors = mine * images * rows * positions * -(-channels // machine.isa.lanes(kernel.dtype))
    elements = math.prod(problem.shape)
    reads, writes = problem.x_elements * size, elements * size
    estimate = estimate_of(
        machine, max(min(images * rows, machine.workers), 1), vectors * cycles.issue, 0.0,
        vectors * cycles.fixed, [Stream((reads + writes) * mine, reads + writes)],
    )  # fmt: skip
    flops = elements * (2 * taps + expression_operations(kernel.epilogue))
    return StepCost(flops, reads, writes, estimate)


SORTED_BYTES = 4
PASSES = 2
"""Looks at all elements, in one of which vectors are passed over."""
MOVES = 8
"""Of each element found: it is stored, counted, moved by three digits, and read again."""
HISTOGRAMS = 2 * 2048 + 1024


class TopKProblem(NamedTuple):
    """The `wanted` best of each of `rows` rows of `extent` elements."""

    rows: int
    extent: int
    wanted: int
    itemsize: int


def top_k_cost(problem: TopKProblem, machine: Machine) -> StepCost:
    """Rows in random order: the i-th element is among the best so far with probability
    `wanted / i`. It then sinks in their heap, and all sink once more when that is sorted. Many
    elements of 32 bits or less are found by histograms and sorted by three digits instead."""
    rows, extent, wanted, itemsize = problem
    inserted = wanted * (1.0 + math.log(extent / wanted)) if wanted else 0.0
    # No elements are wanted, so that the row is not read.
    looked = extent if wanted else 0
    tuning = machine.hardware.tuning
    sink_cycles = tuning.loop_cycles + tuning.top_k_move_cycles * math.log2(wanted + 1)
    row_cycles = looked * tuning.top_k_element_cycles + (inserted + wanted) * sink_cycles
    if itemsize <= SORTED_BYTES:
        moves = PASSES * looked + MOVES * wanted + HISTOGRAMS
        row_cycles = min(row_cycles, moves * tuning.top_k_element_cycles)
    reads, writes = rows * looked * itemsize, rows * wanted * (itemsize + 8)
    mine = -(-rows // machine.workers)
    part = (reads + writes) * mine / max(rows, 1)
    estimate = estimate_of(
        machine, max(min(rows, machine.workers), 1), mine * row_cycles, 0.0, 0.0,
        [Stream(part, reads + writes)],
    )  # fmt: skip
    return StepCost(0, reads, writes, estimate)
