"""Covers as the records of kernels that call uKernels themselves."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ftuner.codegen.llvm.native.kernel_records import AllCovers
from ftuner.codegen.llvm.native.records import Segment
from ftuner.core.cpu.tile import MAX_SEGMENTS
from ftuner.cost.cpu.product import Cover
from ftuner.planner.cpu.cover import CoverTable
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.products import Products

COVER_SLOTS = MAX_SEGMENTS * Segment.SIZE


def cover_slots(products: Products, vectors: int, tail: bool, k: int, rows: int) -> list[int]:
    """The segments that cover `rows` rows by panels of `vectors` vectors; unused ones
    without tiles."""
    family, table = products.planner.cover(vectors, tail, k)
    return _slots(table[rows], products.compiled.kernels[family.name])


def all_cover_slots(
    products: Products, vectors: int, tail: bool, k: int, layout: str
) -> array[int]:
    """An `AllCovers`, of rows of A in a layout: one for each table of covers."""
    family, table = products.planner.cover(vectors, tail, k, layout)
    found = products.covers.get(table)
    if found is None:
        addresses = products.compiled.kernels[family.name]
        found = products.covers[table] = _encoded(table, addresses)
    return found


def panel_covers(products: Products, panels: Panels, layout: str) -> tuple[array[int], array[int]]:
    """An `AllCovers` for the full panels of a weight and one for its last panel; empty ones for
    panels that there are not."""
    lanes = products.compiled.library.lanes
    left = panels.n % (panels.width * lanes)
    full = tail = array("q", ())
    if panels.n > left:
        full = all_cover_slots(products, panels.width, False, panels.k, layout)
    if left:
        tail = all_cover_slots(products, -(-left // lanes), True, panels.k, layout)
    return full, tail


def _encoded(table: CoverTable, addresses: Sequence[int]) -> array[int]:
    """`addresses`: of uKernels by height."""
    slots = [0] * AllCovers.TABLES
    slots[AllCovers.LIMIT], slots[AllCovers.MAIN] = len(table.solved) - 1, table.main
    slots[AllCovers.KERNEL] = addresses[table.main - 1]
    for cover in (*table.solved, *table.rests):
        slots += _slots(cover, addresses)
    return array("q", slots)


def _slots(cover: Cover, addresses: Sequence[int]) -> list[int]:
    """The segments of a cover. `addresses`: of uKernels by height."""
    slots = [0] * COVER_SLOTS
    for i, (mr, tiles) in enumerate(cover.segments):
        at = i * Segment.SIZE
        slots[at + Segment.KERNEL] = addresses[mr - 1]
        slots[at + Segment.MR] = mr
        slots[at + Segment.TILES] = tiles
    return slots
