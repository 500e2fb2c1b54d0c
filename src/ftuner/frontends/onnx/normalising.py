"""Norms, composed of reductions and functions of elements where the graph has no operator for them.

The pass `channels_last` moves transpositions through those of images, so that they work on the
layout that the convolutions around them have.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import Axis, Epsilon, FloatDType, Gives, Positive, onnx
from ftuner.graph.algebra import apply, counted, equal, iota, sqrt, where, zero_padded
from ftuner.graph.checks import expect_shape, fitting, malformed, require, unsupported
from ftuner.graph.compositions.normalising import centre, normal, scaled_channels
from ftuner.graph.compositions.windows import with_bias
from ftuner.graph.ir import Value

# Norms of the last axes.


def _norm(
    x: Value, parameters: Sequence[Value | None], axis: int, epsilon: float, rms: bool
) -> Value:
    given, own = [], x.rank - axis
    for p in parameters:
        if p is not None and p.rank > x.rank:
            raise malformed(f"a scale or bias {p.type} for {x.rank} axes")
        if p is not None:
            more = p.rank - own
            given.append(p.squeeze(range(more)) if more > 0 else p.unsqueeze(range(-more)))
    return apply("norm", x, *given, axis=axis, epsilon=epsilon, rms=rms)


def _deviation(x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """1 / sqrt(mean(x^2) + epsilon)."""
    return 1 / sqrt((x * x).mean(axes) + epsilon)


def _statistics(gives: Gives, x: Value, axis: int, epsilon: float) -> list[Value]:
    """The mean and the inverse standard deviation, if the node has these outputs."""
    if not gives(1) and not gives(2):
        return []
    axes = range(axis, x.rank)
    mean = x.mean(axes)
    return [mean, _deviation(x - mean, axes, epsilon)]


@onnx("LayerNormalization")
def _layer_norm(
    gives: Gives, x: Value, scale: Value, bias: Value | None, axis: Axis = -1,
    epsilon: Epsilon = 1e-5, stash_type: FloatDType | None = None,
) -> Sequence[Value]:  # fmt: skip
    result = _norm(x, [scale, bias], axis, epsilon, rms=False)
    return [result, *_statistics(gives, x, axis, epsilon)]


@onnx("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(
    gives: Gives, x: Value, scale: Value, axis: Axis = -1, epsilon: Epsilon = 1e-5,
    stash_type: FloatDType | None = None,
) -> Sequence[Value]:  # fmt: skip
    result = _norm(x, [scale], axis, epsilon, rms=True)
    return [result, *([_deviation(x, range(axis, x.rank), epsilon)] if gives(1) else [])]


def _skipped(
    x: Value, skip: Value, parameters: Sequence[Value | None], bias: Value | None
) -> Value:
    """The sum that is normalised: input, skip connection and an optional bias. `parameters`: of the
    norm, which have the extent of its last axis, too."""
    what = f"{x.type} with a skipped {skip.type}"
    if x.rank not in (2, 3) or not 2 <= skip.rank <= x.rank:
        raise malformed(f"{what}; expected two axes or three each")
    # The whole batch may share one skip matrix.
    for have, wanted in zip(skip.shape[-2:], x.shape[-2:], strict=True):
        require(have, wanted, what)
    total = with_bias(x + fitting(skip, x, "a skipped"), bias)
    for row in parameters:
        if row is not None:
            expect_shape(row, x.shape[-1:], f"a scale or bias {row.type} for {x.type}")
    return total


@onnx("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_norm(
    gives: Gives, x: Value, skip: Value, scale: Value, shift: Value | None,
    bias: Value | None, epsilon: Epsilon = 1e-12,
) -> Sequence[Value]:  # fmt: skip
    total = _skipped(x, skip, [scale, shift], bias)
    axis = total.rank - 1
    result = _norm(total, [scale, shift], axis, epsilon, rms=False)
    return [result, *(_statistics(gives, total, axis, epsilon) or [result, result]), total]


@onnx("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_rms_norm(
    gives: Gives, x: Value, skip: Value, scale: Value, bias: Value | None, epsilon: Epsilon = 1e-5
) -> Sequence[Value]:
    total = _skipped(x, skip, [scale], bias)
    result = _norm(total, [scale], total.rank - 1, epsilon, rms=True)
    if gives(1):
        raise unsupported("the mean of a norm that has none")
    deviation = _deviation(total, [total.rank - 1], epsilon) if gives(2) else result
    return [result, result, deviation, total]


# Norms of images.


@onnx("BatchNormalization")
def _batch_norm(
    x: Value, scale: Value, bias: Value, mean: Value, variance: Value,
    epsilon: Epsilon = 1e-5, momentum: float = 0.9, training_mode: bool = False,
    spatial: bool = True,
) -> Sequence[Value]:  # fmt: skip
    """Normalise each channel (second axis) by given statistics, or in training by its own. Before
    opset 9, `spatial=0` has statistics for each element of an example."""
    if x.rank < 2:
        raise unsupported(f"a batch norm of {x.type}, which has no axis of channels")
    normed, what = (x.shape[1:2], "channels") if spatial else (x.shape[1:], "elements")
    given = (scale, bias, mean, variance)
    for v in given:
        expect_shape(v, normed, f"{v.type} for the {what} of {x.type}")
    across = (1,) * (x.rank - 1 - len(normed))
    scale, bias, mean, variance = (v.cast(x.dtype).reshape((*v.shape, *across)) for v in given)
    running: list[Value] = []
    if training_mode:
        axes = [axis for axis in range(x.rank) if axis != 1]
        before = (mean, variance)
        mean = x.mean(axes).squeeze([0])
        centred = x - mean
        variance = (centred * centred).mean(axes).squeeze([0])
        for value, old, new in zip(given[2:], before, (mean, variance), strict=True):
            moved = old * momentum + new * (1 - momentum)
            running.append(moved.reshape(value.shape).cast(value.dtype))
    return [(x - mean) * (scale / sqrt(variance + epsilon)) + bias, *running]


@onnx("InstanceNormalization")
def _instance_norm(x: Value, scale: Value, bias: Value, epsilon: Epsilon = 1e-5) -> Value:
    if x.rank < 3:
        raise malformed(f"a norm of {x.type}, which has no spatial axis")
    return scaled_channels(normal(x.wide(), range(2, x.rank), epsilon).cast(x.dtype), scale, bias)


@onnx("GroupNormalization")
def _group_norm(
    node: NodeView, x: Value, scale: Value, bias: Value, num_groups: Positive,
    epsilon: Epsilon = 1e-5, stash_type: FloatDType | None = None,
) -> Value:  # fmt: skip
    if x.rank < 2:
        raise malformed(f"a norm of groups of channels of {x.type}, which has none")
    channels = x.shape[1]
    if isinstance(channels, int) and channels % num_groups:
        raise malformed(f"{num_groups} groups of {channels} channels")
    shape = (x.shape[0], num_groups, quotient(channels, num_groups), *x.shape[2:])
    found = normal(x.wide().reshape(shape), range(2, len(shape)), epsilon)
    if node.opset >= 21:
        return scaled_channels(found.reshape(x.shape).cast(x.dtype), scale, bias)
    # A scale and a bias for each group.
    return scaled_channels(found.cast(x.dtype), scale, bias).reshape(x.shape)


@onnx("MeanVarianceNormalization")
def _mean_variance_norm(context: Context, x: Value, axes: tuple[int, ...] = (0, 2, 3)) -> Value:
    # No axes are all, as in the reductions that define the operator.
    centred, variance = centre(x, context.axes(axes or range(x.rank), x.rank))
    # The number that ONNX's definition of the operator adds to the deviation.
    return centred / (sqrt(variance) + 1e-9)


@onnx("LpNormalization")
def _lp_norm(x: Value, axis: Axis = -1, p: int = 2) -> Value:
    if p not in (1, 2):
        raise malformed(f"p is {p}; expected 1 or 2")
    length = (abs(x) if p == 1 else x * x).reduce("sum", [axis])
    length = length if p == 1 else sqrt(length)
    return where(equal(length, 0), 0, x / length)


@onnx("LRN")
def _local_response_norm(
    x: Value, size: Positive, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Value:
    """Each element relative to the squares of the channels around its own."""
    if x.rank < 2:
        raise malformed(f"a norm of {size} channels of {x.type}")
    wide = x.wide()
    # Channels that are not there read a zero after the last.
    after = tuple(int(axis == 1) for axis in range(x.rank))
    squares = zero_padded(wide * wide, (0,) * x.rank, after)
    at = iota(x.shape[1]) + (iota(size, 0, 2) + -((size - 1) // 2))
    at = where(at < 0, counted([x.shape[1]], INT64), at)
    base = apply("resample", squares, at, axes=(1,)) * (alpha / size) + bias
    root = sqrt(base)
    power = root * sqrt(root) if beta == 0.75 else base**beta
    return (wide / power).cast(x.dtype)
