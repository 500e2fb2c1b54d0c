"""Packed weights: packed once, in the panel width with the best estimate, and their covers."""

from __future__ import annotations

from array import array

import numpy as np

from ftuner.codegen.llvm.native.records import SLACK_BYTES, LevelPanel
from ftuner.core.cpu.tile import PACKED, ROW
from ftuner.core.dtype import moved_as
from ftuner.core.frozen import dataclass
from ftuner.core.product import ReadWindow
from ftuner.graph.arrays import words
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.arrays import Array, readable
from ftuner.runtime.cpu.memory import long_lived
from ftuner.runtime.cpu.plan_records import known_covers
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
        panel = packed[column * k : (column + padded) * k]
        if packed.dtype.kind == "V":
            words = panel.view(np.uint32).reshape(k, -1, padded)[..., :stored]
            blocks = np.ascontiguousarray(words.transpose(2, 0, 1)).view(packed.dtype)
            found[column : column + stored] = blocks[..., 0]
        else:
            found[column : column + stored] = panel.reshape(k, padded)[:, :stored].T
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
    native = None if types.widens else products.kernels.runtime.packs[moved_as(types.b)]
    # Full panels, then one just wide enough for the remaining columns.
    for column in range(0, n, nr):
        columns = weight[column : column + nr]
        stored = len(columns)
        padded = -(-stored // lanes) * lanes
        panel = packed[column * k : (column + padded) * k]
        if types.b.kind == "block":
            # Rows of words: those of a block are apart by a row.
            block = panel.view(np.uint32).reshape(k, -1, padded)
            block[..., :stored] = _words_of_blocks(columns.T).transpose(0, 2, 1)
            block[..., stored:] = 0
        elif native is None:
            rows = panel.reshape(k, padded)
            rows[:, :stored] = columns.T
            rows[:, stored:] = 0
        else:
            column_stride, k_stride = columns.strides
            source, target = columns.ctypes.data, panel.ctypes.data
            native(source, k_stride, column_stride, target, k, stored, padded)


def _words_of_blocks(blocks: Array) -> Array:
    """The words of blocks (k, n), as (k, n, words)."""
    return np.ascontiguousarray(blocks).view(np.uint32).reshape(*blocks.shape, -1)


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
