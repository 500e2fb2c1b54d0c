"""The cost of a recurrent layer: a product by the recurrent weight and the cell's expressions, step
by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.recurrence import Cell
from ftuner.cost.cpu.product import Covers
from ftuner.cost.functions import expression_cycles, expression_operations
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of


class RecurrenceProblem(NamedTuple):
    """One direction at known extents."""

    cell: Cell
    steps: int
    rows: int
    """Sequences of the batch."""
    hidden: int
    block: int
    """Sequences of a task."""


class RecurrenceUKernels(NamedTuple):
    """The uKernels of the products."""

    dtype: DType
    lanes: int
    width: int
    """Vectors of a full panel."""
    covers: Callable[[int, bool, int], Covers]
    """The covers of rows by vectors of a panel, whether it is a tail, and the length of k."""


def recurrence_cost(
    machine: Machine, ukernels: RecurrenceUKernels, problem: RecurrenceProblem, writes_bytes: int
) -> StepCost:
    """The cost of all steps. The busiest worker has one task, and reads the whole weight in each
    step."""
    cell, steps, rows, hidden, block = problem
    dtype, lanes, width, covers = ukernels
    isa, tuning = machine.isa, machine.hardware.tuning
    columns, nr = len(cell.gates) * hidden, width * lanes
    tail = -(-(columns % nr) // lanes)
    stages = cell.stages()
    products = fixed = elements = 0.0
    flops = 2 * rows * columns * hidden
    vectors = block * -(-hidden // lanes)
    for stage in stages:
        share = (stage.gates[1] - stage.gates[0]) / len(cell.gates)
        for panels, wide, is_tail in ((columns // nr, width, False), (1, tail, True)):
            if panels and wide:
                cover = covers(wide, is_tail, hidden)[block]
                products += share * panels * hidden * cover.step
                fixed += share * panels * cover.fixed
        for _, expr in stage.results:
            elements += vectors * expression_cycles(expr, dtype, isa, tuning)
            flops += rows * hidden * expression_operations(expr)
    workers = max(min(-(-rows // block), machine.workers), 1)
    size = dtype.itemsize
    weight, x = columns * hidden * size, rows * columns * size
    streams = [Stream(steps * weight, weight), Stream(steps * x / workers, steps * x)]
    estimate = estimate_of(
        machine, workers, steps * (products + elements), 0.0, steps * fixed, streams
    )
    return StepCost(steps * flops, weight + steps * x, writes_bytes, estimate)
