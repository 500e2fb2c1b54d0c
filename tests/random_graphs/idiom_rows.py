"""Rows of what exporters write out for operators that ONNX had no node for."""

from __future__ import annotations

import numpy as np
from tests.random_graphs.contraction_rows import matmul, weight_for
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import static
from tests.random_graphs.making import Maker
from tests.random_graphs.reduction_rows import parameter, reduce_node
from tests.random_graphs.table import row
from tests.random_graphs.tensors import FLOATS, TAME, Tensor


def _operand(maker: Maker) -> Tensor:
    """What an activation is applied to: a product as often as not."""
    draws = maker.draws
    if draws.chance(0.4):
        a = maker.operand(("float32",), (2, 3), lambda x: x.shape[-1].static, 1e3)
        n = static(draws.pick((16, 1, 8, 33, 64)))
        y = matmul(maker, a, weight_for(maker, a.shape[-1], n, a.dtype))
        if draws.chance(0.5):
            bias = maker.shaped((n,), y.dtype)
            y = maker.add("Add", draws.shuffled([y, bias]), y.shape, y.dtype, y.low - 4, y.high + 4)
        return y
    return maker.operand(FLOATS, size=1e3)


def _apply(maker: Maker, op: str, x: Tensor, y: Tensor | float) -> Tensor:
    """An operator of two operands in either order, where that does not matter."""
    other = y if isinstance(y, Tensor) else maker.constant(np.array(y, x.dtype), share=True)
    pair = [x, other]
    if op in ("Add", "Mul") and maker.draws.chance(0.3):
        pair.reverse()
    size = x.size * max(other.size, 1.0) + other.size
    return maker.add(op, pair, x.shape, x.dtype, -size, size)


def _one(maker: Maker, op: str, x: Tensor) -> Tensor:
    return maker.add(op, [x], x.shape, x.dtype, -1, max(x.size, 1.0))


@row("gelu", 1.2, since=9, idiom=True)
def _gelu(maker: Maker) -> None:
    x = _operand(maker)
    if maker.draws.chance(0.5):
        inner = _apply(maker, "Div", x, 2**0.5)
    else:
        inner = _apply(maker, "Mul", x, 0.5**0.5)
    lifted = _apply(maker, "Add", _one(maker, "Erf", inner), 1.0)
    kind = maker.draws.pick(("last", "first", "gate"))
    if kind == "first":
        _apply(maker, "Mul", _apply(maker, "Mul", x, 0.5), lifted)
    elif kind == "last":
        _apply(maker, "Mul", _apply(maker, "Mul", x, lifted), 0.5)
    else:
        _apply(maker, "Mul", x, _apply(maker, "Mul", lifted, 0.5))


@row("gelu with tanh", 1.0, idiom=True)
def _gelu_tanh(maker: Maker) -> None:
    x = _operand(maker)
    if maker.draws.chance(0.5):
        cube = _apply(maker, "Pow", x, 3.0)
    else:
        cube = _apply(maker, "Mul", _apply(maker, "Mul", x, x), x)
    argument = _apply(maker, "Mul", _apply(maker, "Add", x, _apply(maker, "Mul", cube, 0.044715)),
                      (2 / np.pi) ** 0.5)  # fmt: skip
    lifted = _apply(maker, "Add", _one(maker, "Tanh", argument), 1.0)
    if maker.draws.chance(0.5):
        _apply(maker, "Mul", _apply(maker, "Mul", x, 0.5), lifted)
    else:
        _apply(maker, "Mul", _apply(maker, "Mul", x, lifted), 0.5)


@row("silu", 1.0, idiom=True)
def _silu(maker: Maker) -> None:
    x = _operand(maker)
    factor = maker.draws.pick((1.0, 1.702, 0.5))
    gate = _one(maker, "Sigmoid", x if factor == 1 else _apply(maker, "Mul", x, factor))
    _apply(maker, "Mul", x, gate)


@row("exponential less one", 0.5, idiom=True)
def _expm1(maker: Maker) -> None:
    x = maker.tamed(_operand(maker), -40.0, 20.0)
    power = _one(maker, "Exp", x)
    if maker.draws.chance(0.5):
        _apply(maker, "Sub", power, 1.0)
    else:
        _apply(maker, "Add", power, -1.0)


@row("complement of erf", 0.5, since=9, idiom=True)
def _erfc(maker: Maker) -> None:
    erf = _one(maker, "Erf", _operand(maker))
    one = maker.constant(np.array(1.0, erf.dtype), share=True)
    maker.add("Sub", [one, erf], erf.shape, erf.dtype, 0, 2)


@row("mish", 0.8, idiom=True)
def _mish(maker: Maker) -> None:
    x = maker.tamed(_operand(maker), -40.0, 20.0)
    if maker.draws.chance(0.5) and x.dtype == "float32":
        y = _one(maker, "Softplus", x)
    else:
        y = _one(maker, "Log", _apply(maker, "Add", _one(maker, "Exp", x), 1.0))
    _apply(maker, "Mul", x, _one(maker, "Tanh", y))


@row("hard swish", 0.8, idiom=True)
def _hard_swish(maker: Maker) -> None:
    x = _operand(maker)
    if x.dtype != "float32":
        raise DeclinedError("this Clip takes float32 only")
    kind = maker.draws.pick(("hard sigmoid", "clip", "clip first"))
    if kind == "hard sigmoid":
        gate = maker.add("HardSigmoid", [x], x.shape, x.dtype, 0, 1, alpha=1 / 6, beta=0.5)
        _apply(maker, "Mul", x, gate)
        return
    lifted = _apply(maker, "Add", x, 3.0)
    gate = maker.tamed(maker.bounded(lifted, -100, 100), 0, 6)
    if kind == "clip":
        _apply(maker, "Div", _apply(maker, "Mul", x, gate), 6.0)
    else:
        _apply(maker, "Mul", x, _apply(maker, "Div", gate, 6.0))


def _rows(maker: Maker) -> Tensor:
    x = maker.operand(FLOATS, (2, 3, 1, 4), size=1e3)
    if any(0 in e.at for e in x.shape):
        raise DeclinedError("statistics of nothing")
    return x


def _mean(maker: Maker, x: Tensor) -> Tensor:
    return reduce_node(maker, "ReduceMean", x, [x.rank - 1], True, x.low, x.high)


def _against_rows(maker: Maker, op: str, x: Tensor, y: Tensor) -> Tensor:
    return maker.add(op, [x, y], x.shape, x.dtype, -x.size - y.size, x.size + y.size)


@row("norm", 1.2, idiom=True)
def _norm(maker: Maker) -> None:
    """A layer norm, or one without a mean."""
    draws = maker.draws
    x = _rows(maker)
    rms = draws.chance(0.4)
    centred = x if rms else _against_rows(maker, "Sub", x, _mean(maker, x))
    if draws.chance(0.5):
        square = _apply(maker, "Pow", centred, 2.0)
    else:
        square = _apply(maker, "Mul", centred, centred)
    variance = maker.bounded(_mean(maker, square), 0, square.size)
    lifted = _apply(maker, "Add", variance, draws.pick((1e-5, 1e-6, 1e-3)))
    root = _one(maker, "Sqrt", lifted)
    if draws.chance(0.5):
        y = _against_rows(maker, "Div", centred, root)
    else:
        y = _against_rows(maker, "Mul", centred, _one(maker, "Reciprocal", root))
    y = maker.bounded(y, -30, 30)
    if draws.chance(0.7):
        y = _apply(maker, "Mul", y, parameter(maker, x, x.rank - 1))
        if draws.chance(0.7):
            _apply(maker, "Add", y, parameter(maker, x, x.rank - 1))


@row("softmax", 0.8, idiom=True)
def _softmax(maker: Maker) -> None:
    x = _rows(maker)
    axis = [x.rank - 1]
    largest = reduce_node(maker, "ReduceMax", x, axis, True, x.low, x.high)
    above = _against_rows(maker, "Sub", x, largest)
    power = _one(maker, "Exp", maker.bounded(above, -100, 0))
    total = reduce_node(maker, "ReduceSum", power, axis, True, 1, 1e3, 13)
    maker.bounded(_against_rows(maker, "Div", power, total), 0, 1)


@row("scale and shift of channels", 1.0, idiom=True)
def _affine(maker: Maker) -> None:
    """Chains of products and sums with a number for each column, behind a product or not."""
    y = _operand(maker)
    if not y.rank:
        raise DeclinedError("no columns")
    for _ in range(maker.draws.pick((2, 1, 3, 4))):
        op = maker.draws.pick(("Mul", "Add", "Sub", "Div"))
        if not y.shape[-1].static or maker.draws.chance(0.3):
            other: Tensor | float = maker.draws.pick((2.0, 0.5, 3.0, -1.0, 0.1))
        else:
            n = y.shape[-1].at[0]
            other = maker.constant((maker.random().random(n) + 0.5).astype(y.dtype))
        y = _apply(maker, op, y, other)
        if y.size > TAME:
            return


@row("choice by zeros and ones", 0.6, idiom=True)
def _choice(maker: Maker) -> None:
    x = _operand(maker)
    if not x.rank or not x.shape[-1].static:
        raise DeclinedError("no columns")
    ones = maker.random().random(x.shape[-1].at[0]) < 0.5
    mask = maker.constant(ones.astype(x.dtype))
    kept = _apply(maker, "Mul", x, mask)
    one = maker.constant(np.array(1, x.dtype), share=True)
    contrary = maker.add("Sub", [one, mask], mask.shape, mask.dtype, 0, 1)
    other = _apply(maker, "Mul", contrary, maker.draws.pick((-1e4, 2.0, 1.0)))
    _apply(maker, maker.draws.pick(("Add", "Sub")), kept, other)


@row("outer product", 0.6, idiom=True)
def _outer(maker: Maker) -> None:
    """A product over an axis of one element."""
    a = maker.shaped((maker.extent(), static(1)), "float32", 1e3)
    b = maker.shaped((static(1), maker.extent()), "float32", 1e3)
    y = matmul(maker, a, b)
    _one(maker, maker.draws.pick(("Cos", "Sin", "Relu")), maker.bounded(y, -1e4, 1e4))
