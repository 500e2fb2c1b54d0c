"""The cost of windows of single channels."""

from __future__ import annotations

import math
from typing import NamedTuple

from ftuner.core.cpu.schedule import DepthwiseKernel
from ftuner.cost.functions import expression_cycles, expression_operations
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of
from ftuner.hardware.model import Isa
from ftuner.hardware.tuning import CpuTuning


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


def depthwise_cost(
    machine: Machine, kernel: DepthwiseKernel, shape: tuple[int, ...], x_elements: int
) -> StepCost:
    """What the busiest worker takes, which shares rows with the others. `shape`: of the result,
    images, rows, positions and channels."""
    images, rows, positions, channels = shape
    size, taps = kernel.dtype.itemsize, math.prod(kernel.window) * kernel.group
    mine = math.ceil(images * rows / machine.workers) / max(images * rows, 1)
    cycles = vector_cycles(kernel, machine.isa, machine.hardware.tuning)
    vectors = mine * images * rows * positions * -(-channels // machine.isa.lanes(kernel.dtype))
    elements = math.prod(shape)
    reads, writes = x_elements * size, elements * size
    estimate = estimate_of(
        machine, max(min(images * rows, machine.workers), 1), vectors * cycles.issue, 0.0,
        vectors * cycles.fixed, [Stream((reads + writes) * mine, reads + writes)],
    )  # fmt: skip
    flops = elements * (2 * taps + expression_operations(kernel.epilogue))
    return StepCost(flops, reads, writes, estimate)
