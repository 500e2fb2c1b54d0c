"""Interpolation: where the elements of a resized axis are, and what weight an element has at a
distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum
from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import counted, equal, iota, scalar, where
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
        found = (ceil_quotient(support * down, up) for up, down in self.ratios)
        return maximum(reduce(choose, found), support)

    def scale(self) -> Value:
        """The scale in float32, in which onnxruntime computes positions."""
        found = [
            counted([up], FLOAT64).cast(FLOAT32) / counted([down], FLOAT64).cast(FLOAT32)
            for up, down in self.ratios
        ]
        return reduce(Value.at_least if self.largest else Value.at_most, found)

    def inverse(self) -> Value:
        """One over the scale in float32, by which torch multiplies positions."""
        ((up, down),) = self.ratios
        return counted([down], FLOAT64).cast(FLOAT32) / counted([up], FLOAT64).cast(FLOAT32)


@dataclass(frozen=True)
class Line:
    """What the position of each element of a result along an axis is computed from, in float32."""

    axis: Axis
    region: tuple[Value, Value] | None
    """The first and the last position of the region of interest, as parts of the axis."""

    @property
    def numbers(self) -> Value:
        return iota(self.axis.size).cast(FLOAT32)

    @property
    def centres(self) -> Value:
        return (self.numbers + 0.5) / self.axis.scale()

    def unless_single(self, x: Value, single: Value | float) -> Value:
        """x, or `single` if the result has one element."""
        return where(equal(counted([self.axis.size], FLOAT32), 1), single, x)


def _half_pixel_symmetric(line: Line) -> Value:
    """In float64 but for what is lost of the extent on each side."""
    extent, size = (counted([n], FLOAT32) for n in (line.axis.extent, line.axis.size))
    scale = line.axis.scale()
    lost = (extent / 2 * (1 - size / (scale * extent))).cast(FLOAT64)
    along = (line.numbers.cast(FLOAT64) + 0.5) / scale.cast(FLOAT64)
    return (lost + along + -0.5).cast(FLOAT32)


def _crop_and_resize(line: Line) -> Value:
    assert line.region is not None
    start, end = line.region
    last = line.axis.extent - 1
    along = line.numbers * (end - start) * last / (line.axis.size - 1)
    return line.unless_single(start * last + along, (start + end) * 0.5 * last)


CROPS = "tf_crop_and_resize"
COORDINATES: Mapping[str, Callable[[Line], Value]] = {
    "half_pixel": lambda line: line.centres - 0.5,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": lambda line: line.unless_single(line.centres - 0.5, 0),
    "align_corners": lambda line: line.unless_single(
        line.numbers * (line.axis.extent - 1) / (line.axis.size - 1), 0
    ),
    # Of opsets 11 and 13.
    "tf_half_pixel_for_nn": lambda line: where(
        equal(line.axis.scale(), 1), line.numbers, line.centres
    ),
    "asymmetric": lambda line: line.numbers / line.axis.scale(),
    CROPS: _crop_and_resize,
    # Of torch.
    "by_inverse": lambda line: line.numbers * line.axis.inverse(),
    "centres_by_inverse": lambda line: (line.numbers + 0.5) * line.axis.inverse(),
    "half_pixel_by_inverse": lambda line: (line.numbers + 0.5) * line.axis.inverse() - 0.5,
}


def linear_weight(distance: Value) -> Value:
    """The weight of linear interpolation at a distance of zero or more."""
    return (1 - distance).at_least(0)


def cubic_weight(distance: Value, a: float) -> Value:
    """The weight of cubic interpolation at a distance of zero or more: equation (4) of Keys, Cubic
    convolution interpolation, IEEE TASSP 29, 1981."""

    def polynomial(*coefficients: float) -> Value:
        """The highest power first."""
        total = scalar(coefficients[0], distance.dtype)
        for coefficient in coefficients[1:]:
            total = total * distance + coefficient
        return total

    near, far = polynomial(a + 2, -(a + 3), 0, 1), polynomial(a, -5 * a, 8 * a, -4 * a)
    return where(distance <= 1, near, where(distance < 2, far, 0))
