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
from ftuner.graph.ir import Value


def _centred(context: Context, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """x minus its mean, and its variance along some axes, which are kept."""
    centred = context.add("subtract", x, context.mean(x, axes))
    return centred, context.mean(context.add("multiply", centred, centred), axes)


def _normal(context: Context, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """`(x - mean) / sqrt(variance + epsilon)`."""
    centred, variance = _centred(context, x, axes)
    root = context.add("sqrt", context.add_to(variance, epsilon))
    return context.add("divide", centred, root)


def _of_channels(context: Context, parameter: Value, x: Value) -> Value:
    """A scale or bias with an element for each channel (second axis) of x."""
    what = f"a scale or bias {parameter.type} for the channels of {x.type}"
    if parameter.rank != 1:
        raise context.malformed(f"{what}; expected one axis")
    context.builder.require(parameter.shape[0], x.shape[1], what)
    return context.reshape(parameter, (*parameter.shape, *[1] * (x.rank - 2)))


def _scaled(context: Context, x: Value, scale: Value, bias: Value) -> Value:
    factor, addend = (_of_channels(context, p, x) for p in (scale, bias))
    return context.add("add", context.add("multiply", x, factor), addend)


def _instance_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if x.rank < 3:
        raise context.malformed(f"a norm of {x.type}, which has no spatial axis")
    wide = context.cast(x, FLOAT32) if x.dtype.name in HALF_DTYPES else x
    normal = _normal(context, wide, range(2, x.rank), epsilon_of(context, node, 1e-5))
    return [_scaled(context, context.cast(normal, x.dtype), node.input(1), node.input(2))]


def _group_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x, scale, bias = (node.input(i) for i in range(3))
    expect_stash(context, node)
    if x.rank < 2:
        raise context.malformed(f"a norm of groups of channels of {x.type}, which has none")
    groups = node.integer("num_groups")
    channels = x.shape[1]
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise context.malformed(f"{groups} groups of {channels} channels")
    wide = context.cast(x, FLOAT32) if x.dtype.name in HALF_DTYPES else x
    apart = context.reshape(wide, (x.shape[0], groups, quotient(channels, groups), *x.shape[2:]))
    normal = _normal(context, apart, range(2, apart.rank), epsilon_of(context, node, 1e-5))
    if node.opset >= 21:
        whole = context.cast(context.reshape(normal, x.shape), x.dtype)
        return [_scaled(context, whole, scale, bias)]
    # A scale and a bias for each group.
    narrow = context.cast(normal, x.dtype)
    return [context.reshape(_scaled(context, narrow, scale, bias), x.shape)]


def _mean_variance_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    # No axes are all, as in the reductions that define the operator.
    axes = context.axes(node.integers("axes", (0, 2, 3)) or range(x.rank), x.rank)
    centred, variance = _centred(context, x, axes)
    # The number that ONNX's definition of the operator adds to the deviation.
    deviation = context.add_to(context.add("sqrt", variance), 1e-9)
    return [context.add("divide", centred, deviation)]


def _lp_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x, p = node.input(0), node.integer("p", 2)
    if p not in (1, 2):
        raise context.malformed(f"p is {p}; expected 1 or 2")
    axes = [context.axis(node.integer("axis", -1), x.rank)]
    parts = context.add("absolute", x) if p == 1 else context.add("multiply", x, x)
    length = context.reduce(parts, "sum", axes)
    if p == 2:
        length = context.add("sqrt", length)
    zero = context.scalar(0, x.dtype)
    result = context.add("divide", x, length)
    return [context.add("where", context.add("equal", length, zero), zero, result)]


def _local_response_norm(context: Context, node: NodeView) -> Sequence[Value]:
    """Each element relative to the squares of the channels around its own."""
    x, size = node.input(0), node.integer("size")
    if x.rank < 2 or size < 1:
        raise context.malformed(f"a norm of {size} channels of {x.type}")
    alpha, beta = node.number("alpha", 1e-4), node.number("beta", 0.75)
    wide = context.cast(x, FLOAT32) if x.dtype.name in HALF_DTYPES else x
    # Channels that are not there read a zero after the last.
    before, after = [0] * x.rank, [int(axis == 1) for axis in range(x.rank)]
    squares = context.add(
        "pad", context.add("multiply", wide, wide), context.scalar(0, wide.dtype),
        before=tuple(before), after=tuple(after), mode="constant",
    )  # fmt: skip
    channels = context.count([x.shape[1]], INT64)
    first = context.scalar(-((size - 1) // 2), INT64)
    taps = context.add("add", context.iota(size, 0, 2), first)
    at = context.add("add", context.iota(x.shape[1]), taps)
    outside = context.add("less", at, context.scalar(0, INT64))
    at = context.add("where", outside, channels, at)
    total = context.add("resample", squares, at, axes=(1,))
    base = context.add_to(context.scaled(total, alpha / size), node.number("bias", 1.0))
    if beta == 0.75:
        root = context.add("sqrt", base)
        power = context.add("multiply", root, context.add("sqrt", root))
    else:
        power = context.add("power", base, context.scalar(beta, wide.dtype))
    return [context.cast(context.add("divide", wide, power), x.dtype)]


NORMALISING: Table = {
    ("", "GroupNormalization"): _group_norm,
    ("", "InstanceNormalization"): _instance_norm,
    ("", "LRN"): _local_response_norm,
    ("", "LpNormalization"): _lp_norm,
    ("", "MeanVarianceNormalization"): _mean_variance_norm,
}
