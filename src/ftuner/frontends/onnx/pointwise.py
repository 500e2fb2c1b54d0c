"""Operators on elements: arithmetic, comparisons, conversions."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dtype import BOOL, FLOAT64, INT64
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.errors import ShapeError
from ftuner.frontends.onnx.context import Context, Importer, NodeView, Table
from ftuner.frontends.onnx.reading import dtype_of
from ftuner.graph.algebra import apply, isinf, malformed, origin, require, scalar, where
from ftuner.graph.ir import Value


def _plain(op: str) -> Importer:
    """The operator of the graph that is the same function."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        return [apply(op, *node.present())]

    return convert


def _exchanged(op: str) -> Importer:
    """The same with both operands exchanged."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        return [apply(op, node.input(1), node.input(0))]

    return convert


def _for_floats(op: str) -> Importer:
    """An operator that leaves integers as they are."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x = node.input(0)
        return [apply(op, x) if x.dtype.kind == "float" else x]

    return convert


def _folded(op: str) -> Importer:
    """An operator of two operands, applied to any number of them."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        return [_fold(context, node, op)]

    return convert


def _fold(context: Context, node: NodeView, op: str) -> Value:
    first, *others = node.present()
    if node.opset < 8:
        _expect_one_shape(context, node)
    for other in others:
        first = apply(op, first, other)
    return first


def _expect_one_shape(context: Context, node: NodeView) -> None:
    """Raise ShapeError unless all operands have one shape: these operators broadcast since 8."""
    first, *others = node.present()
    for other in others:
        what = f"{first.type} and {other.type}; expected one shape before opset 8"
        if other.rank != first.rank:
            raise ShapeError(f"{origin()}: {what}")
        for x, y in zip(first.shape, other.shape, strict=True):
            require(x, y, what)


def _mean(context: Context, node: NodeView) -> Sequence[Value]:
    total = _fold(context, node, "add")
    return [total * (1 / len(node.present()))]


def _mod(context: Context, node: NodeView) -> Sequence[Value]:
    op = "fmod" if node.flag("fmod") else "remainder"
    return [apply(op, node.input(0), node.input(1))]


def _pow(context: Context, node: NodeView) -> Sequence[Value]:
    """The result has the dtype of the base."""
    x, y = node.input(0), node.input(1)
    if x.dtype == y.dtype or x.dtype.kind == "float":
        return [x ** y.cast(x.dtype)]
    between = FLOAT64 if y.dtype.kind == "float" else INT64
    power = x.cast(between) ** y.cast(between)
    return [power.cast(x.dtype)]


def _cast(context: Context, node: NodeView) -> Sequence[Value]:
    what = f"{origin()}: attribute to"
    to = dtype_of(node.integer("to"), what)
    return [node.input(0).cast_explicitly(to)]


def _cast_like(context: Context, node: NodeView) -> Sequence[Value]:
    return [node.input(0).cast_explicitly(node.input(1).dtype)]


def _bit_cast(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    to = dtype_of(node.integer("to"), f"{origin()}: attribute to")
    return [x if to == x.dtype else apply("bit_cast", x, of=x.dtype, to=to)]


def _is_infinite(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    infinite = isinf(x)
    negative, positive = node.flag("detect_negative", True), node.flag("detect_positive", True)
    if negative and positive:
        return [infinite]
    if not negative and not positive:
        return [scalar(False, BOOL).broadcast(x.shape)]
    zero = scalar(0, x.dtype)
    side = x < zero if negative else zero < x
    return [infinite & side]


def _clip(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if node.opset >= 11:
        low, high = node.optional(1), node.optional(2)
    else:
        low, high = (
            scalar(node.number(name, finite=False), x.dtype) if node.has(name) else None
            for name in ("min", "max")
        )
    if low is not None:
        x = x.at_least(low)
    if high is not None:
        x = x.at_most(high)
    return [x]


def _bit_shift(context: Context, node: NodeView) -> Sequence[Value]:
    direction = node.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise malformed(f"direction is {direction!r}; expected 'LEFT' or 'RIGHT'")
    return [apply(f"shift_{direction.lower()}", node.input(0), node.input(1))]


def _where(context: Context, node: NodeView) -> Sequence[Value]:
    return [where(node.input(0), node.input(1), node.input(2))]


_PLAIN = {row.onnx: name for name, row in SCALAR_FUNCTIONS.items() if row.onnx is not None}
_FOR_FLOATS = {"Ceil": "ceil", "Floor": "floor", "Round": "rint"}
_FOLDED = {"Max": "maximum", "Min": "minimum", "Sum": "add"}
_OTHERS: dict[str, Importer] = {
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Greater": _exchanged("less"),
    "GreaterOrEqual": _exchanged("less_equal"),
    "IsInf": _is_infinite,
    "Mean": _mean,
    "Mod": _mod,
    "Pow": _pow,
    "Where": _where,
}
POINTWISE: Table = {
    ("", name): importer
    for name, importer in (
        *((name, _plain(op)) for name, op in _PLAIN.items()),
        *((name, _for_floats(op)) for name, op in _FOR_FLOATS.items()),
        *((name, _folded(op)) for name, op in _FOLDED.items()),
        *_OTHERS.items(),
    )
}
