"""Weights in panels: packed once, in the width that the estimate likes best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftuner.core.cpu.tile import ROW
from ftuner.planner.cpu.panel_width import panel_problem
from ftuner.planner.cpu.problem import Problem
from ftuner.runtime.cpu.arrays import Array, readable
from ftuner.runtime.cpu.memory import long_lived
from ftuner.runtime.cpu.plan_records import SLACK_BYTES
from ftuner.runtime.cpu.products import Products


@dataclass(frozen=True)
class Panels:
    """A weight of `n` columns and `k` steps as products read it."""

    packed: Array
    width: int
    """Vectors of a full panel."""
    n: int
    k: int

    def problem(
        self, rows: int, workers: int, layout: str = ROW, must_pack: bool = False
    ) -> Problem:
        """What the planner is asked for `rows` rows of an A that lies as told."""
        int8 = self.packed.dtype == np.int8
        return panel_problem(self.n, self.k, self.width, rows, workers, layout, must_pack, int8)


def pack(products: Products, weight: Array, width: int) -> Panels:
    """Pack a weight of (n, k), any strides, in panels of `width` vectors, one of the library's."""
    n, k = weight.shape
    weight = readable(weight)
    library = products.compiled.library
    lanes, size = library.lanes, weight.itemsize
    nr = width * lanes
    elements = -(-n // lanes) * lanes * k
    memory = long_lived(elements * size + SLACK_BYTES)
    packed = memory[: elements * size].view(weight.dtype)
    write = products.kernels.runtime.packs[library.dtype]
    source, target = weight.ctypes.data, packed.ctypes.data
    column_stride, k_stride = weight.strides
    # Full panels, then one of the vectors that the rest needs.
    for column in range(0, n, nr):
        columns = min(nr, n - column)
        padded = -(-columns // lanes) * lanes
        place = target + column * k * size
        write(source + column * column_stride, k_stride, column_stride, place, k, columns, padded)
    return Panels(packed, width, n, k)


def pack_int8(products: Products, weight: Array, width: int) -> Panels:
    """Pack a weight of (n, k) 8-bit integers, any strides, in panels of `width` vectors."""
    n, k = weight.shape
    lanes = products.compiled.library.lanes
    padded = -(-n // lanes) * lanes
    packed = long_lived(padded * k + SLACK_BYTES)[: padded * k].view(np.int8)
    nr = width * lanes
    for column in range(0, n, nr):
        columns = weight[column : column + nr]
        panel = packed[column * k : min(column + nr, padded) * k].reshape(k, -1)
        panel[:, : len(columns)] = columns.T
        panel[:, len(columns) :] = 0
    return Panels(packed, width, n, k)
