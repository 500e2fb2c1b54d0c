"""Conversions to and from quantised integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import ceil_quotient
from ftuner.core.dtype import UINT8, DType
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.reading import dtype_of
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


def _attribute_dtype(context: Context, node: NodeView, name: str) -> DType | None:
    """The dtype that an attribute names; None for 0."""
    number = node.integer(name, 0)
    what = f"{context.builder.where}: attribute {name}"
    return dtype_of(number, what, context.dtypes) if number else None


def _quantize(context: Context, node: NodeView) -> Sequence[Value]:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    to = _attribute_dtype(context, node, "output_dtype")
    if zero is not None and to not in (None, zero.dtype):
        raise context.malformed(f"output_dtype is {to}, the zero point {zero.dtype}")
    to = zero.dtype if zero is not None else to or UINT8
    if to.kind not in ("int", "uint"):
        raise context.malformed(f"quantising to {to}")
    precision = _attribute_dtype(context, node, "precision") or scale.dtype
    divisor = context.cast(_aligned(context, node, scale, x), precision)
    levels = context.add("rint", context.add("divide", context.cast(x, precision), divisor))
    limits = np.iinfo(to.name)
    # Sums of 16-bit levels are exact in float32; larger ones are clipped.
    if zero is not None:
        levels = context.add(
            "add", levels, context.cast(_aligned(context, node, zero, x), precision)
        )
    levels = context.at_most(context.at_least(levels, int(limits.min)), int(limits.max))
    return [context.cast(levels, to)]


def _dequantize(context: Context, node: NodeView) -> Sequence[Value]:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    to = _attribute_dtype(context, node, "output_dtype") or scale.dtype
    if x.dtype.kind not in ("int", "uint") or {scale.dtype.kind, to.kind} != {"float"}:
        raise context.malformed(f"{x.type} by {scale.type} as {to}; expected integers as floats")
    if zero is not None and zero.dtype != x.dtype:
        raise context.malformed(f"the zero point is {zero.dtype}, what it is of {x.dtype}")
    levels = context.cast(x, scale.dtype)
    if zero is not None:
        zero = context.cast(_aligned(context, node, zero, x), scale.dtype)
        levels = context.add("subtract", levels, zero)
    result = context.add("multiply", levels, _aligned(context, node, scale, x))
    return [context.cast(result, to)]


QUANTISED: Table = {
    ("", "DequantizeLinear"): _dequantize,
    ("", "QuantizeLinear"): _quantize,
}
