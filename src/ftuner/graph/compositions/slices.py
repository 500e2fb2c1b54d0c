"""Bounds of slices as dims."""

from __future__ import annotations

from ftuner.core.dim import Dim, least_value, maximum, minimum
from ftuner.graph.ops.views import slice_extent

_UNBOUNDED = 2**31 - 1
"""A slice end at least this large, positive or negative, means the end of the axis, as ONNX
specifies."""


def from_front(position: Dim, extent: Dim) -> Dim:
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


def bounds(start: Dim, end: Dim, step: int, extent: Dim) -> tuple[Dim, Dim]:
    """The first index of a slice along an axis, and the number of elements.

    A start beyond the end of the axis needs no clamp: the slice is then empty.
    """
    forward = step > 0
    open_end = isinstance(end, int) and (end >= _UNBOUNDED if forward else end <= -_UNBOUNDED)
    if forward:
        first = maximum(from_front(start, extent), 0)
        stop = extent if open_end else minimum(from_front(end, extent), extent)
        if step == 1 and stop == extent and isinstance(start, int) and start < 0:
            count = minimum(-start, extent)
            return extent - count, count
    else:
        first = minimum(maximum(from_front(start, extent), 0), extent - 1)
        if isinstance(start, int) and start >= _UNBOUNDED:
            first = extent - 1
        stop = -1 if open_end else maximum(from_front(end, extent), -1)
    return first, slice_extent(first, stop, step)
