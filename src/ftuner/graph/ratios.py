"""Floats that are ratios of dims: exporters divide extents as floats, and round the quotient to an
extent again, or scale a picture by it. Networks that pad as TensorFlow does compute `ceil(h / 2)`
in this way.

A float has an error where the ratio's denominator is not a power of two. Ratios are followed only
as long as those that are integers have none: `h / 3 * 2` is an integer if `h / 3` is one. It is not
so with `h / 49 * 49`, which is less than 27 for h = 27 in float32, and with `h / 3 - w / 3`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dim import Dim, ceil_quotient, least_value, quotient
from ftuner.core.dtype import FLOAT32, FLOAT64, INT32, INT64
from ftuner.graph.ir import Array, TensorType, Value
from ftuner.graph.operators import OPERATORS
from ftuner.graph.shape_arithmetic import (
    MAX_FOLLOWED,
    elements_of,
    followed_elements,
    sign_of,
    static,
)

MOST_PARTS = 64
"""Largest denominator of a constant factor: those that networks scale extents by are much less, and
a product with more parts is not exact in float32."""


class Ratio(NamedTuple):
    """A number `above / below`, with `below` at least zero; zero is an extent that is divided by,
    and then the number is none."""

    above: Dim
    below: Dim


class Ratios:
    """The tensors of a graph whose elements are ratios of dims. A ratio that is rounded is an
    integer again: float32 divides integers of up to 24 bits so that it is the exact one's."""

    def __init__(self) -> None:
        self._known: dict[Value, tuple[Ratio, ...]] = {}

    def of(self, value: Value) -> tuple[Ratio, ...] | None:
        """The elements of a tensor of floats as ratios; None if they are not known to be."""
        found = self._known.get(value)
        if found is None:
            integers = elements_of(value)
            if integers is not None:
                found = tuple(Ratio(element, 1) for element in integers.ravel())
            elif value.constant is not None:
                found = _constant_ratios(value)
        return found

    def note(
        self, op: str, inputs: Sequence[Value], attributes: Mapping[str, Any], result: Value
    ) -> None:
        """Note the elements of a computed tensor, if they are ratios of dims."""
        if result.dtype not in (FLOAT32, FLOAT64) or followed_elements(result.type) is None:
            return
        combine = _ARITHMETIC.get(op)
        found: Sequence[Ratio | None] | None = None
        if combine is not None:
            operands = [self._spread(value, result.type) for value in inputs]
            if all(operand is not None for operand in operands):
                found = [combine(*pair) for pair in zip(*filter(None, operands), strict=True)]
        elif op == "cast":
            found = self._known.get(inputs[0])
        elif OPERATORS[op].moves:
            found = self._moved(op, inputs, attributes)
        if found and all(ratio is not None for ratio in found):
            self._known[result] = tuple(ratio for ratio in found if ratio is not None)

    def _moved(
        self, op: str, inputs: Sequence[Value], attributes: Mapping[str, Any]
    ) -> list[Ratio] | None:
        """The elements of a result that moves those of its operands."""
        every: list[Ratio] = []
        places: list[Array] = []
        for number, value in enumerate(inputs):
            if op == "gather" and number == 1:
                # Which elements.
                if value.constant is None:
                    return None
                places.append(value.constant)
                continue
            found = self.of(value)
            if found is None:
                return None
            places.append(np.arange(len(every), len(every) + len(found)).reshape(value.shape))
            every += found
        numbers = [n for a in attributes.values() if isinstance(a, tuple) for n in a]
        if not all(isinstance(n, int) for n in numbers):
            return None
        try:
            moved = OPERATORS[op].reference(*places, **attributes)
        except IndexError:
            # A run reports it.
            return None
        return [every[n] for n in moved.ravel()]

    def rounded(self, op: str, inputs: Sequence[Value], type_: TensorType) -> list[Dim] | None:
        """The elements of a result that rounds ratios; None if it is none, or is not certain."""
        ratios = self._known.get(inputs[0]) if inputs else None
        if ratios is None or any((least_value(r.below) or 0) < 1 for r in ratios):
            return None
        if op == "ceil":
            return [ceil_quotient(*ratio) for ratio in ratios]
        if op == "floor":
            return [quotient(*ratio) for ratio in ratios]
        # A cast rounds towards zero.
        if op == "cast" and type_.dtype in (INT32, INT64) and all(_natural(r) for r in ratios):
            return [quotient(*ratio) for ratio in ratios]
        return None

    def _spread(self, value: Value, type_: TensorType) -> list[Ratio] | None:
        """The elements of an operand, broadcast to the type of the result; None if one is none."""
        found = self.of(value)
        if found is None:
            return None
        places = np.arange(len(found)).reshape(static(value.shape))
        return [found[n] for n in np.broadcast_to(places, static(type_.shape)).ravel()]


def _natural(ratio: Ratio) -> bool:
    return sign_of(ratio.above) > 0


def _constant_ratios(value: Value) -> tuple[Ratio, ...] | None:
    array = value.constant
    assert array is not None
    if array.dtype.kind != "f" or array.size > MAX_FOLLOWED or not np.isfinite(array).all():
        return None
    found = [Ratio(*float(x).as_integer_ratio()) for x in array.ravel()]
    exact = all(isinstance(r.below, int) and r.below <= MOST_PARTS for r in found)
    return tuple(found) if exact else None


def _is_binary(ratio: Ratio) -> bool:
    """Whether a float holds the number without an error."""
    return isinstance(ratio.below, int) and _odd(ratio.below) == 1


def _odd(number: int) -> int:
    """A number other than zero without its factors of two."""
    return number // (number & -number)


def _sum(x: Ratio, y: Ratio) -> Ratio | None:
    if not (_is_binary(x) or _is_binary(y)):
        return None
    if x.below == y.below:
        return Ratio(x.above + y.above, x.below)
    return Ratio(x.above * y.below + y.above * x.below, x.below * y.below)


def _product(x: Ratio, y: Ratio) -> Ratio | None:
    exact = _is_binary(x) and _is_binary(y)
    if not (exact or _keeps_exact(x, y) or _keeps_exact(y, x)):
        return None
    return _times(x, y)


def _keeps_exact(x: Ratio, factor: Ratio) -> bool:
    """Whether x times a constant is an integer only if x has no error."""
    if not (_is_binary(factor) and isinstance(factor.above, int) and factor.above):
        return False
    above = _odd(factor.above)
    return abs(above) == 1 or (isinstance(x.below, int) and math.gcd(above, x.below) == 1)


def _times(x: Ratio, y: Ratio) -> Ratio:
    return Ratio(x.above * y.above, x.below * y.below)


def _quotient(x: Ratio, y: Ratio) -> Ratio | None:
    least = least_value(y.above)
    if least is None or least < 0 or y.above == 0 or not _is_binary(y):
        return None
    return _times(x, Ratio(y.below, y.above))


_ARITHMETIC: Mapping[str, Callable[[Ratio, Ratio], Ratio | None]] = {
    "add": _sum,
    "subtract": lambda x, y: _sum(x, Ratio(-y.above, y.below)),
    "multiply": _product,
    "divide": _quotient,
}
