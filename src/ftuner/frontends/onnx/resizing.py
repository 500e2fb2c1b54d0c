"""Resize and Upsample: every axis that changes has a table of positions and one of weights.

Tables depend on extents alone, and are constants where these are known. They are computed in
float64, so that a position that the formula makes exact is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum, quotient
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, HALF_DTYPES, INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.graph.ir import Value

_MAX_DENOMINATOR = 1 << 24
"""Derived: a float32 has 24 bits, so that this denominator always suffices to tell it apart."""


@dataclass(frozen=True)
class _Axis:
    """An axis that changes. The scale is the least or the largest of `ratios`."""

    number: int
    extent: Dim
    size: Dim
    """The extent of the result."""
    ratios: tuple[tuple[Dim, Dim], ...]
    """Numerators and denominators."""
    largest: bool = False

    @property
    def changes(self) -> bool:
        return self.size != self.extent or any(up != down for up, down in self.ratios)

    def reach(self, support: int) -> Dim:
        """`support / scale` rounded up, at least `support`."""
        choose = minimum if self.largest else maximum
        found = [ceil_quotient(support * down, up) for up, down in self.ratios]
        total = found[0]
        for other in found[1:]:
            total = choose(total, other)
        return maximum(total, support)

    def scale(self, context: Context) -> tuple[Value, Value]:
        """The numerator and the denominator in float64."""
        chosen: tuple[Value, Value] | None = None
        for up, down in self.ratios:
            pair = (context.count([up], FLOAT64), context.count([down], FLOAT64))
            if chosen is None:
                chosen = pair
                continue
            sides = (context.add("multiply", pair[0], chosen[1]),
                     context.add("multiply", chosen[0], pair[1]))  # fmt: skip
            better = context.add("less", *(reversed(sides) if self.largest else sides))
            chosen = (context.add("where", better, pair[0], chosen[0]),
                      context.add("where", better, pair[1], chosen[1]))  # fmt: skip
        assert chosen is not None
        return chosen


@dataclass(frozen=True)
class _Mode:
    """How a node resamples."""

    kind: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    excludes: bool


# Positions.


@dataclass(frozen=True)
class _Line:
    """What the position of each element of a result along an axis is computed from, in float64."""

    context: Context
    axis: _Axis
    region: tuple[Value, Value] | None
    """The first and the last position of the region of interest, as parts of the axis."""

    def number(self, value: float) -> Value:
        return self.context.scalar(value, FLOAT64)

    @property
    def numbers(self) -> Value:
        return self.context.cast(self.context.iota(self.axis.size), FLOAT64)

    @property
    def extent(self) -> Value:
        return self.context.count([self.axis.extent], FLOAT64)

    @property
    def last(self) -> Value:
        """The last position of x."""
        return self.add(self.extent, self.number(-1))

    @property
    def width(self) -> Value:
        """The extent of the result before it is rounded."""
        up, down = self.axis.scale(self.context)
        return self.divide(self.multiply(self.extent, up), down)

    def add(self, x: Value, y: Value) -> Value:
        return self.context.add("add", x, y)

    def multiply(self, x: Value, y: Value) -> Value:
        return self.context.add("multiply", x, y)

    def divide(self, x: Value, y: Value) -> Value:
        return self.context.add("divide", x, y)

    def scaled(self, x: Value) -> Value:
        """`x / scale`."""
        up, down = self.axis.scale(self.context)
        return self.divide(self.multiply(x, down), up)

    def unless_single(self, x: Value, single: Value) -> Value:
        """x, or `single` if the result has one element."""
        is_single = self.context.add("equal", self.width, self.number(1))
        return self.context.add("where", is_single, single, x)


def _half_pixel(line: _Line) -> Value:
    half = line.number(0.5)
    return line.add(line.scaled(line.add(line.numbers, half)), line.number(-0.5))


def _half_pixel_symmetric(line: _Line) -> Value:
    size = line.context.count([line.axis.size], FLOAT64)
    lost = line.context.add("subtract", line.number(1), line.divide(size, line.width))
    return line.add(line.multiply(line.multiply(line.extent, line.number(0.5)), lost),
                    _half_pixel(line))  # fmt: skip


def _pytorch_half_pixel(line: _Line) -> Value:
    return line.unless_single(_half_pixel(line), line.number(0))


def _align_corners(line: _Line) -> Value:
    steps = line.add(line.width, line.number(-1))
    return line.unless_single(
        line.divide(line.multiply(line.numbers, line.last), steps), line.number(0)
    )


def _asymmetric(line: _Line) -> Value:
    return line.scaled(line.numbers)


def _crop_and_resize(line: _Line) -> Value:
    assert line.region is not None
    start, end = line.region
    steps = line.add(line.width, line.number(-1))
    length = line.multiply(line.context.add("subtract", end, start), line.last)
    middle = line.multiply(line.multiply(line.add(start, end), line.number(0.5)), line.last)
    along = line.divide(line.multiply(line.numbers, length), steps)
    return line.unless_single(line.add(along, line.multiply(start, line.last)), middle)


_CROPS = "tf_crop_and_resize"
_COORDINATES: Mapping[str, Callable[[_Line], Value]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    _CROPS: _crop_and_resize,
}


# Tables.


def _rounded(context: Context, position: Value, how: str) -> Value:
    half = context.scalar(0.5, FLOAT64)
    if how == "round_prefer_floor":
        return context.add("ceil", context.add("subtract", position, half))
    if how == "round_prefer_ceil":
        return context.add("floor", context.add("add", position, half))
    return context.add(how, position)


_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_SUPPORT = {"linear": 1, "cubic": 2}
"""Elements on each side that interpolation reads, unless it is stretched against aliasing."""


def _linear(context: Context, distance: Value) -> Value:
    one = context.scalar(1, FLOAT64)
    return context.at_least(context.add("subtract", one, distance), 0)


def _cubic(context: Context, distance: Value, a: float) -> Value:
    """Equation (4) of Keys, Cubic convolution interpolation, IEEE TASSP 29, 1981."""

    def polynomial(*coefficients: float) -> Value:
        """The highest power first."""
        total = context.scalar(coefficients[0], FLOAT64)
        for coefficient in coefficients[1:]:
            total = context.add_to(context.add("multiply", total, distance), coefficient)
        return total

    one, two, zero = (context.scalar(n, FLOAT64) for n in (1, 2, 0))
    near, far = polynomial(a + 2, -(a + 3), 0, 1), polynomial(a, -5 * a, 8 * a, -4 * a)
    outer = context.add("where", context.add("less", distance, two), far, zero)
    return context.add("where", context.add("less_equal", distance, one), near, outer)


def _weighted(context: Context, axis: _Axis, position: Value, mode: _Mode) -> tuple[Value, Value]:
    """The tables of positions and of weights, (taps, size) each."""
    support = _SUPPORT[mode.kind]
    reach = axis.reach(support) if mode.antialias else support
    first = context.add("floor", position)
    start = context.count([1 - reach], FLOAT64)
    taps = context.add("add", context.cast(context.iota(2 * reach, 0, 2), FLOAT64), start)
    at = context.add("add", first, taps)
    distance = context.add("absolute", context.add("subtract", at, position))
    if mode.antialias:
        up, down = axis.scale(context)
        shrinks = context.at_most(context.add("divide", up, down), 1)
        distance = context.add("multiply", distance, shrinks)
    weight = (
        _linear(context, distance)
        if mode.kind == "linear" else _cubic(context, distance, mode.cubic)
    )  # fmt: skip
    zero = context.scalar(0, FLOAT64)
    if mode.excludes:
        extent = context.count([axis.extent], FLOAT64)
        inside = context.add("logical_and", context.add("less_equal", zero, at),
                             context.add("less", at, extent))  # fmt: skip
        weight = context.add("where", inside, weight, zero)
    if mode.antialias or mode.excludes:
        total = context.reduce(weight, "sum", [0])
        empty = context.add("equal", total, zero)
        total = context.add("where", empty, context.scalar(1, FLOAT64), total)
        weight = context.add("divide", weight, total)
    return context.cast(at, INT64), weight


def _resized(
    context: Context, x: Value, axes: Sequence[_Axis], mode: _Mode,
    regions: Mapping[int, tuple[Value, Value]], outside: float,
) -> Value:  # fmt: skip
    """The result; `outside`: what elements of positions beyond a cropped region are."""
    crops = mode.coordinates == _CROPS
    wide = x
    if mode.kind != "nearest":
        if x.dtype == BOOL:
            raise context.malformed(f"{mode.kind} interpolation of {x.type}")
        wide = context.cast(x, FLOAT32) if x.dtype.name in HALF_DTYPES else context.computed(x)
    positions: list[Value] = []
    weights: list[Value] = []
    beyond: list[Value] = []
    for axis in axes:
        line = _Line(context, axis, regions.get(axis.number))
        position = _COORDINATES[mode.coordinates](line)
        if crops:
            low = context.add("less", position, line.number(0))
            high = context.add("less", line.last, position)
            found = context.add("logical_or", low, high)
            beyond.append(context.unsqueeze(found, range(1, x.rank - axis.number)))
        if mode.kind == "nearest":
            rounded = _rounded(context, position, mode.nearest)
            positions.append(context.unsqueeze(context.cast(rounded, INT64), [0]))
        else:
            at, weight = _weighted(context, axis, position, mode)
            positions.append(at)
            weights.append(context.cast(weight, wide.dtype))
    numbers = tuple(axis.number for axis in axes)
    result = context.add("resample", wide, *positions, *weights, axes=numbers)
    for mask in beyond:
        fill = context.scalar(outside, result.dtype)
        result = context.add("where", mask, fill, result)
    if x.dtype.kind in ("int", "uint") and mode.kind != "nearest":
        result = context.add("rint", result)
        if mode.kind == "cubic":
            info = np.iinfo(x.dtype.name)
            result = context.at_most(context.at_least(result, info.min), info.max)
    return context.cast(result, x.dtype)


# Nodes.


def _fraction(context: Context, scale: float) -> tuple[int, int]:
    """The simplest fraction that is the scale in float32: 0.6 means 3 / 5."""
    if not math.isfinite(scale) or scale <= 0:
        raise context.malformed(f"a scale of {scale}; expected a positive number")
    exact, limit = Fraction(scale), 1
    while limit < _MAX_DENOMINATOR:
        found = exact.limit_denominator(limit)
        if np.float32(found.numerator / found.denominator) == np.float32(scale):
            return found.numerator, found.denominator
        limit *= 2
    return exact.numerator, exact.denominator


def _by_scales(
    context: Context, x: Value, axes: Sequence[int], scales: Sequence[float]
) -> list[_Axis]:
    if len(scales) != len(axes):
        raise context.malformed(f"{len(scales)} scales for {len(axes)} axes of {x.type}")
    found = []
    for axis, scale in zip(axes, scales, strict=True):
        up, down = _fraction(context, scale)
        extent = x.shape[axis]
        found.append(_Axis(axis, extent, quotient(extent * up, down), ((up, down),)))
    return found


def _by_sizes(
    context: Context, x: Value, axes: Sequence[int], sizes: Sequence[Dim], policy: str
) -> list[_Axis]:
    if len(sizes) != len(axes):
        raise context.malformed(f"{len(sizes)} sizes for {len(axes)} axes of {x.type}")
    if any(isinstance(n, int) and n < 1 for n in sizes):
        raise context.malformed(f"sizes {list(sizes)}; expected 1 or more each")
    pairs = tuple(zip(sizes, (x.shape[axis] for axis in axes), strict=True))
    if policy == "stretch":
        return [_Axis(a, n, size, ((size, n),)) for a, (size, n) in zip(axes, pairs, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise context.malformed(f"keep_aspect_ratio_policy {policy!r}")
    largest = policy == "not_smaller"
    choose = maximum if largest else minimum
    found = []
    for axis in axes:
        extent = x.shape[axis]
        # Rounded to the nearest integer, halves up.
        rounded = [quotient(2 * up * extent + down, 2 * down) for up, down in pairs]
        size = rounded[0]
        for other in rounded[1:]:
            size = choose(size, other)
        found.append(_Axis(axis, extent, size, pairs, largest))
    return found


def _given(node: NodeView, number: int) -> Value | None:
    """An input; one without elements counts as left out."""
    found = node.optional(number)
    return None if found is None or found.shape == (0,) else found


def _scales(context: Context, scales: Value) -> tuple[float, ...]:
    array = context.array_of(scales, "the scale")
    if array.ndim != 1 or array.dtype.kind != "f":
        raise context.malformed(f"scales {scales.type}; expected one axis of floats")
    return tuple(float(s) for s in array)


def _regions(
    context: Context, roi: Value | None, axes: Sequence[int]
) -> dict[int, tuple[Value, Value]]:
    if roi is None:
        raise context.malformed(f"{_CROPS} without a region of interest")
    if roi.rank != 1 or roi.dtype.kind != "float":
        raise context.malformed(f"a region of interest {roi.type}; expected one axis of floats")
    count = len(axes)
    context.builder.require(roi.shape[0], 2 * count, f"a region of interest {roi.type}")
    wide = context.cast(roi, FLOAT64)

    def part(number: int) -> Value:
        return context.reshape(context.slice(wide, 0, number, 1), ())

    return {axis: (part(i), part(count + i)) for i, axis in enumerate(axes)}


def _is_whole(region: tuple[Value, Value]) -> bool:
    """Whether a region is known to be a whole axis."""
    constants = [v.constant for v in region]
    return all(c is not None and c.item() == n for c, n in zip(constants, (0, 1), strict=True))


def _mode(context: Context, node: NodeView) -> _Mode:
    kind = node.text("mode", "nearest")
    coordinates = node.text("coordinate_transformation_mode", "half_pixel")
    nearest = node.text("nearest_mode", "round_prefer_floor")
    for what, found, known in (
        ("mode", kind, ("nearest", *_SUPPORT)),
        ("coordinate_transformation_mode", coordinates, tuple(_COORDINATES)),
        ("nearest_mode", nearest, _NEAREST),
    ):
        if found not in known:
            raise context.malformed(f"{what} {found!r}; expected one of {', '.join(known)}")
    antialias = node.flag("antialias")
    if antialias and kind == "nearest":
        raise context.malformed("antialias of the nearest element")
    cubic = node.number("cubic_coeff_a", -0.75)
    return _Mode(kind, coordinates, nearest, cubic, antialias, node.flag("exclude_outside"))


def _resize(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if node.opset < 11:
        return _old(context, node, _scales(context, node.input(1)))
    mode = _mode(context, node)
    axes: Sequence[int] = range(x.rank)
    if node.has("axes"):
        axes = [context.axis(a, x.rank) for a in node.integers("axes")]
        context.axes(axes, x.rank)
    scales, sizes = _given(node, 2), _given(node, 3)
    if (scales is None) == (sizes is None):
        raise context.malformed("expected either scales or sizes")
    if scales is not None:
        changed = _by_scales(context, x, axes, _scales(context, scales))
    else:
        assert sizes is not None
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        changed = _by_sizes(context, x, axes, context.dims_of(sizes, "the size"), policy)
    regions: dict[int, tuple[Value, Value]] = {}
    if mode.coordinates == _CROPS:
        regions = _regions(context, _given(node, 1), axes)
    changed = [
        axis for axis in changed
        if axis.changes or (axis.number in regions and not _is_whole(regions[axis.number]))
    ]  # fmt: skip
    if not changed:
        return [x]
    outside = node.number("extrapolation_value", 0.0)
    return [_resized(context, x, changed, mode, regions, outside)]


def _old(context: Context, node: NodeView, scales: Sequence[float]) -> Sequence[Value]:
    """Before opset 11: positions are asymmetric. The nearest element is the one before the
    position, or after it along axes that shrink, as onnxruntime has it."""
    x, kind = node.input(0), node.text("mode", "nearest")
    if kind not in ("nearest", "linear"):
        raise context.malformed(f"mode {kind!r}; expected nearest or linear")
    changed = [axis for axis in _by_scales(context, x, range(x.rank), scales) if axis.changes]
    for nearest, shrinks in (("floor", False), ("ceil", True)):
        some = [axis for axis in changed if (axis.ratios[0][0] < axis.ratios[0][1]) == shrinks]  # type: ignore[operator]
        if some:
            mode = _Mode(kind, "asymmetric", nearest, 0.0, False, False)
            x = _resized(context, x, some, mode, {}, 0.0)
    return [x]


def _upsample(context: Context, node: NodeView) -> Sequence[Value]:
    if node.opset < 9:
        return _old(context, node, tuple(map(float, node.numbers("scales"))))
    return _old(context, node, _scales(context, node.input(1)))


RESIZING: Table = {
    ("", "Resize"): _resize,
    ("", "Upsample"): _upsample,
}
