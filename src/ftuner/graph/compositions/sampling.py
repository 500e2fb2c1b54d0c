"""Samples of an image at positions that are data.

A sample is a weighted sum of elements of the image. Tables say for every tap of every sample which
row of the image it reads, channels last, and its weight. One gather and one reduction do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, Shape, product, row_major_strides
from ftuner.core.dtype import INT64
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import apply, counted, equal, floor, gather, iota, rint, scalar, where
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions.interpolation import cubic_weight, linear_weight
from ftuner.graph.compositions.windows import channels_first, channels_last
from ftuner.graph.ir import Value

MAX_AXES = 3
"""Most spatial axes that are sampled: cubic interpolation reads `4 ** axes` elements."""


_CUBIC = -0.75
"""The coefficient of cubic interpolation in GridSample of ONNX and in grid_sample of torch."""


@dataclass(frozen=True)
class Taps:
    """What samples read along one axis of an image: tables of (images, taps, samples)."""

    at: Value
    """Positions within the axis, int64."""
    weight: Value | None
    """None if the one tap has the weight one."""
    inside: Value | None
    """Which taps count; None if all do."""


def rows_of(x: Value) -> Value:
    """An image, channels last, as rows of channels."""
    return x.reshape((product(x.shape[:-1]), x.shape[-1]))


def within(at: Value, extent: Dim) -> tuple[Value, Value]:
    """Positions as integers within an axis, and whether they were."""
    last = counted([extent - 1], at.dtype)
    inside = (at >= 0) & (at <= last)
    # NaN becomes the least integer.
    return at.at_most(last).cast(INT64).at_least(0), inside


def across(lines: Sequence[Taps], extents: Shape) -> Taps:
    """The taps of all axes together, as numbers of elements of an image."""
    rank = len(lines)
    at: Value | None = None
    weight: Value | None = None
    inside: Value | None = None

    def placed(table: Value, axis: int) -> Value:
        taps: list[Dim] = [1] * rank
        taps[axis] = table.shape[1]
        return table.reshape((table.shape[0], *taps, table.shape[2]))

    def merged(table: Value) -> Value:
        return table.reshape((table.shape[0], product(table.shape[1:-1]), samples))

    samples = lines[0].at.shape[2]
    for axis, stride in enumerate(row_major_strides(extents)):
        line = lines[axis]
        term = placed(line.at, axis) * counted([stride], INT64)
        at = term if at is None else at + term
        if line.weight is not None:
            factor = placed(line.weight, axis)
            weight = factor if weight is None else weight * factor
        if line.inside is not None:
            mask = placed(line.inside, axis)
            inside = mask if inside is None else inside & mask
    assert at is not None
    found = (None if x is None else merged(x) for x in (weight, inside))
    return Taps(merged(at), *found)


def sampled(rows: Value, taps: Taps, kind: str = "sum") -> Value:
    """The samples (images, samples, channels) of rows of channels."""
    found = gather(rows, taps.at)
    if taps.weight is not None:
        found = found * taps.weight.unsqueeze([3]).cast(rows.dtype)
    if taps.inside is not None:
        # Weights of positions that are no numbers are none.
        found = where(taps.inside.unsqueeze([3]), found, 0)
    return found.reduce(kind, [1], keep=False)


def apart(taps: Taps, extents: Shape) -> Taps:
    """Taps that read image i of several which lie one after the other."""
    first = iota(taps.at.shape[0], 0, 3) * counted([product(extents)], INT64)
    return Taps(taps.at + first, taps.weight, taps.inside)


def _reflected(x: Value, low: Value, high: Value) -> Value:
    """Positions reflected at both borders until they are between them."""

    below, span = x < low, high - low
    beyond = where(below, low - x, x - high)
    times = floor(beyond / span)
    rest = beyond - times * span
    from_low = apply("logical_xor", below, equal(times - floor(times * 0.5) * 2, 1))
    return where(beyond > 0, where(from_low, low + rest, high - rest), x)


def _grid_line(position: Value, extent: Dim, mode: str, padding: str, corners: bool) -> Taps:
    """The taps of positions (images, samples) between -1 and 1 along an axis."""
    dtype = position.dtype
    count = counted([extent], dtype)
    half, one = scalar(0.5, dtype), scalar(1, dtype)
    shifted = position + one
    last = count - one
    if corners:
        position = shifted * half * last
        borders = (scalar(0, dtype), last)
    else:
        position = (shifted * count - one) * half
        borders = (scalar(-0.5, dtype), count - half)
    if mode == "nearest":
        position = rint(position)
    # Cubic interpolation finds each element that it reads within the borders, as PyTorch does.
    if padding == "border" and mode != "cubic":
        position = position.at_most(last).at_least(0)
    elif padding == "reflection" and mode != "cubic":
        position = _reflected(position, *borders)
    position = position.unsqueeze([1])
    weight: Value | None = None
    at = position
    if mode != "nearest":
        first, taps = (0, 2) if mode == "linear" else (-1, 4)
        at = floor(position) + (iota(taps, 1, 3).cast(dtype) + first)
        distance = abs(at - position)
        weight = linear_weight(distance) if mode == "linear" else cubic_weight(distance, _CUBIC)
        if padding == "reflection":
            at = _reflected(at, *borders)
            # Rounded towards zero; borders may be at halves.
            at = at.cast(INT64).cast(dtype)
    found, inside = within(at, extent)
    return Taps(found, weight, inside if padding == "zeros" else None)


def grid_samples(x: Value, grid: Value, mode: str, padding: str, corners: bool) -> Value:
    """Samples of images at positions between -1 and 1.

    Args:
        x: channels first.
        grid: (images, extents of the result..., coordinates), of which the first is along the last
            axis.
        mode: `linear`, `nearest` or `cubic`.
        padding: `zeros`, `border` or `reflection`: what is beyond the image.
        corners: whether 1 is the centre of the last element, and not its border.
    """
    rank = x.rank - 2
    what = f"samples of {x.type} at {grid.type}"
    if not 1 <= rank <= MAX_AXES or grid.rank != x.rank or grid.dtype.kind != "float":
        raise malformed(what)
    require(grid.shape[-1], rank, what)
    require(grid.shape[0], x.shape[0], what)
    extents, outputs = x.shape[2:], grid.shape[1:-1]
    positions = grid.wide()
    lines = []
    for axis, extent in enumerate(extents):
        part = positions.slice(grid.rank - 1, rank - 1 - axis, 1)
        position = part.reshape((grid.shape[0], product(outputs)))
        lines.append(_grid_line(position, extent, mode, padding, corners))
    taps = apart(across(lines, extents), extents)
    rows = rows_of(channels_last(x))
    if mode != "nearest":
        rows = rows.wide().computed()
    found = sampled(rows, taps).cast(x.dtype)
    return channels_first(found.reshape((x.shape[0], *outputs, x.shape[1])))
