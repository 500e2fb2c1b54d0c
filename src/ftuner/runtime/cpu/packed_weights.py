"""Packed weights: packed once, in the panel width with the best estimate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftuner.codegen.llvm.native.kernel_records import LevelPanel
from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.cpu.tile import ROW
from ftuner.core.product import ReadWindow
from ftuner.graph.arrays import words
from ftuner.planner.cpu.panel_width import panel_problem
from ftuner.planner.cpu.problem import Problem
from ftuner.runtime.cpu.arrays import Array, readable
from ftuner.runtime.cpu.memory import long_lived
from ftuner.runtime.cpu.products import Products


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
