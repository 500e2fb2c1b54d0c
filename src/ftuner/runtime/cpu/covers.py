"""Covers as the records of kernels that call uKernels themselves."""

from __future__ import annotations

from ftuner.codegen.llvm.native.records import Segment
from ftuner.core.cpu.tile import MAX_SEGMENTS
from ftuner.runtime.cpu.products import Products

COVER_SLOTS = MAX_SEGMENTS * Segment.SIZE


def cover_slots(products: Products, vectors: int, tail: bool, k: int, rows: int) -> list[int]:
    """The segments that cover `rows` rows by panels of `vectors` vectors; unused ones
    without tiles."""
    family, table = products.planner.cover(vectors, tail, k)
    addresses = products.compiled.kernels[family.name]
    slots = [0] * COVER_SLOTS
    for i, (mr, tiles) in enumerate(table[rows].segments):
        at = i * Segment.SIZE
        slots[at + Segment.KERNEL] = addresses[mr - 1]
        slots[at + Segment.MR] = mr
        slots[at + Segment.TILES] = tiles
    return slots
