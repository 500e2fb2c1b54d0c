"""Functions of graph values, beside the operators that values have: what a front end, a test or an
example writes a graph in.

They add nodes to the builder that is being written to; see `Builder.writing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ftuner.core.dim import Dim, Shape, product
from ftuner.core.dtype import DType
from ftuner.graph.checks import origin
from ftuner.graph.ir import Array, Operand, Value, building


def apply(op: str, *operands: Value, **attributes: Any) -> Value:
    """The result of an operator of the table."""
    return building().add(op, *operands, **attributes)


def apply_many(op: str, *operands: Value, **attributes: Any) -> tuple[Value, ...]:
    """The results of an operator of the table that has several."""
    return building().add_many(op, *operands, **attributes)


def _function(op: str) -> Callable[[Value], Value]:
    return lambda x: building().add(op, x)


exp, expm1, log, sqrt, tanh, sigmoid = map(
    _function, ("exp", "expm1", "log", "sqrt", "tanh", "sigmoid")
)
sin, cos, sign, floor, ceil, rint = map(_function, ("sin", "cos", "sign", "floor", "ceil", "rint"))
isnan, isinf = map(_function, ("isnan", "isinf"))


def where(condition: Value, x: Operand, y: Operand) -> Value:
    """x where the condition holds, else y. One of them is a value."""
    x, y = (x, x.like(y)) if isinstance(x, Value) else (y.like(x) if isinstance(y, Value) else x, y)
    assert isinstance(x, Value)
    assert isinstance(y, Value)
    return building().add("where", condition, x, y)


def equal(x: Value, y: Operand) -> Value:
    """Whether elements are equal."""
    return building().add("equal", x, x.like(y))


def gather(x: Value, at: Value, axis: int = 0) -> Value:
    """The elements of x at positions along an axis, which are checked at run time."""
    return building().add("gather", x, at, axis=axis, node=origin())


def concat(values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else building().add("concat", *values, axis=axis)


def iota(extent: Dim, axis: int = 0, rank: int = 1) -> Value:
    """0, 1, 2, ... along one axis; the other axes have extent 1."""
    shape: list[Dim] = [1] * rank
    shape[axis] = extent
    return building().add("iota", shape=tuple(shape), axis=axis)


def zero_padded(x: Value, before: Shape, after: Shape) -> Value:
    """x with zeros around it."""
    return building().add("pad", x, x.like(0), before=before, after=after, mode="constant")


def scalar(value: float, dtype: DType) -> Value:
    """A constant without axes."""
    return building().scalar(value, dtype)


def constant(array: Array | Sequence[Any] | np.generic, dtype: DType | None = None) -> Value:
    """A constant of dtype `dtype`, or else of the array's own."""
    return building().constant(array, dtype)


def counted(shape: Iterable[Dim], dtype: DType) -> Value:
    """The number of elements of a shape, as a scalar."""
    return building().dims([product(shape)], ()).cast(dtype)
