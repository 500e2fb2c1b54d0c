"""Interpolation: where the elements of a resized axis are, and what weight an element has at a
distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum
from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.frontends.onnx.context import Context
from ftuner.graph.algebra import apply, counted, equal, iota, scalar, where
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

    def scale(self, context: Context) -> Value:
        """The scale in float32, in which onnxruntime computes positions."""
        chosen: Value | None = None
        for up, down in self.ratios:
            found = apply("divide", *(counted([n], FLOAT64).cast(FLOAT32) for n in (up, down)))
            if chosen is not None:
                found = apply("maximum" if self.largest else "minimum", chosen, found)
            chosen = found
        assert chosen is not None
        return chosen


@dataclass(frozen=True)
class Line:
    """What the position of each element of a result along an axis is computed from, in float32."""

    context: Context
    axis: Axis
    region: tuple[Value, Value] | None
    """The first and the last position of the region of interest, as parts of the axis."""

    def number(self, value: Dim | float) -> Value:
        if isinstance(value, float):
            return scalar(value, FLOAT32)
        return counted([value], FLOAT32)

    @property
    def numbers(self) -> Value:
        return iota(self.axis.size).cast(FLOAT32)

    @property
    def scale(self) -> Value:
        return self.axis.scale(self.context)

    def add(self, x: Value, y: Value) -> Value:
        return x + y

    def multiply(self, x: Value, y: Value) -> Value:
        return x * y

    def divide(self, x: Value, y: Value) -> Value:
        return x / y

    def subtract(self, x: Value, y: Value) -> Value:
        return x - y

    def unless_single(self, x: Value, single: Value) -> Value:
        """x, or `single` if the result has one element."""
        is_single = equal(self.number(self.axis.size), self.number(1.0))
        return where(is_single, single, x)


def _centre(line: Line) -> Value:
    return line.divide(line.add(line.numbers, line.number(0.5)), line.scale)


def _half_pixel(line: Line) -> Value:
    return line.subtract(_centre(line), line.number(0.5))


def _half_pixel_symmetric(line: Line) -> Value:
    """In float64 but for what is lost of the extent on each side."""
    extent = line.number(line.axis.extent)
    width = line.multiply(line.scale, extent)
    rest = line.subtract(line.number(1.0), line.divide(line.number(line.axis.size), width))
    lost = line.multiply(line.divide(extent, line.number(2.0)), rest)
    numbers, scale, lost = (x.cast(FLOAT64) for x in (line.numbers, line.scale, lost))
    along = line.divide(numbers + 0.5, scale)
    return (line.add(lost, along) + -0.5).cast(FLOAT32)


def _pytorch_half_pixel(line: Line) -> Value:
    return line.unless_single(_half_pixel(line), line.number(0.0))


def _half_pixel_of_tensorflow(line: Line) -> Value:
    is_kept = equal(line.scale, line.number(1.0))
    return where(is_kept, line.numbers, _centre(line))


def _align_corners(line: Line) -> Value:
    last = line.multiply(line.numbers, line.number(line.axis.extent - 1))
    along = line.divide(last, line.number(line.axis.size - 1))
    return line.unless_single(along, line.number(0.0))


def _asymmetric(line: Line) -> Value:
    return line.divide(line.numbers, line.scale)


def _crop_and_resize(line: Line) -> Value:
    assert line.region is not None
    start, end = line.region
    last = line.number(line.axis.extent - 1)
    part = line.multiply(line.multiply(line.numbers, line.subtract(end, start)), last)
    along = line.divide(part, line.number(line.axis.size - 1))
    middle = line.multiply(line.multiply(line.add(start, end), line.number(0.5)), last)
    return line.unless_single(line.add(line.multiply(start, last), along), middle)


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
    one = scalar(1, distance.dtype)
    return (one - distance).at_least(0)


def cubic_weight(context: Context, distance: Value, a: float) -> Value:
    """The weight of cubic interpolation at a distance of zero or more: equation (4) of Keys, Cubic
    convolution interpolation, IEEE TASSP 29, 1981."""

    def polynomial(*coefficients: float) -> Value:
        """The highest power first."""
        total = scalar(coefficients[0], distance.dtype)
        for coefficient in coefficients[1:]:
            total = total * distance + coefficient
        return total

    one, two, zero = (scalar(n, distance.dtype) for n in (1, 2, 0))
    near, far = polynomial(a + 2, -(a + 3), 0, 1), polynomial(a, -5 * a, 8 * a, -4 * a)
    outer = where(distance < two, far, zero)
    return where(distance <= one, near, outer)
