"""Resized tensors: every axis that changes has a table of positions and one of weights.

Tables depend on extents alone, and are constants where these are known. Positions are computed in
float32, as onnxruntime does: they decide which element is the nearest. Weights are in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ftuner.core.dim import quotient
from ftuner.core.dtype import BOOL, FLOAT64, INT64
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import apply, ceil, equal, floor, iota, rint, where
from ftuner.graph.checks import malformed
from ftuner.graph.compositions.interpolation import (
    COORDINATES,
    CROPS,
    Axis,
    Line,
    cubic_weight,
    linear_weight,
)
from ftuner.graph.ir import Value


@dataclass(frozen=True)
class Mode:
    """How a node resamples."""

    kind: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    excludes: bool


def _rounded(position: Value, how: str, axis: Axis) -> Value:
    if how == OLD_NEAREST:
        return where(axis.scale() < 1, ceil(position), floor(position))
    if how == "round_prefer_floor":
        return ceil(position + (-0.5 - _TIE))
    if how == "round_prefer_ceil":
        return floor(position + (0.5 + _TIE))
    return apply(how, position)


_TIE = 1e-6
"""Positions this close to the middle between two elements are there, as onnxruntime has it. Found
by trial with its version 1.31."""


OLD_NEAREST = "before, or after along axes that shrink"
"""The nearest element before opset 11, as onnxruntime has it."""


_REPEATING = frozenset({
    ("asymmetric", "floor"), ("asymmetric", OLD_NEAREST), ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"), ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"), ("tf_half_pixel_for_nn", "floor"),
    ("by_inverse", "floor"), ("centres_by_inverse", "floor"),
})  # fmt: skip
"""Coordinates and rounding of which n times the elements are each element n times, side by side."""


MOST_TIMES = 16
"""Most times that this holds in float32, too. Derived: positions are at least half of a sixteenth
away from where they would be rounded to another element, further than float32 is off below 2^18."""


SUPPORT = {"linear": 1, "cubic": 2}
"""Elements on each side that interpolation reads, unless it is stretched against aliasing."""


def _weighted(axis: Axis, position: Value, mode: Mode) -> tuple[Value, Value]:
    """The tables of positions and of weights, (taps, size) each."""
    support = SUPPORT[mode.kind]
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


def _times(axis: Axis, mode: Mode) -> int | None:
    """How many times the nearest elements are each element of an axis; None if they are not."""
    (up, down), *others = axis.ratios
    times = quotient(up, down)
    if others or mode.kind != "nearest" or (mode.coordinates, mode.nearest) not in _REPEATING:
        return None
    if not isinstance(times, int) or times > MOST_TIMES or up != down * times:
        return None
    return times if axis.size == axis.extent * times else None


def resampled(
    x: Value, axes: Sequence[Axis], mode: Mode, regions: Mapping[int, tuple[Value, Value]],
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
