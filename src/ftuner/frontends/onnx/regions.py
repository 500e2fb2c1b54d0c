"""Regions of images: pooling (RoiAlign, MaxRoiPool), and which boxes are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ftuner.core.dim import Dim, minimum, product
from ftuner.core.dtype import HALF_DTYPES, INT64
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import Positive, onnx
from ftuner.graph.algebra import apply, ceil, counted, equal, floor, gather, iota, sign, where
from ftuner.graph.checks import expect_shape, malformed, require, unsupported
from ftuner.graph.compositions.interpolation import linear_weight
from ftuner.graph.compositions.sampling import Taps, rows_of, sampled, within
from ftuner.graph.compositions.windows import channels_first, channels_last
from ftuner.graph.ir import Value

MAX_NEAR = 6
"""Samples between the elements before and after an element. Derived: samples of an adaptive grid
are more than half an element apart, so that four lie within two elements; one more on either side
for rounding."""


def _roi_line(start: Value, length: Value, extent: Dim, bins: int, ratio: int) -> Taps:
    """The taps along an axis of samples (regions, 2 * ratio, bins): `ratio` in each bin, between
    two elements each. `start` and `length` are (regions, 1, 1)."""
    dtype = start.dtype
    each = length * (1 / bins)
    inner = (iota(ratio, 1, 3).cast(dtype) + 0.5) * (1 / ratio)
    position = start + (iota(bins, 2, 3).cast(dtype) + inner) * each
    outside = (position < -1) | (position > extent)
    position = position.at_most(counted([extent], dtype) + -1).at_least(0)
    # (regions, ratio, 2, bins)
    position, outside = (v.unsqueeze([2]) for v in (position, outside))
    at = floor(position) + iota(2, 2, 4).cast(dtype)
    weight = where(outside, 0, linear_weight(abs(at - position)))
    found, _ = within(at, extent)
    shape = (start.shape[0], 2 * ratio, bins)
    return Taps(found.reshape(shape), weight.reshape(shape), None)


@onnx("RoiAlign")
def _roi_align(
    node: NodeView, x: Value, rois: Value, images: Value, mode: Literal["avg", "max"] = "avg",
    sampling_ratio: int = 0, spatial_scale: float = 1.0, output_height: Positive = 1,
    output_width: Positive = 1,
) -> Value:  # fmt: skip
    what = f"regions {rois.type} of {x.type} with {images.type}"
    if x.rank != 4 or rois.rank != 2 or images.rank != 1:
        raise malformed(what)
    require(rois.shape[1], 4, what)
    require(images.shape[0], rois.shape[0], what)
    require(minimum(product(x.shape[2:]), 1), 1, f"{what}: no elements")
    kinds = ("output_half_pixel", "half_pixel")
    half = node.one_of("coordinate_transformation_mode", kinds, kinds[node.opset >= 16])
    bins = output_height, output_width
    if sampling_ratio < 0:
        raise malformed(f"sampling_ratio is {sampling_ratio}")
    if sampling_ratio == 0 and mode == "max":
        raise unsupported(
            "the largest of as many samples as the size of a region asks for (data-dependent shape)"
        )
    corners = rois.wide().computed() * spatial_scale
    if half == "half_pixel":
        corners = corners + -0.5
    sides = []
    for axis in range(2):
        start = _column(corners, 1 - axis)
        length = _column(corners, 3 - axis) - start
        sides.append((start, length if half == "half_pixel" else length.at_least(1)))
    numbers = _images(images, x.shape[0])
    whole = channels_last(x).wide().computed()
    if sampling_ratio == 0:
        weights = [
            _adaptive_line(*side, extent, count)
            for side, extent, count in zip(sides, x.shape[2:], bins, strict=True)
        ]
        return channels_first(_separable(whole, numbers, weights).cast(x.dtype))
    lines = [
        _roi_line(*side, extent, count, sampling_ratio)
        for side, extent, count in zip(sides, x.shape[2:], bins, strict=True)
    ]
    taps = _of_pixels(lines, x.shape[3])
    at = taps.at + (numbers * product(x.shape[2:])).reshape((rois.shape[0], 1, 1))
    rows = rows_of(whole)
    taps = Taps(at, taps.weight, None)
    samples = sampled(rows, taps, "sum" if mode == "avg" else "maximum")
    if mode == "avg":
        samples = samples * (1 / sampling_ratio**2)
    return channels_first(samples.cast(x.dtype).reshape((rois.shape[0], *bins, x.shape[1])))


def _column(table: Value, number: int) -> Value:
    """A column of a table with a row for each region, as (regions, 1, 1)."""
    return table.slice(1, number, 1).reshape((table.shape[0], 1, 1))


def _images(numbers: Value, count: Dim) -> Value:
    """The numbers of images, of which those below zero are out of range: they do not count from the
    end."""
    at = numbers.cast(INT64)
    return where(at < 0, count, at)


def _adaptive_line(start: Value, length: Value, extent: Dim, bins: int) -> Value:
    """The weights along an axis, (regions, bins, extent), of samples less than an element apart.
    A bin has as many as it has elements, rounded up. `start` and `length` are (regions, 1, 1).

    The number of samples is data, but few of them are near an element: those are found by
    division."""
    dtype = start.dtype

    each = length * (1 / bins)
    count = ceil(each)
    step = each / count.at_least(1)
    begin = start + iota(bins, 1, 3).cast(dtype) * each
    elements = iota(extent, 2, 3).cast(dtype)
    # The last sample at or before the element before, or the first sample.
    first = floor((elements + -1 - begin) / step + -0.5).at_least(0)
    first, begin, count, step, elements = (
        v.unsqueeze([1]) for v in (first, begin, count, step, elements)
    )
    number = first + iota(MAX_NEAR, 1, 4).cast(dtype)
    position = begin + (number + 0.5) * step
    counts = (number < count) & (position >= -1) & (position <= extent)
    inside = position.at_most(extent - 1).at_least(0)
    weight = where(counts, linear_weight(abs(elements - inside)), 0)
    return weight.reduce("sum", [1], keep=False) / count.squeeze([1]).at_least(1)


def _separable(x: Value, images: Value, weights: Sequence[Value]) -> Value:
    """For each region the sums of its image, channels last, times weights (regions, bins, extent)
    of rows and of columns: (regions, bins, bins, channels)."""
    rows, columns = weights
    # (regions, rows, bins, columns, channels)
    total = _weighted(gather(x, images).unsqueeze([2]), columns.unsqueeze([1, 4]))
    total = total.reduce("sum", [3], keep=False).unsqueeze([1])
    # (regions, bins of rows, rows, bins of columns, channels)
    total = _weighted(total, rows.unsqueeze([3, 4]))
    return total.reduce("sum", [2], keep=False)


def _weighted(x: Value, weight: Value) -> Value:
    """x times weights. What has no weight is not part of a sum, even if it is infinite."""
    return where(equal(weight, 0), 0, x * weight)


def _of_pixels(lines: Sequence[Taps], width: Dim) -> Taps:
    """Taps (regions, taps of both axes, rows * columns) of taps along rows and along columns."""

    def both(op: str, y: Value, x: Value) -> Value:
        found = apply(op, y.unsqueeze([2, 4]), x.unsqueeze([1, 3]))
        return found.reshape((y.shape[0], y.shape[1] * x.shape[1], y.shape[2] * x.shape[2]))

    row, column = lines
    assert row.weight is not None
    assert column.weight is not None
    first = row.at * width
    return Taps(both("add", first, column.at), both("multiply", row.weight, column.weight), None)


# MaxRoiPool.


@onnx("MaxRoiPool")
def _max_roi_pool(
    x: Value, rois: Value, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0
) -> Value:
    if x.rank != 4 or rois.rank != 2 or len(pooled_shape) != 2 or min(pooled_shape) < 1:
        raise malformed(f"regions {rois.type} of {x.type} in {list(pooled_shape)} bins")
    if spatial_scale <= 0:
        raise malformed(f"spatial_scale is {spatial_scale}; expected more than zero")
    require(rois.shape[1], 5, f"regions {rois.type}")
    table = rois.wide().computed()
    corners = table * spatial_scale
    inside, filled = [], []
    for axis, extent in enumerate(x.shape[2:]):
        first, last = (_whole(_column(corners, n - axis)) for n in (2, 4))
        low, high = _borders(first, last, extent, pooled_shape[axis])
        at = iota(extent, 2, 3).cast(low.dtype)
        inside.append((at >= low) & (at < high))
        filled.append((low < high).squeeze([2]))
    numbers = _images(table.slice(1, 0, 1).cast(INT64).reshape((rois.shape[0],)), x.shape[0])
    whole = channels_last(x).wide().computed()
    # (regions, rows, bins, columns, channels)
    found = where(inside[1].unsqueeze([1, 4]), gather(whole, numbers).unsqueeze([2]), -math.inf)
    found = found.reduce("maximum", [3], keep=False).unsqueeze([1])
    # (regions, bins of rows, rows, bins of columns, channels)
    found = where(inside[0].unsqueeze([3, 4]), found, -math.inf)
    found = found.reduce("maximum", [2], keep=False)
    some = filled[0].unsqueeze([2, 3]) & filled[1].unsqueeze([1, 3])
    return channels_first(where(some, found, 0).cast(x.dtype))


def _whole(x: Value) -> Value:
    """Rounded, halves away from zero."""
    return sign(x) * floor(abs(x) + 0.5)


def _borders(first: Value, last: Value, extent: Dim, bins: int) -> tuple[Value, Value]:
    """The first element of each bin and the one after its last, (regions, bins, 1), along an axis
    of a region between two elements, (regions, 1, 1)."""
    dtype = first.dtype
    each = (last - first + 1).at_least(1) / bins
    numbers = iota(bins, 1, 3).cast(dtype)
    low, high = floor(numbers * each), ceil((numbers + 1) * each)
    low, high = ((first + border).at_most(extent).at_least(0) for border in (low, high))
    return low, high


def _number(context: Context, value: Value | None, what: str) -> float | None:
    """The element, known now, of a tensor of one element; None if it is left out."""
    if value is None or value.shape == (0,):
        return None
    array = context.array_of(value, what)
    if array.size != 1 or array.dtype.kind not in "iuf":
        raise malformed(f"{what} is {value.type}; expected one number")
    return float(array.item())


@onnx("NonMaxSuppression")
def _non_max_suppression(
    context: Context, node: NodeView, boxes: Value, scores: Value, most: Value | None,
    threshold: Value | None, score: Value | None, center_point_box: bool = False,
) -> Value:  # fmt: skip
    what = f"boxes {boxes.type} with scores {scores.type}"
    if scores.rank != 3 or boxes.dtype.name in HALF_DTYPES:
        raise malformed(what)
    expect_shape(boxes, (scores.shape[0], scores.shape[2], 4), what)
    limit = _number(context, most, "the most boxes of a class")
    overlap = _number(context, threshold, "the threshold of overlaps")
    least = _number(context, score, "the threshold of scores")
    count = context.names.fresh(f"{next(iter(node.record.outputs), 'boxes')}_count")
    return apply(
        "non_max_suppression", scores, boxes, centred=center_point_box, limit=int(limit or 0),
        iou_threshold=overlap or 0.0, score_threshold=least, count=str(count),
    )  # fmt: skip
