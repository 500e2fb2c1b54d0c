"""Slices. Their bounds are dims or, where iterations of a loop have others, data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import Dim, least_value, maximum, minimum
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.graph.ir import Value
from ftuner.graph.ops.views import slice_extent

_UNBOUNDED = 2**31 - 1
"""A slice end at least this large, positive or negative, means the end of the axis, as ONNX
specifies."""


def _from_front(position: Dim, extent: Dim) -> Dim:
    """A position counted from the front; a negative one counts from the back."""
    if isinstance(position, int):
        return position + extent if position < 0 else position
    low, below = least_value(position), least_value(-position)
    if low is not None and low >= 0:
        return position
    # 1 if the position is negative, else 0.
    known = below is not None and below >= 0
    negative = minimum(-position if known else maximum(-position, 0), 1)
    return position + extent * negative


def _bounds(start: Dim, end: Dim, step: int, extent: Dim) -> tuple[Dim, Dim]:
    """The first index of a slice along an axis, and the number of elements.

    A start beyond the end of the axis needs no clamp: the slice is then empty.
    """
    forward = step > 0
    open_end = isinstance(end, int) and (end >= _UNBOUNDED if forward else end <= -_UNBOUNDED)
    if forward:
        first = maximum(_from_front(start, extent), 0)
        stop = extent if open_end else minimum(_from_front(end, extent), extent)
        if step == 1 and stop == extent and isinstance(start, int) and start < 0:
            count = minimum(-start, extent)
            return extent - count, count
    else:
        first = minimum(maximum(_from_front(start, extent), 0), extent - 1)
        if isinstance(start, int) and start >= _UNBOUNDED:
            first = extent - 1
        stop = -1 if open_end else maximum(_from_front(end, extent), -1)
    return first, slice_extent(first, stop, step)


def _slice(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    starts: Sequence[Dim]
    ends: Sequence[Dim]
    if node.opset < 10:
        starts, ends = node.integers("starts"), node.integers("ends")
        axes = node.integers("axes", tuple(range(len(starts))))
        steps: Sequence[int] = [1] * len(starts)
    else:
        if context.counted and not all(context.has_dims(node.input(i)) for i in (1, 2)):
            return [_slice_by_data(context, node)]
        starts = context.dims_of(node.input(1), "the start")
        ends = context.dims_of(node.input(2), "the end")
        given, strides = node.optional(3), node.optional(4)
        axes = tuple(range(len(starts)))
        if given is not None:
            axes = context.integers_of(given, "the axes")
        steps = [1] * len(starts)
        if strides is not None:
            steps = context.integers_of(strides, "the step")
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise context.malformed(
            f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps"
        )
    first: list[Dim] = [0] * x.rank
    stride = [1] * x.rank
    shape = list(x.shape)
    _expect_slices(context, x, axes, steps)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = context.axis(axis, x.rank)
        stride[at] = step
        first[at], shape[at] = _bounds(start, end, step, x.shape[at])
    if tuple(shape) == x.shape and all(s == 1 for s in stride) and not any(first):
        return [x]
    return [context.add("slice", x, starts=tuple(first), steps=tuple(stride), shape=tuple(shape))]


def _expect_slices(context: Context, x: Value, axes: Sequence[int], steps: Sequence[int]) -> None:
    context.axes(axes, x.rank)
    if 0 in steps:
        raise context.malformed("a slice with steps of 0")


def _slice_by_data(context: Context, node: NodeView) -> Value:
    """A slice whose bounds are known only at run time: the numbers of its elements are bound as
    extents, and its elements are gathered."""
    x, starts, ends = (node.input(i) for i in range(3))
    given, strides = node.optional(3), node.optional(4)
    count = starts.shape[0] if starts.rank == 1 else None
    if not isinstance(count, int):
        raise context.unsupported(f"starts {starts.type}; expected one axis of a known extent")
    axes = tuple(range(count)) if given is None else context.integers_of(given, "the axes")
    steps = (1,) * count if strides is None else context.integers_of(strides, "the step")
    if not (ends.shape == starts.shape and len(axes) == len(steps) == count):
        raise context.malformed(
            f"starts {starts.type}, ends {ends.type}, {len(axes)} axes and {len(steps)} steps"
        )
    _expect_slices(context, x, axes, steps)
    axes = tuple(context.axis(axis, x.rank) for axis in axes)
    extents = context.builder.dims([x.shape[axis] for axis in axes])
    # Backwards, positions are before the last element, and the end may be before the first one.
    backwards = [int(step < 0) for step in steps]
    highest = context.add("subtract", extents, _integers(context, backwards))
    zeros, lowest = (_integers(context, n) for n in ([0] * count, [-b for b in backwards]))

    def within(positions: Value, low: Value) -> Value:
        positions = context.cast(positions, INT64)
        negative = context.add("less", positions, zeros)
        whole = context.add("add", positions, extents)
        positions = context.add("where", negative, whole, positions)
        return context.add("minimum", context.add("maximum", positions, low), highest)

    first = within(starts, zeros)
    counts = context.extents_between(first, within(ends, lowest), steps)
    for i, (axis, step, extent) in enumerate(zip(axes, steps, counts, strict=True)):
        at = context.add(
            "add", context.scaled(context.iota(extent), step), context.slice(first, 0, i, 1)
        )
        x = context.add("gather", x, at, axis=axis, node=context.builder.where)
    return x


def _integers(context: Context, numbers: Sequence[int]) -> Value:
    return context.builder.constant(np.array(numbers, np.int64))


SLICING: Table = {("", "Slice"): _slice}
