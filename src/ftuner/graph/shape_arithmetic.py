"""Elements of small integer tensors as dims: the arithmetic on shapes in model files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core import dim as dims_of
from ftuner.core.dim import Dim, Shape, Symbolic, least_value
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, INT32, INT64
from ftuner.graph.ir import Array, TensorType, Value
from ftuner.graph.operators import OPERATORS

MAX_FOLLOWED = 64
"""Most elements of a tensor that is followed as dims: no shape has more axes."""
MOST_EXACT = 1 << 24
"""The largest number up to which float32 holds every integer."""


def static(shape: Shape) -> tuple[int, ...]:
    assert all(isinstance(n, int) for n in shape), shape
    return tuple(n for n in shape if isinstance(n, int))


def followed_elements(type_: TensorType) -> int | None:
    """The number of elements of a tensor that may be followed as dims; None if it may not."""
    if any(isinstance(n, Symbolic) for n in type_.shape):
        # It may have no elements all the same.
        return None
    count = math.prod(static(type_.shape))
    return count if count <= MAX_FOLLOWED else None


_DIM_FUNCTIONS: Mapping[str, Callable[..., Dim | None]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: _truncated_quotient(x, y) if sign_of(x) else None,
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
_OF_INTEGERS = ("divide", "remainder")
"""Functions that are others of floats."""


def _truncated_quotient(x: Dim, y: Dim) -> Dim | None:
    """`x / y` rounded towards zero, for an x that is zero or more unless it is known to be zero or
    less; None if y is zero or may be negative."""
    if y == 0 or sign_of(y) <= 0:
        return None
    return dims_of.quotient(x, y) if sign_of(x) >= 0 else -dims_of.quotient(-x, y)


def sign_of(x: Dim) -> int:
    """1 if a dim is certain to be zero or more, -1 if it is certain to be zero or less, else 0."""
    low, high = least_value(x), least_value(-x)
    if low is not None and low >= 0:
        return 1
    return -1 if high is not None and high >= 0 else 0


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


def follow(
    op: str, inputs: Sequence[Value], attributes: Mapping[str, Any], type_: TensorType,
    presuming: bool = False,
) -> list[Dim] | None:  # fmt: skip
    """The elements of a result as dims, if those of the operands are. `presuming`: that what is
    divided is zero or more."""
    floating = type_.dtype in (FLOAT32, FLOAT64)
    if not inputs or not (floating or type_.dtype in (INT32, INT64, BOOL)):
        return None
    if followed_elements(type_) is None or (floating and op in _OF_INTEGERS):
        return None
    if floating and all(value.constant is not None for value in inputs):
        # Constants are folded, or too large to be.
        return None
    arrays = []
    for value in inputs:
        elements = elements_of(value)
        if elements is None:
            return None
        arrays.append(elements)
    if op in _DIM_FUNCTIONS:
        function = _DIM_FUNCTIONS[op]
        if presuming and op == "divide":
            function = _truncated_quotient
        whole = [np.broadcast_to(a, static(type_.shape)).ravel() for a in arrays]
        return _certain(function(*x) for x in zip(*whole, strict=True))
    if op == "cast" and type_.dtype == BOOL:
        return _certain(_negated(_compared(x, 0, equal=True)) for x in arrays[0].ravel())
    if op == "cast":
        return list(arrays[0].ravel())
    if op == "reduce":
        return _follow_reduce(arrays[0], attributes)
    if op == "gather":
        if not all(isinstance(i, int) for i in arrays[1].flat):
            return None
        arrays[1] = arrays[1].astype(np.int64)
    if OPERATORS[op].moves:
        numbers = [n for a in attributes.values() if isinstance(a, tuple) for n in a]
        if not all(isinstance(n, int) for n in numbers):
            return None
        moved = OPERATORS[op].reference(*arrays, **attributes)
        return list(np.asarray(moved, object).ravel())
    return None


def _certain(results: Iterable[Dim | None]) -> list[Dim] | None:
    """All results, or None if one of them is not known."""
    found: list[Dim] = []
    for result in results:
        if result is None:
            return None
        found.append(result)
    return found


def _follow_reduce(array: Array, attributes: Mapping[str, Any]) -> list[Dim] | None:
    if array.ndim != 1 or attributes["axes"] != (0,):
        return None
    folds: dict[str, Callable[[Dim, Dim], Dim]] = {
        "sum": lambda x, y: x + y,
        "product": lambda x, y: x * y,
        "maximum": dims_of.maximum,
        "minimum": dims_of.minimum,
    }
    fold = folds[attributes["kind"]]
    elements = list(array)
    if not elements:
        neutral = {"sum": 0, "product": 1}.get(attributes["kind"])
        return None if neutral is None else [neutral]
    total = elements[0]
    for element in elements[1:]:
        total = fold(total, element)
    return [total]


def elements_of(value: Value) -> Array | None:
    """The elements as an array of Python integers and dims, if they are known and integers; those
    of a float, too."""
    constant = value.constant
    if value.dims is not None:
        elements: Sequence[Dim] = value.dims
    elif constant is not None and constant.size <= MAX_FOLLOWED and _is_whole(constant):
        elements = [int(x) for x in constant.ravel()]
    else:
        return None
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(value.shape)


def _is_whole(array: Array) -> bool:
    """Whether the elements are integers, and such that a float's arithmetic on them is exact."""
    if array.dtype.kind != "f":
        return array.dtype.kind in "iub"
    most = min(MOST_EXACT, 2 << np.finfo(array.dtype).nmant)
    wide = array.astype(np.float64)
    return bool(np.all(np.abs(wide) <= most) and np.all(wide == np.rint(wide)))
