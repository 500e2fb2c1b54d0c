"""Windows that products on a GPU read A through, at concrete extents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.tile import (
    ALIGNMENT_BYTES,
    MOST_COUNTED,
    Multiply,
    Order,
    common_alignment,
)
from ftuner.core.product import ReadWindow
from ftuner.errors import ShapeError
from ftuner.runtime.gpu.arrays import (
    Tensor,
    alignment,
    allows_tf32,
    matrix_dtype,
    multiply_of,
)


class BoundWindow(NamedTuple):
    """A window of x at known extents. The A of the product is `matrix_of`."""

    read: ReadWindow
    arguments: tuple[tuple[str, int], ...]
    """The values of `window_arguments` by name."""
    alignment: int
    """The common alignment of addresses and lengths of runs."""


def matrix_of(x: Tensor, groups: int, run: int) -> Tensor:
    """Returns what a product is given for its A: the first element of each group, as a matrix of
    one element."""
    if not x.numel():
        # No window reads an element of it.
        return x.new_zeros((groups, 1, 1))
    return x.as_strided((groups, 1, 1), (run, 1, 1))


def expect_within_reach(
    extent: int, positions: int, kernel: int, stride: int, dilation: int, begin: int
) -> None:
    """Raises ShapeError if indices along a spatial axis of x are more than kernels count."""
    reach = max(positions - 1, 0) * stride + (kernel - 1) * dilation + abs(begin)
    if max(reach, extent) > MOST_COUNTED:
        raise ShapeError(
            f"windows reach {reach} elements along an axis of {extent}; at most {MOST_COUNTED} are "
            "possible"
        )


def bound_window(
    x: Tensor, read: ReadWindow, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], begin: Sequence[int], positions: Sequence[int],
) -> BoundWindow:  # fmt: skip
    """Returns the window of x, (images, spatial axes..., channels) with contiguous channels. The
    other lists have an entry for each spatial axis; see `schedules.convolution.step.Window`.

    Raises:
        ShapeError: as for `expect_within_reach`.
    """
    numbers: list[tuple[str, int]] = [("taps", math.prod(kernel)), ("run", read.run)]
    for i in range(read.axes):
        # What is never added to may be of any size.
        stride = strides[i] if positions[i] > 1 else 0
        dilation = dilations[i] if kernel[i] > 1 else 0
        expect_within_reach(x.shape[1 + i], positions[i], kernel[i], stride, dilation, begin[i])
        numbers += [
            (f"extent{i}", x.shape[1 + i]), (f"positions{i}", positions[i]),
            (f"taps{i}", kernel[i]), (f"stride{i}", stride), (f"dilation{i}", dilation),
            (f"begin{i}", begin[i]), (f"axis{i}", x.stride(1 + i)),
        ]  # fmt: skip
    numbers.append(("image", x.stride(0)))
    common = common_alignment(read.run * x.element_size(), alignment([x]))
    return BoundWindow(read, tuple(numbers), common)


@dataclass(frozen=True)
class Axis:
    """A batch axis: its extent, and its stride in each tensor, in elements."""

    extent: int
    strides: tuple[int, ...]


def order_of(matrix: Tensor, k_axis: int) -> Order | None:
    """Returns the contiguous axis of a matrix; None if neither is. For one row or column it is k,
    if k is contiguous."""
    spatial = -3 - k_axis
    found = lying(
        matrix.shape[spatial], matrix.shape[k_axis], matrix.stride(spatial), matrix.stride(k_axis)
    )
    return None if found is None else found[0]


def between(matrix: Tensor, order: Order, k_axis: int) -> int:
    """Returns the stride of the other axis, in elements; an aligned one if it has one index."""
    outer = -3 - k_axis if order == "k" else k_axis
    return _between(matrix.shape[outer], matrix.shape[-3 - outer], matrix.stride(outer))


def _step_bytes(matrix: Tensor, order: Order | None, k_axis: int) -> int:
    """Returns the bytes of `between`. With one element of k, both strides of a matrix may be 1, and
    `alignment` then takes either axis for the contiguous one."""
    assert order is not None
    return between(matrix, order, k_axis) * matrix.element_size()


def alignment_of(matrix: Tensor, k_axis: int) -> int:
    """Returns the class of alignment that kernels may take a matrix to have, in the order that they
    read it in."""
    return common_alignment(
        alignment([matrix]), _step_bytes(matrix, order_of(matrix, k_axis), k_axis)
    )


def lying(spatial: int, k: int, spatial_stride: int, k_stride: int) -> tuple[Order, int] | None:
    """Returns `order_of` and `between` of a matrix with these extents and strides."""
    if k_stride == 1 or k == 1:
        if spatial == 1 or spatial_stride >= k:
            return "k", _between(spatial, k, spatial_stride)
    elif spatial_stride == 1 and k_stride >= spatial:
        return "spatial", k_stride
    return None


def _between(outer: int, inner: int, stride: int) -> int:
    return stride if outer != 1 else -(-inner // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def batch_axes(shape: Sequence[int], *tensors: Tensor) -> list[Axis]:
    """Returns the batch axes of a result and of the tensors that broadcast to it. Axes that all
    tensors walk together are one; axes of one element are left out."""
    axes: list[Axis] = []
    for i in range(len(shape)):
        if shape[i] == 1:
            continue
        from_end = i - len(shape) - 2
        strides = tuple(
            0 if -from_end > x.dim() or x.shape[from_end] == 1 else x.stride(from_end)
            for x in tensors
        )
        outer = axes[-1] if axes else None
        if outer is not None and all(
            s == inner * shape[i] for s, inner in zip(outer.strides, strides, strict=True)
        ):
            axes[-1] = Axis(outer.extent * shape[i], strides)
        else:
            axes.append(Axis(shape[i], strides))
    return axes


def launches(axes: Sequence[Axis], tensors: int) -> tuple[Axis, list[tuple[int, ...]]]:
    """Returns the batch axis of one launch, the longest, and the offsets of each tensor for each
    launch. There is one launch if the batch axes are one."""
    nothing = (0,) * tensors
    if not axes:
        return Axis(1, nothing), [nothing]
    inner = max(axes, key=lambda axis: axis.extent)
    offsets = [nothing]
    for axis in axes:
        if axis is not inner:
            offsets = [
                tuple(o + i * s for o, s in zip(offset, axis.strides, strict=True))
                for offset in offsets
                for i in range(axis.extent)
            ]
    assert len(offsets) * inner.extent == math.prod(axis.extent for axis in axes)
    return inner, offsets


def moved(x: Tensor, elements: int) -> Tensor:
    """Returns a tensor that begins `elements` further on; kernels get strides as arguments."""
    if not elements:
        return x
    return x.as_strided((1,), (1,), x.storage_offset() + elements)


class Product(NamedTuple):
    """`c = epilogue(a @ b, **given)`. Where nothing is launched, tensors may have no data."""

    a: Tensor
    """`(..., m, k)`, broadcast to the batch axes of c."""
    b: Tensor
    """`(..., k, n)`, broadcast in the same way."""
    c: Tensor
    """`(..., m, n)`, not empty; its last axis is contiguous, and it overlaps no operand."""
    epilogue: Expr = ACCUMULATOR
    given: Mapping[str, Tensor] = {}
    """Operands of the epilogue by name: like c, or `(n,)` or `(m,)`, all of the same dtype or all
    float32."""
    tf32: bool | None = None
    """Whether float32 may be multiplied as tf32; by default as torch says."""
    window: BoundWindow | None = None
    """The window that A is read through, if it is."""


class ProductOperands(NamedTuple):
    """Operands in a layout that kernels read."""

    a: Tensor
    b: Tensor
    c: Tensor
    given: Mapping[str, Tensor]
    """The operands of the epilogue, by name."""
    alignments: tuple[int, int]
    """The alignment of A, with that of its window, and of B."""
    rest: bool
    """Whether C and the epilogue's matrices are aligned to 16 bytes."""
    multiply: Multiply
    vectors: DType | None
    """The dtype of the epilogue's rows and columns, if not that of the matrices."""
    window: BoundWindow | None
    """The window that A is read through, if it is."""

    @property
    def both(self) -> int:
        """The common alignment of A and B."""
        return common_alignment(*self.alignments)

    @property
    def matrices(self) -> list[Tensor]:
        """A, B, C and the matrices of the epilogue."""
        return [self.a, self.b, self.c, *(x for x in self.given.values() if x.dim() > 1)]


def arranged(product: Product) -> ProductOperands:
    """Returns operands that kernels read. A matrix that is contiguous along neither axis is
    copied; a batch of rows by one matrix is one product, if strides allow it."""
    a, b, c, _, given, tf32, window = product
    tf32 = allows_tf32() if tf32 is None else tf32
    if a.shape[-1] == 0 and window is None:
        a, b = _zeros(a, -1), _zeros(b, -2)
    if b.dim() == 2 and c.dim() > 2 and window is None:
        rows = _as_rows([a, c, *(x for x in given.values() if x.dim() > 1)])
        if rows is not None:
            a, c, *others = rows
            names = [name for name, x in given.items() if x.dim() > 1]
            given = {**given, **dict(zip(names, others, strict=True))}
    if order_of(a, -1) is None:
        a = a.contiguous()
    if order_of(b, -2) is None:
        b = b.contiguous()
    results = [c, *(x for x in given.values() if x.dim() > 1)]
    steps = [_step_bytes(x, "k", -1) for x in results]
    rest = common_alignment(alignment(results), *steps) == ALIGNMENT_BYTES
    dtype = matrix_dtype(a, "a")
    vector = next((matrix_dtype(x, name) for name, x in given.items() if x.dim() == 1), dtype)
    vectors = None if vector == dtype else vector
    of_window = ALIGNMENT_BYTES if window is None else window.alignment
    own = common_alignment(alignment_of(a, -1), of_window), alignment_of(b, -2)
    return ProductOperands(a, b, c, given, own, rest, multiply_of(dtype, tf32), vectors, window)


def _zeros(x: Tensor, k_axis: int) -> Tensor:
    """Returns zeros in place of a matrix without k steps, in its order: a sum of zeros needs no
    other kernel."""
    steps = ALIGNMENT_BYTES // x.element_size()
    spatial = -3 - k_axis
    extents = {k_axis: steps, spatial: x.shape[spatial]}
    contiguous = k_axis if x.stride(k_axis) == 1 else spatial
    zeros = x.new_zeros((extents[-3 - contiguous], extents[contiguous]))
    if contiguous == -2:
        zeros = zeros.mT
    return zeros.expand(*x.shape[:-2], *zeros.shape)


def _as_rows(tensors: list[Tensor]) -> list[Tensor] | None:
    """Returns each tensor with all axes but the last as one; None if strides do not allow it."""
    found = []
    for x in tensors:
        extents = [(n, s) for n, s in zip(x.shape[:-1], x.stride()[:-1], strict=True) if n != 1]
        if any(outer != inner * n for (_, outer), (n, inner) in pairwise(extents)):
            return None
        rows, step = 1, x.shape[-1]
        for n, s in reversed(extents):
            step = s if rows == 1 else step
            rows *= n
        found.append(x.as_strided((rows, x.shape[-1]), (step, x.stride(-1))))
    return found
