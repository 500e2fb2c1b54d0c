"""Rows of operators on elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto, helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import broadcast, dtypes_of, partner, row
from tests.random_graphs.tensors import (
    DTYPES,
    FLOATS,
    INTEGERS,
    MICROSOFT,
    NUMBERS,
    TAME,
    UNSIGNED,
    Fill,
    Tensor,
)

Range = tuple[float, float]
HALF_LARGEST = 65504.0
"""The largest number of float16."""
ALL = (-1e30, 1e30)


def _unary(
    op: str, dtypes: Sequence[str], domain: Range, result: Callable[[Tensor], Range],
    weight: float = 1.0, since: int = 7, to: str | None = None,
    given: Callable[[Maker], dict[str, object]] = lambda maker: {},
    mostly: Callable[[Maker, Tensor], Tensor] | None = None,
) -> None:  # fmt: skip
    """`given`: the attributes. `mostly`: what becomes of nine operands of ten."""

    @row(op, weight, since=since)
    def make(maker: Maker) -> None:
        x = maker.operand(dtypes_of(maker, op, dtypes))
        if mostly is not None and not maker.draws.chance(0.1):
            x = mostly(maker, x)
        x = maker.tamed(x, *domain)
        low, high = result(x)
        maker.add(op, [x], x.shape, to or x.dtype, low, high, **given(maker))


def _between(low: float, high: float) -> Callable[[Tensor], Range]:
    return lambda x: (low, high)


def _as_it_is(x: Tensor) -> Range:
    return x.low, x.high


def _positive(least: float) -> Callable[[Maker, Tensor], Tensor]:
    return lambda maker, x: maker.positive(x, least)


def _alpha(name: str, *values: object) -> Callable[[Maker], dict[str, object]]:
    """An attribute that is left out now and then."""

    def draw(maker: Maker) -> dict[str, object]:
        number = maker.draws.below(len(values) + 1)
        return {name: values[number - 1]} if number else {}

    return draw


_unary("Abs", NUMBERS, ALL, lambda x: (0, x.size))
_unary("Neg", NUMBERS, ALL, lambda x: (-x.high, -x.low), 1.5)
_unary("Sign", NUMBERS, ALL, _between(-1, 1), 0.5, since=9)
_unary("Exp", FLOATS, (-40.0, 20.0), lambda x: (0, float(np.exp(x.high))), 1.5)
_unary("Sin", FLOATS, (-1e4, 1e4), _between(-1, 1), 0.6)
_unary("Cos", FLOATS, (-1e4, 1e4), _between(-1, 1), 0.6)
_unary("Tan", FLOATS, (-1.5, 1.5), _between(-15, 15), 0.3)
_unary("Atan", FLOATS, ALL, _between(-2, 2), 0.4)
_unary("Asin", FLOATS, (-1.0, 1.0), _between(-2, 2), 0.3)
_unary("Acos", FLOATS, (-1.0, 1.0), _between(0, 4), 0.3)
_unary("Sinh", FLOATS, (-20.0, 20.0), _between(-3e8, 3e8), 0.4, since=9)
_unary("Cosh", FLOATS, (-20.0, 20.0), _between(1, 3e8), 0.4, since=9)
_unary("Asinh", FLOATS, ALL, _between(-90, 90), 0.4, since=9)
_unary("Acosh", FLOATS, (1.0, 1e30), _between(0, 90), 0.3, since=9)
_unary("Atanh", FLOATS, (-0.9, 0.9), _between(-2, 2), 0.3, since=9)
_unary("Shrink", FLOATS, ALL, _as_it_is, 0.4, since=9, given=_alpha("lambd", 0.0, 1.5))
_unary("Tanh", FLOATS, ALL, _between(-1, 1), 1.5)
_unary("Erf", FLOATS, ALL, _between(-1, 1), 1.0, since=9)
_unary("Sigmoid", FLOATS, ALL, _between(0, 1), 1.5)
_unary("Ceil", FLOATS, ALL, _as_it_is, 0.4)
_unary("Floor", FLOATS, ALL, _as_it_is, 0.4)
_unary("Round", FLOATS, ALL, _as_it_is, 0.4, since=11)
_unary("IsNaN", FLOATS, ALL, _between(0, 1), 0.4, since=9, to="bool")
_unary("Not", ("bool",), ALL, _between(0, 1), 0.6)
_unary("Relu", NUMBERS, ALL, lambda x: (max(x.low, 0), max(x.high, 0)), 2.5)
_unary("LeakyRelu", FLOATS, ALL, _as_it_is, 0.6, given=_alpha("alpha", 0.1, 0.0, 1.5))
_unary("Elu", FLOATS, ALL, _as_it_is, 0.5, given=_alpha("alpha", 0.5, 2.0))
_unary("Celu", FLOATS, ALL, _as_it_is, 0.5, since=12, given=_alpha("alpha", 0.5, 2.0))
_unary("ThresholdedRelu", FLOATS, ALL, _as_it_is, 0.4, since=10, given=_alpha("alpha", 0.0, -0.5))
_unary("HardSwish", FLOATS, ALL, _as_it_is, 0.8, since=14)
_unary("Softplus", FLOATS, ALL, lambda x: (0, x.size + 1), 0.6)
_unary("Softsign", FLOATS, ALL, _between(-1, 1), 0.5)
_unary("Mish", FLOATS, ALL, _as_it_is, 0.5, since=18)
_unary("Swish", FLOATS, ALL, _as_it_is, 0.6, since=24, given=_alpha("alpha", 1.702, 0.5))
_APPROXIMATE = _alpha("approximate", "tanh", "none")
_unary("Gelu", FLOATS, ALL, lambda x: (-1, x.size), since=20, given=_APPROXIMATE)


@row("Selu", 0.5)
def _selu(maker: Maker) -> None:
    x = maker.operand(FLOATS)
    attributes = {"alpha": 1.5, "gamma": 1.2} if maker.draws.chance(0.5) else {}
    maker.add("Selu", [x], x.shape, x.dtype, -2, x.size * 1.2, **attributes)


@row("HardSigmoid", 0.6)
def _hard_sigmoid(maker: Maker) -> None:
    x = maker.operand(FLOATS)
    attributes = maker.draws.pick(({}, {"alpha": 1 / 6, "beta": 0.5}, {"alpha": 0.3}))
    maker.add("HardSigmoid", [x], x.shape, x.dtype, 0, 1, **attributes)


@row("PRelu", 0.5, since=9)
def _prelu(maker: Maker) -> None:
    x = maker.operand(FLOATS, (1, 2, 3, 4))
    shape = x.shape[maker.draws.below(x.rank) :]
    slope = maker.shaped(shape, x.dtype, TAME)
    maker.add("PRelu", [x, slope], x.shape, x.dtype, -x.size * slope.size, x.size * slope.size)


_unary("Log", FLOATS, ALL, _between(-5, 80), 0.8, mostly=_positive(0.01))
_unary("Sqrt", FLOATS, ALL, lambda x: (0, max(x.size, 1.0) ** 0.5), 0.8, mostly=Maker.absolute)
_unary("Reciprocal", FLOATS, ALL, _between(-10, 10), 0.6, mostly=_positive(0.1))


@row("IsInf", 0.4, since=10)
def _is_inf(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "IsInf", FLOATS))
    attributes = {
        name: maker.draws.pick((None, 0, 1)) for name in ("detect_negative", "detect_positive")
    }
    maker.add("IsInf", [x], x.shape, "bool", 0, 1, **attributes)


def _pair(maker: Maker, x: Tensor, y: Tensor) -> list[Tensor]:
    return [y, x] if maker.draws.chance(0.3) else [x, y]


def _binary(op: str, dtypes: Sequence[str], weight: float, to: str | None = None,
            since: int = 7) -> None:  # fmt: skip
    @row(op, weight, since=since)
    def make(maker: Maker) -> None:
        x = maker.operand(dtypes_of(maker, op, dtypes), size=1e15)
        y = partner(maker, x)
        pair = _pair(maker, x, y)
        shape = broadcast([x.shape, y.shape])
        if to is not None or x.dtype == "bool":
            maker.add(op, pair, shape, to or x.dtype, 0, 1)
            return
        size = x.size * y.size if op == "Mul" else x.size + y.size
        if size > 1e12:
            raise DeclinedError("too large")
        maker.add(op, pair, shape, x.dtype, 0 if x.dtype in UNSIGNED else -size, size)


_binary("Add", NUMBERS, 5.0)
_binary("Sub", NUMBERS, 2.5)
_binary("Mul", NUMBERS, 4.0)
_binary("BitwiseAnd", INTEGERS, 0.3, since=18)
_binary("BitwiseOr", INTEGERS, 0.3, since=18)
_binary("BitwiseXor", INTEGERS, 0.3, since=18)
_binary("And", ("bool",), 0.6, "bool")
_binary("Or", ("bool",), 0.6, "bool")
_binary("Xor", ("bool",), 0.4, "bool")
_binary("Equal", DTYPES, 0.7, "bool")
_binary("Less", NUMBERS, 0.7, "bool")
_binary("Greater", NUMBERS, 0.7, "bool")
_binary("LessOrEqual", NUMBERS, 0.5, "bool", since=12)
_binary("GreaterOrEqual", NUMBERS, 0.5, "bool", since=12)


@row("BitwiseNot", 0.3, since=18)
def _bitwise_not(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "BitwiseNot", INTEGERS))
    most = float(np.iinfo(x.dtype).max) if x.dtype in UNSIGNED else x.size
    maker.add("BitwiseNot", [x], x.shape, x.dtype, 0 if x.dtype in UNSIGNED else -x.size - 1, most)


@row("BitShift", 0.3, since=11)
def _bit_shift(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "BitShift", UNSIGNED))
    places = maker.scalar(maker.draws.pick((0, 1, 3)), x.dtype)
    direction = maker.draws.pick(("LEFT", "RIGHT"))
    size = x.size * 8 if direction == "LEFT" else x.size
    maker.add("BitShift", [x, places], x.shape, x.dtype, 0, size, direction=direction)


def _divisor(maker: Maker, x: Tensor) -> Tensor:
    """A partner without zeros, and without -1 for integers, whose least one it would overflow."""
    if maker.draws.chance(0.5):
        return maker.scalar(maker.draws.pick((2, 3, 7, 4, 1)), x.dtype)
    y = partner(maker, x)
    if x.floating:
        return y if maker.draws.chance(0.1) else maker.positive(y, 0.25)
    if y.constant is not None and (y.constant > 0).all():
        return y
    if "int8" in y.dtype or "int16" in y.dtype or maker.opset < 12:
        raise DeclinedError("no Max of these")
    one = maker.constant(np.array(1, y.dtype), share=True)
    return maker.add("Max", [y, one], y.shape, y.dtype, 1, max(y.size, 1))


@row("Div", 2.0)
def _div(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Div", NUMBERS), size=1e15)
    y = _divisor(maker, x)
    size = x.size * 4
    maker.add("Div", [x, y], broadcast([x.shape, y.shape]), x.dtype,
              0 if x.dtype in UNSIGNED else -size, size)  # fmt: skip


@row("Mod", 0.7, since=10)
def _mod(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Mod", NUMBERS), size=1e6)
    y = _divisor(maker, x)
    fmod = 1 if x.floating else maker.draws.pick((None, 1, 0))
    low = 0.0 if x.dtype in UNSIGNED else -y.size
    maker.add("Mod", [x, y], broadcast([x.shape, y.shape]), x.dtype, low, y.size, fmod=fmod)


@row("Pow", 1.0)
def _pow(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Pow", (*FLOATS, "int32", "int64")), size=1e3)
    dtypes = dtypes_of(maker, "Pow", (*FLOATS, "int32", "int64"), 1) if maker.opset >= 12 else (
        x.dtype,)  # fmt: skip
    kind = maker.draws.pick(("number", "tensor"))
    if kind == "number":
        dtype = x.dtype if maker.draws.chance(0.8) else maker.draws.pick(dtypes)
        options = (2, 3, 1, 0, 0.5, -1, -2) if x.floating and dtype in FLOATS else (2, 3, 1, 0)
        y = maker.scalar(maker.draws.pick(options), dtype)
        exponent = float(y.constant.item()) if y.constant is not None else 1.0
        if exponent in (0.5, -1, -2):
            x = maker.positive(x, 0.1)
    else:
        if not x.floating:
            raise DeclinedError("powers of integers grow")
        x = maker.tamed(maker.positive(x, 0.1), 0.1, 20)
        y = maker.tamed(partner(maker, x), -4, 4)
    size = max(x.size, 1.0) ** 4
    maker.add("Pow", [x, y], broadcast([x.shape, y.shape]), x.dtype, -size, size)


def _variadic(op: str, weight: float) -> None:
    @row(op, weight)
    def make(maker: Maker) -> None:
        dtypes = NUMBERS if op in ("Max", "Min") else FLOATS
        x = maker.operand(dtypes_of(maker, op, dtypes), size=1e6)
        count = maker.draws.pick((1, 2, 0, 3))
        # Broadcasting came with version 8.
        others = [
            partner(maker, x) if maker.opset >= 8 else maker.shaped(x.shape, x.dtype, 1e6)
            for _ in range(count)
        ]
        parts = maker.draws.shuffled([x, *others])
        shape = broadcast([p.shape for p in parts])
        size = sum(p.size for p in parts)
        maker.add(op, parts, shape, x.dtype, 0 if x.dtype in UNSIGNED else -size, size)


_variadic("Max", 1.2)
_variadic("Min", 1.0)
_variadic("Sum", 0.7)
_variadic("Mean", 0.5)


LIMITS = {
    "int8": (-100, 100), "uint8": (0, 200), "int16": (-1000, 1000), "uint16": (0, 1000),
    "uint32": (0, 1e6), "uint64": (0, 1e6), "int32": (-1e6, 1e6), "int64": (-1e6, 1e6),
}  # fmt: skip
"""What floats are clipped to before they become integers: other numbers are undefined."""


def castable(maker: Maker, x: Tensor, to: str) -> Tensor:
    """The tensor with elements that another type has."""
    if not x.floating or to in FLOATS or to == "bool":
        return x
    return maker.tamed(x, *map(float, LIMITS[to]))


@row("Cast", 2.5)
def _cast(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Cast", DTYPES))
    to = maker.dtype([t for t in DTYPES if t != x.dtype or maker.draws.chance(0.05)])
    x = castable(maker, x, to)
    low = max(x.low, 0) if to in UNSIGNED else x.low
    maker.add("Cast", [x], x.shape, to, low, x.high, to=_element(to))


@row("half precision", 1.5, idiom=True)
def _half_precision(maker: Maker) -> None:
    """Rounds a tensor to half precision, or reads an input that is, and computes a little with it,
    as files in half precision do, before it is widened. Without the last it is an output."""
    draws = maker.draws
    if draws.chance(0.3):
        x = maker.input(maker.some_shape(), "float16", Fill("normal"))
    else:
        x = maker.operand(("float32", "float64", "int32", "float32"))
        size = min(2 * x.size, HALF_LARGEST)
        if maker.opset >= 13 and draws.chance(0.3):
            # Only moved: peers compute nothing in bfloat16.
            name = maker.name("h")
            maker.nodes.append(helper.make_node("Cast", [x.name], [name], to=TensorProto.BFLOAT16))
            y = maker.new(x.shape, draws.pick(("float32", "float64")), -size, size)
            maker.nodes.append(helper.make_node("Cast", [name], [y.name], to=_element(y.dtype)))
            maker.tensors.append(y)
            return
        if x.floating and x.size > HALF_LARGEST / 2:
            x = maker.tamed(x, -HALF_LARGEST / 2, HALF_LARGEST / 2)
        x = maker.add("Cast", [x], x.shape, "float16", -size, size, to=TensorProto.FLOAT16)
    for _ in range(draws.pick((0, 1, 2))):
        x = _in_half_precision(maker, x)
    if draws.chance(0.9):
        to = draws.pick(("float32", "float64"))
        maker.add("Cast", [x], x.shape, to, -x.size, x.size, to=_element(to))


def _in_half_precision(maker: Maker, x: Tensor) -> Tensor:
    kind = maker.draws.pick(("view", "Relu", "Sigmoid", "Mul", "Add", "Softmax", "MatMul"))
    shape, low, high, others, attributes = x.shape, x.low, x.high, [], {}
    if kind == "view":
        return maker.viewing(maker, x)
    if kind in ("Mul", "Add"):
        others = [maker.weight((x.shape[-1].at[0],), x.dtype)] if (
            x.rank and x.shape[-1].static) else [maker.constant(np.float16(0.7))]  # fmt: skip
        low, high = -10 * x.size, 10 * x.size
    elif kind in ("Softmax", "MatMul"):
        if not x.rank or not x.shape[-1].static or x.rank < 2:
            raise DeclinedError("no rows")
        k = x.shape[-1].at[0]
        if kind == "MatMul":
            n = maker.draws.pick((8, 1, 17))
            others, shape = [maker.weight((k, n), x.dtype)], (*x.shape[:-1], static(n))
            low, high = -10 * k * x.size, 10 * k * x.size
        else:
            attributes, low, high = {"axis": x.rank - 1}, 0.0, 1.0
    elif kind == "Sigmoid":
        low, high = 0.0, 1.0
    if max(-low, high) > HALF_LARGEST / 2:
        raise DeclinedError("beyond half precision")
    return maker.add(kind, [x, *others], shape, x.dtype, low, high, **attributes)


@row("BitCast", 1.5, since=26)
def _bit_cast(maker: Maker) -> None:
    """Bits of floats are of inputs: the sign of a zero or of NaN is anybody's choice."""
    draws = maker.draws
    if draws.chance(0.5):
        dtype = maker.dtype(FLOATS)
        x = maker.viewing(maker, maker.input(maker.some_shape(), dtype, Fill("normal")))
    else:
        x = maker.operand((*INTEGERS, "bool"))
    size = np.dtype(x.dtype).itemsize
    to = draws.pick([t for t in INTEGERS if np.dtype(t).itemsize == size])
    info = np.iinfo(to)
    y = maker.add("BitCast", [x], x.shape, to, float(info.min), float(info.max), to=_element(to))
    if draws.chance(0.5):
        maker.add("BitCast", [y], x.shape, x.dtype, x.low, x.high, to=_element(x.dtype))


def _element(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@row("CastLike", 0.5, since=15)
def _cast_like(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "CastLike", DTYPES))
    y = maker.operand(dtypes_of(maker, "CastLike", DTYPES, 1))
    x = castable(maker, x, y.dtype)
    maker.add("CastLike", [x, y], x.shape, y.dtype, x.low, x.high)


@row("Clip", 1.2)
def _clip(maker: Maker) -> None:
    if maker.opset >= 11:
        x = maker.operand(dtypes_of(maker, "Clip", NUMBERS))
        bounds: list[Tensor | None] = []
        for options in ((0, 1, -1, -0.5), (6, 2, 3, 1.5)):
            value = maker.draws.pick(options)
            value = max(value, 0) if x.dtype in UNSIGNED else value
            given = maker.draws.chance(0.7)
            bounds.append(maker.constant(np.array(value, x.dtype), share=True) if given else None)
        maker.moved("Clip", x, x.shape, *bounds)
        return
    x = maker.operand(("float32",))
    limits = {n: v for n, v in (("min", -0.5), ("max", 1.5)) if maker.draws.chance(0.7)}
    maker.moved("Clip", x, x.shape, **limits)


_unary("Identity", DTYPES, ALL, _as_it_is, 0.3)


@row("Where", 2.0, since=9)
def _where(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Where", DTYPES, 1))
    y = partner(maker, x)
    condition = partner(maker, x, "bool")
    branches = _pair(maker, x, y)
    shape = broadcast([x.shape, y.shape, condition.shape])
    maker.add("Where", [condition, *branches], shape, x.dtype, min(x.low, y.low),
              max(x.high, y.high))  # fmt: skip


def _biased(op: str) -> None:
    @row(op, 0.5, domain=MICROSOFT)
    def make(maker: Maker) -> None:
        x = maker.operand(("float32",), (1, 2, 3, 4))
        operands = [x]
        if op == "BiasGelu" or (op == "FastGelu" and maker.draws.chance(0.5)):
            if not x.shape[-1].at or 0 in x.shape[-1].at:
                raise DeclinedError("a bias of nothing")
            operands.append(maker.shaped(x.shape[-1:], x.dtype))
        maker.add(op, operands, x.shape, x.dtype, -1, x.size + 4, MICROSOFT)


for _name in ("BiasGelu", "FastGelu", "Gelu"):
    _biased(_name)


@row("QuickGelu", 0.5, domain=MICROSOFT)
def _quick_gelu(maker: Maker) -> None:
    x = maker.operand(("float32",))
    alpha = maker.draws.pick((None, 1.0, 0.7))
    maker.add("QuickGelu", [x], x.shape, x.dtype, -1, x.size, MICROSOFT, alpha=alpha)
