"""Pooling: reductions of windows."""

from __future__ import annotations

import math

from ftuner.core.dim import Dim, product, row_major_strides
from ftuner.graph.algebra import apply, iota
from ftuner.graph.compositions.windows import Window, channels_first, channels_last
from ftuner.graph.ir import Value
from ftuner.graph.passes.channels_last import FEW_CHANNELS


def apart(x: Value) -> Value:
    """x with channels last; few channels as images of one, whose rows are then along vectors."""
    if not _has_few_channels(x):
        return channels_last(x)
    return x.reshape((x.shape[0] * x.shape[1], *x.shape[2:], 1))


def together(result: Value, x: Value) -> Value:
    """What was computed of `apart` of x, with channels first."""
    if not _has_few_channels(x):
        return channels_first(result)
    return result.reshape((*x.shape[:2], *result.shape[1:-1]))


def _has_few_channels(x: Value) -> bool:
    return isinstance(x.shape[1], int) and x.shape[1] <= FEW_CHANNELS


def reduced(x: Value, window: Window, kind: str) -> Value:
    """The reduction of all windows of x, channels last."""
    return apply("window_reduce", x, kind=kind, kernel=window.kernel, **window.attributes())


def numbers(x: Value, window: Window, taps: Value, columns: bool) -> Value:
    """The number in x of the element that each tap is: of the last axis the fastest, or with
    `columns` of the first spatial one. Padding counts as the element next to it."""
    rank, extents = window.rank, x.shape[2:]
    strides = row_major_strides(extents)
    if columns:
        strides = tuple(reversed(row_major_strides(tuple(reversed(extents)))))
    image = iota(x.shape[0] * x.shape[1]).reshape((*x.shape[:2], *[1] * rank))
    total = image * product(extents)
    for axis, stride in enumerate(row_major_strides(window.kernel)):
        tap = taps / stride % window.kernel[axis]
        first = iota(window.extents[axis], axis, rank) * window.strides[axis] - window.begin[axis]
        at = (first + tap * window.dilations[axis]).at_most(extents[axis] - 1).at_least(0)
        total = total + at * strides[axis]
    return total


def counts(x: Value, window: Window, axis: int, padding: bool) -> Value:
    """The number of elements of each window along an axis, as (O, 1, ..., 1): of those at or after
    its first, the ones before the end less the ones before the beginning."""
    extent, begin = x.shape[2 + axis], window.begin[axis]
    if padding:
        extent, begin = extent + begin + window.end[axis], 0

    first = iota(window.extents[axis]) * window.strides[axis]

    def before(position: Dim) -> Value:
        """How many elements of each window are before a position."""
        distance = (first.like(position) - first).at_least(0)
        dilation = window.dilations[axis]
        return ((distance + (dilation - 1)) / dilation).at_most(window.kernel[axis])

    count = before(extent + begin) - before(begin)
    return count.cast(x.dtype).reshape((window.extents[axis], *([1] * (window.rank - axis))))


def averaged(
    x: Value, window: Window, padding: bool, whole: bool, divisor: int | None = None
) -> Value:
    """The means of all windows of x, channels first.

    Args:
        padding: whether elements of the padding count.
        whole: whether all elements of each window count.
        divisor: what sums are divided by, if it is not the number of elements.
    """
    # Half precision can hold neither the sum nor the share of an element.
    wide = x.wide()
    total = reduced(apart(wide), window, "sum")
    if whole or divisor is not None:
        average = total * (
            1 / (divisor or math.prod(n for n in window.kernel if isinstance(n, int)))
        )
    else:
        count = counts(wide, window, 0, padding)
        for axis in range(1, window.rank):
            count = count * counts(wide, window, axis, padding)
        # One division for each position, and not for each of its channels.
        average = total * (1 / count)
    return together(average, x).cast(x.dtype)
