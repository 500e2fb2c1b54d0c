"""Slices. Their bounds are dims or, where iterations of a loop have others, data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, INT64
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, concat, constant, scalar, where
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions.slices import bounds
from ftuner.graph.ir import Value

_LONGEST_STEP = 1 << 40
"""More elements than an axis has: longer steps are as good, and their sums must fit 64 bits."""


@onnx("Slice")
def _slice(context: Context, node: NodeView, x: Value) -> Value:
    starts: Sequence[Dim]
    ends: Sequence[Dim]
    if node.opset < 10:
        starts, ends = node.integers("starts"), node.integers("ends")
        axes = node.integers("axes", tuple(range(len(starts))))
        steps: Sequence[int] = [1] * len(starts)
    else:
        given = _of_one_length(node)
        if _come_as_data(context, *given) and (
            context.counted or any(map(context.follows_a_loop, given))
        ):
            return _sliced_by_data(context, node, *given)
        starts = context.dims_of(given[0], "the start")
        ends = context.dims_of(given[1], "the end")
        axes, steps = _axes_and_steps(context, node, len(starts))
    if len(starts) != len(ends) or len(axes) != len(starts):
        raise malformed(f"{len(starts)} starts, {len(ends)} ends and {len(axes)} axes")
    first: list[Dim] = [0] * x.rank
    stride = [1] * x.rank
    shape = list(x.shape)
    context.axes(axes, x.rank)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = context.axis(axis, x.rank)
        stride[at] = step
        first[at], shape[at] = bounds(start, end, step, x.shape[at])
    if tuple(shape) == x.shape and all(s == 1 for s in stride) and not any(first):
        return x
    return apply("slice", x, starts=tuple(first), steps=tuple(stride), shape=tuple(shape))


def _of_one_length(node: NodeView) -> tuple[Value, Value]:
    """The starts and ends, of the known number that axes, steps or one of them have."""
    bounds = start, end = node.input(1), node.input(2)
    lists = [v for v in (*bounds, node.optional(3), node.optional(4)) if v is not None]
    count = next((n for v in lists if v.rank == 1 and isinstance(n := v.shape[0], int)), None)
    if count is None or any(v.rank != 1 for v in bounds):
        return bounds
    for value in bounds:
        what = f"{value.type} bounds a slice along {count} axes"
        require(value.shape[0], count, what)
    return start.slice(0, 0, count), end.slice(0, 0, count)


def _axes_and_steps(
    context: Context, node: NodeView, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes and steps of a slice with a number of bounds."""
    given, strides = node.optional(3), node.optional(4)
    axes, steps = tuple(range(count)), (1,) * count
    if given is not None:
        axes = context.integers_of(given, "the axes")
    if strides is not None:
        steps = context.integers_of(strides, "the step")
        steps = tuple(max(min(step, _LONGEST_STEP), -_LONGEST_STEP) for step in steps)
    if len(axes) != len(steps):
        raise malformed(f"{len(axes)} axes and {len(steps)} steps")
    if 0 in steps:
        raise malformed("a slice with steps of 0")
    return axes, steps


def _come_as_data(context: Context, start: Value, end: Value) -> bool:
    """Whether bounds of a known number of axes are known only at run time."""
    some = start.rank == 1 and start.shape == end.shape and isinstance(start.shape[0], int)
    return some and any(context.decided_by_data(v) for v in (start, end))


def _sliced_by_data(context: Context, node: NodeView, start: Value, end: Value) -> Value:
    """A slice between bounds that data decides. The nodes around compute its first positions and
    its extents, which are zero or more, or one; see `Context.presumes_ones`."""
    x, bounds = node.input(0), [value.cast(INT64) for value in (start, end)]
    (count,) = bounds[0].shape
    assert isinstance(count, int)
    axes, steps = _axes_and_steps(context, node, count)
    if len(axes) != count:
        raise malformed(f"{count} starts and {len(axes)} axes")
    context.axes(axes, x.rank)
    axes = tuple(context.axis(axis, x.rank) for axis in axes)
    along = [x.shape[axis] for axis in axes]
    extents = context.builder.dims(along)
    if len(along) == 1 and isinstance(along[0], int):
        # One constant for all slices, so that those between the same bounds have one extent.
        extents = scalar(along[0], INT64)
    zero, one = scalar(0, INT64), scalar(1, INT64)
    high, forward = extents, None
    if any(step < 0 for step in steps):
        forward = constant(np.array([step > 0 for step in steps]), BOOL)
        high = where(forward, extents, extents - one)

    def between(position: Value, least: Value) -> Value:
        """A position, counted from the front and clamped, where steps go back to `least`."""
        position = where(position < zero, position + extents, position)
        low = zero if forward is None else where(forward, zero, least)
        return position.at_least(low).at_most(high)

    first, stop = between(bounds[0], zero), between(bounds[1], scalar(-1, INT64))
    length = context.count_between(first, stop, steps)
    found = concat([first if forward is None else first.at_least(0), length], 0)
    numbers = context.extents_of(found, "the bounds of a slice")
    lengths: list[Dim] = list(numbers[count:])
    ones = all(step == 1 for step in steps) and _ends_one_after(context, *bounds)
    if context.presumes_ones and ones:
        for n in lengths:
            require(n, 1, f"elements of a slice of one of {x.type}")
        lengths = [1] * count
    starts: list[Dim] = [0] * x.rank
    stride, shape = [1] * x.rank, list(x.shape)
    for i, axis in enumerate(axes):
        starts[axis], stride[axis], shape[axis] = numbers[i], steps[i], lengths[i]
    return apply("slice", x, starts=tuple(starts), steps=tuple(stride), shape=tuple(shape))


def _ends_one_after(context: Context, start: Value, end: Value) -> bool:
    (first, before), (last, after) = (_with_offset(context, v) for v in (start, end))
    return first is last and after - before == 1


def _with_offset(context: Context, value: Value) -> tuple[Value, int]:
    """A value as another one and a number that is added to each element of it."""
    total = 0
    while (node := context.builder.producer(value)) is not None and node.op == "add":
        x, y = node.inputs if node.inputs[1].constant is not None else node.inputs[::-1]
        if y.constant is None or y.constant.size != 1 or x.shape != value.shape:
            break
        value, total = x, total + int(y.constant.item())
    return value, total
