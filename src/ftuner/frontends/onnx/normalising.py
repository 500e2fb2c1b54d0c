"""Norms of images, composed of reductions and functions of elements.

The pass `channels_last` moves transpositions through all of these, so that they work on the layout
that the convolutions around them have.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import quotient
from ftuner.core.dtype import FLOAT32, HALF_DTYPES, INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.reductions import epsilon_of, expect_stash
from ftuner.graph.algebra import (
    apply,
    counted,
    equal,
    iota,
    malformed,
    require,
    scalar,
    sqrt,
    where,
    zero_padded,
)
from ftuner.graph.ir import Value


def _centred(context: Context, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """x minus its mean, and its variance along some axes, which are kept."""
    centred = x - x.mean(axes)
    return centred, (centred * centred).mean(axes)


def _normal(context: Context, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """`(x - mean) / sqrt(variance + epsilon)`."""
    centred, variance = _centred(context, x, axes)
    root = sqrt(variance + epsilon)
    return centred / root


def _of_channels(context: Context, parameter: Value, x: Value) -> Value:
    """A scale or bias with an element for each channel (second axis) of x."""
    what = f"a scale or bias {parameter.type} for the channels of {x.type}"
    if parameter.rank != 1:
        raise malformed(f"{what}; expected one axis")
    require(parameter.shape[0], x.shape[1], what)
    return parameter.reshape((*parameter.shape, *[1] * (x.rank - 2)))


def _scaled(context: Context, x: Value, scale: Value, bias: Value) -> Value:
    factor, addend = (_of_channels(context, p, x) for p in (scale, bias))
    return x * factor + addend


def _instance_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if x.rank < 3:
        raise malformed(f"a norm of {x.type}, which has no spatial axis")
    wide = x.cast(FLOAT32) if x.dtype.name in HALF_DTYPES else x
    normal = _normal(context, wide, range(2, x.rank), epsilon_of(context, node, 1e-5))
    return [_scaled(context, normal.cast(x.dtype), node.input(1), node.input(2))]


def _group_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x, scale, bias = (node.input(i) for i in range(3))
    expect_stash(context, node)
    if x.rank < 2:
        raise malformed(f"a norm of groups of channels of {x.type}, which has none")
    groups = node.integer("num_groups")
    channels = x.shape[1]
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise malformed(f"{groups} groups of {channels} channels")
    wide = x.cast(FLOAT32) if x.dtype.name in HALF_DTYPES else x
    apart = wide.reshape((x.shape[0], groups, quotient(channels, groups), *x.shape[2:]))
    normal = _normal(context, apart, range(2, apart.rank), epsilon_of(context, node, 1e-5))
    if node.opset >= 21:
        whole = normal.reshape(x.shape).cast(x.dtype)
        return [_scaled(context, whole, scale, bias)]
    # A scale and a bias for each group.
    narrow = normal.cast(x.dtype)
    return [_scaled(context, narrow, scale, bias).reshape(x.shape)]


def _mean_variance_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    # No axes are all, as in the reductions that define the operator.
    axes = context.axes(node.integers("axes", (0, 2, 3)) or range(x.rank), x.rank)
    centred, variance = _centred(context, x, axes)
    # The number that ONNX's definition of the operator adds to the deviation.
    deviation = sqrt(variance) + 1e-9
    return [centred / deviation]


def _lp_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x, p = node.input(0), node.integer("p", 2)
    if p not in (1, 2):
        raise malformed(f"p is {p}; expected 1 or 2")
    axes = [context.axis(node.integer("axis", -1), x.rank)]
    parts = abs(x) if p == 1 else x * x
    length = parts.reduce("sum", axes)
    if p == 2:
        length = sqrt(length)
    zero = scalar(0, x.dtype)
    result = x / length
    return [where(equal(length, zero), zero, result)]


def _local_response_norm(context: Context, node: NodeView) -> Sequence[Value]:
    """Each element relative to the squares of the channels around its own."""
    x, size = node.input(0), node.integer("size")
    if x.rank < 2 or size < 1:
        raise malformed(f"a norm of {size} channels of {x.type}")
    alpha, beta = node.number("alpha", 1e-4), node.number("beta", 0.75)
    wide = x.cast(FLOAT32) if x.dtype.name in HALF_DTYPES else x
    # Channels that are not there read a zero after the last.
    before, after = [0] * x.rank, [int(axis == 1) for axis in range(x.rank)]
    squares = zero_padded(wide * wide, tuple(before), tuple(after))
    channels = counted([x.shape[1]], INT64)
    first = scalar(-((size - 1) // 2), INT64)
    taps = iota(size, 0, 2) + first
    at = iota(x.shape[1]) + taps
    outside = at < scalar(0, INT64)
    at = where(outside, channels, at)
    total = apply("resample", squares, at, axes=(1,))
    base = total * (alpha / size) + node.number("bias", 1.0)
    if beta == 0.75:
        root = sqrt(base)
        power = root * sqrt(root)
    else:
        power = base ** scalar(beta, wide.dtype)
    return [(wide / power).cast(x.dtype)]


NORMALISING: Table = {
    ("", "GroupNormalization"): _group_norm,
    ("", "InstanceNormalization"): _instance_norm,
    ("", "LRN"): _local_response_norm,
    ("", "LpNormalization"): _lp_norm,
    ("", "MeanVarianceNormalization"): _mean_variance_norm,
}
