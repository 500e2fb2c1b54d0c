"""Slices. Their bounds are dims or, where iterations of a loop have others, data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import BOOL, INT64
from ftuner.frontends.onnx.context import Context
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, concat, constant, scalar, where
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions.slices import bounds
from ftuner.graph.ir import Value

_LONGEST_STEP = 1 << 40
"""More elements than an axis has: longer steps are as good, and their sums must fit 64 bits."""


@onnx("Slice")
def _slice_by_attributes(
    context: Context, x: Value, starts: tuple[int, ...], ends: tuple[int, ...],
    axes: tuple[int, ...] | None = None,
) -> Value:  # fmt: skip
    axes = tuple(range(len(starts))) if axes is None else axes
    return _between(context, x, starts, ends, axes, (1,) * len(starts))


@onnx("Slice", since=10)
def _slice(
    context: Context, x: Value, start: Value, end: Value, given: Value | None,
    strides: Value | None,
) -> Value:  # fmt: skip
    lists = [v for v in (start, end, given, strides) if v is not None]
    count = next((n for v in lists if v.rank == 1 and isinstance(n := v.shape[0], int)), None)
    if count is not None and start.rank == end.rank == 1:
        # The known number that axes, steps or one of the bounds have.
        for value in (start, end):
            require(value.shape[0], count, f"{value.type} bounds a slice along {count} axes")
        start, end = (value.slice(0, 0, count) for value in (start, end))
    if _come_as_data(context, start, end) and (
        context.counted or any(map(context.follows_a_loop, (start, end)))
    ):
        return _sliced_by_data(context, x, start, end, given, strides)
    starts, ends = context.dims_of(start, "the start"), context.dims_of(end, "the end")
    axes, steps = _axes_and_steps(context, given, strides, len(starts))
    return _between(context, x, starts, ends, axes, steps)


def _between(
    context: Context, x: Value, starts: Shape, ends: Shape, axes: Sequence[int],
    steps: Sequence[int],
) -> Value:  # fmt: skip
    if not len(starts) == len(ends) == len(axes):
        raise malformed(f"{len(starts)} starts, {len(ends)} ends and {len(axes)} axes")
    rows = zip(context.axes(axes, x.rank, ordered=False), starts, ends, steps, strict=True)
    return _strided(
        x, {a: (step, *bounds(start, end, step, x.shape[a])) for a, start, end, step in rows}
    )


def _strided(x: Value, along: Mapping[int, tuple[int, Dim, Dim]]) -> Value:
    """Slices along some axes: the step, the first position and the extent of each."""
    every = [along.get(axis, (1, 0, extent)) for axis, extent in enumerate(x.shape)]
    if every == [(1, 0, extent) for extent in x.shape]:
        return x
    steps, starts, shape = zip(*every, strict=True)
    return apply("slice", x, starts=starts, steps=steps, shape=shape)


def _axes_and_steps(
    context: Context, given: Value | None, strides: Value | None, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes and steps of a slice with a number of bounds."""
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


def _sliced_by_data(
    context: Context, x: Value, start: Value, end: Value, given: Value | None,
    strides: Value | None,
) -> Value:  # fmt: skip
    """A slice between bounds that data decides. The nodes around compute its first positions and
    its extents, which are zero or more, or one; see `Context.presumes_ones`."""
    bounds = [value.cast(INT64) for value in (start, end)]
    (count,) = bounds[0].shape
    assert isinstance(count, int)
    axes, steps = _axes_and_steps(context, given, strides, count)
    if len(axes) != count:
        raise malformed(f"{count} starts and {len(axes)} axes")
    axes = context.axes(axes, x.rank, ordered=False)
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
    rows = zip(axes, steps, numbers[:count], lengths, strict=True)
    return _strided(x, {axis: (step, first, length) for axis, step, first, length in rows})


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
