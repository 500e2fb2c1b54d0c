"""Memory of tensors: buffers of a program, and strided views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ftuner.core.dim import Dim, Shape, minimum, product, row_major_strides
from ftuner.core.dtype import DType
from ftuner.core.index_expr import Operand
from ftuner.graph.ir import Array, TensorType


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of a program, by kind: `input` and `output` are the caller's, `constant` is the
    model's, and buffers of the `arena` share memory if their lifetimes do not overlap."""

    kind: str
    dtype: DType
    elements: Dim
    number: int = 0
    """Position among the inputs or outputs."""
    array: Array | None = None
    """The elements of a constant."""


@dataclass(frozen=True)
class View:
    """A tensor in a buffer."""

    buffer: Buffer
    layout: Operand

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def contiguous(self) -> bool:
        return all(
            extent == 1 or stride == full
            for extent, stride, full in zip(
                self.shape, self.layout.strides, row_major_strides(self.shape), strict=True
            )
        )


def row_major(type_: TensorType) -> Operand:
    """The row-major layout of a whole buffer."""
    return Operand(type_.dtype, type_.shape, row_major_strides(type_.shape))


def permuted(view: View, perm: Sequence[int]) -> View:
    layout = view.layout
    shape = tuple(layout.shape[p] for p in perm)
    strides = tuple(layout.strides[p] for p in perm)
    return View(view.buffer, replace(layout, shape=shape, strides=strides))


def broadcast_strides(layout: Operand, shape: Shape) -> Shape:
    """The strides with which an operand is read at each index of a broadcast shape."""
    missing = len(shape) - len(layout.shape)
    strides: list[Dim] = [0] * missing
    for extent, whole, stride in zip(layout.shape, shape[missing:], layout.strides, strict=True):
        if extent == whole:
            strides.append(stride)
        else:
            strides.append(0 if extent == 1 else stride * minimum(extent - 1, 1))
    return tuple(strides)


def spread(view: View, shape: Shape) -> View:
    """The view broadcast to a shape."""
    strides = broadcast_strides(view.layout, shape)
    return View(view.buffer, replace(view.layout, shape=shape, strides=strides))


def as_rows(view: View) -> View | None:
    """The view with all axes but the last merged into one axis of rows; None unless one stride
    separates all rows for any extents. Strides of axes of extent 1 do not matter."""
    *axes, last = zip(view.shape, view.layout.strides, strict=True)
    walked = [(extent, stride) for extent, stride in axes if extent != 1]
    if any(outer != inner * extent for (_, outer), (extent, inner) in pairwise(walked)):
        return None
    rows = (product(extent for extent, _ in walked), walked[-1][1] if walked else 0)
    shape, strides = zip(rows, last, strict=True)
    return View(view.buffer, replace(view.layout, shape=shape, strides=strides))


def reshaped_strides(view: View, shape: Shape) -> Shape | None:
    """The strides of the same elements in another shape; None if there are none, or if that is not
    known."""
    if view.contiguous:
        return row_major_strides(shape)
    # Match runs of axes with equal numbers of elements in both shapes.
    old = [(n, s) for n, s in zip(view.shape, view.layout.strides, strict=True) if n != 1]
    strides: list[Dim] = []
    i = j = 0
    while j < len(shape):
        if shape[j] == 1:
            strides.append(0)
            j += 1
            continue
        if i == len(old):
            return None
        first_new, old_count, new_count = j, old[i][0], shape[j]
        last_old = i
        while old_count != new_count:
            # One old axis becomes several new ones.
            if j + 1 < len(shape):
                j += 1
                new_count = new_count * shape[j]
            else:
                return None
        _, stride = old[last_old]
        run: list[Dim] = []
        for extent in reversed(shape[first_new : j + 1]):
            run.append(stride)
            stride = stride * extent
        strides += reversed(run)
        i, j = i + 1, j + 1
    return tuple(strides) if i == len(old) else None
