"""The cost of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.cost.cpu.product import Covers
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of


class ExpertsProblem(NamedTuple):
    """Expert products at known extents."""

    experts: int
    k: int
    n: int
    rows: int
    """Rows of the result, each by one expert."""
    width: int
    """Vectors of a full panel."""
    lanes: int
    biased: bool

    @property
    def chosen(self) -> int:
        """Experts that have rows: as many as possible, which is the most that is read."""
        return min(self.experts, self.rows)

    @property
    def panels(self) -> int:
        """Panels of an expert, the last one included."""
        return -(-self.n // (self.width * self.lanes))


def experts_cost(
    machine: Machine, dtype: DType, problem: ExpertsProblem, reads_bytes: int, writes_bytes: int,
    resident_bytes: int, covers: Callable[[int, bool], Covers],
) -> StepCost:  # fmt: skip
    """The cost where rows are shared evenly by the chosen experts.

    Args:
        reads_bytes: of x and of the index.
        resident_bytes: of all weights of the program.
        covers: the covers of rows by vectors of a panel, and whether it is the last one.
    """
    _, k, n, rows, width, lanes, biased = problem
    nr, chosen = width * lanes, problem.chosen
    each, more = divmod(rows, chosen)
    issue = fixed = 0.0
    for panels, vectors, is_tail in ((n // nr, width, False), (1, -(-(n % nr) // lanes), True)):
        if panels and vectors:
            table = covers(vectors, is_tail)
            for experts, height in ((more, each + 1), (chosen - more, each)):
                cover = table[height]
                issue += experts * panels * k * cover.step
                fixed += experts * panels * cover.fixed
    workers = min(machine.workers, problem.panels)
    weights = chosen * k * n * dtype.itemsize
    streams = [
        Stream(weights / workers, max(resident_bytes, weights)),
        Stream((reads_bytes + writes_bytes) / workers, reads_bytes + writes_bytes),
    ]
    estimate = estimate_of(machine, workers, issue / workers, 0.0, fixed / workers, streams)
    flops = rows * n * (2 * k + biased)
    return StepCost(flops, reads_bytes + weights, writes_bytes, estimate)
