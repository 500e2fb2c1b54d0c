"""The patches of a plan: which uKernel and which workers compute each rectangle of C."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ftuner.core.cpu.tile import UKernel
from ftuner.planner.cpu.plan import Plan, Range


class PatchOfWorker(NamedTuple):
    """One patch of a worker; all ranges are half open."""

    worker: int
    kernel: UKernel
    rows: Range
    columns: Range
    tiles: int
    """Row tiles."""
    panels: int
    batch: Range
    k: Range


class Region(NamedTuple):
    """A rectangle of the C matrix of one batch element, computed by one uKernel."""

    rows: Range
    columns: Range
    kernel: UKernel
    workers: tuple[int, ...]
    """Several if the batch or the reduction axis is cut: each computes other elements of the batch,
    or another part of the sum."""


def patches_of(plan: Plan) -> Iterator[PatchOfWorker]:
    """All patches, worker by worker, in the order in which a worker begins them."""
    for worker, share in enumerate(plan.shares):
        for patch in plan.patches(share):
            yield PatchOfWorker(
                worker,
                patch.family.kernels[patch.mr - 1],
                (patch.row, patch.row + patch.mr * patch.tiles),
                (patch.column, patch.column + patch.columns),
                patch.tiles,
                patch.panels,
                share.batch,
                share.k,
            )


def regions_of(plan: Plan) -> tuple[Region, ...]:
    """The rectangles of C, each once, in the order of the first worker that computes it."""
    workers: dict[tuple[Range, Range, UKernel], list[int]] = {}
    for patch in patches_of(plan):
        workers.setdefault((patch.rows, patch.columns, patch.kernel), []).append(patch.worker)
    return tuple(Region(*place, tuple(found)) for place, found in workers.items())
