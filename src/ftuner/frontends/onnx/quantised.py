"""Conversions to and from quantised integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import ceil_quotient
from ftuner.core.dtype import FLOAT32, HALF_DTYPES, UINT8, DType
from ftuner.frontends.onnx.context import Context
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import AnyDType, onnx
from ftuner.graph.algebra import equal, rint, where
from ftuner.graph.checks import malformed, require
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
