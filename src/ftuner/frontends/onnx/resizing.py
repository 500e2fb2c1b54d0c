"""Resize and Upsample: their axes, and how these are resampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import numpy as np

from ftuner.core.dim import Dim, Symbolic, maximum, minimum, quotient, resized
from ftuner.core.dtype import FLOAT32
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions.interpolation import COORDINATES, CROPS, Axis
from ftuner.graph.compositions.resizing import OLD_NEAREST, SUPPORT, Mode, resampled
from ftuner.graph.ir import Value
from ftuner.graph.known_values import sign_of

_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


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
        found.append(Axis(axis, extent, reduce(choose, rounded), tuple(pairs), largest))
    return found


def _given(node: NodeView, number: int) -> Value | None:
    """An input; one without elements counts as left out."""
    found = node.optional(number)
    return None if found is None or found.shape == (0,) else found


def _scales(context: Context, scales: Value) -> Sequence[tuple[Dim, Dim]]:
    """The numerators and denominators of scales: numbers, or extents that a file divides."""
    if scales.rank != 1 or scales.dtype.kind != "float":
        raise malformed(f"scales {scales.type}; expected one axis of floats")
    ratios = None if scales.constant is not None else context.builder.known.ratios(scales)
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


def _mode(node: NodeView) -> Mode:
    kind = node.one_of("mode", ("nearest", *SUPPORT), "nearest")
    coordinates = node.one_of("coordinate_transformation_mode", COORDINATES, "half_pixel")
    nearest = node.one_of("nearest_mode", _NEAREST, "round_prefer_floor")
    antialias = node.flag("antialias")
    if antialias and kind == "nearest":
        raise malformed("antialias of the nearest element")
    cubic = node.number("cubic_coeff_a", -0.75)
    return Mode(kind, coordinates, nearest, cubic, antialias, node.flag("exclude_outside"))


@onnx("Resize", since=11)
def _resize(
    context: Context, node: NodeView, x: Value, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: Literal["stretch", "not_larger", "not_smaller"] = "stretch",
    axes: tuple[int, ...] | None = None,
) -> Value:  # fmt: skip
    mode = _mode(node)
    chosen = context.axes(range(x.rank) if axes is None else axes, x.rank, ordered=False)
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
    return resampled(x, changed, mode, regions, extrapolation_value)


def upsampled(
    node: NodeView, x: Value, scales: Sequence[tuple[Dim, Dim]], coordinates: str = "asymmetric"
) -> Value:
    """Resizes as before opset 11, where positions are asymmetric."""
    kind = node.one_of("mode", ("nearest", "linear"), "nearest")
    if coordinates not in COORDINATES or coordinates == CROPS:
        raise malformed(f"coordinate_transformation_mode {coordinates!r}")
    changed = [axis for axis in _by_scales(x, range(x.rank), scales) if axis.changes]
    if all(axis.size == axis.extent for axis in changed):
        return x
    mode = Mode(kind, coordinates, OLD_NEAREST, 0.0, False, False)
    return resampled(x, changed, mode, {}, 0.0)


@onnx("Upsample")
def _upsample(node: NodeView, x: Value, scales: tuple[float, ...]) -> Value:
    return upsampled(node, x, [_ratio(float(s)) for s in scales])


@onnx("Upsample", since=9)
@onnx("Resize")
def _upsample_by_input(context: Context, node: NodeView, x: Value, scales: Value) -> Value:
    return upsampled(node, x, _scales(context, scales))
