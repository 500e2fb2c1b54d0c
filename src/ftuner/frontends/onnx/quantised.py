"""Conversions to and from quantised integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import ceil_quotient
from ftuner.core.dtype import FLOAT32, HALF_DTYPES, UINT8, DType
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.reading import dtype_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.ir import Value


def _aligned(context: Context, node: NodeView, parameter: Value, x: Value) -> Value:
    """A scale or zero point, made to broadcast to a tensor. It is given for the whole tensor, for
    each index along an axis, or for each block along it."""
    if parameter.rank == 0 or parameter.shape == (1,):
        return context.reshape(parameter, ())
    axis = context.axis(node.integer("axis", 1), x.rank)
    block = node.integer("block_size", 0)
    if block < 0:
        raise context.malformed(f"block_size is {block}")
    if parameter.rank == 1 and not block:
        return context.unsqueeze(parameter, [i for i in range(x.rank) if i != axis])
    if parameter.rank != x.rank or block <= 0:
        raise context.malformed(f"scale or zero point {parameter.type} for {x.type}")
    blocks = parameter.shape[axis]
    for i, (have, extent) in enumerate(zip(parameter.shape, x.shape, strict=True)):
        wanted = ceil_quotient(extent, block) if i == axis else extent
        what = f"scale or zero point {parameter.type} for blocks of {block} of {x.type}"
        context.builder.require(have, wanted, what)
    repeated = context.unsqueeze(parameter, [axis + 1])
    shape = (*parameter.shape[: axis + 1], block, *parameter.shape[axis + 1 :])
    repeated = context.broadcast(repeated, shape)
    whole = (*parameter.shape[:axis], blocks * block, *parameter.shape[axis + 1 :])
    return context.slice(context.reshape(repeated, whole), axis, 0, x.shape[axis])


def _parameters(context: Context, node: NodeView, x: Value) -> tuple[Value, Value | None]:
    """The scale and the zero point of a tensor, made to broadcast to it."""
    scale, zero = node.input(1), node.optional(2)
    if zero is None:
        return _aligned(context, node, scale, x), None
    what = f"the scale {scale.type} and the zero point {zero.type}"
    if scale.rank != zero.rank and {scale.shape, zero.shape} != {(), (1,)}:
        raise context.malformed(f"{what} have other shapes")
    for have, wanted in zip(zero.shape, scale.shape, strict=False):
        context.builder.require(have, wanted, what)
    return _aligned(context, node, scale, x), _aligned(context, node, zero, x)


def _attribute_dtype(context: Context, node: NodeView, name: str) -> DType | None:
    """The dtype that an attribute names; None for 0."""
    number = node.integer(name, 0)
    what = f"{context.builder.where}: attribute {name}"
    return dtype_of(number, what) if number else None


def rounded(context: Context, x: Value, zero: Value | None, to: DType) -> Value:
    """Floats as levels of an integer dtype: rounded to even, shifted by the zero point, which
    broadcasts to them, and clipped.

    Raises:
        GraphError: the dtype is not of integers.
    """
    if to.kind not in ("int", "uint"):
        raise context.malformed(f"quantising to {to}")
    levels = context.add("rint", x)
    limits = np.iinfo(to.name)
    # Sums of 16-bit levels are exact in float32; larger ones are clipped.
    if zero is not None:
        levels = context.add("add", levels, context.cast(zero, x.dtype))
    levels = context.at_most(context.at_least(levels, int(limits.min)), int(limits.max))
    return context.cast(levels, to)


def quantised(context: Context, x: Value, scale: Value, zero: Value | None, to: DType) -> Value:
    """The levels of a float tensor in an integer dtype. The scale and the zero point broadcast to
    x; the arithmetic is of the scale's dtype."""
    return rounded(context, context.add("divide", context.cast(x, scale.dtype), scale), zero, to)


def levels_of(context: Context, x: Value, zero: Value | None, dtype: DType) -> Value:
    """Levels less their zero point, which broadcasts to them, as floats of a dtype.

    Raises:
        GraphError: x is not of integers, or the zero point has another dtype.
    """
    if x.dtype.kind not in ("int", "uint"):
        raise context.malformed(f"{x.type}; expected integers")
    levels = context.cast(x, dtype)
    if zero is None:
        return levels
    if zero.dtype != x.dtype:
        raise context.malformed(f"the zero point is {zero.dtype}, what it is of {x.dtype}")
    return context.add("subtract", levels, context.cast(zero, dtype))


def _quantize(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    scale, zero = _parameters(context, node, x)
    to = _attribute_dtype(context, node, "output_dtype")
    if zero is not None and to not in (None, zero.dtype):
        raise context.malformed(f"output_dtype is {to}, the zero point {zero.dtype}")
    to = zero.dtype if zero is not None else to or UINT8
    precision = _attribute_dtype(context, node, "precision") or scale.dtype
    return [quantised(context, x, context.cast(scale, precision), zero, to)]


def _dequantize(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    scale, zero = _parameters(context, node, x)
    to = _attribute_dtype(context, node, "output_dtype") or scale.dtype
    if {scale.dtype.kind, to.kind} != {"float"}:
        raise context.malformed(f"{x.type} by {scale.type} as {to}; expected integers as floats")
    if x.constant is None and to.name in HALF_DTYPES:
        scale = context.cast(scale, FLOAT32)
    levels = levels_of(context, x, zero, scale.dtype)
    return [context.cast_explicitly(context.add("multiply", levels, scale), to)]


def dynamic_levels(context: Context, x: Value) -> tuple[Value, Value, Value]:
    """A tensor as levels of uint8, with the scale and the zero point that its range gives."""
    if x.dtype != FLOAT32:
        raise context.malformed(f"quantising {x.type}; expected float32")
    levels = int(np.iinfo(UINT8.name).max)
    axes = range(x.rank)
    low = context.at_most(context.reduce(x, "minimum", axes, keep=False), 0)
    high = context.at_least(context.reduce(x, "maximum", axes, keep=False), 0)
    span = context.add("subtract", high, low)
    scale = context.add("divide", span, context.scalar(levels, x.dtype))
    # Zeros alone have the scale 1.
    none = context.add("equal", scale, context.scalar(0, x.dtype))
    scale = context.add("where", none, context.scalar(1, x.dtype), scale)
    zero = rounded(context, context.add("divide", context.add("negative", low), scale), None, UINT8)
    return quantised(context, x, scale, zero, UINT8), scale, zero


def _dynamic_quantize(context: Context, node: NodeView) -> Sequence[Value]:
    return dynamic_levels(context, node.input(0))


QUANTISED: Table = {
    ("", "DequantizeLinear"): _dequantize,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    ("", "QuantizeLinear"): _quantize,
    (MICROSOFT, "DequantizeLinear"): _dequantize,
    (MICROSOFT, "QuantizeLinear"): _quantize,
}
