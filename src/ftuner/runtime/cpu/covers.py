"""Covers as the records of kernels that call uKernels themselves."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ftuner.core.cpu.tile import PACKED
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.cover_records import COVER_SLOTS, known_covers, segment_slots
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.products import CoverKey, Products
from ftuner.ukernels.cpu.library import LibraryName

UsedCovers = dict[tuple[LibraryName, CoverKey], "array[int]"]
"""An `AllCovers` by library and what else decides it."""


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


def block_slots(
    products: Products, columns: int, width: int, k: int, blocks: Sequence[int]
) -> list[int]:
    """For each of some blocks of rows, the segments that cover it by the full panels of a weight,
    and by its last panel if that is not full. `width`: vectors of a panel."""
    lanes = products.compiled.library.lanes
    full, left = divmod(columns, width * lanes)
    panels = (width if full else 0, False), (-(-left // lanes), True)
    found: list[int] = []
    for rows in blocks:
        for vectors, tail in panels:
            missing = [0] * COVER_SLOTS
            found += cover_slots(products, vectors, tail, k, rows) if vectors else missing
    return found


def panel_covers(
    products: Products, panels: Panels, layout: str, used: UsedCovers
) -> tuple[array[int], array[int]]:
    """An `AllCovers` for the full panels of a weight and one for its last panel; empty ones for
    panels that there are not. Rows of A are in a layout. Adds them to `used`."""

    def covers(vectors: int, tail: bool) -> array[int]:
        key = CoverKey(vectors, tail, panels.k.bit_length(), layout)
        found = products.of_panels.get(key)
        if found is None:
            table = products.planner.cover(vectors, tail, panels.k, layout)
            found = products.of_panels.setdefault(key, products.all_covers(*table))
        library = products.compiled.library
        used[LibraryName(library.types, library.epilogue), key] = found
        return found

    lanes = products.compiled.library.lanes
    left = panels.n % (panels.width * lanes)
    full = tail = array("q", ())
    if panels.n > left:
        full = covers(panels.width, False)
    if left:
        tail = covers(-(-left // lanes), True)
    return full, tail


def know_covers(products: Products, key: CoverKey, kept: Array) -> None:
    """Have `panel_covers` return covers that were kept."""
    family = products.compiled.library.family(key.vectors, key.tail, key.layout, PACKED)
    addresses = products.compiled.kernels[family.name]
    products.of_panels.setdefault(key, known_covers(kept, addresses))
