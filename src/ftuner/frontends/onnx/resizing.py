"""Resize and Upsample: every axis that changes has a table of positions and one of weights.

Tables depend on extents alone, and are constants where these are known. Positions are computed in
float32, as onnxruntime does: they decide which element is the nearest. Weights are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ftuner.core.dim import Dim, Symbolic, maximum, minimum, quotient, resized
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, INT64
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.interpolation import (
    COORDINATES,
    CROPS,
    Axis,
    Line,
    cubic_weight,
    linear_weight,
)
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, ceil, equal, floor, iota, rint, where
from ftuner.graph.checks import malformed, require
from ftuner.graph.following import sign_of
from ftuner.graph.ir import Value


@dataclass(frozen=True)
class _Mode:
    """How a node resamples."""

    kind: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    excludes: bool


def _rounded(position: Value, how: str, axis: Axis) -> Value:
    if how == _OLD_NEAREST:
        return where(axis.scale() < 1, ceil(position), floor(position))
    if how == "round_prefer_floor":
        return ceil(position + (-0.5 - _TIE))
    if how == "round_prefer_ceil":
        return floor(position + (0.5 + _TIE))
    return apply(how, position)


_TIE = 1e-6
"""Positions this close to the middle between two elements are there, as onnxruntime has it. Found
by trial with its version 1.31."""
_OLD_NEAREST = "before, or after along axes that shrink"
"""The nearest element before opset 11, as onnxruntime has it."""
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_REPEATING = frozenset({
    ("asymmetric", "floor"), ("asymmetric", _OLD_NEAREST), ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"), ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"), ("tf_half_pixel_for_nn", "floor"),
})  # fmt: skip
"""Coordinates and rounding of which n times the elements are each element n times, side by side."""
MOST_TIMES = 16
"""Most times that this holds in float32, too. Derived: positions are at least half of a sixteenth
away from where they would be rounded to another element, further than float32 is off below 2^18."""
_SUPPORT = {"linear": 1, "cubic": 2}
"""Elements on each side that interpolation reads, unless it is stretched against aliasing."""


def _weighted(axis: Axis, position: Value, mode: _Mode) -> tuple[Value, Value]:
    """The tables of positions and of weights, (taps, size) each."""
    support = _SUPPORT[mode.kind]
    reach = axis.reach(support) if mode.antialias else support
    at = floor(position) + (iota(2 * reach, 0, 2).cast(FLOAT64) + (1 - reach))
    distance = abs(at - position)
    if mode.antialias:
        distance = distance * axis.scale().at_most(1).cast(FLOAT64)
    weight = (
        linear_weight(distance)
        if mode.kind == "linear" else cubic_weight(distance, mode.cubic)
    )  # fmt: skip
    if mode.excludes:
        weight = where((at >= 0) & (at < axis.extent), weight, 0)
    if mode.antialias or mode.excludes:
        total = weight.reduce("sum", [0])
        weight = weight / where(equal(total, 0), 1, total)
    return at.cast(INT64), weight


def _times(axis: Axis, mode: _Mode) -> int | None:
    """How many times the nearest elements are each element of an axis; None if they are not."""
    (up, down), *others = axis.ratios
    times = quotient(up, down)
    if others or mode.kind != "nearest" or (mode.coordinates, mode.nearest) not in _REPEATING:
        return None
    if not isinstance(times, int) or times > MOST_TIMES or up != down * times:
        return None
    return times if axis.size == axis.extent * times else None


def _resized(
    x: Value, axes: Sequence[Axis], mode: _Mode, regions: Mapping[int, tuple[Value, Value]],
    outside: float,
) -> Value:  # fmt: skip
    """The result; `outside`: what elements of positions beyond a cropped region are."""
    times = {axis.number: n for axis in axes if (n := _times(axis, mode)) is not None}
    if times:
        x = apply("repeat", x, repeats=tuple(times.get(a, 1) for a in range(x.rank)))
        axes = [axis for axis in axes if axis.number not in times]
        if not axes:
            return x
    crops = mode.coordinates == CROPS
    wide = x
    if mode.kind != "nearest":
        if x.dtype == BOOL:
            raise malformed(f"{mode.kind} interpolation of {x.type}")
        wide = x.wide().computed()
    positions: list[Value] = []
    weights: list[Value] = []
    beyond: list[Value] = []
    for axis in axes:
        position = COORDINATES[mode.coordinates](Line(axis, regions.get(axis.number)))
        if crops:
            found = (position < 0) | (position > axis.extent - 1)
            beyond.append(found.unsqueeze(range(1, x.rank - axis.number)))
        position = position.cast(FLOAT64)
        if mode.kind == "nearest":
            rounded = _rounded(position, mode.nearest, axis)
            positions.append(rounded.cast(INT64).unsqueeze([0]))
        else:
            at, weight = _weighted(axis, position, mode)
            positions.append(at)
            weights.append(weight.cast(wide.dtype))
    numbers = tuple(axis.number for axis in axes)
    result = apply("resample", wide, *positions, *weights, axes=numbers)
    for mask in beyond:
        result = where(mask, outside, result)
    if x.dtype.kind in ("int", "uint") and mode.kind != "nearest":
        result = rint(result)
        if mode.kind == "cubic":
            info = np.iinfo(x.dtype.name)
            result = result.at_least(info.min).at_most(info.max)
    return result.cast(x.dtype)


# Nodes.


def _ratio(scale: float) -> tuple[int, int]:
    """The scale, a float32, as a fraction."""
    if not math.isfinite(scale) or scale <= 0:
        raise malformed(f"a scale of {scale}; expected a positive number")
    return scale.as_integer_ratio()


def _by_scales(x: Value, axes: Sequence[int], scales: Sequence[tuple[Dim, Dim]]) -> list[Axis]:
    """`scales`: numerators and denominators."""
    if len(scales) != len(axes):
        raise malformed(f"{len(scales)} scales for {len(axes)} axes of {x.type}")
    found = []
    for axis, (up, down) in zip(axes, scales, strict=True):
        extent = x.shape[axis]
        if isinstance(up, int) and isinstance(down, int) and down:
            size = resized(extent, up / down)
        else:
            size = up if down == extent else quotient(extent * up, down)
        found.append(Axis(axis, extent, size, ((up, down),)))
    return found


def _by_sizes(x: Value, axes: Sequence[int], sizes: Sequence[Dim], policy: str) -> list[Axis]:
    if len(sizes) != len(axes):
        raise malformed(f"{len(sizes)} sizes for {len(axes)} axes of {x.type}")
    pairs: list[tuple[Dim, Dim]] = []
    for axis, size in zip(axes, sizes, strict=True):
        extent = x.shape[axis]
        if isinstance(size, int) and size < (0 if isinstance(extent, Symbolic) else min(extent, 1)):
            raise malformed(f"sizes {list(sizes)}; expected 1 or more each")
        if size == 0:
            require(extent, 0, f"a size of 0 along axis {axis} of {x.type}")
        pairs.append((1, 1) if size == 0 else (size, extent))
    if policy == "stretch":
        return [
            Axis(axis, x.shape[axis], x.shape[axis] if size == 0 else size, (pair,))
            for axis, size, pair in zip(axes, sizes, pairs, strict=True)
        ]
    if policy not in ("not_larger", "not_smaller"):
        raise malformed(f"keep_aspect_ratio_policy {policy!r}")
    largest = policy == "not_smaller"
    choose = maximum if largest else minimum
    scales = [up / down for up, down in pairs if isinstance(up, int) and isinstance(down, int)]
    found = []
    for axis in axes:
        extent = x.shape[axis]
        if len(scales) == len(pairs):
            scale = float(np.float32(max(scales) if largest else min(scales)))
            rounded = [quotient(resized(2 * extent, scale) + 1, 2)]
        else:
            # Rounded to the nearest integer, halves up.
            rounded = [quotient(2 * up * extent + down, 2 * down) for up, down in pairs]
        size = rounded[0]
        for other in rounded[1:]:
            size = choose(size, other)
        found.append(Axis(axis, extent, size, tuple(pairs), largest))
    return found


def _given(node: NodeView, number: int) -> Value | None:
    """An input; one without elements counts as left out."""
    found = node.optional(number)
    return None if found is None or found.shape == (0,) else found


def _scales(context: Context, scales: Value) -> Sequence[tuple[Dim, Dim]]:
    """The numerators and denominators of scales: numbers, or extents that a file divides."""
    if scales.rank != 1 or scales.dtype.kind != "float":
        raise malformed(f"scales {scales.type}; expected one axis of floats")
    ratios = None if scales.constant is not None else context.builder.ratios.of(scales)
    if ratios is not None:
        for up, down in ratios:
            if up == 0 or sign_of(up) < 0:
                raise malformed(f"a scale of {up} / {down}; expected a positive number")
        return ratios
    return [_ratio(float(s)) for s in context.array_of(scales, "the scale")]


def _regions(roi: Value | None, axes: Sequence[int]) -> dict[int, tuple[Value, Value]]:
    if roi is None:
        raise malformed(f"{CROPS} without a region of interest")
    if roi.rank != 1 or roi.dtype.kind != "float":
        raise malformed(f"a region of interest {roi.type}; expected one axis of floats")
    count = len(axes)
    require(roi.shape[0], 2 * count, f"a region of interest {roi.type}")
    wide = roi.cast(FLOAT32)

    def part(number: int) -> Value:
        return wide.slice(0, number, 1).reshape(())

    return {axis: (part(i), part(count + i)) for i, axis in enumerate(axes)}


def _is_whole(region: tuple[Value, Value]) -> bool:
    """Whether a region is known to be a whole axis."""
    constants = [v.constant for v in region]
    return all(c is not None and c.item() == n for c, n in zip(constants, (0, 1), strict=True))


def _mode(node: NodeView) -> _Mode:
    kind = node.text("mode", "nearest")
    coordinates = node.text("coordinate_transformation_mode", "half_pixel")
    nearest = node.text("nearest_mode", "round_prefer_floor")
    for what, found, known in (
        ("mode", kind, ("nearest", *_SUPPORT)),
        ("coordinate_transformation_mode", coordinates, tuple(COORDINATES)),
        ("nearest_mode", nearest, _NEAREST),
    ):
        if found not in known:
            raise malformed(f"{what} {found!r}; expected one of {', '.join(known)}")
    antialias = node.flag("antialias")
    if antialias and kind == "nearest":
        raise malformed("antialias of the nearest element")
    cubic = node.number("cubic_coeff_a", -0.75)
    return _Mode(kind, coordinates, nearest, cubic, antialias, node.flag("exclude_outside"))


@onnx("Resize", since=11)
def _resize(
    context: Context, node: NodeView, x: Value, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", axes: tuple[int, ...] | None = None,
) -> Value:  # fmt: skip
    mode = _mode(node)
    chosen = [context.axis(a, x.rank) for a in (range(x.rank) if axes is None else axes)]
    context.axes(chosen, x.rank)
    scales, sizes = _given(node, 2), _given(node, 3)
    if (scales is None) == (sizes is None):
        raise malformed("expected either scales or sizes")
    if scales is not None:
        changed = _by_scales(x, chosen, _scales(context, scales))
    else:
        assert sizes is not None
        extents = context.shape_of(sizes, "the size")
        changed = _by_sizes(x, chosen, extents, keep_aspect_ratio_policy)
    regions: dict[int, tuple[Value, Value]] = {}
    if mode.coordinates == CROPS:
        regions = _regions(_given(node, 1), chosen)
    changed = [
        axis for axis in changed
        if (axis.changes and not (mode.antialias and axis.size == axis.extent))
        or (axis.number in regions and not _is_whole(regions[axis.number]))
    ]  # fmt: skip
    if not regions and all(axis.size == axis.extent for axis in changed):
        return x
    return _resized(x, changed, mode, regions, extrapolation_value)


def upsampled(
    node: NodeView, x: Value, scales: Sequence[tuple[Dim, Dim]], coordinates: str = "asymmetric"
) -> Value:
    """As before opset 11, where positions are asymmetric."""
    kind = node.text("mode", "nearest")
    if kind not in ("nearest", "linear") or coordinates not in COORDINATES or coordinates == CROPS:
        raise malformed(f"mode {kind!r} at {coordinates!r}; expected nearest or linear")
    changed = [axis for axis in _by_scales(x, range(x.rank), scales) if axis.changes]
    if all(axis.size == axis.extent for axis in changed):
        return x
    mode = _Mode(kind, coordinates, _OLD_NEAREST, 0.0, False, False)
    return _resized(x, changed, mode, {}, 0.0)


@onnx("Upsample")
def _upsample(node: NodeView, x: Value, scales: tuple[float, ...]) -> Value:
    return upsampled(node, x, [_ratio(float(s)) for s in scales])


@onnx("Upsample", since=9)
@onnx("Resize")
def _upsample_by_input(context: Context, node: NodeView, x: Value, scales: Value) -> Value:
    return upsampled(node, x, _scales(context, scales))
