"""Covers as the records of kernels that call uKernels themselves."""

from __future__ import annotations

from array import array

from ftuner.core.cpu.tile import PACKED, ROW
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.cover_records import known_covers
from ftuner.runtime.cpu.products import CoverKey, Products
from ftuner.ukernels.cpu.library import LibraryName

UsedCovers = dict[tuple[LibraryName, CoverKey], "array[int]"]
"""An `AllCovers` by library and what else decides it."""


def covers_of(
    products: Products, vectors: int, tail: bool, k: int, layout: str = ROW
) -> array[int]:
    """An `AllCovers` for panels of `vectors` vectors and `k` steps. Rows of A are in a layout."""
    key = CoverKey(vectors, tail, k.bit_length(), layout)
    found = products.of_panels.get(key)
    if found is None:
        table = products.planner.cover(vectors, tail, k, layout)
        found = products.of_panels.setdefault(key, products.all_covers(*table))
    return found


def panel_covers(
    products: Products, columns: int, width: int, k: int, used: UsedCovers, layout: str = ROW
) -> tuple[array[int], array[int]]:
    """An `AllCovers` for the full panels of a weight and one for its last panel, which are the same
    if it has no others. `width`: vectors of a panel. Adds them to `used`."""
    library = products.compiled.library
    full, left = divmod(columns, width * library.lanes)
    panels = [(width, False)] * (full > 0) + [(-(-left // library.lanes), True)] * (left > 0)
    found = []
    for vectors, tail in panels:
        found.append(covers_of(products, vectors, tail, k, layout))
        key = CoverKey(vectors, tail, k.bit_length(), layout)
        used[LibraryName(library.types, library.epilogue), key] = found[-1]
    return found[0], found[-1]


def know_covers(products: Products, key: CoverKey, kept: Array) -> None:
    """Have `panel_covers` return covers that were kept."""
    family = products.compiled.library.family(key.vectors, key.tail, key.layout, PACKED)
    addresses = products.compiled.kernels[family.name]
    products.of_panels.setdefault(key, known_covers(kept, addresses))
