"""Grouped products on one GPU: from operands as they lie to a table and few launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ftuner.codegen.triton.grouped import BEHIND_ALL, COLUMNS, LOOKED_AT, grouped_source
from ftuner.core.block import BlockKernel, Multiply, Order
from ftuner.core.dtype import DType
from ftuner.errors import ShapeError, UnsupportedKernelError
from ftuner.planner.block_grouped import GroupedPlan, GroupedProblem, grouped_planner_for
from ftuner.runtime.gpu.launching import Kernel, Kernels
from ftuner.runtime.gpu.operands import between, order_of
from ftuner.runtime.gpu.tensors import ALIGNMENT_BYTES, Tensor, matrix_dtype, multiply_of
from ftuner.ukernels.blocks import BlockLibrary

MAX_EXTENT = 2**31 - 1
"""Extents are 32-bit integers in kernels; addresses, strides and offsets have 64."""
MAX_TILES = 2**31 - 2**20
"""Of a launch: the number of a tile and of what a program does next have 32 bits."""


class _Alike(NamedTuple):
    """What all groups of a launch have in common."""

    a_order: Order
    b_order: Order
    aligned: bool


class _Like(NamedTuple):
    """What kernels are compiled for, all of a library at once."""

    dtype: DType
    multiply: Multiply
    alike: _Alike
    c_aligned: bool


class _Group(NamedTuple):
    """One product, as it is launched."""

    size: tuple[int, int, int]
    row: tuple[int, ...]
    """Of the table, but for its last column."""
    c_aligned: bool
    operands: tuple[Tensor, Tensor]
    """Copies may have been made of them, which live until they are launched."""


class GroupedProducts:
    """Grouped products on one GPU; safe to use from several threads, each on its own stream."""

    def __init__(
        self,
        device: torch.device,
        kernels: Kernels,
        library: Callable[[DType, Multiply], BlockLibrary],
    ) -> None:
        self.device = device
        self._kernels = kernels
        self._library = library
        self._prepared: dict[_Like, dict[BlockKernel, Kernel]] = {}

    def run(self, products: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """`c = a @ b` for each (a, b, c), on the current stream: one launch for those that lie
        alike.

        Args:
            products: `(m, k)`, `(k, n)` and `(m, n)`, of one dtype; nothing is empty. The last axis
                of each c is contiguous, and c apart from all others.

        Raises:
            ShapeError: an extent of 2^31 or more, or so many tiles.
            UnsupportedKernelError: a CUDA graph is being captured; the table is made on the host,
                anew for each call.
        """
        if not products:
            return
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise UnsupportedKernelError(
                "grouped products cannot be captured in a CUDA graph: their table is made on the "
                "host for each call; multiply the groups one by one"
            )
        dtype = matrix_dtype(products[0][0], "a")
        launches: dict[_Alike, list[_Group]] = {}
        for a, b, c in products:
            alike, group = _described(a, b, c)
            launches.setdefault(alike, []).append(group)
        multiply = multiply_of(dtype)
        for alike, groups in launches.items():
            c_aligned = all(group.c_aligned for group in groups)
            self._launch(_Like(dtype, multiply, alike, c_aligned), groups)

    def _launch(self, like: _Like, groups: Sequence[_Group]) -> None:
        kernels = self._prepare(like)
        planner = grouped_planner_for(self._library(like.dtype, like.multiply))
        plan = planner.plan(GroupedProblem(tuple(group.size for group in groups), *like.alike))
        if plan.tiles > MAX_TILES:
            raise ShapeError(f"{plan.tiles} tiles in one call: at most {MAX_TILES} are possible")
        kernel = kernels[replace(plan.kernel, c_aligned=like.c_aligned)]
        ends, table = self._uploaded(*_numbers(plan, groups))
        kernel(plan.programs, ends, table, plan.tiles, plan.group)

    def _prepare(self, like: _Like) -> Mapping[BlockKernel, Kernel]:
        """All kernels that a plan may launch, compiled when the first of them is asked for."""
        found = self._prepared.get(like)
        if found is None:
            planner = grouped_planner_for(self._library(like.dtype, like.multiply))
            kernels = [
                replace(kernel, c_aligned=like.c_aligned) for kernel in planner.kernels(*like.alike)
            ]
            sources = [grouped_source(kernel) for kernel in kernels]
            self._kernels.prepare(sources)
            made = map(self._kernels.kernel, sources)
            found = self._prepared[like] = dict(zip(kernels, made, strict=True))
        return found

    def _uploaded(
        self, ends: npt.NDArray[np.int64], table: npt.NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Both on the device. Pinned memory is torch's, which gives it to nobody else before the
        stream is past the copy."""
        if self.device.type == "cpu":
            return torch.from_numpy(ends), torch.from_numpy(table)
        host = torch.empty(ends.size + table.size, dtype=torch.int64, pin_memory=True)
        numbers = host.numpy()
        numbers[: ends.size] = ends
        numbers[ends.size :] = table
        whole = host.to(self.device, non_blocking=True)
        return whole[: ends.size], whole[ends.size :]


def _described(a: Tensor, b: Tensor, c: Tensor) -> tuple[_Alike, _Group]:
    """How a group lies, and what the kernel is told of it."""
    a_order, b_order = order_of(a, -1), order_of(b, -2)
    if a_order is None:
        a, a_order = a.contiguous(), "k"
    if b_order is None:
        b, b_order = b.contiguous(), "spatial"
    (m, k), n = a.shape, b.shape[1]
    if max(m, n, k) > MAX_EXTENT:
        raise ShapeError(f"a product of {m} x {n} x {k}: extents end at {MAX_EXTENT}")
    places = a.data_ptr(), b.data_ptr(), c.data_ptr()
    strides = between(a, a_order, -1), between(b, b_order, -2), between(c, "k", -1)
    size = a.element_size()
    a_whole, b_whole, c_whole = (
        place % ALIGNMENT_BYTES == 0 and stride * size % ALIGNMENT_BYTES == 0
        for place, stride in zip(places, strides, strict=True)
    )
    # Pointers walk along a contiguous k in whole granules.
    k_whole = k * size % ALIGNMENT_BYTES == 0 or "k" not in (a_order, b_order)
    group = _Group((m, n, k), (*places, m, n, k, *strides), c_whole, (a, b))
    return _Alike(a_order, b_order, a_whole and b_whole and k_whole), group


def _numbers(
    plan: GroupedPlan, groups: Sequence[_Group]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`ends` and `table` of a plan, as the kernel takes them."""
    count = len(groups)
    ends = np.full(-(-count // LOOKED_AT) * LOOKED_AT, BEHIND_ALL, np.int64)
    ends[:count] = plan.ends
    table = np.empty((count, len(COLUMNS)), np.int64)
    table[:, :-1] = [groups[number].row for number in plan.order]
    table[0, -1] = 0
    table[1:, -1] = plan.ends[:-1]
    return ends, table.reshape(-1)
