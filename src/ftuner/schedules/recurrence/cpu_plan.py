"""How the steps of a recurrent layer are cut into tasks."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ftuner.core.recurrence import MAX_TEAM, Cell
from ftuner.cost.step import Machine
from ftuner.planner.cpu.planner import Planner
from ftuner.schedules.recurrence.cpu_cost import RecurrenceProblem, recurrence_cost

_STEPS = 64
"""Steps that cuts are compared at: what depends on their number is the same for all."""


class RecurrenceCut(NamedTuple):
    """Tasks of blocks of sequences, or a team that shares the columns of the weight."""

    block: int
    """Sequences of a task."""
    team: int
    """Tasks that share each step of all sequences; 1 if tasks are blocks."""

    def tasks(self, rows: int) -> int:
        return max(-(-rows // self.block), self.team)


@lru_cache(maxsize=1024)
def recurrence_cut(
    planner: Planner, cell: Cell, width: int, hidden: int, rows: int, most: int
) -> RecurrenceCut:
    """The cut of `rows` sequences into at most `most` tasks, by the estimate. Blocks need no word
    between workers, but each reads the whole weight in each step, and low row tiles may gain
    nothing. A team reads it once, and waits for its members twice in each stage of a step.

    `width`: vectors of a panel.
    """
    library = planner.library
    k, machine = library.types.depth(hidden), Machine(library.hardware, library.isa, most)
    _, covers = planner.cover(width, False, k)
    # The range of a rounded state is that of all sequences.
    apart = 1 if cell.rounds else min(rows, most)
    blocks = dict.fromkeys(-(-rows // tasks) for tasks in range(1, apart + 1))
    cuts = [RecurrenceCut(min(blocks, key=lambda block: covers[block].cycles(k)), 1)]
    panels = -(-len(cell.gates) * hidden // (width * library.lanes))
    team = min(most, panels, MAX_TEAM)
    if team > 1:
        cuts.append(RecurrenceCut(rows, team))
    ukernels = planner.ukernels(width)

    def seconds(cut: RecurrenceCut) -> float:
        problem = RecurrenceProblem(cell, _STEPS, rows, hidden, *cut)
        return recurrence_cost(machine, ukernels, problem, 0).estimate.seconds

    return min(cuts, key=seconds)
