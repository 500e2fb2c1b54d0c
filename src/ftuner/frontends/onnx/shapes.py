"""Operators on shapes and layout. Most become dims or views."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import (
    Dim,
    Shape,
    ceil_quotient,
    least_value,
    maximum,
    minimum,
    product,
    quotient,
)
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import TensorRecord
from ftuner.frontends.onnx.signatures import Axis, Dims, Extents, Integers, Sizes, Unbounded, onnx
from ftuner.graph.algebra import apply, concat, constant, counted, equal, iota, scalar
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.ir import Value
from ftuner.graph.known_values import elements_of
from ftuner.graph.ops.views import slice_extent


@onnx("Shape")
def _shape(context: Context, x: Value, start: int = 0, end: int | None = None) -> Value:
    return context.builder.dims(x.shape[start:end])


@onnx("Size")
def _size(x: Value) -> Value:
    return counted(x.shape, INT64)


@onnx("Constant")
def _constant(
    context: Context, value: TensorRecord | None = None, value_float: Unbounded | None = None,
    value_int: int | None = None, value_ints: tuple[int, ...] | None = None,
    value_floats: tuple[float, ...] | None = None,
) -> Value:  # fmt: skip
    if value is not None:
        return context.builder.stored(value.array, value.dtype)
    for given, dtype in (
        (value_float, FLOAT32), (value_int, INT64), (value_ints, INT64), (value_floats, FLOAT32)
    ):  # fmt: skip
        if given is not None:
            return constant(np.array(given, dtype.name))
    raise unsupported("constants that are text or sparse")


@onnx("ConstantOfShape")
def _constant_of_shape(shape: Sizes, value: TensorRecord | None = None) -> Value:
    if value is None:
        return scalar(0, FLOAT32).broadcast(shape)
    if value.array.size != 1:
        raise malformed(f"value has {value.array.size} elements; expected one")
    return constant(value.array.reshape(()), value.dtype).broadcast(shape)


@onnx("Reshape")
def _reshape(x: Value, shape: Dims, allowzero: bool = False) -> Value:
    wanted = list(shape)
    if not allowzero:
        for axis, extent in enumerate(wanted):
            if extent == 0:
                if axis >= x.rank:
                    raise malformed(f"0 at axis {axis} of a shape, of {x.type}")
                wanted[axis] = x.shape[axis]
    unknown = [axis for axis, extent in enumerate(wanted) if extent == -1]
    if len(unknown) > 1:
        raise malformed(f"more than one -1 in {wanted}")
    if unknown:
        others = product(extent for extent in wanted if extent != -1)
        total = product(x.shape)
        if others == 0 and total != 0:
            raise malformed(f"{x.type} cannot take the shape {wanted}")
        wanted[unknown[0]] = 0 if others == 0 else quotient(total, others)
    return x.reshape(tuple(wanted))


@onnx("Flatten")
def _flatten(x: Value, axis: int = 1) -> Value:
    if not -x.rank <= axis <= x.rank:
        raise malformed(f"axis {axis} of {x.type}")
    axis += x.rank if axis < 0 else 0
    return x.reshape((product(x.shape[:axis]), product(x.shape[axis:])))


@onnx("Squeeze", attribute="axes")
@onnx("Squeeze", since=13)
def _squeeze(context: Context, x: Value, axes: Integers | None = None) -> Value:
    if axes is None:
        axes = tuple(i for i, extent in enumerate(x.shape) if _asked_one(context, extent, x))
    return x.squeeze(context.axes(axes, x.rank))


def _asked_one(context: Context, extent: Dim, x: Value) -> bool:
    """Whether an extent is one. Where it is known only at run time this asks for a condition, which
    is the same for all other extents."""
    if isinstance(extent, int):
        return extent == 1
    found = equal(context.builder.dims([extent], ()), scalar(1, INT64))
    return bool(context.array_of(found, f"which axes of {x.type} have one element").item())


@onnx("Unsqueeze", since=13)
def _unsqueeze(context: Context, x: Value, given: Value) -> Value:
    """The axes may be one as a scalar."""
    one = (context.integer_of(given, "the axes"),) if given.rank == 0 else None
    return _unsqueeze_by_attribute(context, x, one or context.integers_of(given, "the axes"))


@onnx("Unsqueeze")
def _unsqueeze_by_attribute(context: Context, x: Value, axes: tuple[int, ...]) -> Value:
    return x.unsqueeze(context.axes(axes, x.rank + len(axes)))


@onnx("Transpose")
def _transpose(x: Value, perm: tuple[int, ...] | None = None) -> Value:
    return x.transpose(tuple(reversed(range(x.rank))) if perm is None else perm)


@onnx("Concat")
def _concat(*values: Value, axis: Axis) -> Value:
    return concat(values, axis)


@onnx("Expand")
def _expand(x: Value, shape: Dims) -> Value:
    return x.broadcast(shape)


@onnx("Tile")
def _tile(x: Value, number_of_repetitions: Sizes) -> Value:
    repeats = number_of_repetitions
    if len(repeats) != x.rank:
        raise malformed(f"{len(repeats)} numbers of repetitions for {x.type}")
    return x if all(n == 1 for n in repeats) else apply("tile", x, repeats=repeats)


@onnx("Split", attribute="split")
@onnx("Split", since=13)
def _split(
    node: NodeView, x: Value, split: Extents | None = None, axis: Axis = 0
) -> Sequence[Value]:
    extent, count = x.shape[axis], len(node.record.outputs)
    if split is None:
        # Since 18 the last one may be shorter.
        piece = ceil_quotient(extent, count) if node.opset >= 18 else quotient(extent, count)
        last = extent - piece * (count - 1) if node.opset >= 18 else piece
        split = (*[piece] * (count - 1), last)
    if len(split) != count:
        raise malformed(f"{len(split)} pieces for {count} outputs")
    require(sum(split), extent, f"pieces of {x.type} along axis {axis}")
    return x.pieces(axis, split)


@onnx("Pad", since=11)
def _pad(
    context: Context, x: Value, padding: Dims, fill: Value | None, axes: Integers | None,
    mode: str = "constant",
) -> Value:  # fmt: skip
    along = [context.axis(a, x.rank) for a in (range(x.rank) if axes is None else axes)]
    return _padded(x, padding, along, fill, mode)


@onnx("Pad")
def _pad_by_attributes(
    x: Value, pads: tuple[int, ...], mode: str = "constant", value: Unbounded = 0.0
) -> Value:
    return _padded(x, pads, range(x.rank), scalar(value, x.dtype), mode)


def _padded(x: Value, widths: Shape, axes: Sequence[int], fill: Value | None, mode: str) -> Value:
    if len(widths) != 2 * len(axes):
        raise malformed(f"{len(widths)} widths of padding for {len(axes)} axes")
    before: list[Dim] = [0] * x.rank
    after: list[Dim] = [0] * x.rank
    for axis, low, high in zip(axes, widths, widths[len(axes) :], strict=False):
        before[axis], after[axis] = low, high
    if all(n == 0 for n in (*before, *after)):
        return x
    operands = [x]
    if mode == "constant":
        operands.append(scalar(0, x.dtype) if fill is None else fill.reshape(()))
    return apply("pad", *operands, before=tuple(before), after=tuple(after), mode=mode)


def _whole(context: Context, value: Value) -> Dim | None:
    """The element of a float, if it is known to be an integer."""
    elements = elements_of(value)
    found = context.builder.known.presumed(value) if elements is None else tuple(elements.ravel())
    return None if found is None else found[0]


def _float_range(context: Context, start: Value, limit: Value, delta: Value) -> Dim | None:
    """The number of elements of a range of floats whose ends are extents, such as the distances
    from t - 1 down to 1 - t, or from any number up to an extent. None if they are not known to
    be."""
    step = _whole(context, delta)
    if not isinstance(step, int) or step == 0:
        return None
    begin = _whole(context, start)
    if begin is None and step == 1 and start.constant is not None:
        # Up to an integer there are as many elements as from the integer below.
        first = float(start.constant.item())
        begin = math.floor(first) if math.isfinite(first) else None
    end = None if begin is None else _whole(context, limit)
    return None if begin is None or end is None else slice_extent(begin, end, step)


def _known_range(context: Context, start: Value, limit: Value, delta: Value) -> int:
    """The number of elements of a range of floats, all known now."""
    first, last, step = (context.array_of(v, "the range").item() for v in (start, limit, delta))
    steps = float(last - first) / float(step) if step else math.nan
    if not math.isfinite(steps):
        raise malformed(f"a range from {first} to {last} by {step}")
    return max(math.ceil(steps), 0)


def _integer_range(context: Context, start: Value, limit: Value, delta: Value) -> Dim:
    """The number of elements of a range of integers."""
    (width,) = delta.dims or (0,)
    least = None if isinstance(width, int) else least_value(width)
    if least is not None and least >= 0:
        begin, end = context.dim_of(start, "the start"), context.dim_of(limit, "the limit")
        require(minimum(width, 1), 1, "a range with steps of 0")
        return maximum(ceil_quotient(end - begin, maximum(width, 1)), 0)
    step = context.integer_of(delta, "the step")
    if step == 0:
        raise malformed("a range with steps of 0")
    single = all(v.shape in ((), (1,)) for v in (start, limit))
    if context.counted and single and not all(map(context.has_dims, (start, limit))):
        first, last = (v.cast(INT64).reshape((1,)) for v in (start, limit))
        count = context.count_between(first, last, (step,))
        return context.extents_of(count, "the elements of a range")[0]
    begin, end = context.dim_of(start, "the start"), context.dim_of(limit, "the limit")
    return slice_extent(begin, end, step)


@onnx("Range")
def _range(context: Context, start: Value, limit: Value, delta: Value) -> Value:
    what = f"a range from {start.type} to {limit.type} by {delta.type}"
    if any(v.rank > 1 for v in (start, limit, delta)):
        raise malformed(what)
    for one in (n for v in (start, limit, delta) for n in v.shape):
        require(one, 1, what)
    if start.dtype.kind == "float":
        extent = _float_range(context, start, limit, delta)
        if extent is None:
            extent = _known_range(context, start, limit, delta)
    else:
        extent = _integer_range(context, start, limit, delta)
    numbers = iota(extent).cast(start.dtype)
    if delta.constant is None or delta.constant.item() != 1:
        numbers = numbers * delta.reshape(())
    if start.constant is None or start.constant.item() != 0:
        numbers = numbers + start.reshape(())
    return numbers
