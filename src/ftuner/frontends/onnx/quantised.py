"""Conversions to and from quantised integers, and onnxruntime's operators that take and give these:
each is an operator on floats between a dequantization and a quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ftuner.core.dim import ceil_quotient
from ftuner.core.dtype import FLOAT32, HALF_DTYPES, UINT8, DType
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import REGISTERED, AnyDType, onnx
from ftuner.graph.algebra import apply, concat, equal, rint, where
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions import windows
from ftuner.graph.compositions.windows import channels_first
from ftuner.graph.ir import Value


def _aligned(context: Context, parameter: Value, x: Value, axis: int, block: int) -> Value:
    """A scale or zero point, made to broadcast to a tensor. It is given for the whole tensor, for
    each index along an axis, or for each block along it."""
    if parameter.rank == 0 or parameter.shape == (1,):
        return parameter.reshape(())
    axis = context.axis(axis, x.rank)
    if block < 0:
        raise malformed(f"block_size is {block}")
    if parameter.rank == 1 and not block:
        return parameter.unsqueeze([i for i in range(x.rank) if i != axis])
    if parameter.rank != x.rank or block <= 0:
        raise malformed(f"scale or zero point {parameter.type} for {x.type}")
    blocks = parameter.shape[axis]
    for i, (have, extent) in enumerate(zip(parameter.shape, x.shape, strict=True)):
        wanted = ceil_quotient(extent, block) if i == axis else extent
        what = f"scale or zero point {parameter.type} for blocks of {block} of {x.type}"
        require(have, wanted, what)
    repeated = parameter.unsqueeze([axis + 1])
    shape = (*parameter.shape[: axis + 1], block, *parameter.shape[axis + 1 :])
    repeated = repeated.broadcast(shape)
    whole = (*parameter.shape[:axis], blocks * block, *parameter.shape[axis + 1 :])
    return repeated.reshape(whole).slice(axis, 0, x.shape[axis])


def scalar_of(parameter: Value, what: str) -> Value:
    """A scale or zero point of a whole tensor, without axes. It is one element of any rank."""
    for extent in parameter.shape:
        require(extent, 1, f"{what} is {parameter.type}; expected one element")
    return parameter.reshape(())


def _parameters(
    context: Context, x: Value, scale: Value, zero: Value | None, axis: int, block: int
) -> tuple[Value, Value | None]:
    """The scale and the zero point of a tensor, made to broadcast to it."""
    if zero is None:
        return _aligned(context, scale, x, axis, block), None
    what = f"the scale {scale.type} and the zero point {zero.type}"
    if scale.rank != zero.rank and {scale.shape, zero.shape} != {(), (1,)}:
        raise malformed(f"{what} have other shapes")
    for have, wanted in zip(zero.shape, scale.shape, strict=False):
        require(have, wanted, what)
    scale, zero = (_aligned(context, p, x, axis, block) for p in (scale, zero))
    return scale, zero


def rounded(x: Value, zero: Value | None, to: DType) -> Value:
    """Floats as levels of an integer dtype: rounded to even, shifted by the zero point, which
    broadcasts to them, and clipped.

    Raises:
        GraphError: the dtype is not of integers.
    """
    if to.kind not in ("int", "uint"):
        raise malformed(f"quantising to {to}")
    levels = rint(x)
    limits = np.iinfo(to.name)
    # Sums of 16-bit levels are exact in float32; larger ones are clipped.
    if zero is not None:
        levels = levels + zero.cast(x.dtype)
    levels = levels.at_least(int(limits.min)).at_most(int(limits.max))
    return levels.cast(to)


def quantised(x: Value, scale: Value, zero: Value | None, to: DType) -> Value:
    """The levels of a float tensor in an integer dtype. The scale and the zero point broadcast to
    x; the arithmetic is of the scale's dtype."""
    return rounded(x.cast(scale.dtype) / scale, zero, to)


def levels_of(x: Value, zero: Value | None, dtype: DType) -> Value:
    """Levels less their zero point, which broadcasts to them, as floats of a dtype.

    Raises:
        GraphError: x is not of integers, or the zero point has another dtype.
    """
    if x.dtype.kind not in ("int", "uint"):
        raise malformed(f"{x.type}; expected integers")
    levels = x.cast(dtype)
    if zero is None:
        return levels
    if zero.dtype != x.dtype:
        raise malformed(f"the zero point is {zero.dtype}, what it is of {x.dtype}")
    return levels - zero.cast(dtype)


@onnx("QuantizeLinear")
@onnx("QuantizeLinear", domain=MICROSOFT)
def _quantize(
    context: Context, x: Value, scale: Value, zero: Value | None, axis: int = 1,
    block_size: int = 0, output_dtype: AnyDType | None = None, precision: AnyDType | None = None,
) -> Value:  # fmt: skip
    scale, zero = _parameters(context, x, scale, zero, axis, block_size)
    if zero is not None and output_dtype not in (None, zero.dtype):
        raise malformed(f"output_dtype is {output_dtype}, the zero point {zero.dtype}")
    to = zero.dtype if zero is not None else output_dtype or UINT8
    return quantised(x, scale.cast(precision or scale.dtype), zero, to)


@onnx("DequantizeLinear")
@onnx("DequantizeLinear", domain=MICROSOFT)
def _dequantize(
    context: Context, x: Value, scale: Value, zero: Value | None, axis: int = 1,
    block_size: int = 0, output_dtype: AnyDType | None = None,
) -> Value:  # fmt: skip
    scale, zero = _parameters(context, x, scale, zero, axis, block_size)
    to = output_dtype or scale.dtype
    if {scale.dtype.kind, to.kind} != {"float"}:
        raise malformed(f"{x.type} by {scale.type} as {to}; expected integers as floats")
    if x.constant is None and to.name in HALF_DTYPES:
        scale = scale.cast(FLOAT32)
    return (levels_of(x, zero, scale.dtype) * scale).cast_explicitly(to)


def dynamic_levels(x: Value) -> tuple[Value, Value, Value]:
    """A tensor as levels of uint8, with the scale and the zero point that its range gives."""
    if x.dtype != FLOAT32:
        raise malformed(f"quantising {x.type}; expected float32")
    levels = int(np.iinfo(UINT8.name).max)
    axes = range(x.rank)
    low = x.reduce("minimum", axes, keep=False).at_most(0)
    scale = (x.reduce("maximum", axes, keep=False).at_least(0) - low) / levels
    # Zeros alone have the scale 1.
    scale = where(equal(scale, 0), 1, scale)
    zero = rounded(-low / scale, None, UINT8)
    return quantised(x, scale, zero, UINT8), scale, zero


@onnx("DynamicQuantizeLinear")
def _dynamic_quantize(x: Value) -> Sequence[Value]:
    return dynamic_levels(x)


_OPSET = 13
"""Version of ONNX's operators whose attributes the float operators below are written by:
`ReduceMean` has `axes` as an attribute until 17."""


def _floats(x: Value, scale: Value, zero: Value | None) -> Value:
    """The tensor of levels with a scale and a zero point."""
    scale, zero = scalar_of(scale, "a scale"), zero and scalar_of(zero, "a zero point")
    return levels_of(x, zero, scale.dtype) * scale


def _levels(y: Value, scale: Value, zero: Value | None, x: Value) -> Value:
    """Floats as levels of the dtype of the zero point, or else of other levels x."""
    scale, zero = scalar_of(scale, "a scale"), zero and scalar_of(zero, "a zero point")
    return quantised(y, scale, zero, (x if zero is None else zero).dtype)


@onnx("QLinearAveragePool", domain=MICROSOFT, op="AveragePool")
@onnx("QLinearGlobalAveragePool", domain=MICROSOFT, op="GlobalAveragePool")
@onnx("QLinearLeakyRelu", domain=MICROSOFT, op="LeakyRelu")
@onnx("QLinearReduceMean", domain=MICROSOFT, op="ReduceMean")
@onnx("QLinearSigmoid", domain=MICROSOFT, op="Sigmoid")
@onnx("QLinearSoftmax", domain=MICROSOFT, op="Softmax")
def _of_one(
    context: Context, node: NodeView, x: Value, x_scale: Value, x_zero: Value | None,
    y_scale: Value, y_zero: Value | None, channels_last: bool = False, *, op: str,
) -> Value:  # fmt: skip
    """A function of one tensor, by ONNX's operator on floats."""
    floats = _floats(x, x_scale, x_zero)
    floats = channels_first(floats) if channels_last and x.rank > 2 else floats
    # Of a softmax, an attribute says the version.
    opset = node.integer("opset") if op == "Softmax" else _OPSET
    (y,) = REGISTERED["", op](context, replace(node, inputs=(floats,), opset=opset))
    assert isinstance(y, Value)
    return _levels(windows.channels_last(y) if channels_last else y, y_scale, y_zero, x)


@onnx("QLinearAdd", domain=MICROSOFT, op="add")
@onnx("QLinearMul", domain=MICROSOFT, op="multiply")
def _of_two(
    a: Value, a_scale: Value, a_zero: Value | None, b: Value, b_scale: Value,
    b_zero: Value | None, y_scale: Value, y_zero: Value | None, *, op: str,
) -> Value:  # fmt: skip
    found = apply(op, _floats(a, a_scale, a_zero), _floats(b, b_scale, b_zero))
    return _levels(found, y_scale, y_zero, a)


@onnx("QLinearConcat", domain=MICROSOFT)
def _concat(context: Context, node: NodeView, axis: int) -> Value:
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise malformed(f"{len(node.inputs)} inputs; expected two, and three for each part")
    parts = [
        _floats(node.input(n), node.input(n + 1), node.optional(n + 2))
        for n in range(2, len(node.inputs), 3)
    ]
    axis = context.axis(axis, parts[0].rank)
    return _levels(concat(parts, axis), node.input(0), node.optional(1), node.input(0))


@onnx("QLinearWhere", domain=MICROSOFT)
def _where(
    condition: Value, x: Value, x_scale: Value, x_zero: Value | None, y: Value, y_scale: Value,
    y_zero: Value | None, z_scale: Value, z_zero: Value | None,
) -> Value:  # fmt: skip
    found = where(condition, _floats(x, x_scale, x_zero), _floats(y, y_scale, y_zero))
    return _levels(found, z_scale, z_zero, condition)
