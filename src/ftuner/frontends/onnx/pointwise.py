"""Operators on elements: arithmetic, comparisons, conversions."""

from __future__ import annotations

from functools import partial, reduce
from typing import Literal

from ftuner.core.dtype import BOOL, FLOAT64, INT64, DType
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.errors import ShapeError
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import Unbounded, onnx
from ftuner.graph.algebra import apply, isinf, scalar, where
from ftuner.graph.checks import origin, require
from ftuner.graph.ir import Value


def _plain(*xs: Value, op: str) -> Value:
    """The operator of the graph that is the same function."""
    return apply(op, *xs)


def _for_floats(x: Value, op: str) -> Value:
    """An operator that leaves integers as they are."""
    return apply(op, x) if x.dtype.kind == "float" else x


def _folded(node: NodeView, *xs: Value, op: str) -> Value:
    """An operator of two operands, applied to any number of them; they broadcast since 8."""
    for other in xs if node.opset < 8 else ():
        what = f"{xs[0].type} and {other.type}; expected one shape before opset 8"
        if other.rank != xs[0].rank:
            raise ShapeError(f"{origin()}: {what}")
        for x, y in zip(xs[0].shape, other.shape, strict=True):
            require(x, y, what)
    return reduce(partial(apply, op), xs)


for _name, _row in SCALAR_FUNCTIONS.items():
    if _row.onnx is not None:
        onnx(_row.onnx, op=_name)(_plain)
for _op, _name in {"Det": "determinant", "StringConcat": "join"}.items():
    onnx(_op, op=_name)(_plain)
onnx("Gelu", domain=MICROSOFT, op="gelu")(_plain)
for _op, _name in {"Ceil": "ceil", "Floor": "floor", "Round": "rint"}.items():
    onnx(_op, op=_name)(_for_floats)
for _op, _name in {"Max": "maximum", "Min": "minimum", "Sum": "add"}.items():
    onnx(_op, op=_name)(_folded)


@onnx("Greater", op="less")
@onnx("GreaterOrEqual", op="less_equal")
def _exchanged(x: Value, y: Value, *, op: str) -> Value:
    return apply(op, y, x)


@onnx("Mean")
def _mean(node: NodeView, *xs: Value) -> Value:
    return _folded(node, *xs, op="add") * (1 / len(xs))


@onnx("Mod")
def _mod(x: Value, y: Value, fmod: bool = False) -> Value:
    return apply("fmod", x, y) if fmod else x % y


@onnx("Pow")
def _pow(x: Value, y: Value) -> Value:
    """The result has the dtype of the base."""
    if x.dtype == y.dtype or x.dtype.kind == "float":
        return x ** y.cast(x.dtype)
    between = FLOAT64 if y.dtype.kind == "float" else INT64
    return (x.cast(between) ** y.cast(between)).cast(x.dtype)


@onnx("Cast")
def _cast(x: Value, to: DType) -> Value:
    return x.cast_explicitly(to)


@onnx("CastLike")
def _cast_like(x: Value, like: Value) -> Value:
    return x.cast_explicitly(like.dtype)


@onnx("BitCast")
def _bit_cast(x: Value, to: DType) -> Value:
    return x if to == x.dtype else apply("bit_cast", x, of=x.dtype, to=to)


@onnx("IsInf")
def _is_infinite(x: Value, detect_negative: bool = True, detect_positive: bool = True) -> Value:
    if detect_negative == detect_positive:
        return isinf(x) if detect_negative else scalar(False, BOOL).broadcast(x.shape)
    return isinf(x) & (x < 0 if detect_negative else x > 0)


@onnx("Clip", since=11)
def _clip(x: Value, low: Value | None, high: Value | None) -> Value:
    x = x if low is None else x.at_least(low)
    return x if high is None else x.at_most(high)


@onnx("Clip")
def _clip_by_attributes(
    x: Value, min: Unbounded | None = None, max: Unbounded | None = None
) -> Value:
    x = x if min is None else x.at_least(min)
    return x if max is None else x.at_most(max)


@onnx("BitShift")
def _bit_shift(x: Value, y: Value, direction: Literal["LEFT", "RIGHT"]) -> Value:
    return apply(f"shift_{direction.lower()}", x, y)


@onnx("Where")
def _where(condition: Value, x: Value, y: Value) -> Value:
    return where(condition, x, y)
