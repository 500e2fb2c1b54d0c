"""Packed weights: packed once, in the panel width with the best estimate."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ftuner.codegen.llvm.native.kernel_records import LevelPanel
from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.cpu.tile import PACKED, ROW
from ftuner.core.product import ReadWindow
from ftuner.graph.arrays import words
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.arrays import Array, readable
from ftuner.runtime.cpu.memory import long_lived
from ftuner.runtime.cpu.plan_records import COVER_SLOTS, known_covers, segment_slots
from ftuner.runtime.cpu.products import CoverKey, Products
from ftuner.ukernels.cpu.library import LibraryName


@dataclass(frozen=True)
class Panels:
    """A weight of `n` columns and `k` steps as products read it."""

    packed: Array
    width: int
    """Vectors of a full panel."""
    n: int
    k: int
    footprint_bytes: int = 0
    """Bytes of all weights of its program, which are read between two uses of it."""

    def problem(
        self, rows: int, workers: int, layout: str = ROW, must_pack: bool = False,
        window: ReadWindow | None = None,
    ) -> Problem:  # fmt: skip
        """The problem of a product with `rows` rows of A in a layout."""
        return panel_problem(
            self.n, self.k, self.width, rows, workers, layout, must_pack, window,
            self.footprint_bytes,
        )  # fmt: skip


def unpacked(panels: Panels, lanes: int) -> Array:
    """The weight of (n, k) that was packed, for vectors of `lanes` elements; the inverse of `pack`
    where elements are as wide as the weight's."""
    n, k, packed = panels.n, panels.k, panels.packed
    found = np.empty((n, k), packed.dtype)
    nr = panels.width * lanes
    for column in range(0, n, nr):
        stored = min(nr, n - column)
        padded = -(-stored // lanes) * lanes
        panel = packed[column * k : (column + padded) * k].reshape(k, padded)
        found[column : column + stored] = panel[:, :stored].T
    return found


def pack(products: Products, weight: Array, width: int) -> Panels:
    """Pack a weight of (n, k), any strides, in panels of `width` vectors, one of the library's.
    Elements are as wide as the library reads them."""
    return pack_several(products, weight[None], width)


def pack_several(products: Products, weights: Array, width: int) -> Panels:
    """Pack weights of (count, n, k) as `pack` does, one after the other: `n` and `k` are those of
    one."""
    count, n, k = weights.shape
    library = products.compiled.library
    padded = -(-n // library.lanes) * library.lanes
    weights = words(readable(weights), library.types.b)
    memory = long_lived(count * padded * k * weights.itemsize + SLACK_BYTES)
    packed = memory[: count * padded * k * weights.itemsize].view(weights.dtype)
    for weight, target in zip(weights, packed.reshape(count, padded * k), strict=True):
        _pack_to(products, weight, width, target)
    return Panels(packed, width, n, k)


def packed_levels(weight: Array, lanes: int) -> Array:
    """A weight of (n, k) 8-bit levels as `LevelPanel` says, for vectors of `lanes` floats."""
    n, k = weight.shape
    nr, steps = LevelPanel.VECTORS * lanes, LevelPanel.STEPS
    panels, groups = -(-n // nr), -(-k // steps)
    memory = long_lived(panels * groups * nr * steps + SLACK_BYTES)
    packed = memory[: panels * groups * nr * steps].view(weight.dtype)
    whole = np.pad(weight, ((0, panels * nr - n), (0, groups * steps - k)))
    target = packed.reshape(panels, groups, nr, steps)
    target[...] = whole.reshape(panels, nr, groups, steps).transpose(0, 2, 1, 3)
    return packed


def _pack_to(products: Products, weight: Array, width: int, packed: Array) -> None:
    """Pack one weight to memory."""
    n, k = weight.shape
    library = products.compiled.library
    lanes, types = library.lanes, library.types
    nr = width * lanes
    native = None if types.widens else products.kernels.runtime.packs[types.b]
    # Full panels, then one just wide enough for the remaining columns.
    for column in range(0, n, nr):
        columns = weight[column : column + nr]
        stored = len(columns)
        padded = -(-stored // lanes) * lanes
        panel = packed[column * k : (column + padded) * k]
        if native is None:
            rows = panel.reshape(k, padded)
            rows[:, :stored] = columns.T
            rows[:, stored:] = 0
        else:
            column_stride, k_stride = columns.strides
            source, target = columns.ctypes.data, panel.ctypes.data
            native(source, k_stride, column_stride, target, k, stored, padded)


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
