"""Pooling of regions of images: RoiAlign, MaxRoiPool."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, minimum, product
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.interpolation import linear_weight
from ftuner.frontends.onnx.sampling import Taps, rows_of, sampled, wide, within
from ftuner.frontends.onnx.windows import channels_first, channels_last
from ftuner.graph.algebra import (
    apply,
    ceil,
    counted,
    equal,
    floor,
    gather,
    iota,
    malformed,
    require,
    scalar,
    sign,
    unsupported,
    where,
)
from ftuner.graph.ir import Value

MAX_NEAR = 6
"""Samples between the elements before and after an element. Derived: samples of an adaptive grid
are more than half an element apart, so that four lie within two elements; one more on either side
for rounding."""


def _roi_line(
    context: Context, start: Value, length: Value, extent: Dim, bins: int, ratio: int
) -> Taps:
    """The taps along an axis of samples (regions, 2 * ratio, bins): `ratio` in each bin, between
    two elements each. `start` and `length` are (regions, 1, 1)."""
    dtype = start.dtype
    each = length * (1 / bins)
    numbers = iota(bins, 2, 3).cast(dtype)
    inner = iota(ratio, 1, 3).cast(dtype)
    inner = (inner + 0.5) * (1 / ratio)
    position = (numbers + inner) * each
    position = start + position
    count = counted([extent], dtype)
    outside = (position < scalar(-1, dtype)) | (count < position)
    last = count + -1
    position = position.at_most(last).at_least(0)
    # (regions, ratio, 2, bins)
    position, outside = (v.unsqueeze([2]) for v in (position, outside))
    taps = iota(2, 2, 4).cast(dtype)
    at = floor(position) + taps
    distance = abs(at - position)
    weight = linear_weight(context, distance)
    weight = where(outside, scalar(0, dtype), weight)
    found, _ = within(context, at, extent)
    shape = (start.shape[0], 2 * ratio, bins)
    return Taps(found.reshape(shape), weight.reshape(shape), None)


def _roi_align(context: Context, node: NodeView) -> Sequence[Value]:
    x, rois, images = (node.input(i) for i in range(3))
    what = f"regions {rois.type} of {x.type} with {images.type}"
    if x.rank != 4 or rois.rank != 2 or images.rank != 1:
        raise malformed(what)
    require(rois.shape[1], 4, what)
    require(images.shape[0], rois.shape[0], what)
    require(minimum(product(x.shape[2:]), 1), 1, f"{what}: no elements")
    mode = node.text("mode", "avg")
    half = node.text("coordinate_transformation_mode",
                     "half_pixel" if node.opset >= 16 else "output_half_pixel")  # fmt: skip
    if mode not in ("avg", "max") or half not in ("half_pixel", "output_half_pixel"):
        raise malformed(f"mode {mode!r}, coordinate_transformation_mode {half!r}")
    bins = [node.integer(name, 1) for name in ("output_height", "output_width")]
    ratio = node.integer("sampling_ratio", 0)
    if min(bins) < 1 or ratio < 0:
        raise malformed(f"{bins[0]} by {bins[1]} bins, sampling_ratio {ratio}")
    if ratio == 0 and mode == "max":
        raise unsupported(
            "the largest of as many samples as the size of a region asks for (data-dependent shape)"
        )
    corners = wide(context, rois) * node.number("spatial_scale", 1.0)
    if half == "half_pixel":
        corners = corners + -0.5
    sides = []
    for axis in range(2):
        start = _column(context, corners, 1 - axis)
        length = _column(context, corners, 3 - axis) - start
        sides.append((start, length if half == "half_pixel" else length.at_least(1)))
    numbers = _images(context, images, x.shape[0])
    whole = wide(context, channels_last(context, x))
    if ratio == 0:
        weights = [
            _adaptive_line(context, *side, extent, count)
            for side, extent, count in zip(sides, x.shape[2:], bins, strict=True)
        ]
        pooled = _separable(context, whole, numbers, weights)
        return [channels_first(context, pooled.cast(x.dtype))]
    lines = [
        _roi_line(context, *side, extent, count, ratio)
        for side, extent, count in zip(sides, x.shape[2:], bins, strict=True)
    ]
    taps = _of_pixels(context, lines, x.shape[3])
    first = numbers * counted([product(x.shape[2:])], INT64)
    at = taps.at + first.reshape((rois.shape[0], 1, 1))
    rows = rows_of(context, whole)
    taps = Taps(at, taps.weight, None)
    samples = sampled(context, rows, taps, "sum" if mode == "avg" else "maximum")
    if mode == "avg":
        samples = samples * (1 / ratio**2)
    result = samples.cast(x.dtype).reshape((rois.shape[0], *bins, x.shape[1]))
    return [channels_first(context, result)]


def _column(context: Context, table: Value, number: int) -> Value:
    """A column of a table with a row for each region, as (regions, 1, 1)."""
    return table.slice(1, number, 1).reshape((table.shape[0], 1, 1))


def _images(context: Context, numbers: Value, count: Dim) -> Value:
    """The numbers of images, of which those below zero are out of range: they do not count from the
    end."""
    at = numbers.cast(INT64)
    below = at < scalar(0, INT64)
    return where(below, counted([count], INT64), at)


def _adaptive_line(context: Context, start: Value, length: Value, extent: Dim, bins: int) -> Value:
    """The weights along an axis, (regions, bins, extent), of samples less than an element apart.
    A bin has as many as it has elements, rounded up. `start` and `length` are (regions, 1, 1).

    The number of samples is data, but few of them are near an element: those are found by
    division."""
    dtype = start.dtype

    def add(op: str, x: Value, y: Value) -> Value:
        return apply(op, x, y)

    each = length * (1 / bins)
    count = ceil(each)
    step = add("divide", each, count.at_least(1))
    begin = add("add", start, add("multiply", iota(bins, 1, 3).cast(dtype), each))
    elements = iota(extent, 2, 3).cast(dtype)
    # The last sample at or before the element before, or the first sample.
    first = add("divide", add("subtract", elements + -1, begin), step)
    first = floor(first + -0.5).at_least(0)
    first, begin, count, step, elements = (
        v.unsqueeze([1]) for v in (first, begin, count, step, elements)
    )
    number = add("add", first, iota(MAX_NEAR, 1, 4).cast(dtype))
    position = add("add", begin, add("multiply", number + 0.5, step))
    last = counted([extent - 1], dtype)
    counts = _all(
        context,
        add("less", number, count),
        add("less_equal", scalar(-1, dtype), position),
        add("less_equal", position, counted([extent], dtype)),
    )
    inside = add("minimum", position, last).at_least(0)
    weight = linear_weight(context, abs(add("subtract", elements, inside)))
    weight = where(counts, weight, scalar(0, dtype))
    total = weight.reduce("sum", [1], keep=False)
    return add("divide", total, count.squeeze([1]).at_least(1))


def _all(context: Context, first: Value, *others: Value) -> Value:
    for other in others:
        first = first & other
    return first


def _separable(context: Context, x: Value, images: Value, weights: Sequence[Value]) -> Value:
    """For each region the sums of its image, channels last, times weights (regions, bins, extent)
    of rows and of columns: (regions, bins, bins, channels)."""
    rows, columns = weights
    # (regions, rows, bins, columns, channels)
    read = _of_images(context, x, images).unsqueeze([2])
    total = _weighted(context, read, columns.unsqueeze([1, 4]))
    total = total.reduce("sum", [3], keep=False).unsqueeze([1])
    # (regions, bins of rows, rows, bins of columns, channels)
    total = _weighted(context, total, rows.unsqueeze([3, 4]))
    return total.reduce("sum", [2], keep=False)


def _weighted(context: Context, x: Value, weight: Value) -> Value:
    """x times weights. What has no weight is not part of a sum, even if it is infinite."""
    none = scalar(0, x.dtype)
    left_out = equal(weight, 0)
    return where(left_out, none, x * weight)


def _of_images(context: Context, x: Value, images: Value) -> Value:
    return gather(x, images)


def _of_pixels(context: Context, lines: Sequence[Taps], width: Dim) -> Taps:
    """Taps (regions, taps of both axes, rows * columns) of taps along rows and along columns."""

    def both(op: str, y: Value, x: Value) -> Value:
        rows = y.unsqueeze([2, 4])
        columns = x.unsqueeze([1, 3])
        found = apply(op, rows, columns)
        return found.reshape((y.shape[0], y.shape[1] * x.shape[1], y.shape[2] * x.shape[2]))

    row, column = lines
    assert row.weight is not None
    assert column.weight is not None
    first = row.at * counted([width], INT64)
    return Taps(both("add", first, column.at), both("multiply", row.weight, column.weight), None)


# MaxRoiPool.


def _max_roi_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x, rois = node.input(0), node.input(1)
    bins = node.integers("pooled_shape")
    if x.rank != 4 or rois.rank != 2 or len(bins) != 2 or min(bins) < 1:
        raise malformed(f"regions {rois.type} of {x.type} in {list(bins)} bins")
    scale = node.number("spatial_scale", 1.0)
    if scale <= 0:
        raise malformed(f"spatial_scale is {scale}; expected more than zero")
    require(rois.shape[1], 5, f"regions {rois.type}")
    table = wide(context, rois)
    corners = table * scale
    inside, filled = [], []
    for axis, extent in enumerate(x.shape[2:]):
        first, last = (_whole(context, _column(context, corners, n - axis)) for n in (2, 4))
        low, high = _borders(context, first, last, extent, bins[axis])
        at = iota(extent, 2, 3).cast(low.dtype)
        inside.append(_all(context, low <= at, at < high))
        filled.append((low < high).squeeze([2]))
    numbers = table.slice(1, 0, 1).cast(INT64)
    numbers = _images(context, numbers.reshape((rois.shape[0],)), x.shape[0])
    whole = wide(context, channels_last(context, x))
    nothing = scalar(-math.inf, whole.dtype)
    # (regions, rows, bins, columns, channels)
    read = _of_images(context, whole, numbers).unsqueeze([2])
    found = where(inside[1].unsqueeze([1, 4]), read, nothing)
    found = found.reduce("maximum", [3], keep=False).unsqueeze([1])
    # (regions, bins of rows, rows, bins of columns, channels)
    found = where(inside[0].unsqueeze([3, 4]), found, nothing)
    found = found.reduce("maximum", [2], keep=False)
    some = filled[0].unsqueeze([2, 3]) & filled[1].unsqueeze([1, 3])
    found = where(some, found, 0)
    return [channels_first(context, found.cast(x.dtype))]


def _whole(context: Context, x: Value) -> Value:
    """Rounded, halves away from zero."""
    size = floor(abs(x) + 0.5)
    return sign(x) * size


def _borders(
    context: Context, first: Value, last: Value, extent: Dim, bins: int
) -> tuple[Value, Value]:
    """The first element of each bin and the one after its last, (regions, bins, 1), along an axis
    of a region between two elements, (regions, 1, 1)."""
    dtype = first.dtype
    length = last - first + 1
    each = length.at_least(1) / scalar(bins, dtype)
    numbers = iota(bins, 1, 3).cast(dtype)
    low = floor(numbers * each)
    high = ceil((numbers + 1) * each)
    end = counted([extent], dtype)
    low, high = ((first + border).at_most(end).at_least(0) for border in (low, high))
    return low, high


REGIONS: Table = {
    ("", "MaxRoiPool"): _max_roi_pool,
    ("", "RoiAlign"): _roi_align,
}
