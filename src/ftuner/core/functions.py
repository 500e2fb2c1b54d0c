"""Scalar functions: what definitions may do to elements, by name.

Each has a NumPy reference, which is its meaning; code generators know the same names. All arguments
have one dtype, but for the condition of `where`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftuner.core import references as activations
from ftuner.core.dtype import DType
from ftuner.core.expr import Expr, Operand, evaluate, hard_swish


@dataclass(frozen=True)
class ScalarFunction:
    """`result` is "same" (the dtype of the arguments) or "bool"."""

    arity: int
    result: str
    kinds: frozenset[str]
    """Kinds of dtype that it takes: float, int, uint, bool."""
    reference: Callable[..., Any]


NUMBERS = frozenset({"float", "int", "uint"})
FLOATS = frozenset({"float"})
INTEGERS = frozenset({"int", "uint"})
ALL = NUMBERS | {"bool"}
BOOLS = frozenset({"bool"})


def _truncated_quotient(x: Any, y: Any) -> Any:
    """Integers: rounded towards zero, as ONNX and C have it; zero where y is."""
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype.kind == "f":
        return np.divide(x, y)
    safe = np.where(y == 0, 1, y).astype(y.dtype)
    quotient = np.floor_divide(x, safe)
    if x.dtype.kind == "i":
        # NumPy rounds down.
        inexact = quotient * safe != x
        quotient = quotient + (inexact & ((x < 0) != (safe < 0)))
    return np.where(y == 0, 0, quotient).astype(x.dtype)


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of y; zero where an integer y is."""
    y = np.asarray(y)
    if y.dtype.kind == "f":
        return np.mod(x, y)
    safe = np.where(y == 0, 1, y).astype(y.dtype)
    return np.where(y == 0, 0, np.mod(x, safe)).astype(y.dtype)


def _fmod(x: Any, y: Any) -> Any:
    """With the sign of x; zero where an integer y is."""
    y = np.asarray(y)
    if y.dtype.kind == "f":
        return np.fmod(x, y)
    safe = np.where(y == 0, 1, y).astype(y.dtype)
    return np.where(y == 0, 0, np.fmod(x, safe)).astype(y.dtype)


def _power(x: Any, y: Any) -> Any:
    """Of integers with a negative exponent: rounded towards zero; zero where x is."""
    x, y = np.asarray(x), np.asarray(y)
    if y.dtype.kind != "i":
        return np.power(x, y)
    negative = y < 0
    power = np.power(x, np.where(negative, y & 1, y))
    return np.where(negative & (x != 1) & (x != -1), 0, power).astype(x.dtype)


COMPOSED: Mapping[str, Callable[[Expr], Expr]] = {"hard_swish": hard_swish}
"""Functions that are expressions of others, for code generators too."""


def _expression(function: Callable[[Expr], Expr]) -> Callable[[Any], Any]:
    body = function(Operand("x", "matrix"))
    return lambda x: evaluate(body, {"x": np.asarray(x)})


def _same(arity: int, kinds: frozenset[str], reference: Callable[..., Any]) -> ScalarFunction:
    return ScalarFunction(arity, "same", kinds, reference)


def _test(arity: int, kinds: frozenset[str], reference: Callable[..., Any]) -> ScalarFunction:
    return ScalarFunction(arity, "bool", kinds, reference)


SCALAR_FUNCTIONS: Mapping[str, ScalarFunction] = {
    "add": _same(2, NUMBERS, np.add),
    "subtract": _same(2, NUMBERS, np.subtract),
    "multiply": _same(2, NUMBERS, np.multiply),
    "divide": _same(2, NUMBERS, _truncated_quotient),
    "remainder": _same(2, NUMBERS, _remainder),
    "fmod": _same(2, NUMBERS, _fmod),
    "power": _same(2, NUMBERS, _power),
    "maximum": _same(2, NUMBERS, np.maximum),
    "minimum": _same(2, NUMBERS, np.minimum),
    "negative": _same(1, NUMBERS, np.negative),
    "absolute": _same(1, NUMBERS, np.absolute),
    "sign": _same(1, NUMBERS, np.sign),
    "exp": _same(1, FLOATS, np.exp),
    "expm1": _same(1, FLOATS, np.expm1),
    "log": _same(1, FLOATS, np.log),
    "sqrt": _same(1, FLOATS, np.sqrt),
    "sin": _same(1, FLOATS, np.sin),
    "cos": _same(1, FLOATS, np.cos),
    "tanh": _same(1, FLOATS, np.tanh),
    "erf": _same(1, FLOATS, activations.erf),
    "erfc": _same(1, FLOATS, activations.erfc),
    "sigmoid": _same(1, FLOATS, activations.sigmoid),
    "gelu": _same(1, FLOATS, activations.gelu),
    "gelu_tanh": _same(1, FLOATS, activations.gelu_tanh),
    "silu": _same(1, FLOATS, activations.silu),
    "softplus": _same(1, FLOATS, activations.softplus),
    "mish": _same(1, FLOATS, activations.mish),
    "swish": _same(2, FLOATS, activations.swish),
    **{name: _same(1, FLOATS, _expression(function)) for name, function in COMPOSED.items()},
    "floor": _same(1, FLOATS, np.floor),
    "ceil": _same(1, FLOATS, np.ceil),
    "rint": _same(1, FLOATS, np.rint),
    "isnan": _test(1, FLOATS, np.isnan),
    "isinf": _test(1, FLOATS, np.isinf),
    "equal": _test(2, ALL, np.equal),
    "less": _test(2, NUMBERS, np.less),
    "less_equal": _test(2, NUMBERS, np.less_equal),
    "logical_and": _same(2, BOOLS, np.logical_and),
    "logical_or": _same(2, BOOLS, np.logical_or),
    "logical_xor": _same(2, BOOLS, np.logical_xor),
    "logical_not": _same(1, BOOLS, np.logical_not),
}
"""Those on floats are within 4 ulp of the exact value, however small it is, where a code generator
computes them (`codegen`'s modules tell the largest errors seen); `swish` is x sigmoid(y x), and
holds this for a y between 2^-10 and 2^10. `where` (condition, x, y) and `cast` are apart: their
arguments differ in dtype."""


def neutral(kind: str, dtype: DType) -> float:
    """What a reduction (`sum`, `product`, `maximum`, `minimum`) of nothing gives."""
    if kind in ("sum", "product"):
        return 0 if kind == "sum" else 1
    if dtype.kind == "float":
        return -math.inf if kind == "maximum" else math.inf
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    return low if kind == "maximum" else low + (1 << dtype.bits) - 1
