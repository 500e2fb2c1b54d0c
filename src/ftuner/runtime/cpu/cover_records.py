"""The segments of covers as native code reads them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from ftuner.codegen.llvm.native.kernel_records import AllCovers
from ftuner.codegen.llvm.native.records import Segment
from ftuner.core.cpu.tile import MAX_SEGMENTS
from ftuner.planner.cpu.cover import CoverTable, Segments
from ftuner.runtime.cpu.arrays import Array


def encoded_covers(table: CoverTable, addresses: Sequence[int]) -> array[int]:
    """An `AllCovers`. `addresses`: of uKernels by height."""
    solved, main = table.solved, table.main
    slots = [0] * AllCovers.TABLES
    slots[AllCovers.LIMIT], slots[AllCovers.MAIN] = len(solved) - 1, main
    for cover in solved:
        slots += _segment_slots(cover.segments, addresses)
    for cover in table.rests:
        segments = cover.segments
        if not segments or segments[0][0] != main:
            segments = ((main, 0), *segments)
        slots += _segment_slots(segments, addresses)
    return array("q", slots)


def kept_covers(covers: array[int]) -> Array:
    """An `AllCovers` without addresses, which are those of one process."""
    slots = np.array(covers)
    slots[AllCovers.TABLES + Segment.KERNEL :: Segment.SIZE] = 0
    return slots.astype(np.int32)


def known_covers(kept: Array, addresses: Sequence[int]) -> array[int]:
    """The inverse of `kept_covers`. `addresses`: of uKernels by height."""
    slots, by_height = kept.astype(np.int64), np.array([0, *addresses])
    heights = slots[AllCovers.TABLES + Segment.MR :: Segment.SIZE]
    slots[AllCovers.TABLES + Segment.KERNEL :: Segment.SIZE] = by_height[heights]
    return array("q", slots.tobytes())


def _segment_slots(segments: Segments, addresses: Sequence[int]) -> list[int]:
    """The segments of a cover. `addresses`: of uKernels by height."""
    assert len(segments) <= MAX_SEGMENTS
    slots = [0] * (MAX_SEGMENTS * Segment.SIZE)
    for i, (mr, tiles) in enumerate(segments):
        at = i * Segment.SIZE
        slots[at + Segment.KERNEL] = addresses[mr - 1]
        slots[at + Segment.MR] = mr
        slots[at + Segment.TILES] = tiles
    return slots
