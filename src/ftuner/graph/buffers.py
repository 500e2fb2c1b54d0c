"""Memory of tensors: buffers of a program, and strided views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ftuner.core.dim import Dim, Shape, minimum, product, quotient, remainder, row_major_strides
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
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
    packed: bool = False
    """Whether a packed weight has replaced the elements: `array` is then None, or `hollow`."""

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant"

    @property
    def elements_bytes(self) -> int:
        """Bytes of the elements of a constant, unless a packed weight has replaced them."""
        return 0 if self.array is None or self.packed else self.array.nbytes


def hollow(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array of zeros that has the memory of one element: it stands for what is packed."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def is_hollow(array: Array) -> bool:
    """Whether an array is as `hollow` makes them."""
    return bool(array.size) and not any(array.strides) and not array.flat[0]


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


def contiguous_rows(view: View) -> View | None:
    """The view as one axis of rows with one stride, whose elements are next to each other; None if
    it is not. Kernels of products, convolutions and attention write such rows."""
    return as_rows(view) if view.layout.strides[-1] == 1 else None


def in_words(view: View, words: DType) -> View | None:
    """A view of narrow numbers, contiguous along the last axis, as words of several of them; None
    unless each row is of whole words, which may begin at any address."""
    layout, numbers = view.layout, words.numbers
    *outer, last = layout.strides
    dims = (*outer, layout.shape[-1], layout.offset)
    if last != 1 or any(remainder(n, numbers) != 0 for n in dims):
        return None
    shape = (*layout.shape[:-1], quotient(layout.shape[-1], numbers))
    strides = (*(quotient(n, numbers) for n in outer), 1)
    # The offset counts elements of the buffer.
    return View(view.buffer, replace(layout, dtype=words, shape=shape, strides=strides))


def same_elements(x: View, y: View) -> bool:
    """Whether two views of one shape have each element at one address. Strides of axes of extent 1
    do not matter."""
    strides = zip(x.shape, x.layout.strides, y.layout.strides, strict=True)
    return (
        x.buffer is y.buffer
        and (x.layout.dtype, x.shape, x.layout.offset) == (y.layout.dtype, y.shape, y.layout.offset)
        and all(n == 1 or a == b for n, a, b in strides)
    )


def reshaped(view: View, shape: Shape) -> View | None:
    """The elements in another shape; None if no strides give it, or if that is not known."""
    if view.contiguous:
        strides: Shape | None = row_major_strides(shape)
    else:
        axes = [(n, s) for n, s in zip(view.shape, view.layout.strides, strict=True) if n != 1]
        strides = _split(axes, shape)
        if strides is None:
            strides = _split(_merged(axes), shape)
    if strides is None:
        return None
    return View(view.buffer, replace(view.layout, shape=shape, strides=strides))


def _merged(axes: list[tuple[Dim, Dim]]) -> list[tuple[Dim, Dim]]:
    """Axes, as (extent, stride), of which neighbours that one stride walks are one axis."""
    found: list[tuple[Dim, Dim]] = []
    for extent, stride in axes:
        if found and found[-1][1] == stride * extent:
            extent = found.pop()[0] * extent
        found.append((extent, stride))
    return found


def _split(axes: list[tuple[Dim, Dim]], shape: Shape) -> Shape | None:
    """The strides of a shape whose axes are parts of the given ones, in their order; None if they
    are not."""
    strides: list[Dim] = []
    i = j = 0
    while j < len(shape):
        if shape[j] == 1:
            strides.append(0)
            j += 1
            continue
        if i == len(axes):
            return None
        first, (whole, stride), count = j, axes[i], shape[j]
        while whole != count:
            if j + 1 == len(shape):
                return None
            j += 1
            count = count * shape[j]
        run: list[Dim] = []
        for extent in reversed(shape[first : j + 1]):
            run.append(stride)
            stride = stride * extent
        strides += reversed(run)
        i, j = i + 1, j + 1
    return tuple(strides) if i == len(axes) else None
