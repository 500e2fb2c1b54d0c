"""The run-time arguments of product kernels; the one place that knows their order."""

from __future__ import annotations

from ftuner.codegen.triton.source import TRITON_TYPES, Argument
from ftuner.core.expr import operands
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, Order, ProductKernel

_STRIDE = "i64"


def operand_argument(name: str) -> str:
    """The name of the argument that holds an epilogue operand."""
    return f"operand_{name}"


def granule(kernel: ProductKernel) -> int:
    """Elements that addresses and strides of A and B are multiples of."""
    return ALIGNMENT_BYTES // kernel.dtype.itemsize if kernel.aligned else 1


def c_granule(kernel: ProductKernel) -> int:
    """The same of C and of the epilogue's matrices."""
    return granule(kernel) if kernel.c_aligned else 1


def stored_block(order: Order, spatial: int, k: int) -> tuple[int, int]:
    """Extents of a tile of A or B as it lies in memory, the contiguous axis last."""
    return (spatial, k) if order == "k" else (k, spatial)


def gemm_arguments(kernel: ProductKernel) -> tuple[Argument, ...]:
    """The arguments of a kernel, in their order.

    `a`, `b`, `c`: the matrices, as pointers, or as descriptors of rank 3, (batch element, axis that
    is not contiguous, contiguous axis), filled with zeros behind their ends. Descriptors of A and B
    need extents of at least one, so that k is not 0.
    `a_rest`, `c_rest`: descriptors of the same matrices with blocks for the second band.
    `workspace`: float32, as many as `workspace_elements` says, undefined. `counters`: int32, one a
    tile of C, zero before the first launch and after each. Both if k is split; launches that may
    overlap share neither.
    `operand_NAME`: what the epilogue reads, [n], [m] or a matrix, of the kernel's dtype;
    of `vectors` the first two.
    `m`, `n`, `k`, `batch`: extents. `rows`: rows of the first band, if there are two.
    `a_stride`, `b_stride`: elements from one row of the stored matrix to the next, whatever axis
    that is; `c_row` and `operand_NAME_row` likewise. None of descriptors.
    `a_batch`, `b_batch`, `c_batch`, `operand_NAME_batch`: elements from one batch element to the
    next, 0 if all share one; of descriptors of A and B 1 or 0, and none of C.
    `swizzle`: as in `ProductPlan`. `split_k`: parts of k, if it is split.
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
            add(name, f"tensordesc<{dtype}[1, {block[0]}, {block[1]}]>")
        else:
            add(name, f"*{dtype}", elements * itemsize)

    for tile, suffix in zip(kernel.tiles, ("", "_rest"), strict=False):
        if described or not suffix:
            matrix(f"a{suffix}", stored_block(kernel.a_order, tile.bm, tile.bk), described, ab)
        if not suffix:
            matrix("b", stored_block(kernel.b_order, tile.bn, tile.bk), described, ab)
        if stored or not suffix:
            matrix(f"c{suffix}", (tile.bm, tile.bn // kernel.slices), stored, c)
    if kernel.split:
        add("workspace", "*fp32", ALIGNMENT_BYTES)
        add("counters", "*i32", 4)
    for operand in extra:
        held = kernel.dtype if operand.kind == "matrix" else kernel.vectors or kernel.dtype
        elements = c if operand.kind == "matrix" else 1
        add(
            operand_argument(operand.name),
            f"*{TRITON_TYPES[held.name]}",
            elements * held.itemsize,
        )
    walks_k = not described and "k" in (kernel.a_order, kernel.b_order)
    for name in ("m", "n", "k", "batch"):
        add(name, "i32", ab if name == "k" and walks_k else 1)
    if len(kernel.tiles) > 1:
        add("rows", "i32")
    if not described:
        add("a_stride", _STRIDE, ab)
        add("b_stride", _STRIDE, ab)
    for name in ("a_batch", "b_batch"):
        add(name, *(("i32",) if described else (_STRIDE, ab)))
    matrices = [] if stored else ["c"]
    matrices += [operand_argument(o.name) for o in extra if o.kind == "matrix"]
    for name in matrices:
        add(f"{name}_row", _STRIDE, c)
        add(f"{name}_batch", _STRIDE, c)
    add("swizzle", "i32")
    if kernel.split:
        add("split_k", "i32")
    return tuple(found)


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
