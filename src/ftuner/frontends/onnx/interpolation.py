"""Interpolation: where the elements of a resized axis are, and what weight an element has at a
distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum
from ftuner.core.dtype import FLOAT64
from ftuner.frontends.onnx.context import Context
from ftuner.graph.ir import Value


@dataclass(frozen=True)
class Axis:
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
class Line:
    """What the position of each element of a result along an axis is computed from, in float64."""

    context: Context
    axis: Axis
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


def _half_pixel(line: Line) -> Value:
    half = line.number(0.5)
    return line.add(line.scaled(line.add(line.numbers, half)), line.number(-0.5))


def _half_pixel_symmetric(line: Line) -> Value:
    size = line.context.count([line.axis.size], FLOAT64)
    lost = line.context.add("subtract", line.number(1), line.divide(size, line.width))
    return line.add(line.multiply(line.multiply(line.extent, line.number(0.5)), lost),
                    _half_pixel(line))  # fmt: skip


def _pytorch_half_pixel(line: Line) -> Value:
    return line.unless_single(_half_pixel(line), line.number(0))


def _half_pixel_of_tensorflow(line: Line) -> Value:
    return line.scaled(line.add(line.numbers, line.number(0.5)))


def _align_corners(line: Line) -> Value:
    steps = line.add(line.width, line.number(-1))
    return line.unless_single(
        line.divide(line.multiply(line.numbers, line.last), steps), line.number(0)
    )


def _asymmetric(line: Line) -> Value:
    return line.scaled(line.numbers)


def _crop_and_resize(line: Line) -> Value:
    assert line.region is not None
    start, end = line.region
    steps = line.add(line.width, line.number(-1))
    length = line.multiply(line.context.add("subtract", end, start), line.last)
    middle = line.multiply(line.multiply(line.add(start, end), line.number(0.5)), line.last)
    along = line.divide(line.multiply(line.numbers, length), steps)
    return line.unless_single(line.add(along, line.multiply(start, line.last)), middle)


CROPS = "tf_crop_and_resize"
COORDINATES: Mapping[str, Callable[[Line], Value]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    # Of opsets 11 and 13.
    "tf_half_pixel_for_nn": _half_pixel_of_tensorflow,
    "asymmetric": _asymmetric,
    CROPS: _crop_and_resize,
}


def linear_weight(context: Context, distance: Value) -> Value:
    """The weight of linear interpolation at a distance of zero or more."""
    one = context.scalar(1, distance.dtype)
    return context.at_least(context.add("subtract", one, distance), 0)


def cubic_weight(context: Context, distance: Value, a: float) -> Value:
    """The weight of cubic interpolation at a distance of zero or more: equation (4) of Keys, Cubic
    convolution interpolation, IEEE TASSP 29, 1981."""

    def polynomial(*coefficients: float) -> Value:
        """The highest power first."""
        total = context.scalar(coefficients[0], distance.dtype)
        for coefficient in coefficients[1:]:
            total = context.add_to(context.add("multiply", total, distance), coefficient)
        return total

    one, two, zero = (context.scalar(n, distance.dtype) for n in (1, 2, 0))
    near, far = polynomial(a + 2, -(a + 3), 0, 1), polynomial(a, -5 * a, 8 * a, -4 * a)
    outer = context.add("where", context.add("less", distance, two), far, zero)
    return context.add("where", context.add("less_equal", distance, one), near, outer)
