"""What is known of the elements of tensors before a graph runs.

- Small tensors of integers are followed element by element as dims: the arithmetic on shapes in
  model files.
- Floats are followed as ratios of dims: exporters divide extents as floats, and round the quotient
  to an extent again, or scale a picture by it. Networks that pad as TensorFlow does compute
  `ceil(h / 2)` in this way.
- A *splat* has elements that are all equal to one constant, though its extents are known only at
  run time: exporters fill tensors (zeros, ones, languages of sequences) and compute with them.
- What is *presumed* is known but for the sign of extents that are divided.

A float has an error where the ratio's denominator is not a power of two. Ratios are followed only
as long as those that are integers have none: `h / 3 * 2` is an integer if `h / 3` is one. It is not
so with `h / 49 * 49`, which is less than 27 for h = 27 in float32, and with `h / 3 - w / 3`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ftuner.core import dim as dims_of
from ftuner.core.dim import (
    Dim,
    Shape,
    Symbolic,
    ceil_quotient,
    least_value,
    product,
    quotient,
    static,
)
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, INT32, INT64
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.ir import Application, Array, Building, TensorType, Value
from ftuner.graph.operators import OPERATORS

MAX_FOLLOWED = 64
"""Most elements of a tensor that is followed as dims: no shape has more axes."""
MOST_EXACT = 1 << 24
"""The largest number up to which float32 holds every integer."""
MOST_PARTS = 64
"""Largest denominator of a constant factor: those that networks scale extents by are much less, and
a product with more parts is not exact in float32."""
SAME_ELEMENTS = ("broadcast", "reshape", "transpose", "slice")
"""Operators whose results have elements of the first operand alone."""
_T = TypeVar("_T")


class Ratio(NamedTuple):
    """A number `above / below`, with `below` at least zero; zero is an extent that is divided by,
    and then the number is none."""

    above: Dim
    below: Dim


class _Presumption(NamedTuple):
    """Elements of a tensor as dims, if these dividends are zero or more."""

    dims: tuple[Dim, ...]
    dividends: tuple[Dim, ...]


class KnownValues:
    """What is known of the computed tensors of a graph."""

    def __init__(self, builder: Building) -> None:
        self._builder = builder
        self._elements: dict[Value, Value] = {}
        self._ratios: dict[Value, tuple[Ratio, ...]] = {}
        self._presumed: dict[Value, _Presumption] = {}

    def within(self, builder: Building) -> KnownValues:
        """What is known in a graph within this one, which `builder` builds."""
        found = KnownValues(builder)
        found._elements, found._ratios = self._elements, self._ratios
        found._presumed = self._presumed
        return found

    def element(self, value: Value) -> Value | None:
        """The constant, without axes, that all elements are equal to; None if none is known."""
        if value.constant is None or value.constant.size != 1:
            return self._elements.get(value)
        same = value.rank == 0
        return value if same else self._builder.constant(value.constant.reshape(()), value.dtype)

    def element_of(self, made: Application) -> Value | None:
        """What is known of an element of an operator's result; None if all operands are constants,
        which are folded or too large to be."""
        op, inputs, attributes, _ = made
        if all(v.constant is not None for v in inputs):
            return None
        if op in SAME_ELEMENTS:
            return self.element(inputs[0])
        if op not in SCALAR_FUNCTIONS and op not in ("where", "cast"):
            return None
        elements = [element for v in inputs if (element := self.element(v)) is not None]
        if len(elements) < len(inputs):
            return None
        found = self._builder.add(op, *elements, **attributes)
        return None if found.constant is None else found

    def ratios(self, value: Value) -> tuple[Ratio, ...] | None:
        """The elements of a tensor of floats as ratios; None if they are not known to be."""
        found = self._ratios.get(value)
        if found is None:
            integers = elements_of(value)
            if integers is not None:
                found = tuple(Ratio(element, 1) for element in integers.ravel())
            elif value.constant is not None:
                found = _constant_ratios(value.constant)
        return found

    def presume(self, value: Value, dims: tuple[Dim, ...]) -> None:
        """Note that the elements of a computed tensor are certain dims."""
        self._presumed[value] = _Presumption(dims, ())

    def presumed(self, value: Value) -> tuple[Dim, ...] | None:
        """The elements of a tensor as dims, if they are known but for the sign of extents that are
        divided; then these are required to be zero or more. Exporters divide extents as Python
        does, rounding down, and ONNX rounds towards zero. Where a network uses the quotient as an
        extent, its windows fit, and both are the same."""
        found = self._presumed.get(value)
        if found is None:
            return None
        for dividend in found.dividends:
            self._builder.require(dims_of.maximum(-dividend, 0), 0, "a division of extents")
        return found.dims

    def dims(self, made: Application) -> Sequence[Dim] | None:
        """The elements of a result as dims, if they follow from those of the operands."""
        found = _followed(made, _DIM_FUNCTIONS)
        if found is None:
            found = self._rounded(made)
        if found is None and (count := followed_elements(made.types[0])) is not None:
            total = self._sum(made)
            found = None if total is None else [total] * count
        return found

    def note(self, made: Application, result: Value) -> None:
        """Note what is known of the result of a new node."""
        presumed = self._presumption(made)
        if presumed is not None:
            self._presumed[result] = presumed
        ratios = self._ratios_of(made)
        if ratios:
            self._ratios[result] = tuple(ratios)
        element = self.element(made.inputs[0]) if made.op == "broadcast" else None
        if element is not None:
            self._elements[result] = element

    def _presumption(self, made: Application) -> _Presumption | None:
        """The elements of a result as dims, where those of the operands are presumed, or where it
        is a quotient of dims of unknown sign."""
        op, inputs, *_ = made
        if op != "divide" and not any(value in self._presumed for value in inputs):
            return None
        given = [self._presumed.get(value) for value in inputs]
        dividends = {n: None for p in given if p is not None for n in p.dividends}
        values = [
            value if p is None else Value(value.name, value.type, None, p.dims)
            for value, p in zip(inputs, given, strict=True)
        ]
        if op == "divide" and values[0].dims is not None:
            dividends |= {n: None for n in values[0].dims if sign_of(n) == 0}
        dims = _followed(made._replace(inputs=values), _PRESUMING)
        return None if dims is None else _Presumption(tuple(dims), tuple(dividends))

    def _ratios_of(self, made: Application) -> Sequence[Ratio] | None:
        """The elements of a result as ratios, if they are."""
        op, inputs, _, (type_, *_) = made
        if type_.dtype not in (FLOAT32, FLOAT64) or followed_elements(type_) is None:
            return None
        if op == "cast":
            return self._ratios.get(inputs[0])
        arrays = []
        for number, value in enumerate(inputs):
            if op == "gather" and number == 1:
                arrays.append(elements_of(value))
            else:
                found = self.ratios(value)
                arrays.append(None if found is None else _array(found, value.shape))
        try:
            return _applied(made, arrays, _RATIO_FUNCTIONS)
        except IndexError:
            return None  # A run reports it.

    def _rounded(self, made: Application) -> list[Dim] | None:
        """The elements of a result that rounds ratios; None if it is none, or is not certain. A
        ratio that is rounded is an integer again: float32 divides integers of up to 24 bits so that
        it is the exact one's."""
        op, inputs, _, (type_, *_) = made
        ratios = self._ratios.get(inputs[0]) if inputs else None
        if ratios is None or any((least_value(r.below) or 0) < 1 for r in ratios):
            return None
        if op == "ceil":
            return [ceil_quotient(*ratio) for ratio in ratios]
        # A cast rounds towards zero.
        towards_zero = op == "cast" and type_.dtype in (INT32, INT64)
        if op == "floor" or (towards_zero and all(sign_of(r.above) > 0 for r in ratios)):
            return [quotient(*ratio) for ratio in ratios]
        return None

    def _sum(self, made: Application) -> Dim | None:
        """Each element of a sum of equal integers; None if the result is none."""
        op, inputs, attributes, (type_, *_) = made
        if op != "reduce" or attributes["kind"] != "sum" or type_.dtype not in (INT32, INT64):
            return None
        element = self.element(inputs[0])
        if element is None or element.constant is None:
            return None
        return int(element.constant) * product(inputs[0].shape[i] for i in attributes["axes"])


def _followed(
    made: Application, functions: Mapping[str, Callable[..., Dim | None]]
) -> list[Dim] | None:
    """The elements of a result as dims, if those of the operands are."""
    op, inputs, attributes, (type_, *_) = made
    floating = type_.dtype in (FLOAT32, FLOAT64)
    if not inputs or not (floating or type_.dtype in (INT32, INT64, BOOL)):
        return None
    if followed_elements(type_) is None or (floating and op in _OF_INTEGERS):
        return None
    if floating and all(value.constant is not None for value in inputs):
        # Constants are folded, or too large to be.
        return None
    arrays = [elements_of(value) for value in inputs]
    if arrays[0] is not None and op == "cast":
        functions = {"cast": _truth if type_.dtype == BOOL else lambda x: x}
    elif arrays[0] is not None and op == "reduce":
        return _follow_reduce(arrays[0], attributes)
    return _applied(made, arrays, functions)


def _applied(
    made: Application, arrays: Sequence[Array | None],
    functions: Mapping[str, Callable[..., _T | None]],
) -> list[_T] | None:  # fmt: skip
    """The elements of a result from arrays of those of the operands: by a function of elements, or
    as the operator moves them. None if some are not known."""
    op, _, attributes, (type_, *_) = made
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays):
        return None
    if op in functions:
        whole = [np.broadcast_to(a, static(type_.shape)).ravel() for a in known]
        found = [functions[op](*x) for x in zip(*whole, strict=True)]
        certain = [x for x in found if x is not None]
        return certain if len(certain) == len(found) else None
    if not OPERATORS[op].moves:
        return None
    if op == "gather":
        if not all(isinstance(i, int) for i in known[1].flat):
            return None
        known[1] = known[1].astype(np.int64)
    numbers = [n for a in attributes.values() if isinstance(a, tuple) for n in a]
    if not all(isinstance(n, int) for n in numbers):
        return None
    return list(np.asarray(OPERATORS[op].reference(*known, **attributes), object).ravel())


def followed_elements(type_: TensorType) -> int | None:
    """The number of elements of a tensor that may be followed as dims; None if it may not."""
    if any(isinstance(n, Symbolic) for n in type_.shape):
        # It may have no elements all the same.
        return None
    count = math.prod(static(type_.shape))
    return count if count <= MAX_FOLLOWED else None


def elements_of(value: Value) -> Array | None:
    """The elements as an array of Python integers and dims, if they are known and integers; those
    of a float, too."""
    constant = value.constant
    if value.dims is not None:
        return _array(value.dims, value.shape)
    if constant is None or constant.size > MAX_FOLLOWED or not _is_whole(constant):
        return None
    return _array([int(x) for x in constant.ravel()], value.shape)


def _array(elements: Sequence[Any], shape: Shape) -> Array:
    return np.fromiter(elements, object, len(elements)).reshape(static(shape))


def _is_whole(array: Array) -> bool:
    """Whether the elements are integers, and such that a float's arithmetic on them is exact."""
    if array.dtype.kind != "f":
        return array.dtype.kind in "iub"
    most = min(MOST_EXACT, 2 << np.finfo(array.dtype).nmant)
    wide = array.astype(np.float64)
    return bool(np.all(np.abs(wide) <= most) and np.all(wide == np.rint(wide)))


# Functions of dims.


def sign_of(x: Dim) -> int:
    """1 if a dim is certain to be zero or more, -1 if it is certain to be zero or less, else 0."""
    low, high = least_value(x), least_value(-x)
    if low is not None and low >= 0:
        return 1
    return -1 if high is not None and high >= 0 else 0


def _truncated_quotient(x: Dim, y: Dim) -> Dim | None:
    """`x / y` rounded towards zero, for an x that is zero or more unless it is known to be zero or
    less; None if y is zero or may be negative."""
    if y == 0 or sign_of(y) <= 0:
        return None
    return dims_of.quotient(x, y) if sign_of(x) >= 0 else -dims_of.quotient(-x, y)


def _compared(x: Dim, y: Dim, equal: bool) -> int | None:
    """x == y, or x < y, as 0 or 1; None if it is not certain."""
    if x == y:
        return int(equal)
    above, below = least_value(x - y), least_value(y - x)
    if below is not None and below > 0:
        return int(not equal)
    if above is not None and (above > 0 or (above == 0 and not equal)):
        return 0
    return None


def _negated(value: int | None) -> int | None:
    return None if value is None else 1 - value


def _truth(x: Dim) -> int | None:
    return _negated(_compared(x, 0, equal=True))


_OF_INTEGERS = ("divide", "remainder")
"""Functions that are others of floats."""
_PRESUMING: Mapping[str, Callable[..., Dim | None]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": _truncated_quotient,
    "remainder": lambda x, y: None if y == 0 else dims_of.remainder(x, y),
    "maximum": dims_of.maximum,
    "minimum": dims_of.minimum,
    "negative": lambda x: -x,
    "ceil": lambda x: x,
    "floor": lambda x: x,
    "rint": lambda x: x,
    "equal": lambda x, y: _compared(x, y, equal=True),
    "less": lambda x, y: _compared(x, y, equal=False),
    "less_equal": lambda x, y: _negated(_compared(y, x, equal=False)),
    "logical_not": lambda x: 1 - x,
    "where": lambda c, x, y: x if c else y,
}
"""What is divided is presumed to be zero or more."""
_DIM_FUNCTIONS = {
    **_PRESUMING, "divide": lambda x, y: _truncated_quotient(x, y) if sign_of(x) else None
}  # fmt: skip
_FOLDS = {"sum": "add", "product": "multiply", "maximum": "maximum", "minimum": "minimum"}
_NEUTRAL: Mapping[str, list[Dim]] = {"sum": [0], "product": [1]}


def _follow_reduce(array: Array, attributes: Mapping[str, Any]) -> list[Dim] | None:
    kind = attributes["kind"]
    if array.ndim != 1 or attributes["axes"] != (0,):
        return None
    return [reduce(_DIM_FUNCTIONS[_FOLDS[kind]], array)] if array.size else _NEUTRAL.get(kind)


# Functions of ratios.


def _constant_ratios(array: Array) -> tuple[Ratio, ...] | None:
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
    return _times(x, y) if exact or _keeps_exact(x, y) or _keeps_exact(y, x) else None


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


_RATIO_FUNCTIONS: Mapping[str, Callable[[Ratio, Ratio], Ratio | None]] = {
    "add": _sum,
    "subtract": lambda x, y: _sum(x, Ratio(-y.above, y.below)),
    "multiply": _product,
    "divide": _quotient,
}
