"""`grouped_matmul` of tensors on a GPU: many products by a table of them and few launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ftuner.codegen.triton.product import BEYOND_ALL, COLUMNS, LOOKED_AT, grouped_source
from ftuner.core.dtype import DType
from ftuner.core.gpu.tile import (
    ALIGNMENT_BYTES,
    MOST_COUNTED,
    BlockTile,
    Multiply,
    Order,
    common_alignment,
)
from ftuner.errors import DTypeError, ShapeError, UnsupportedKernelError
from ftuner.planner.gpu.grouped import (
    GroupedPlan,
    GroupedPlanner,
    GroupedProblem,
    grouped_planner_for,
)
from ftuner.runtime.gpu.arrays import (
    Tensor,
    address_range,
    allows_tf32,
    as_tensor,
    matrix_dtype,
    multiply_of,
    writable,
)
from ftuner.runtime.gpu.kernels import Kernel, Kernels
from ftuner.runtime.gpu.launching import is_capturing
from ftuner.runtime.gpu.operands import lying
from ftuner.runtime.ops.operands import Groups, crossing, product_extents, same_dtype
from ftuner.ukernels.gpu.library import GpuLibrary


class _Alike(NamedTuple):
    """What is the same for all groups of a launch."""

    a_order: Order
    b_order: Order
    alignment: int


class _Like(NamedTuple):
    """The key of kernels, which are compiled for all tiles of a library at once."""

    dtype: DType
    multiply: Multiply
    alike: _Alike
    c_aligned: bool


class _Prepared(NamedTuple):
    """The planner of such launches, and all kernels that a plan may launch."""

    planner: GroupedPlanner
    kernels: Mapping[BlockTile, Kernel]


class _Group(NamedTuple):
    """One product of a launch."""

    size: tuple[int, int, int]
    row: tuple[int, ...]
    """The group's row of the table, without the last column."""
    c_aligned: bool
    operands: tuple[Tensor, Tensor]
    """A and B or copies of them, referenced until the launch."""


class GroupedMatmul:
    """Grouped products on one GPU; safe to use from several threads, each on its own stream."""

    def __init__(self, kernels: Kernels, library: Callable[[DType, Multiply], GpuLibrary]) -> None:
        self.device = kernels.device
        self._kernels = kernels
        self._library = library
        self._prepared: dict[_Like, _Prepared] = {}

    def __call__(self, groups: Groups) -> list[Tensor]:
        """`ftuner.grouped_matmul`, for tensors on the device."""
        a = [as_tensor(x, f"a[{i}]", self.device) for i, x in enumerate(groups.a)]
        b = [as_tensor(x, f"b[{i}]", self.device) for i, x in enumerate(groups.b)]
        if not a:
            return []
        matrix_dtype(a[0], "a[0]")
        for name, tensors in (("a", a), ("b", b)):
            for i, x in enumerate(tensors):
                same_dtype(a[0], x, f"{name}[{i}]")
        if groups.out is None:
            results = [
                torch.empty(extents, dtype=a[0].dtype, device=self.device)
                for extents in [
                    product_extents(i, x.shape, y.shape)
                    for i, (x, y) in enumerate(zip(a, b, strict=True))
                ]
            ]
            self._into(a, b, results)
            return results
        results = [writable(x, f"out[{i}]", self.device) for i, x in enumerate(groups.out)]
        for i, (x, y, z) in enumerate(zip(a, b, results, strict=True)):
            product_extents(i, x.shape, y.shape, z.shape)
            if z.dtype != x.dtype:
                raise DTypeError(f"out[{i}] has dtype {z.dtype}, the operands {x.dtype}")
        # All groups are computed at once: a result must not overlap an operand of any group.
        late = crossing([address_range(z) for z in results], [address_range(x) for x in (*a, *b)])
        targets = [
            torch.empty(z.shape, dtype=z.dtype, device=self.device)
            if apart or (z.stride(0) != 1 and z.stride(1) != 1)
            else z
            for z, apart in zip(results, late, strict=True)
        ]
        self._into(a, b, targets)
        for z, target in zip(results, targets, strict=True):
            if target is not z:
                z.copy_(target)
        return results

    def _into(self, a: Sequence[Tensor], b: Sequence[Tensor], c: Sequence[Tensor]) -> None:
        """Computes the products to tensors that overlap no others and are contiguous along an
        axis."""
        products = []
        for x, y, z in zip(a, b, c, strict=True):
            if not z.numel():
                continue
            if not x.shape[1]:
                z.zero_()
            elif z.stride(1) == 1:
                products.append((x, y, z))
            else:
                # C is contiguous along m: the transposed product is computed.
                products.append((y.mT, x.mT, z.mT))
        self.run(products)

    def run(self, products: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """`c = a @ b` for each (a, b, c), on the current stream: one launch for all groups of the
        same orders and alignment.

        Args:
            products: `(m, k)`, `(k, n)` and `(m, n)`, of one dtype; nothing is empty. The last axis
                of each c is contiguous, and c overlaps no other tensor.

        Raises:
            ShapeError: more than `MOST_COUNTED` rows, columns, elements of a sum, or tiles.
            UnsupportedKernelError: a CUDA graph is being captured; the table is made on the host
                for each call.
        """
        if not products:
            return
        if is_capturing(self.device):
            raise UnsupportedKernelError(
                "grouped products cannot be captured in a CUDA graph: their table is made on the "
                "host for each call; multiply the groups one by one"
            )
        dtype = matrix_dtype(products[0][0], "a")
        launches: dict[_Alike, list[_Group]] = {}
        for a, b, c in products:
            alike, group = _described(a, b, c)
            launches.setdefault(alike, []).append(group)
        multiply = multiply_of(dtype, allows_tf32())
        for alike, groups in launches.items():
            c_aligned = all(group.c_aligned for group in groups)
            self._launch(_Like(dtype, multiply, alike, c_aligned), groups)

    def _launch(self, like: _Like, groups: Sequence[_Group]) -> None:
        planner, kernels = self._prepared.get(like) or self._prepare(like)
        orders = like.alike.a_order, like.alike.b_order
        plan = planner.plan(GroupedProblem(tuple(group.size for group in groups), *orders))
        if plan.tiles > MOST_COUNTED:
            raise ShapeError(f"{plan.tiles} tiles in one call: at most {MOST_COUNTED} are possible")
        ends, table = self._uploaded(*_numbers(plan, groups))
        kernels[plan.kernel.main](plan.programs, ends, table, plan.tiles, plan.swizzle)

    def _prepare(self, like: _Like) -> _Prepared:
        """Returns the planner and compiles all kernels that a plan may launch."""
        a_order, b_order, alignment = like.alike
        planner = grouped_planner_for(self._library(like.dtype, like.multiply), alignment)
        wanted = planner.kernels(a_order, b_order)
        sources = [grouped_source(replace(kernel, c_aligned=like.c_aligned)) for kernel in wanted]
        self._kernels.prepare(sources)
        made = map(self._kernels.kernel, sources)
        kernels = dict(zip((kernel.main for kernel in wanted), made, strict=True))
        found = self._prepared[like] = _Prepared(planner, kernels)
        return found

    def _uploaded(
        self, ends: npt.NDArray[np.int64], table: npt.NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Returns both on the device. torch does not reuse the pinned memory before the copy is
        done."""
        if self.device.type == "cpu":
            return torch.from_numpy(ends), torch.from_numpy(table)
        host = torch.empty(ends.size + table.size, dtype=torch.int64, pin_memory=True)
        numbers = host.numpy()
        numbers[: ends.size] = ends
        numbers[ends.size :] = table
        whole = host.to(self.device, non_blocking=True)
        return whole[: ends.size], whole[ends.size :]


def _described(a: Tensor, b: Tensor, c: Tensor) -> tuple[_Alike, _Group]:
    """Returns the orders and alignment of a group, and its row of the table."""
    (m, k), n = a.shape, b.shape[1]
    if max(m, n, k) > MOST_COUNTED:
        raise ShapeError(f"a product of {m} x {n} x {k}: each extent is at most {MOST_COUNTED}")
    a_lies = lying(m, k, *a.stride())
    if a_lies is None:
        a = a.contiguous()
        a_lies = lying(m, k, *a.stride())
    b_lies = lying(n, k, *reversed(b.stride()))
    if b_lies is None:
        b = b.contiguous()
        b_lies = lying(n, k, *reversed(b.stride()))
    c_lies = lying(m, n, *c.stride())
    assert a_lies is not None
    assert b_lies is not None
    assert c_lies is not None
    (a_order, a_stride), (b_order, b_stride), (_, c_row) = a_lies, b_lies, c_lies
    a_place, b_place, c_place = a.data_ptr(), b.data_ptr(), c.data_ptr()
    # Of addresses and strides, and of k where pointers advance along it.
    size = a.element_size()
    along = k if "k" in (a_order, b_order) else 0
    alignment = common_alignment(
        a_place, b_place, *(size * elements for elements in (a_stride, b_stride, along))
    )
    c_aligned = common_alignment(c_place, size * c_row) == ALIGNMENT_BYTES
    row = a_place, b_place, c_place, m, n, k, a_stride, b_stride, c_row
    return _Alike(a_order, b_order, alignment), _Group((m, n, k), row, c_aligned, (a, b))


def _numbers(
    plan: GroupedPlan, groups: Sequence[_Group]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the arguments `ends` and `table` of the kernel."""
    count = len(groups)
    ends = np.full(-(-count // LOOKED_AT) * LOOKED_AT, BEYOND_ALL, np.int64)
    ends[:count] = plan.ends
    table = np.empty((count, len(COLUMNS)), np.int64)
    table[:, :-1] = [groups[number].row for number in plan.order]
    table[0, -1] = 0
    table[1:, -1] = plan.ends[:-1]
    return ends, table.reshape(-1)
