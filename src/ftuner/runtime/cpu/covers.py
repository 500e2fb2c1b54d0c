"""Covers as the records of kernels that call uKernels themselves."""

from __future__ import annotations

from array import array

from ftuner.runtime.cpu.cover_records import segment_slots
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.products import Products


def cover_slots(products: Products, vectors: int, tail: bool, k: int, rows: int) -> list[int]:
    """The segments that cover `rows` rows by panels of `vectors` vectors; unused ones
    without tiles."""
    key = (vectors, tail, k.bit_length(), rows)
    found = products.segments.get(key)
    if found is None:
        family, table = products.planner.cover(vectors, tail, k)
        found = segment_slots(table[rows].segments, products.compiled.kernels[family.name])
        products.segments.add(key, found)
    return found


def all_cover_slots(
    products: Products, vectors: int, tail: bool, k: int, layout: str
) -> array[int]:
    """An `AllCovers`, of rows of A in a layout: one for each table of covers."""
    return products.all_covers(*products.planner.cover(vectors, tail, k, layout))


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
