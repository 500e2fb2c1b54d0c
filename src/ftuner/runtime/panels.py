"""Weights in panels: packed once, in the width that the estimate likes best."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ftuner.core.ukernel import ROW
from ftuner.planner.plan import Problem
from ftuner.runtime.arrays import Array, readable
from ftuner.runtime.encode import SLACK_BYTES
from ftuner.runtime.memory import long_lived
from ftuner.runtime.products import Products

REFERENCE_ROWS = (1, 2, 3, 5, 8, 13, 24, 32, 49, 64, 100, 128, 256, 512)
"""Rows that the width of a weight's panels is chosen for: sentence lengths and batch sizes from one
to some hundreds, each as likely as the next."""


@dataclass(frozen=True)
class Panels:
    """A weight of `n` columns and `k` steps as products read it."""

    packed: Array
    width: int
    """Vectors of a full panel."""
    n: int
    k: int
    source: str = "panels"
    """`Problem.b_source`."""

    def problem(
        self, rows: int, workers: int, layout: str = ROW, must_pack: bool = False
    ) -> Problem:
        """What the planner is asked for `rows` rows of an A that lies as told."""
        return panel_problem(
            self.n, self.k, self.width, rows, workers, layout, must_pack, self.source
        )


def panel_problem(
    n: int, k: int, width: int, rows: int, workers: int, layout: str, must_pack: bool,
    source: str = "panels",
) -> Problem:  # fmt: skip
    """What the planner is asked for a weight in panels and an A that lies as told."""
    return Problem(rows, n, k, 1, layout, must_pack, source, width, 0, workers)


def pack(products: Products, weight: Array, workers: int, width: int | None = None) -> Panels:
    """Pack a weight of (n, k), any strides.

    `width`: one of the library's; by default the one that is best for products with `workers`.
    """
    n, k = weight.shape
    if width is None:
        width = _best_width(products, n, k, workers, "panels")
    weight = readable(weight)
    library = products.compiled.library
    lanes, size = library.lanes, weight.itemsize
    nr = width * lanes
    elements = -(-n // lanes) * lanes * k
    memory = long_lived(elements * size + SLACK_BYTES)
    packed = memory[: elements * size].view(weight.dtype)
    write = products.backend.runtime.packs[library.dtype]
    source, target = weight.ctypes.data, packed.ctypes.data
    column_stride, k_stride = weight.strides
    # Full panels, then one of the vectors that the rest needs.
    for column in range(0, n, nr):
        columns = min(nr, n - column)
        padded = -(-columns // lanes) * lanes
        place = target + column * k * size
        write(source + column * column_stride, k_stride, column_stride, place, k, columns, padded)
    return Panels(packed, width, n, k)


def pack_int8(products: Products, weight: Array, workers: int) -> Panels:
    """Pack a weight of (n, k) 8-bit integers, any strides, in the width that is best for products
    with `workers`."""
    n, k = weight.shape
    width = _best_width(products, n, k, workers, "int8_panels")
    lanes = products.compiled.library.lanes
    padded = -(-n // lanes) * lanes
    packed = long_lived(padded * k + SLACK_BYTES)[: padded * k].view(np.int8)
    nr = width * lanes
    for column in range(0, n, nr):
        columns = weight[column : column + nr]
        panel = packed[column * k : min(column + nr, padded) * k].reshape(k, -1)
        panel[:, : len(columns)] = columns.T
        panel[:, len(columns) :] = 0
    return Panels(packed, width, n, k, "int8_panels")


def _best_width(products: Products, n: int, k: int, workers: int, source: str) -> int:
    planner = products.planner
    widths = products.compiled.library.widths
    if len(widths) == 1:
        return widths[0]

    def total(width: int) -> float:
        """Sum of logarithms: each count of rows weighs the same, however long it takes."""
        problems = (
            panel_problem(n, k, width, rows, workers, ROW, False, source) for rows in REFERENCE_ROWS
        )
        return sum(math.log(planner.estimate(planner.plan(p)).seconds) for p in problems)

    return min(widths, key=total)
