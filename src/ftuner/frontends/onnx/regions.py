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
    each = context.scaled(length, 1 / bins)
    numbers = context.cast(context.iota(bins, 2, 3), dtype)
    inner = context.cast(context.iota(ratio, 1, 3), dtype)
    inner = context.scaled(context.add_to(inner, 0.5), 1 / ratio)
    position = context.add("multiply", context.add("add", numbers, inner), each)
    position = context.add("add", start, position)
    count = context.count([extent], dtype)
    outside = context.add(
        "logical_or",
        context.add("less", position, context.scalar(-1, dtype)),
        context.add("less", count, position),
    )
    last = context.add_to(count, -1)
    position = context.at_least(context.add("minimum", position, last), 0)
    # (regions, ratio, 2, bins)
    position, outside = (context.unsqueeze(v, [2]) for v in (position, outside))
    taps = context.cast(context.iota(2, 2, 4), dtype)
    at = context.add("add", context.add("floor", position), taps)
    distance = context.add("absolute", context.add("subtract", at, position))
    weight = linear_weight(context, distance)
    weight = context.add("where", outside, context.scalar(0, dtype), weight)
    found, _ = within(context, at, extent)
    shape = (start.shape[0], 2 * ratio, bins)
    return Taps(context.reshape(found, shape), context.reshape(weight, shape), None)


def _roi_align(context: Context, node: NodeView) -> Sequence[Value]:
    x, rois, images = (node.input(i) for i in range(3))
    what = f"regions {rois.type} of {x.type} with {images.type}"
    if x.rank != 4 or rois.rank != 2 or images.rank != 1:
        raise context.malformed(what)
    context.builder.require(rois.shape[1], 4, what)
    context.builder.require(images.shape[0], rois.shape[0], what)
    context.builder.require(minimum(product(x.shape[2:]), 1), 1, f"{what}: no elements")
    mode = node.text("mode", "avg")
    half = node.text("coordinate_transformation_mode",
                     "half_pixel" if node.opset >= 16 else "output_half_pixel")  # fmt: skip
    if mode not in ("avg", "max") or half not in ("half_pixel", "output_half_pixel"):
        raise context.malformed(f"mode {mode!r}, coordinate_transformation_mode {half!r}")
    bins = [node.integer(name, 1) for name in ("output_height", "output_width")]
    ratio = node.integer("sampling_ratio", 0)
    if min(bins) < 1 or ratio < 0:
        raise context.malformed(f"{bins[0]} by {bins[1]} bins, sampling_ratio {ratio}")
    if ratio == 0 and mode == "max":
        raise context.unsupported("the largest of as many samples as the size of a region asks for "
                                  "(data-dependent shape)")  # fmt: skip
    corners = context.scaled(wide(context, rois), node.number("spatial_scale", 1.0))
    if half == "half_pixel":
        corners = context.add_to(corners, -0.5)
    sides = []
    for axis in range(2):
        start = _column(context, corners, 1 - axis)
        length = context.add("subtract", _column(context, corners, 3 - axis), start)
        sides.append((start, length if half == "half_pixel" else context.at_least(length, 1)))
    numbers = _images(context, images, x.shape[0])
    whole = wide(context, channels_last(context, x))
    if ratio == 0:
        weights = [
            _adaptive_line(context, *side, extent, count)
            for side, extent, count in zip(sides, x.shape[2:], bins, strict=True)
        ]
        pooled = _separable(context, whole, numbers, weights)
        return [channels_first(context, context.cast(pooled, x.dtype))]
    lines = [
        _roi_line(context, *side, extent, count, ratio)
        for side, extent, count in zip(sides, x.shape[2:], bins, strict=True)
    ]
    taps = _of_pixels(context, lines, x.shape[3])
    first = context.add("multiply", numbers, context.count([product(x.shape[2:])], INT64))
    at = context.add("add", taps.at, context.reshape(first, (rois.shape[0], 1, 1)))
    rows = rows_of(context, whole)
    taps = Taps(at, taps.weight, None)
    samples = sampled(context, rows, taps, "sum" if mode == "avg" else "maximum")
    if mode == "avg":
        samples = context.scaled(samples, 1 / ratio**2)
    result = context.reshape(context.cast(samples, x.dtype), (rois.shape[0], *bins, x.shape[1]))
    return [channels_first(context, result)]


def _column(context: Context, table: Value, number: int) -> Value:
    """A column of a table with a row for each region, as (regions, 1, 1)."""
    return context.reshape(context.slice(table, 1, number, 1), (table.shape[0], 1, 1))


def _images(context: Context, numbers: Value, count: Dim) -> Value:
    """The numbers of images, of which those below zero are out of range: they do not count from the
    end."""
    at = context.cast(numbers, INT64)
    below = context.add("less", at, context.scalar(0, INT64))
    return context.add("where", below, context.count([count], INT64), at)


def _adaptive_line(context: Context, start: Value, length: Value, extent: Dim, bins: int) -> Value:
    """The weights along an axis, (regions, bins, extent), of samples less than an element apart.
    A bin has as many as it has elements, rounded up. `start` and `length` are (regions, 1, 1).

    The number of samples is data, but few of them are near an element: those are found by
    division."""
    dtype = start.dtype

    def add(op: str, x: Value, y: Value) -> Value:
        return context.add(op, x, y)

    each = context.scaled(length, 1 / bins)
    count = context.add("ceil", each)
    step = add("divide", each, context.at_least(count, 1))
    begin = add("add", start, add("multiply", context.cast(context.iota(bins, 1, 3), dtype), each))
    elements = context.cast(context.iota(extent, 2, 3), dtype)
    # The last sample at or before the element before, or the first sample.
    first = add("divide", add("subtract", context.add_to(elements, -1), begin), step)
    first = context.at_least(context.add("floor", context.add_to(first, -0.5)), 0)
    first, begin, count, step, elements = (
        context.unsqueeze(v, [1]) for v in (first, begin, count, step, elements)
    )
    number = add("add", first, context.cast(context.iota(MAX_NEAR, 1, 4), dtype))
    position = add("add", begin, add("multiply", context.add_to(number, 0.5), step))
    last = context.count([extent - 1], dtype)
    counts = _all(
        context,
        add("less", number, count),
        add("less_equal", context.scalar(-1, dtype), position),
        add("less_equal", position, context.count([extent], dtype)),
    )
    inside = context.at_least(add("minimum", position, last), 0)
    weight = linear_weight(context, context.add("absolute", add("subtract", elements, inside)))
    weight = context.add("where", counts, weight, context.scalar(0, dtype))
    total = context.reduce(weight, "sum", [1], keep=False)
    return add("divide", total, context.at_least(context.squeeze(count, [1]), 1))


def _all(context: Context, first: Value, *others: Value) -> Value:
    for other in others:
        first = context.add("logical_and", first, other)
    return first


def _separable(context: Context, x: Value, images: Value, weights: Sequence[Value]) -> Value:
    """For each region the sums of its image, channels last, times weights (regions, bins, extent)
    of rows and of columns: (regions, bins, bins, channels)."""
    rows, columns = weights
    # (regions, rows, bins, columns, channels)
    read = context.unsqueeze(_of_images(context, x, images), [2])
    total = _weighted(context, read, context.unsqueeze(columns, [1, 4]))
    total = context.unsqueeze(context.reduce(total, "sum", [3], keep=False), [1])
    # (regions, bins of rows, rows, bins of columns, channels)
    total = _weighted(context, total, context.unsqueeze(rows, [3, 4]))
    return context.reduce(total, "sum", [2], keep=False)


def _weighted(context: Context, x: Value, weight: Value) -> Value:
    """x times weights. What has no weight is not part of a sum, even if it is infinite."""
    none = context.scalar(0, x.dtype)
    left_out = context.add("equal", weight, context.scalar(0, weight.dtype))
    return context.add("where", left_out, none, context.add("multiply", x, weight))


def _of_images(context: Context, x: Value, images: Value) -> Value:
    return context.add("gather", x, images, axis=0, node=context.builder.where)


def _of_pixels(context: Context, lines: Sequence[Taps], width: Dim) -> Taps:
    """Taps (regions, taps of both axes, rows * columns) of taps along rows and along columns."""

    def both(op: str, y: Value, x: Value) -> Value:
        rows = context.unsqueeze(y, [2, 4])
        columns = context.unsqueeze(x, [1, 3])
        found = context.add(op, rows, columns)
        return context.reshape(
            found, (y.shape[0], y.shape[1] * x.shape[1], y.shape[2] * x.shape[2])
        )

    row, column = lines
    assert row.weight is not None
    assert column.weight is not None
    first = context.add("multiply", row.at, context.count([width], INT64))
    return Taps(both("add", first, column.at), both("multiply", row.weight, column.weight), None)


# MaxRoiPool.


def _max_roi_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x, rois = node.input(0), node.input(1)
    bins = node.integers("pooled_shape")
    if x.rank != 4 or rois.rank != 2 or len(bins) != 2 or min(bins) < 1:
        raise context.malformed(f"regions {rois.type} of {x.type} in {list(bins)} bins")
    scale = node.number("spatial_scale", 1.0)
    if scale <= 0:
        raise context.malformed(f"spatial_scale is {scale}; expected more than zero")
    context.builder.require(rois.shape[1], 5, f"regions {rois.type}")
    table = wide(context, rois)
    corners = context.scaled(table, scale)
    inside, filled = [], []
    for axis, extent in enumerate(x.shape[2:]):
        first, last = (_whole(context, _column(context, corners, n - axis)) for n in (2, 4))
        low, high = _borders(context, first, last, extent, bins[axis])
        at = context.cast(context.iota(extent, 2, 3), low.dtype)
        inside.append(
            _all(context, context.add("less_equal", low, at), context.add("less", at, high))
        )
        filled.append(context.squeeze(context.add("less", low, high), [2]))
    numbers = context.cast(context.slice(table, 1, 0, 1), INT64)
    numbers = _images(context, context.reshape(numbers, (rois.shape[0],)), x.shape[0])
    whole = wide(context, channels_last(context, x))
    nothing = context.scalar(-math.inf, whole.dtype)
    # (regions, rows, bins, columns, channels)
    read = context.unsqueeze(_of_images(context, whole, numbers), [2])
    found = context.add("where", context.unsqueeze(inside[1], [1, 4]), read, nothing)
    found = context.unsqueeze(context.reduce(found, "maximum", [3], keep=False), [1])
    # (regions, bins of rows, rows, bins of columns, channels)
    found = context.add("where", context.unsqueeze(inside[0], [3, 4]), found, nothing)
    found = context.reduce(found, "maximum", [2], keep=False)
    some = context.add(
        "logical_and", context.unsqueeze(filled[0], [2, 3]), context.unsqueeze(filled[1], [1, 3])
    )
    found = context.add("where", some, found, context.scalar(0, found.dtype))
    return [channels_first(context, context.cast(found, x.dtype))]


def _whole(context: Context, x: Value) -> Value:
    """Rounded, halves away from zero."""
    size = context.add("floor", context.add_to(context.add("absolute", x), 0.5))
    return context.add("multiply", context.add("sign", x), size)


def _borders(
    context: Context, first: Value, last: Value, extent: Dim, bins: int
) -> tuple[Value, Value]:
    """The first element of each bin and the one after its last, (regions, bins, 1), along an axis
    of a region between two elements, (regions, 1, 1)."""
    dtype = first.dtype
    length = context.add_to(context.add("subtract", last, first), 1)
    each = context.add("divide", context.at_least(length, 1), context.scalar(bins, dtype))
    numbers = context.cast(context.iota(bins, 1, 3), dtype)
    low = context.add("floor", context.add("multiply", numbers, each))
    high = context.add("ceil", context.add("multiply", context.add_to(numbers, 1), each))
    end = context.count([extent], dtype)
    low, high = (
        context.at_least(context.add("minimum", context.add("add", first, border), end), 0)
        for border in (low, high)
    )
    return low, high


REGIONS: Table = {
    ("", "MaxRoiPool"): _max_roi_pool,
    ("", "RoiAlign"): _roi_align,
}
