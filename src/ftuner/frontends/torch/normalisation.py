"""Norms."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, quotient
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply, sqrt
from ftuner.graph.checks import unsupported
from ftuner.graph.compositions.normalising import centre, normal
from ftuner.graph.ir import Value

Several = Sequence[Value | None]


def _of_last_axes(
    x: Value, shape: Sequence[Dim], weight: Value | None, bias: Value | None, eps: float, rms: bool
) -> Value:
    axis = x.rank - len(shape)
    given = [p.cast(x.dtype) for p in (weight, bias) if p is not None and weight is not None]
    found = apply("norm", x, *given, axis=axis, epsilon=eps, rms=rms)
    return found + bias if bias is not None and weight is None else found


@aten("layer_norm")
def layer_norm(
    input: Value, normalized_shape: Sequence[Dim], weight: Value | None = None,
    bias: Value | None = None, eps: float = 1e-05,
) -> Value:  # fmt: skip
    """The norm of the last axes."""
    return _of_last_axes(input, normalized_shape, weight, bias, eps, rms=False)


@aten("native_layer_norm")
def _native_layer_norm(
    input: Value, normalized_shape: Sequence[Dim], weight: Value | None, bias: Value | None,
    eps: float,
) -> Several:  # fmt: skip
    axes = range(input.rank - len(normalized_shape), input.rank)
    found = layer_norm(input, normalized_shape, weight, bias, eps)
    return [found, *_statistics(input.wide(), axes, eps)]


def _statistics(x: Value, axes: Sequence[int], eps: float) -> list[Value]:
    """The mean, and one over the deviation."""
    _, variance = centre(x, axes)
    return [x.mean(axes), 1 / sqrt(variance + eps)]


_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance of one from the next number."""


@aten("rms_norm")
def rms_norm(
    input: Value, normalized_shape: Sequence[Dim], weight: Value | None = None,
    eps: float | None = None,
) -> Value:  # fmt: skip
    """The last axes over their root mean square."""
    eps = _EPSILON[input.dtype.name] if eps is None else eps
    return _of_last_axes(input, normalized_shape, weight, None, eps, rms=True)


@aten("_fused_rms_norm")
def _fused_rms_norm(
    input: Value, normalized_shape: Sequence[Dim], weight: Value | None, eps: float | None
) -> Several:
    axes = range(input.rank - len(normalized_shape), input.rank)
    wide = input.wide()
    epsilon = _EPSILON[input.dtype.name] if eps is None else eps
    found = rms_norm(input, normalized_shape, weight, eps)
    return [found, 1 / sqrt((wide * wide).mean(axes) + epsilon)]


def _of_channels(x: Value, parameter: Value) -> Value:
    """A parameter of each channel, the second axis, for the elements of x."""
    return parameter.cast(x.dtype).reshape((*parameter.shape, *[1] * (x.rank - 2)))


def _scaled(x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else x * _of_channels(x, weight)
    return x if bias is None else x + _of_channels(x, bias)


@aten("group_norm")
def group_norm(
    input: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-05,
) -> Value:  # fmt: skip
    """The norm of groups of channels."""
    x = input
    shape = (x.shape[0], num_groups, quotient(x.shape[1], num_groups), *x.shape[2:])
    found = normal(x.wide().reshape(shape), range(2, len(shape)), eps)
    return _scaled(found.reshape(x.shape).cast(x.dtype), weight, bias)


@aten("native_group_norm")
def _native_group_norm(
    input: Value, weight: Value | None, bias: Value | None, N: Dim, C: Dim, HxW: Dim, group: int,
    eps: float,
) -> Several:  # fmt: skip
    rows = input.wide().reshape((N, group, quotient(C, group) * HxW))
    found = group_norm(input, group, weight, bias, eps)
    return [found, *(v.reshape((N, group)) for v in _statistics(rows, [2], eps))]


@aten("batch_norm")
def batch_norm(
    input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, training: bool, momentum: float, eps: float,
) -> Value:  # fmt: skip
    """Channels normalised by given statistics, or, without these, by their own."""
    x = input
    if training and running_mean is not None:
        raise unsupported("a batch norm while training; call module.eval()")
    if running_mean is None or running_var is None:
        axes = [a for a in range(x.rank) if a != 1]
        return _scaled(normal(x.wide(), axes, eps).cast(x.dtype), weight, bias)
    mean = _of_channels(x, running_mean)
    factor = 1 / sqrt(_of_channels(x, running_var) + eps)
    if weight is not None:
        factor = _of_channels(x, weight) * factor
    return _scaled((x - mean) * factor, None, bias)


@aten("_native_batch_norm_legit_no_training")
def _batch_norm_by_statistics(
    input: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value,
    momentum: float, eps: float,
) -> Several:  # fmt: skip
    found = batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    nothing = input.wide().like(0).broadcast((0,))
    return [found, nothing, nothing]


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_by_itself(
    input: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float,
    eps: float,
) -> Several:  # fmt: skip
    axes = [a for a in range(input.rank) if a != 1]
    statistics = _statistics(input.wide(), axes, eps)
    found = batch_norm(input, weight, bias, None, None, True, momentum, eps)
    return [found, *(v.reshape(input.shape[1:2]) for v in statistics)]


@aten("instance_norm")
def _instance_norm(
    input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, use_input_stats: bool, momentum: float, eps: float,
) -> Value:  # fmt: skip
    if not use_input_stats:
        return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    if running_mean is not None:
        raise unsupported("an instance norm that updates statistics; call module.eval()")
    found = normal(input.wide(), range(2, input.rank), eps).cast(input.dtype)
    return _scaled(found, weight, bias)
