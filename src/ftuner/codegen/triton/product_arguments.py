"""The run-time arguments of product kernels and their order."""

from __future__ import annotations

from ftuner.codegen.triton.source import TRITON_TYPES, Argument, descriptor_type
from ftuner.core.expr import operands
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, BlockTile, Order, ProductKernel

_STRIDE = "i64"


def operand_argument(name: str) -> str:
    """Returns the name of the argument for an epilogue operand."""
    return f"operand_{name}"


def granule(kernel: ProductKernel) -> int:
    """Returns the number of elements that addresses and strides of A and B are multiples of."""
    return max(kernel.alignment // kernel.dtype.itemsize, 1)


def c_granule(kernel: ProductKernel) -> int:
    """Returns the same for C and the epilogue's matrices."""
    return ALIGNMENT_BYTES // kernel.dtype.itemsize if kernel.c_aligned else 1


def stored_block(order: Order, spatial: int, k: int) -> tuple[int, int]:
    """Returns the extents of a tile of A or B in memory order, the contiguous axis last."""
    return (spatial, k) if order == "k" else (k, spatial)


def a_block(kernel: ProductKernel, tile: BlockTile) -> tuple[int, int]:
    """Returns the extents of the block of A that one load by descriptor brings."""
    return stored_block(kernel.a_order, tile.bm // kernel.warpgroups, tile.bk)


def b_block(kernel: ProductKernel) -> tuple[int, int]:
    """Returns the same of B, for every tile of a kernel."""
    return stored_block(kernel.b_order, kernel.main.bn, kernel.main.bk)


def c_block(kernel: ProductKernel, tile: BlockTile) -> tuple[int, int]:
    """Returns the extents of the block of C that one store by descriptor writes."""
    return tile.bm // kernel.warpgroups, tile.bn // kernel.slices


def gemm_arguments(kernel: ProductKernel) -> tuple[Argument, ...]:
    """Returns the arguments of a kernel, in their order.

    `a`, `b`, `c`: the matrices, as pointers, or as descriptors of rank 3 (batch element, strided
    axis, contiguous axis) that give zeros beyond the ends; descriptors of A and B need k > 0.
    `a_rest`, `c_rest`: descriptors of the same matrices with blocks for the second band.
    With split-k, `workspace`: `workspace_elements` undefined float32 values; `counters`: an int32
    for each tile of C, zero before and after each launch. Launches that may overlap share neither.
    `operand_NAME`: an operand of the epilogue; a matrix of the kernel's dtype, or [n] or [m] of
    `vectors`.
    `m`, `n`, `k`, `batch`: extents. `rows`: rows of the first band, if there are two.
    `a_stride`, `b_stride`, `c_row`, `operand_NAME_row`: elements between rows of the stored matrix;
    not for descriptors.
    `a_batch`, `b_batch`, `c_batch`, `operand_NAME_batch`: elements between batch elements, 0 if all
    share one matrix; for descriptors of A and B 1 or 0, and none for C.
    `swizzle`: as in `ProductPlan`. `split_k`: parts of k, if it is split.
    With a window there are no `k` and `a_stride`; batch elements are groups, also for rows of the
    epilogue; and `window_arguments` come last.
    """
    dtype, itemsize = TRITON_TYPES[kernel.dtype.name], kernel.dtype.itemsize
    ab, c = granule(kernel), c_granule(kernel)
    described, stored = kernel.loads == "descriptors", kernel.stores_by_descriptor
    extra = operands(kernel.epilogue)
    found: list[Argument] = []

    def add(name: str, type_: str, divisor: int = 1) -> None:
        found.append(Argument(name, type_, divisor))

    def matrix(name: str, block: tuple[int, int], descriptor: bool, elements: int) -> None:
        if descriptor:
            add(name, descriptor_type(kernel.dtype, (1, *block), kernel.warpgroups > 1))
        else:
            add(name, f"*{dtype}", elements * itemsize)

    for tile, suffix in zip(kernel.tiles, ("", "_rest"), strict=False):
        if described or not suffix:
            matrix(f"a{suffix}", a_block(kernel, tile), described, ab)
        if not suffix:
            matrix("b", b_block(kernel), described, ab)
        if stored or not suffix:
            matrix(f"c{suffix}", c_block(kernel, tile), stored, c)
    if kernel.split:
        add("workspace", "*fp32", ALIGNMENT_BYTES)
        add("counters", "*i32", 4)
    for operand in extra:
        held = kernel.dtype if operand.kind == "matrix" else kernel.vectors or kernel.dtype
        elements = c if operand.kind == "matrix" else 1
        add(operand_argument(operand.name), f"*{TRITON_TYPES[held.name]}", elements * held.itemsize)
    walks_k = not described and "k" in (kernel.a_order, kernel.b_order)
    for name in ("m", "n", "batch") if kernel.window else ("m", "n", "k", "batch"):
        add(name, "i32", ab if name == "k" and walks_k else 1)
    if len(kernel.tiles) > 1:
        add("rows", "i32")
    if not described:
        if not kernel.window:
            add("a_stride", _STRIDE, ab)
        add("b_stride", _STRIDE, ab)
    for name in ("a_batch", "b_batch"):
        add(name, *(("i32",) if described else (_STRIDE, ab)))
    matrices = [] if stored else ["c"]
    matrices += [operand_argument(o.name) for o in extra if o.kind == "matrix"]
    for name in matrices:
        add(f"{name}_row", _STRIDE, c)
        add(f"{name}_batch", _STRIDE, c)
    for operand in extra if kernel.window else ():
        if operand.kind == "column":
            add(f"{operand_argument(operand.name)}_batch", _STRIDE)
    add("swizzle", "i32")
    if kernel.split:
        add("split_k", "i32")
    return (*found, *window_arguments(kernel))


def window_arguments(kernel: ProductKernel) -> tuple[Argument, ...]:
    """Returns the arguments of the window that A is read through; none if A is a matrix.

    `taps`: elements of the window. `run`: elements of x for each. For each spatial axis `extentI`:
    of x. `positionsI`: of the result. `tapsI`: elements of the window. `strideI`, `dilationI`:
    elements of x between windows, and between elements of a window. `beginI`: padding before x.
    `axisI`, `image`: elements of memory between two along an axis of x, and between images.
    """
    if not kernel.window:
        return ()
    ab = granule(kernel)
    found = [Argument("taps", "i32"), Argument("run", "i32", ab)]
    for i in range(kernel.window):
        names = ("extent", "positions", "taps", "stride", "dilation", "begin")
        found += [Argument(f"{name}{i}", "i32") for name in names]
        found.append(Argument(f"axis{i}", _STRIDE, ab))
    return (*found, Argument("image", _STRIDE, ab))


def workspace_elements(
    kernel: ProductKernel, m: int, n: int, batch: int, rows: int, split_k: int
) -> int:
    """Returns the number of float32 values in the workspace of a product with split-k."""
    columns = -(-n // kernel.main.bn)
    extents = (rows, m - rows) if len(kernel.tiles) > 1 else (m,)
    return sum(
        batch * -(-extent // tile.bm) * columns * split_k * tile.bm * tile.bn
        for tile, extent in zip(kernel.tiles, extents, strict=True)
    )
