"""Operators that draw random numbers.

A node without the attribute `seed` has a stream of its own. Nodes of one seed have the same stream,
as in onnxruntime, whose operators also continue it from run to run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from ftuner.core.dim import Shape
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, INT32, INT64, DType
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import FloatDType, onnx
from ftuner.graph.algebra import apply, exp, scalar, where
from ftuner.graph.checks import malformed, unsupported
from ftuner.graph.ir import Value


def _stream(context: Context, node: NodeView) -> Value:
    """The random numbers of a node."""
    if not node.has("seed"):
        return context.builder.random_stream()
    if node.record.op == "Dropout":
        return context.builder.random_stream(node.integer("seed") % 2**64)
    # The bits of the number: seeds that differ have other streams.
    (seed,) = struct.unpack("<Q", struct.pack("<d", node.number("seed", finite=False)))
    return context.builder.random_stream(seed)


_Draw = Callable[[Context, NodeView, DType, Shape], Value]


def _computed_in(dtype: DType) -> DType:
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def _uniform(stream: Value, dtype: DType, shape: Shape) -> Value:
    """Numbers from 0 below 1, all of which `dtype` holds; half precision is in float32."""
    return apply(
        "random_uniform", stream, dtype=_computed_in(dtype), shape=shape,
        digits=dtype.significand_bits,
    )  # fmt: skip


def _drawn_uniform(context: Context, node: NodeView, dtype: DType, shape: Shape) -> Value:
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    width = high - low
    if abs(width) > float(np.finfo(_computed_in(dtype).name).max):
        raise unsupported(f"random numbers from {low} to {high}")
    x = _uniform(_stream(context, node), dtype, shape) * width
    return (x + low if low else x).cast(dtype)


def _drawn_normal(context: Context, node: NodeView, dtype: DType, shape: Shape) -> Value:
    mean, scale = node.number("mean", 0.0), node.number("scale", 1.0)
    x = apply("random_normal", _stream(context, node), dtype=_computed_in(dtype), shape=shape)
    x = x * scale
    return (x + mean if mean else x).cast(dtype)


@onnx("RandomNormal", draw=_drawn_normal)
@onnx("RandomUniform", draw=_drawn_uniform)
def _of_shape(
    context: Context, node: NodeView, shape: tuple[int, ...], dtype: FloatDType = FLOAT32, *,
    draw: _Draw,
) -> Value:  # fmt: skip
    if any(n < 0 for n in shape):
        raise malformed(f"attribute shape is {list(shape)}")
    return draw(context, node, dtype, shape)


@onnx("RandomNormalLike", draw=_drawn_normal)
@onnx("RandomUniformLike", draw=_drawn_uniform)
def _like(
    context: Context, node: NodeView, x: Value, dtype: FloatDType | None = None, *, draw: _Draw
) -> Value:
    if dtype is None and x.dtype.kind != "float":
        raise malformed(f"random numbers of {x.dtype}; expected floats")
    return draw(context, node, dtype or x.dtype, x.shape)


@onnx("Bernoulli")
def _bernoulli(context: Context, node: NodeView, p: Value, dtype: DType | None = None) -> Value:
    """True with the probabilities of the operand."""
    if p.dtype.kind != "float":
        raise malformed(f"probabilities {p.type}; expected floats")
    wide = _computed_in(p.dtype)
    drawn = _uniform(_stream(context, node), wide, p.shape) < p.cast(wide)
    return drawn.cast(dtype or p.dtype)


@onnx("Multinomial")
def _multinomial(
    context: Context, node: NodeView, x: Value, sample_size: int = 1, dtype: DType = INT32
) -> Value:
    """The positions of classes in each row of unnormalised logarithms of probabilities: how many
    classes end at or below a uniform part of the sum of all."""
    if x.rank != 2 or x.dtype.kind != "float" or sample_size < 1 or dtype not in (INT32, INT64):
        raise malformed(
            f"{sample_size} samples of {x.type} as {dtype}; expected one or more, rows of floats, "
            "and int32 or int64"
        )
    rows, classes = x.shape
    wide = _computed_in(x.dtype)
    x = x.cast(wide)
    x = x - x.reduce("maximum", [1])
    ends = apply("cumulative_sum", exp(x), axis=1, exclusive=False, reverse=False)
    last = ends.slice(1, classes - 1, 1)
    u = _uniform(_stream(context, node), wide, (rows, sample_size))
    below = ends.unsqueeze([1]) <= (u * last).unsqueeze([2])
    return below.cast(dtype).reduce("sum", [2], keep=False)


@onnx("Dropout")
def _dropout(
    context: Context, node: NodeView, x: Value, ratio: Value | None, training: Value | None
) -> Sequence[Value]:
    """Drops nothing at inference. In training mode each element is zero with the probability
    `ratio`, and the others are enlarged, so that the mean stays."""
    for given in (ratio, training):
        if given is not None and given.shape not in ((), (1,)):
            raise malformed(f"ratio or training_mode {given.type}; expected a scalar")
    everything = [x, scalar(True, BOOL).broadcast(x.shape)]
    if training is None or not context.array_of(training, "training_mode").any():
        return everything
    if ratio is None:
        ratio = scalar(0.5, FLOAT32)
    if ratio.constant is not None and not ratio.constant.any():
        return everything
    wide = _computed_in(x.dtype)
    ratio = ratio.reshape(()).cast(wide)
    kept = ratio <= _uniform(_stream(context, node), wide, x.shape)
    return [where(kept, (x.cast(wide) * (1 / (1 - ratio))).cast(x.dtype), 0), kept]
