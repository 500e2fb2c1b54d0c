"""The cost of a mixture of experts."""

from __future__ import annotations

from ftuner.cost.cpu.product import UKernels
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of


def experts_cost(
    machine: Machine, ukernels: UKernels, extents: tuple[int, int, int], rows: int, biased: bool,
    reads_bytes: int, writes_bytes: int, resident_bytes: int,
) -> StepCost:  # fmt: skip
    """The cost where rows are shared evenly by as many experts as possible, which is the most that
    is read.

    Args:
        extents: as of `ExpertsStep`.
        rows: of the result, each by one expert.
        reads_bytes: of x and of the index.
        resident_bytes: of all weights of the program.
    """
    experts, k, n = extents
    chosen = min(experts, rows)
    each, more = divmod(rows, chosen)
    _, step, fixed = ukernels.cycles(n, k, (each + 1, more), (each, chosen - more))
    workers = min(machine.workers, -(-n // (ukernels.width * ukernels.lanes)))
    weights = chosen * k * n * ukernels.types.c.itemsize
    streams = [
        Stream(weights / workers, max(resident_bytes, weights)),
        Stream((reads_bytes + writes_bytes) / workers, reads_bytes + writes_bytes),
    ]
    estimate = estimate_of(machine, workers, step / workers, 0.0, fixed / workers, streams)
    flops = rows * n * (2 * k + biased)
    return StepCost(flops, reads_bytes + weights, writes_bytes, estimate)
