"""Rows of operators that compute with quantised integers: products, convolutions, functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import ONE, Extent, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import broadcast, row
from tests.random_graphs.tensors import MICROSOFT, Tensor
from tests.random_graphs.window_rows import groups_of, image, spend, window

LEVELS = ("uint8", "int8")


def _operand(maker: Maker, ranks: Sequence[int], dtypes: Sequence[str] = LEVELS) -> Tensor:
    return maker.operand(dtypes, tuple(ranks))


def some_scale(maker: Maker, *shape: int, size: float = 0.1) -> Tensor:
    random = maker.random()
    return maker.constant(np.asarray(size * (0.5 + random.random(shape)), np.float32))


def some_zero(maker: Maker, dtype: str, *shape: int) -> Tensor:
    centre = 128 if dtype == "uint8" else 0
    levels = centre + maker.random().integers(-9, 10, shape)
    return maker.constant(np.asarray(levels, dtype))


def some_levels(maker: Maker, shape: Sequence[int], dtype: str) -> Tensor:
    info = np.iinfo(dtype)
    if maker.draws.chance(0.2):
        return maker.input(tuple(map(static, shape)), dtype)
    levels = maker.random().integers(info.min, info.max + 1, shape)
    return maker.constant(levels.astype(dtype))


def _parameters(maker: Maker, dtype: str, size: float = 0.1) -> list[Tensor]:
    return [some_scale(maker, size=size), some_zero(maker, dtype)]


def _rounded(maker: Maker, op: str, *described: Any, **attributes: object) -> None:
    """Add a node that rounds its results to levels. Nothing reads them: a level that is one off,
    because sums are rounded in another order, may become anything."""
    result = maker.add(op, *described, **attributes)
    maker.tensors.remove(result)
    maker.ends.append(result.name)


@row("DynamicQuantizeLinear", 0.4, since=11)
def _dynamic(maker: Maker) -> None:
    x = maker.operand(("float32",), (2, 1, 3, 4), lambda t: min(min(e.at) for e in t.shape) > 0,
                      1e6)  # fmt: skip
    levels = maker.new(x.shape, "uint8", 0, 255)
    scale = maker.new((), "float32", 0, max(x.size / 100, 1))
    maker.node("DynamicQuantizeLinear", [x], [levels, scale, maker.new((), "uint8", 0, 255)])


# Products.


def _second(maker: Maker, a: Tensor, dtype: str) -> Tensor:
    k, n = a.shape[-1], maker.draws.pick((16, 1, 8, 33, 64))
    if not k.static or not k.at[0]:
        raise DeclinedError("no such weight")
    return some_levels(maker, (k.at[0], n), dtype)


def _spent(maker: Maker, a: Tensor, b: Tensor) -> tuple[Extent, ...]:
    shape = (*a.shape[:-1], b.shape[-1])
    spend(maker, shape, a.shape[-1].at[0])
    return shape


@row("MatMulInteger", 0.5, since=10)
def _matmul_integer(maker: Maker) -> None:
    a = _operand(maker, (2, 3))
    b = _second(maker, a, maker.draws.pick(LEVELS))
    operands: list[Tensor | None] = [a, b]
    if maker.draws.chance(0.6):
        columns = () if maker.draws.chance(0.5) else (b.shape[-1].at[0],)
        operands += [some_zero(maker, a.dtype), some_zero(maker, b.dtype, *columns)]
    size = 1e5 * max(a.shape[-1].at[0], 1)
    maker.add("MatMulInteger", operands, _spent(maker, a, b), "int32", -size, size)


@row("QLinearMatMul", 0.5, since=10)
def _qlinear_matmul(maker: Maker) -> None:
    a = _operand(maker, (2, 3))
    # onnxruntime multiplies int8 by int8 alone.
    b = _second(maker, a, maker.draws.pick(LEVELS) if a.dtype == "uint8" else "int8")
    columns = () if maker.draws.chance(0.5) else (b.shape[-1].at[0],)
    size = 0.1 * 40 * max(a.shape[-1].at[0], 1) ** 0.5
    operands = [
        a, *_parameters(maker, a.dtype), b, some_scale(maker, *columns),
        some_zero(maker, b.dtype, *columns), *_parameters(maker, a.dtype, size),
    ]  # fmt: skip
    _rounded(maker, "QLinearMatMul", operands, _spent(maker, a, b), a.dtype, -128, 255)


@row("MatMulIntegerToFloat", 0.2, MICROSOFT)
def _matmul_to_float(maker: Maker) -> None:
    a = _operand(maker, (2, 3))
    b = _second(maker, a, maker.draws.pick(LEVELS))
    columns = () if maker.draws.chance(0.5) else (b.shape[-1].at[0],)
    operands: list[Tensor | None] = [a, b, some_scale(maker), some_scale(maker, *columns)]
    operands += [some_zero(maker, a.dtype), some_zero(maker, b.dtype, *columns)]
    if maker.draws.chance(0.5):
        operands.append(maker.weight((b.shape[-1].at[0],), "float32"))
    size = 1e3 * max(a.shape[-1].at[0], 1)
    maker.add("MatMulIntegerToFloat", operands, _spent(maker, a, b), "float32", -size, size,
              MICROSOFT)  # fmt: skip


@row("DynamicQuantizeMatMul", 0.2, MICROSOFT)
def _dynamic_matmul(maker: Maker) -> None:
    a = maker.operand(("float32",), (2, 3), lambda t: min(min(e.at) for e in t.shape) > 0, 1e5)
    b = _second(maker, a, maker.draws.pick(LEVELS))
    columns = () if maker.draws.chance(0.5) else (b.shape[-1].at[0],)
    operands = [a, b, some_scale(maker, *columns), some_zero(maker, b.dtype, *columns)]
    size = 30 * a.size * max(a.shape[-1].at[0], 1)
    maker.add("DynamicQuantizeMatMul", operands, _spent(maker, a, b), "float32", -size, size,
              MICROSOFT)  # fmt: skip


@row("QGemm", 0.2, MICROSOFT)
def _qgemm(maker: Maker) -> None:
    a = _operand(maker, (2,))
    b = _second(maker, a, "int8")
    n = b.shape[-1].at[0]
    columns = () if maker.draws.chance(0.5) else (n,)
    bias = maker.constant(maker.random().integers(-900, 900, n).astype(np.int32))
    operands: list[Tensor | None] = [
        a,
        *_parameters(maker, a.dtype),
        b,
        some_scale(maker, *columns),
    ]
    operands += [some_zero(maker, b.dtype, *columns), bias if maker.draws.chance(0.5) else None]
    shape = _spent(maker, a, b)
    if maker.draws.chance(0.3):
        maker.add("QGemm", operands, shape, "float32", -1e5, 1e5, MICROSOFT)
        return
    size = 4 * max(a.shape[-1].at[0], 1) ** 0.5
    operands += _parameters(maker, a.dtype, size)
    _rounded(maker, "QGemm", operands, shape, a.dtype, -128, 255, MICROSOFT)


# Convolutions.


def _channels_last(maker: Maker, x: Tensor) -> Tensor:
    perm = [0, *range(2, x.rank), 1]
    return maker.moved("Transpose", x, [x.shape[p] for p in perm], perm=perm)


def _convolved(
    maker: Maker, x: Tensor, dtype: str
) -> tuple[Tensor, tuple[Extent, ...], dict[str, object]]:
    """A weight, the shape of the result, and attributes."""
    channels = x.shape[1].at[0]
    groups = groups_of(maker, channels)
    count = groups * maker.draws.pick((1, 2, 3) if groups > 1 else (8, 16, 5, 1, 33))
    found = window(maker, x)
    w = some_levels(maker, (count, channels // groups, *found.kernel), dtype)
    shape = (x.shape[0], static(count), *found.extents)
    spend(maker, shape, int(np.prod(found.kernel)) * channels // groups)
    attributes = dict(found.attributes, group=groups if groups > 1 else None)
    return w, shape, attributes


@row("ConvInteger", 0.5, since=10)
def _conv_integer(maker: Maker) -> None:
    # onnxruntime has it for uint8 alone.
    x = image(maker, ("uint8",), (4, 3))
    w, shape, attributes = _convolved(maker, x, "uint8")
    operands: list[Tensor | None] = [x, w]
    if maker.draws.chance(0.6):
        operands += [some_zero(maker, x.dtype), some_zero(maker, w.dtype)]
    size = 1e5 * max(math.prod(e.at[0] for e in w.shape[1:]), 1)
    maker.add("ConvInteger", operands, shape, "int32", -size, size, **attributes)


@row("QLinearConv", 0.8, since=10)
def _qlinear_conv(maker: Maker) -> None:
    x, operands, shape, attributes = _quantised_convolution(maker)
    _rounded(maker, "QLinearConv", [x, *operands], shape, x.dtype, -128, 255, **attributes)


@row("QLinearConv", 0.2, MICROSOFT)
def _qlinear_conv_of_last(maker: Maker) -> None:
    """Channels last."""
    x, operands, shape, attributes = _quantised_convolution(maker)
    turned = _channels_last(maker, x)
    last = (shape[0], *shape[2:], shape[1])
    _rounded(maker, "QLinearConv", [turned, *operands], last, x.dtype, -128, 255, MICROSOFT,
              channels_last=1, **attributes)  # fmt: skip


def _quantised_convolution(
    maker: Maker,
) -> tuple[Tensor, list[Tensor], tuple[Extent, ...], dict[str, object]]:
    """An image, the other operands, the shape of the result, and attributes."""
    draws = maker.draws
    x = image(maker, LEVELS, (4, 3))
    w, shape, attributes = _convolved(
        maker, x, draws.pick(LEVELS) if x.dtype == "uint8" else "int8"
    )
    count, depth = w.shape[0].at[0], max(math.prod(e.at[0] for e in w.shape[1:]), 1)
    columns = () if draws.chance(0.5) or not count else (count,)
    operands = [
        *_parameters(maker, x.dtype), w, some_scale(maker, *columns), some_zero(maker, w.dtype),
        *_parameters(maker, x.dtype, 4 * depth**0.5),
    ]  # fmt: skip
    if draws.chance(0.5):
        bias = maker.random().integers(-2000, 2000, count)
        operands.append(maker.constant(bias.astype(np.int32)))
    return x, operands, shape, attributes


@row("FusedConv", 0.5, MICROSOFT)
def _fused_conv(maker: Maker) -> None:
    draws = maker.draws
    x = image(maker, ("float32",), (4,))
    channels = x.shape[1].at[0]
    found = window(maker, x)
    count = draws.pick((8, 16, 5, 1))
    operands: list[Tensor | None] = [
        x,
        maker.weight((count, channels, *found.kernel), x.dtype, 0.2),
    ]
    operands.append(maker.weight((count,), x.dtype))
    shape = (x.shape[0], static(count), *found.extents)
    taps = channels * int(np.prod(found.kernel))
    spend(maker, shape, taps)
    size = x.size * taps + 5
    name, *parameters = draws.pick(
        (("Relu",), ("LeakyRelu", 0.125), ("Clip", -1.0, 2.0), ("HardSigmoid", 0.25, 0.5),
         ("Sigmoid",), ("Tanh",))
    )  # fmt: skip
    maker.add("FusedConv", operands, shape, x.dtype, -size, size, MICROSOFT, activation=name,
              activation_params=parameters or None, **found.attributes)  # fmt: skip


@row("FusedGemm", 0.3, MICROSOFT)
def _fused_gemm(maker: Maker) -> None:
    a = maker.operand(("float32",), (2,), lambda t: t.shape[-1].static and t.shape[-1].at[0] > 0,
                      1e4)  # fmt: skip
    k, n = a.shape[-1], static(maker.draws.pick((8, 16, 5, 33)))
    b = maker.weight((k.at[0], n.at[0]), a.dtype, 0.2)
    shape = (a.shape[0], n)
    spend(maker, shape, k.at[0])
    size = 10 * a.size * k.at[0]
    name = maker.draws.pick(("Relu", "LeakyRelu", "Sigmoid", "Tanh"))
    alpha = 0.125 if name == "LeakyRelu" else None
    maker.add("FusedGemm", [a, b, maker.weight((n.at[0],), a.dtype)], shape, a.dtype, -size, size,
              MICROSOFT, activation=name, activation_alpha=alpha)  # fmt: skip


@row("NhwcMaxPool", 0.3, MICROSOFT)
def _nhwc_max_pool(maker: Maker) -> None:
    x = image(maker, LEVELS, (4,))
    found = window(maker, x)
    last = _channels_last(maker, x)
    shape = (x.shape[0], *found.extents, x.shape[1])
    spend(maker, shape, int(np.prod(found.kernel)))
    maker.add("NhwcMaxPool", [last], shape, x.dtype, x.low, x.high, MICROSOFT,
              kernel_shape=found.kernel, **found.attributes)  # fmt: skip


# Functions.


def _of_two(op: str) -> None:
    @row(op, 0.3, MICROSOFT)
    def make(maker: Maker) -> None:
        x = _operand(maker, (1, 2, 3, 4))
        y = maker.shaped(x.shape if maker.draws.chance(0.5) else x.shape[1:], x.dtype)
        shape = broadcast([x.shape, y.shape])
        operands = [x, *_parameters(maker, x.dtype), y, *_parameters(maker, x.dtype)]
        operands += _parameters(maker, x.dtype, 0.2 if op == "QLinearAdd" else 1.0)
        maker.add(op, operands, shape, x.dtype, -128, 255, MICROSOFT)


def _of_one(op: str, size: float, **attributes: object) -> None:
    @row(op, 0.25, MICROSOFT)
    def make(maker: Maker) -> None:
        x = _operand(maker, (2, 3, 4))
        operands = [x, *_parameters(maker, x.dtype), *_parameters(maker, x.dtype, size)]
        maker.add(op, operands, x.shape, x.dtype, -128, 255, MICROSOFT, **attributes)


for _name in ("QLinearAdd", "QLinearMul"):
    _of_two(_name)
_of_one("QLinearSigmoid", 0.006)
_of_one("QLinearLeakyRelu", 0.1, alpha=0.25)


@row("QLinearSoftmax", 0.2, MICROSOFT)
def _softmax(maker: Maker) -> None:
    x = _operand(maker, (2, 3, 4))
    zero = maker.constant(np.asarray(0 if x.dtype == "uint8" else -128, x.dtype), share=True)
    operands = [x, *_parameters(maker, x.dtype, 0.05), maker.scalar(1 / 256, "float32"), zero]
    _rounded(maker, "QLinearSoftmax", operands, x.shape, x.dtype, -128, 255, MICROSOFT,
             axis=x.rank - 1, opset=13)  # fmt: skip


@row("QLinearConcat", 0.2, MICROSOFT)
def _concat(maker: Maker) -> None:
    x = _operand(maker, (2, 3, 4))
    axis = maker.draws.below(x.rank)
    e = x.shape[axis]
    if not e.static:
        raise DeclinedError("an extent that is not known")
    operands = _parameters(maker, x.dtype)
    for part in (x, maker.shaped(x.shape, x.dtype)):
        operands += [part, *_parameters(maker, x.dtype)]
    shape = [static(2 * e.at[0]) if i == axis else n for i, n in enumerate(x.shape)]
    _rounded(maker, "QLinearConcat", operands, shape, x.dtype, -128, 255, MICROSOFT, axis=axis)


@row("QLinearWhere", 0.2, MICROSOFT)
def _where(maker: Maker) -> None:
    x = _operand(maker, (2, 3))
    y = maker.shaped(x.shape, x.dtype)
    condition = maker.shaped(x.shape, "bool")
    operands = [condition]
    for part in (x, y):
        operands += [part, *_parameters(maker, x.dtype)]
    operands += _parameters(maker, x.dtype)
    _rounded(maker, "QLinearWhere", operands, x.shape, x.dtype, -128, 255, MICROSOFT)


@row("QLinearGlobalAveragePool", 0.2, MICROSOFT)
def _global_pool(maker: Maker) -> None:
    x = image(maker, LEVELS, (4,))
    operands = [x, *_parameters(maker, x.dtype), *_parameters(maker, x.dtype)]
    shape = (*x.shape[:2], ONE, ONE)
    _rounded(maker, "QLinearGlobalAveragePool", operands, shape, x.dtype, -128, 255, MICROSOFT)


@row("QLinearAveragePool", 0.2, MICROSOFT)
def _pool(maker: Maker) -> None:
    x = image(maker, LEVELS, (4,))
    found = window(maker, x, dilates=False)
    operands = [x, *_parameters(maker, x.dtype), *_parameters(maker, x.dtype)]
    shape = (*x.shape[:2], *found.extents)
    spend(maker, shape, int(np.prod(found.kernel)))
    _rounded(maker, "QLinearAveragePool", operands, shape, x.dtype, -128, 255, MICROSOFT,
              kernel_shape=found.kernel, count_include_pad=maker.draws.pick((None, 1)),
              **found.attributes)  # fmt: skip


@row("QLinearReduceMean", 0.1, MICROSOFT)
def _reduce_mean(maker: Maker) -> None:
    x = _operand(maker, (2, 3, 4))
    axis = maker.draws.below(x.rank)
    if min(x.shape[axis].at) < 1:
        raise DeclinedError("a mean of nothing")
    shape = [ONE if i == axis else e for i, e in enumerate(x.shape)]
    operands = [x, *_parameters(maker, x.dtype), *_parameters(maker, x.dtype)]
    _rounded(maker, "QLinearReduceMean", operands, shape, x.dtype, -128, 255, MICROSOFT,
             axes=[axis], keepdims=1)  # fmt: skip


def _converted(op: str) -> None:
    @row(op, 0.15, MICROSOFT)
    def make(maker: Maker) -> None:
        quantises = op == "QuantizeLinear"
        levels = maker.draws.pick(LEVELS)
        x = maker.operand(("float32",) if quantises else (levels,), (2, 3))
        parameters = _parameters(maker, levels)
        to, low, high = (levels, -128, 255) if quantises else ("float32", -50, 50)
        maker.add(op, [x, *parameters], x.shape, to, low, high, MICROSOFT)


for _name in ("QuantizeLinear", "DequantizeLinear"):
    _converted(_name)
