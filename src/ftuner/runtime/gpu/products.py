"""Products on one GPU: from operands of any layout to a plan and its launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple, get_args

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.product_arguments import (
    a_block,
    b_block,
    c_block,
    gemm_arguments,
    operand_argument,
    stored_block,
    workspace_elements,
)
from ftuner.codegen.triton.source import Source
from ftuner.core.caching import RecentlyUsed
from ftuner.core.dtype import FLOAT32, DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.expr import operands as operands_of
from ftuner.core.gpu.tile import (
    ALIGNMENT_BYTES,
    ALIGNMENTS,
    MOST_COUNTED,
    Multiply,
    Order,
    ProductKernel,
    common_alignment,
)
from ftuner.cost.gpu.tile import instruction_of
from ftuner.errors import ShapeError
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.planner.gpu.planner import ProductPlanner, product_planner_for
from ftuner.runtime.backend import Tuned
from ftuner.runtime.gpu.arrays import Tensor, allows_tf32, copied_bytes, matrix_dtype, multiply_of
from ftuner.runtime.gpu.call_cache import MAX_CALLS
from ftuner.runtime.gpu.kernels import LATE, BoundKernel, Geometry, Kernel, Kernels
from ftuner.runtime.gpu.operands import (
    BoundWindow,
    Product,
    ProductOperands,
    alignment_of,
    arranged,
    batch_axes,
    between,
    launches,
    moved,
    order_of,
)
from ftuner.runtime.gpu.packing import Packing
from ftuner.runtime.gpu.scratch import Scratch
from ftuner.runtime.shown_progress import Progress
from ftuner.ukernels.gpu.library import GpuLibrary


class _Like(NamedTuple):
    """The key of kernels, which are compiled for all tiles of a library at once."""

    dtype: DType
    multiply: Multiply
    a_order: Order
    b_order: Order
    alignment: int
    c_aligned: bool
    epilogue: Expr
    vectors: DType | None = None
    """The dtype of the epilogue's rows and columns, if not `dtype`."""
    window: int = 0
    """As in `ProductKernel`."""

    def problem(
        self, m: int, n: int, k: int, batch: int, window: BoundWindow | None
    ) -> ProductProblem:
        read = None if window is None else window.read
        orders = self.a_order, self.b_order
        return ProductProblem(m, n, k, batch, *orders, self.alignment, self.c_aligned, read)


class _Prepared(NamedTuple):
    """The planner of such products, and all kernels that a plan may launch."""

    planner: ProductPlanner
    kernels: Mapping[ProductKernel, Kernel]


class _Call(NamedTuple):
    """The launches for operands of one layout, with all arguments except tensors."""

    kernel: Kernel
    plan: ProductPlan
    arguments: tuple[str, ...]
    """Names, in the kernel's order."""
    numbers: Mapping[str, int]
    described: Mapping[str, Geometry]
    read: tuple[tuple[str, str], ...]
    """Operands of the epilogue, and their argument names."""
    offsets: tuple[tuple[int, ...], ...]
    """Offsets of A, B, C and the epilogue's matrices, in elements, for each launch."""


class Products:
    """Matrix products on one GPU; safe to use from several threads, each on its own stream."""

    def __init__(
        self, kernels: Kernels, scratch: Scratch, library: Callable[[DType, Multiply], GpuLibrary]
    ) -> None:
        self.device = kernels.device
        self._kernels = kernels
        self._library = library
        self._calls: RecentlyUsed[tuple[object, ...], _Call] = RecentlyUsed(MAX_CALLS)
        """By the layout of operands."""
        self._packing = Packing(library)
        self._scratch = scratch
        self._written: dict[_Like, dict[ProductKernel, Source]] = {}
        """The sources of a key: a model asks for the same ones at all extents of its rehearsals."""
        self._prepared: dict[_Like, _Prepared] = {}

    def library(self, dtype: DType) -> GpuLibrary:
        """Returns the library of a dtype, by torch's current setting of tf32."""
        return self._library(dtype, multiply_of(dtype, allows_tf32()))

    def tune(self, dtype: DType, epilogue: Expr, progress: Progress | None = None) -> Tuned:
        """Compiles all kernels for products of contiguous rows by contiguous or transposed matrices
        of any extents."""
        found: dict[Source, None] = {}
        multiply = multiply_of(dtype, allows_tf32())
        for b_order in get_args(Order):
            for both, rest in product(_classes(dtype), (True, False)):
                like = _Like(dtype, multiply, "k", b_order, both, rest, epilogue)
                found.update(dict.fromkeys(self._sources(like).values()))
        return self._kernels.prepare(list(found), progress)

    def ready(self, b: Tensor, epilogue: Expr = ACCUMULATOR) -> None:
        """Compiles all kernels for products of any number of rows by a matrix of the layout of `b`,
        where rows of A, and of C and the epilogue's matrices, are aligned as contiguous ones are,
        or to 16 bytes."""
        dtype = matrix_dtype(b, "b")
        order = order_of(b, -2)
        assert order is not None
        # The pitch of one row is aligned whatever its length is.
        rest = {True, b.shape[-1] * b.element_size() % ALIGNMENT_BYTES == 0}
        # Rows of A are as long as k.
        both = common_alignment(alignment_of(b, -2), b.shape[-2] * b.element_size())
        multiply = multiply_of(dtype, allows_tf32())
        for found, c_aligned in product({both, ALIGNMENT_BYTES}, rest):
            self._prepare(_Like(dtype, multiply, "k", order, found, c_aligned, epilogue))

    def wanted(self, product: Product) -> list[Source]:
        """Returns what `launch` may launch for operands of these layouts, and for others of any
        alignment unless these are aligned."""
        like = self._like(arranged(product), product.epilogue)
        classes = [like.alignment]
        if like.alignment < ALIGNMENT_BYTES:
            classes = _classes(like.dtype)
        found: dict[Source, None] = {}
        for bytes_ in classes:
            found.update(dict.fromkeys(self._sources(like._replace(alignment=bytes_)).values()))
        return list(found)

    def launch(self, product: Product) -> Sequence[BoundKernel] | None:
        """Computes a product on the current stream.

        Returns:
            The launches, valid for all tensors of the same layout at the same addresses; None if an
            operand was copied.

        Raises:
            ShapeError: more than `MOST_COUNTED` rows, columns, elements of a sum, matrices of a
                batch, tiles, or parts of these.
        """
        found = self._packed(arranged(product))
        call = self._call(found, product.epilogue)
        launches = [self._bound(call, found, offsets) for offsets in call.offsets]
        for bound in launches:
            bound.launch()
        pairs = (found.a, product.a), (found.b, product.b)
        return launches if all(x.data_ptr() == y.data_ptr() for x, y in pairs) else None

    def order_of_sums(self, product: Product) -> tuple[ProductKernel, int, int] | None:
        """Returns what decides the order of the sums of `launch` for operands of these layouts: the
        kernel, the parts of k, and k with the zeros that copies have. None if rows of the two bands
        have different instructions."""
        found = self._packed(arranged(product))
        plan = self._call(found, product.epilogue).plan
        kernel, dtype = plan.kernel, matrix_dtype(product.a, "a")
        hardware = self._library(dtype, found.multiply).hardware
        used = {instruction_of(hardware, tile, kernel.multiply) for tile in kernel.tiles}
        return (kernel, plan.split_k, plan.problem.k) if len(used) == 1 else None

    @property
    def calls(self) -> Iterator[_Call]:
        """Plans and kernels of the layouts of operands that are kept."""
        return self._calls.values()

    def workspace_bytes(self, product: Product) -> int:
        """Returns the bytes that `launch` allocates: copies of operands, and one launch's partial
        sums."""
        found = self._packed(arranged(product))
        copies = copied_bytes([found.a, found.b], [product.a, product.b])
        plan = self._call(found, product.epilogue).plan
        return copies + FLOAT32.itemsize * _workspace_elements(plan)

    def _call(self, operands: ProductOperands, epilogue: Expr) -> _Call:
        layout = [(x.shape, x.stride()) for x in operands.matrices]
        key = (
            *layout, operands.both, operands.rest, operands.a.dtype, operands.multiply,
            operands.vectors, epilogue, operands.window,
        )  # fmt: skip
        call = self._calls.get(key)
        if call is None:
            call = self._make(operands, epilogue)
            self._calls.add(key, call)
        return call

    def _packed(self, operands: ProductOperands) -> ProductOperands:
        """Returns the operands, with copies of aligned pitch where these take less time."""
        like = self._like(operands, ACCUMULATOR)
        if like.alignment == ALIGNMENT_BYTES or operands.window is not None:
            return operands
        c = operands.c
        (m, n), k, batch = c.shape[-2:], operands.b.shape[-2], math.prod(c.shape[:-2])
        return self._packing(operands, like.problem(m, n, k, batch, None))

    def _like(self, operands: ProductOperands, epilogue: Expr) -> _Like:
        a = operands.a
        a_order, b_order = order_of(a, -1), order_of(operands.b, -2)
        assert a_order is not None
        assert b_order is not None
        window, both = operands.window, operands.both
        library = self._library(matrix_dtype(a, "a"), operands.multiply)
        by_descriptors = library.loads(both) == "descriptors"
        if window is None and "k" in (a_order, b_order) and not by_descriptors:
            # Pointers advance along a contiguous k in whole granules.
            both = common_alignment(both, a.shape[-1] * a.element_size())
        return _Like(
            matrix_dtype(a, "a"), operands.multiply, a_order, b_order, both, operands.rest,
            epilogue, operands.vectors, 0 if window is None else window.read.axes,
        )  # fmt: skip

    def _sources(self, like: _Like) -> dict[ProductKernel, Source]:
        """Returns the sources of all kernels that a plan may launch."""
        found = self._written.get(like)
        if found is None:
            dtype, multiply, a_order, b_order, both, c_aligned, epilogue, vectors, window = like
            library = self._library(dtype, multiply)
            kernels = library.kernels(a_order, b_order, both, epilogue, c_aligned, window)
            kernels = tuple(replace(kernel, vectors=vectors) for kernel in kernels)
            found = self._written[like] = {kernel: gemm_source(kernel) for kernel in kernels}
        return found

    def _prepare(self, like: _Like) -> _Prepared:
        """Returns the planner and all kernels of a key; compiles them on the first call."""
        found = self._prepared.get(like)
        if found is None:
            sources = self._sources(like)
            self._kernels.prepare(list(sources.values()))
            kernels = {kernel: self._kernels.kernel(source) for kernel, source in sources.items()}
            planner = product_planner_for(self._library(like.dtype, like.multiply))
            found = self._prepared[like] = _Prepared(planner, kernels)
        return found

    def _make(self, operands: ProductOperands, epilogue: Expr) -> _Call:
        a, b, c, given = operands[:4]
        (m, n), k = c.shape[-2:], b.shape[-2]
        window = operands.window
        matrices = {name: x for name, x in given.items() if x.dim() > 1}
        axis, offsets = launches(
            batch_axes(c.shape[:-2], a, b, c, *matrices.values()), 3 + len(matrices)
        )
        if max(m, n, k, axis.extent) > MOST_COUNTED:
            raise ShapeError(
                f"{axis.extent} products of {m} x {n} x {k}: each extent is at most {MOST_COUNTED}"
            )
        like = self._like(operands, epilogue)
        a_order, b_order = like.a_order, like.b_order
        plan, kernel = self._planned(like, like.problem(m, n, k, axis.extent, window))
        # Steps of k times split-k are fewer: split-k is at most the steps of a tile.
        if plan.tiles * plan.split_k > MOST_COUNTED:
            raise ShapeError(
                f"{axis.extent} products of {m} x {n} x {k} have {plan.tiles * plan.split_k} tiles "
                f"and parts of tiles: at most {MOST_COUNTED} are possible; cut the longest extent"
            )
        described = plan.kernel.loads == "descriptors"
        numbers = {
            "m": m, "n": n, "k": k, "batch": axis.extent, "rows": plan.rows,
            "swizzle": plan.swizzle, "split_k": plan.split_k,
            "a_stride": between(a, a_order, -1), "b_stride": between(b, b_order, -2),
            "a_batch": axis.strides[0], "b_batch": axis.strides[1], "c_batch": axis.strides[2],
            "c_row": between(c, "k", -1),
        }  # fmt: skip
        if described:
            numbers |= {name: int(numbers[name] != 0) for name in ("a_batch", "b_batch")}
        for number, (name, x) in enumerate(matrices.items(), 3):
            numbers[f"{operand_argument(name)}_row"] = between(x, "k", -1)
            numbers[f"{operand_argument(name)}_batch"] = axis.strides[number]
        if window is not None:
            numbers |= window.arguments
            for name in given.keys() - matrices.keys():
                # Groups have columns of their own.
                numbers[f"{operand_argument(name)}_batch"] = n if axis.extent > 1 else 0
        return _Call(
            kernel=kernel,
            plan=plan,
            arguments=tuple(x.name for x in gemm_arguments(plan.kernel)),
            numbers=numbers,
            described=_geometries(plan, numbers, axis.strides),
            read=tuple((x.name, operand_argument(x.name)) for x in operands_of(epilogue)),
            offsets=tuple(offsets),
        )

    def _planned(self, like: _Like, problem: ProductProblem) -> tuple[ProductPlan, Kernel]:
        prepared = self._prepare(like)
        plan = prepared.planner.plan(problem, like.epilogue)
        plan = plan._replace(kernel=replace(plan.kernel, vectors=like.vectors))
        return plan, prepared.kernels[plan.kernel]

    def _bound(
        self, call: _Call, operands: ProductOperands, offsets: tuple[int, ...]
    ) -> BoundKernel:
        plan, argument = call.plan, call.kernel.argument
        a, b, c, *rest = map(moved, operands.matrices, offsets)
        bases = {"a": a, "b": b, "c": c}
        values: dict[str, Any] = {"workspace": LATE, "counters": LATE, **call.numbers}
        for name in bases.keys() - call.described.keys():
            values[name] = argument(bases[name])
        for name, geometry in call.described.items():
            values[name] = argument(bases[name[0]], geometry)
        matrices = iter(rest)
        placed = {n: next(matrices) if x.dim() > 1 else x for n, x in operands.given.items()}
        for name, of_kernel in call.read:
            values[of_kernel] = argument(placed[name])
        arguments = [values[name] for name in call.arguments]
        if not plan.kernel.split:
            return BoundKernel(call.kernel, plan.programs, arguments)
        scratch = _workspace_elements(plan), plan.tiles
        late = partial(self._scratch.take, *scratch)
        return BoundKernel(call.kernel, plan.programs, arguments, late, scratch)


def _workspace_elements(plan: ProductPlan) -> int:
    """Returns the number of float32 partial sums of a launch; 0 without split-k."""
    kernel, p = plan.kernel, plan.problem
    if not kernel.split:
        return 0
    return workspace_elements(kernel, p.m, p.n, p.batch, plan.rows, plan.split_k)


def _classes(dtype: DType) -> list[int]:
    """Returns the classes of alignment that elements have."""
    return [bytes_ for bytes_ in ALIGNMENTS if bytes_ >= dtype.itemsize]


def _geometries(
    plan: ProductPlan, numbers: Mapping[str, int], apart: tuple[int, ...]
) -> dict[str, Geometry]:
    """Returns the geometry of the descriptors of A, B and C, by argument; empty with pointers."""
    kernel, p = plan.kernel, plan.problem
    if kernel.loads == "pointers":
        return {}
    a, b = stored_block(kernel.a_order, p.m, p.k), stored_block(kernel.b_order, p.n, p.k)
    found = {"b": _geometry(p.batch, apart[1], b, numbers["b_stride"], b_block(kernel))}
    for suffix, tile in zip(("", "_rest"), kernel.tiles, strict=False):
        block = a_block(kernel, tile)
        found[f"a{suffix}"] = _geometry(p.batch, apart[0], a, numbers["a_stride"], block)
        if kernel.stores_by_descriptor:
            block, c_row = c_block(kernel, tile), numbers["c_row"]
            found[f"c{suffix}"] = _geometry(p.batch, apart[2], (p.m, p.n), c_row, block)
    return found


def _geometry(
    batch: int, apart: int, extents: tuple[int, int], stride: int, block: tuple[int, int]
) -> Geometry:
    """Returns the geometry of a batch of matrices, or of one matrix for the whole batch."""
    elements, between_elements = (batch, apart) if apart else (1, extents[0] * stride)
    return [elements, *extents], [between_elements, stride, 1], [1, *block]
