"""The cost of a recurrent layer."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.recurrence import Cell
from ftuner.cost.cpu.product import UKernels
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
    team: int
    """Tasks that share the columns of the weight; 1 if tasks are blocks."""


def gate_panels(hidden: int, nr: int, team: int) -> int:
    """The panels of a gate if a team shares each gate by panels of `nr` columns; 0 if gates begin
    within panels or have fewer."""
    panels, left = divmod(hidden, nr)
    return panels if not left and panels >= team > 1 else 0


def recurrence_cost(
    machine: Machine, ukernels: UKernels, problem: RecurrenceProblem, writes_bytes: int
) -> StepCost:
    """The cost of all steps. The busiest worker has one task, and reads its part of the weight in
    each step: all of it, unless a team shares it."""
    cell, steps, rows, hidden, block, team = problem
    types, lanes, width, _ = ukernels
    dtype, k = types.c, types.depth(hidden)
    isa, tuning = machine.isa, machine.hardware.tuning
    columns, nr = len(cell.gates) * hidden, width * lanes
    _, step, tiles = ukernels.cycles(columns, k, (block, 1))
    products = fixed = elements = 0.0
    flops = 2 * rows * columns * hidden
    vectors = block * -(-hidden // lanes)
    panels = -(-columns // nr)
    part = -(-panels // team) / panels
    for stage in cell.stages():
        share = (stage.gates[1] - stage.gates[0]) / len(cell.gates)
        products += share * part * step
        fixed += share * part * tiles
        for _, expr in stage.results:
            elements += part * vectors * expression_cycles(expr, dtype, isa, tuning)
            flops += rows * hidden * expression_operations(expr)
        if team > 1:
            phases = 1 if cell.one_phase and gate_panels(hidden, nr, team) else 2
            fixed += phases * tuning.team_phase_s / machine.period_s
    workers = max(min(max(-(-rows // block), team), machine.workers), 1)
    weight, x = columns * k * types.b.itemsize, rows * columns * dtype.itemsize
    own = int(part * weight)
    streams = [Stream(steps * own, own), Stream(steps * x / workers, steps * x)]
    estimate = estimate_of(
        machine, workers, steps * (products + elements), 0.0, steps * fixed, streams
    )
    return StepCost(steps * flops, weight + steps * x, writes_bytes, estimate)
