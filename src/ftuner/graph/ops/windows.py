"""Operators that move a window over spatial axes: convolution, and the reductions of pooling.

Tensors are channels last: x is (batch, D1, ..., Dr, channels), and the result is (batch, O1, ...,
Or, channels). Along spatial axis i, element `k` of the window of output `o` is element
`o * strides[i] + k * dilations[i] - begin[i]` of x. Elements outside x are zero in a convolution
and do not count in a reduction. `extents` are O1, ..., Or: padding after the end, and whether a
last window may be incomplete, follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core.dim import Shape, least_value, product, row_major_strides
from ftuner.core.dtype import FLOAT32, INT8X4, INT64, TENSOR_DTYPES, UINT8
from ftuner.core.functions import neutral
from ftuner.core.index_expr import Index, Nest, Writer
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.operator import (
    Attributes,
    NestWriter,
    Numerics,
    Operator,
    Require,
    Types,
    elements_of,
    reduction,
    same_dtype,
)

Ints = Sequence[int]
_REDUCED: Mapping[str, Any] = {"maximum": np.max, "minimum": np.min, "sum": np.sum}
ARGMAX = "argmax"
"""The kind of a window reduction that gives the number of the first largest element, counted in the
window's row-major order."""


def _expect_window(x: TensorType, attributes: Attributes, rank: int, what: str) -> None:
    lists = [attributes[name] for name in ("strides", "dilations", "begin", "extents")]
    if x.rank != rank + 2 or any(len(values) != rank for values in lists):
        raise ShapeError(f"{what} of {x} with {dict(attributes)}")
    for name in ("strides", "dilations"):
        if min(attributes[name], default=1) < 1:
            raise GraphError(f"{what}: {name} are {list(attributes[name])}; expected 1 or more")


class _Positions:
    """Writes the index of x that an element of a window is, and whether x has it."""

    def __init__(self, x: TensorType, kernel: Shape, attributes: Attributes) -> None:
        self._x, self._kernel, self._attributes = x, kernel, attributes

    def _is_inside(self, axis: int) -> bool:
        """Whether all windows are known to be inside x along an axis."""
        attributes, extent = self._attributes, self._x.shape[1 + axis]
        if attributes["begin"][axis] != 0:
            return False
        last = (attributes["extents"][axis] - 1) * attributes["strides"][axis]
        last = last + (self._kernel[axis] - 1) * attributes["dilations"][axis]
        least = least_value(extent - 1 - last)
        return least is not None and least >= 0

    def written(self, writer: Writer, outputs: Index, taps: Index) -> tuple[list[int], int | None]:
        """The index along the spatial axes, and the step that says whether the element is there;
        None if it always is."""
        at: list[int] = []
        inside: int | None = None
        attributes = self._attributes
        for axis, (o, k) in enumerate(zip(outputs, taps, strict=True)):
            position = writer.add(
                writer.multiply(o, writer.integer(attributes["strides"][axis])),
                writer.multiply(k, writer.integer(attributes["dilations"][axis])),
            )
            if self._is_inside(axis):
                at.append(position)
                continue
            position = writer.subtract(position, writer.integer(attributes["begin"][axis]))
            inside = writer.within(position, writer.integer(self._x.shape[1 + axis]), inside)
            at.append(position)
        return at, inside


def _infer_convolution(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """x of (batch, D..., groups * C) and w of (K..., C, channels): the result has `channels`."""
    x, w = types
    groups = attributes["groups"]
    what = f"convolution of {x} and {w}"
    same_dtype(types, "convolution")
    if x.dtype.kind != "float":
        raise GraphError(what)
    if w.rank < 3:
        raise ShapeError(f"{what}: expected one spatial axis or more")
    _expect_window(x, attributes, w.rank - 2, "convolution")
    channels = w.shape[-1]
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise GraphError(f"{what}: {groups} groups of {channels} channels")
    require(x.shape[-1], w.shape[-2] * groups, f"{what} in {groups} groups: channels")
    return (TensorType(x.dtype, (x.shape[0], *attributes["extents"], channels)),)


def _define_convolution(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, w = types
    rank, groups = w.rank - 2, attributes["groups"]
    positions = _Positions(x, w.shape[:rank], attributes)

    def body(writer: NestWriter, kept: Index, reduced: Index) -> int:
        batch, *outputs, channel = kept
        *taps, depth = reduced
        at, inside = positions.written(writer, outputs, taps)
        if groups > 1:
            each = w.shape[-1] // groups
            group = channel if each == 1 else writer.step(
                "divide", INT64, channel, writer.integer(each))  # fmt: skip
            first = writer.multiply(group, writer.integer(w.shape[-2]))
            read = writer.add(first, depth)
        else:
            read = depth
        element = writer.load(0, [batch, *at, read])
        if inside is not None:
            zero = writer.constant(0.0, x.dtype)
            element = writer.where(inside, element, zero, absent=True)
        weight = writer.load(1, [*taps, depth, channel])
        return writer.step("multiply", x.dtype, element, weight)

    return reduction(types, results[0].shape, w.shape[:-1], "sum", body)


def _windows(
    x: Array, kernel: Ints, fill: Any, strides: Ints, dilations: Ints, begin: Ints, extents: Ints
) -> Array:
    """A copy of all windows: (batch, O..., K..., channels)."""
    rank = len(kernel)
    shape = (x.shape[0], *extents, *kernel, x.shape[-1])
    if 0 in x.shape:
        return np.full(shape, fill, x.dtype)
    found: Array = x
    inside = np.ones((), np.bool_)
    axes = zip(x.shape[1:-1], extents, kernel, strides, dilations, begin, strict=True)
    for axis, numbers in enumerate(axes):
        at = _positions(*numbers)
        # Window axes follow the spatial axes that are left.
        found = np.moveaxis(found.take(at, 1 + axis), 2 + axis, -2)
        both = [1] * (2 * rank)
        both[axis], both[rank + axis] = at.shape
        inside = inside & (at >= 0).reshape(both)
    return np.where(inside[None, ..., None], found, np.asarray(fill, x.dtype))


def _positions(
    extent: int, outputs: int, count: int, stride: int, dilation: int, begin: int
) -> Array:
    """The index along an axis of x of each element of each window, (O, K); -1 outside x. Steps may
    be longer than NumPy's integers."""
    first = [o * stride - begin for o in range(outputs)]
    at = [[p + k * dilation for k in range(count)] for p in first]
    known = [[p if 0 <= p < extent else -1 for p in row] for row in at]
    return np.array(known, np.int64).reshape(outputs, count)


def _reference_convolution(
    x: Any, w: Any, groups: int, strides: Ints, dilations: Ints, begin: Ints, extents: Ints
) -> Any:
    *kernel, depth, channels = w.shape
    rank = len(kernel)
    windows = _windows(x, kernel, 0, strides, dilations, begin, extents)
    outputs = windows.shape[: 1 + rank]
    count = math.prod(kernel)
    # (rows, groups, taps * depth) @ (groups, taps * depth, channels of a group)
    a = windows.reshape(math.prod(outputs), count, groups, depth)
    a = a.transpose(2, 0, 1, 3).reshape(groups, math.prod(outputs), count * depth)
    b = w.reshape(count * depth, groups, channels // groups).transpose(1, 0, 2)
    result = np.matmul(a, b).transpose(1, 0, 2)
    return result.reshape((*outputs, channels))


def _work_of_convolution(types: Types, attributes: Attributes, results: Types) -> int:
    """The reference copies all windows."""
    return elements_of((*results[0].shape, *types[1].shape[:-1]))


def _infer_reduce(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (x,) = types
    kernel, kind = attributes["kernel"], attributes["kind"]
    if kind not in (*_REDUCED, ARGMAX) or x.dtype.kind == "bool":
        raise GraphError(f"window reduction {kind!r} of {x}")
    if not kernel:
        raise ShapeError(f"window reduction of {x}: expected one spatial axis or more")
    if any(isinstance(n, int) and n < 1 for n in kernel):
        raise GraphError(f"window reduction of {x}: the window is {list(kernel)}")
    _expect_window(x, attributes, len(kernel), "window reduction")
    dtype = INT64 if kind == ARGMAX else x.dtype
    return (TensorType(dtype, (x.shape[0], *attributes["extents"], x.shape[-1])),)


def _define_reduce(types: Types, attributes: Attributes, results: Types) -> Nest:
    (x,) = types
    kernel, kind = attributes["kernel"], attributes["kind"]
    positions = _Positions(x, kernel, attributes)

    missing = "maximum" if kind == ARGMAX else kind

    def body(writer: NestWriter, kept: Index, reduced: Index) -> int:
        batch, *outputs, channel = kept
        taps = _digits(writer, reduced[0], kernel) if kind == ARGMAX else reduced
        at, inside = positions.written(writer, outputs, taps)
        element = writer.load(0, [batch, *at, channel])
        if inside is None:
            return element
        nothing = writer.constant(neutral(missing, x.dtype), x.dtype)
        return writer.where(inside, element, nothing, absent=True)

    reduced = (product(kernel),) if kind == ARGMAX else kernel
    return reduction(types, results[0].shape, reduced, kind, body)


def _digits(writer: Writer, number: int, shape: Shape) -> list[int]:
    """The index of an element of a shape by its number in row-major order."""
    index: list[int] = []
    for axis, stride in enumerate(row_major_strides(shape)):
        digit = number
        if stride != 1:
            digit = writer.step("divide", INT64, number, writer.integer(stride))
        if axis > 0:
            digit = writer.step("remainder", INT64, digit, writer.integer(shape[axis]))
        index.append(digit)
    return index


def _reference_reduce(
    x: Any, kind: str, kernel: Ints, strides: Ints, dilations: Ints, begin: Ints, extents: Ints
) -> Any:
    fill = neutral("maximum" if kind == ARGMAX else kind, TENSOR_DTYPES[x.dtype.name])
    rank = len(kernel)
    windows = _windows(x, kernel, fill, strides, dilations, begin, extents)
    if kind == ARGMAX:
        outputs = windows.shape[: 1 + rank]
        return np.argmax(windows.reshape(*outputs, math.prod(kernel), x.shape[-1]), 1 + rank)
    axes = tuple(range(1 + rank, 1 + 2 * rank))
    return _REDUCED[kind](windows, axis=axes).astype(x.dtype)


def _infer_words(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """x of uint8 (batch, D..., C) and w of int8 (K..., C, channels), which is given as words of
    four steps of C. The sums, in int32, are float32."""
    x, w = types
    if (x.dtype, w.dtype) != (UINT8, INT8X4) or w.rank < 3:
        raise GraphError(f"word_convolution of {x} and {w}")
    _expect_window(x, attributes, w.rank - 2, "word_convolution")
    require(x.shape[-1], w.shape[-2] * w.dtype.numbers, f"word_convolution of {x} and {w}")
    return (TensorType(FLOAT32, (x.shape[0], *attributes["extents"], w.shape[-1])),)


def _reference_words(
    x: Any, w: Any, strides: Ints, dilations: Ints, begin: Ints, extents: Ints
) -> Any:
    weight = np.moveaxis(w[..., None].view(np.int8), -1, -2)
    weight = weight.reshape(*w.shape[:-2], -1, w.shape[-1])
    # Sums of products of integers are exact in float64.
    wide = x.astype(np.float64), weight.astype(np.float64)
    return _reference_convolution(*wide, 1, strides, dilations, begin, extents).astype(np.float32)


OPERATORS = (
    Operator(
        "convolution",
        _infer_convolution,
        _reference_convolution,
        _define_convolution,
        work=_work_of_convolution,
        numerics=Numerics.PRODUCT,
    ),
    Operator(
        "word_convolution",
        _infer_words,
        _reference_words,
        work=_work_of_convolution,
        numerics=Numerics.PRODUCT,
    ),
    Operator(
        "window_reduce",
        _infer_reduce,
        _reference_reduce,
        _define_reduce,
        # The reference copies all windows.
        work=lambda _, attributes, results: elements_of((*results[0].shape, *attributes["kernel"])),
        # The largest or smallest element of a window is one of the operand's.
        numerics=lambda given: (
            Numerics.PLAIN if given["kind"] in ("maximum", "minimum") else Numerics.REDUCTION
        ),
    ),
)
"""`window_reduce` has the attributes of a convolution without `groups`, and `kernel`, the extents
of the window, and `kind`: `sum`, `maximum`, `minimum` or `argmax`."""
