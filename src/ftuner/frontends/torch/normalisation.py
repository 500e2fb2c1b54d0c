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
@aten("native_layer_norm", several=True)
def layer_norm(
    x: Value, normalized_shape: Sequence[Dim], weight: Value | None = None,
    bias: Value | None = None, eps: float = 1e-05, *, several: bool = False,
) -> Value | Several:  # fmt: skip
    """The norm of the last axes. `several`: with their statistics."""
    found = _of_last_axes(x, normalized_shape, weight, bias, eps, rms=False)
    axes = range(x.rank - len(normalized_shape), x.rank)
    return [found, *_statistics(x.wide(), axes, eps)] if several else found


def _statistics(x: Value, axes: Sequence[int], eps: float) -> list[Value]:
    """The mean, and one over the deviation."""
    _, variance = centre(x, axes)
    return [x.mean(axes), 1 / sqrt(variance + eps)]


_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance of one from the next number."""


@aten("rms_norm")
@aten("_fused_rms_norm", several=True)
def rms_norm(
    x: Value, normalized_shape: Sequence[Dim], weight: Value | None = None,
    eps: float | None = None, *, several: bool = False,
) -> Value | Several:  # fmt: skip
    """The last axes over their root mean square. `several`: with one over that."""
    eps = _EPSILON[x.dtype.name] if eps is None else eps
    found, wide = _of_last_axes(x, normalized_shape, weight, None, eps, rms=True), x.wide()
    axes = range(x.rank - len(normalized_shape), x.rank)
    return [found, 1 / sqrt((wide * wide).mean(axes) + eps)] if several else found


def _of_channels(x: Value, parameter: Value) -> Value:
    """A parameter of each channel, the second axis, for the elements of x."""
    return parameter.cast(x.dtype).reshape((*parameter.shape, *[1] * (x.rank - 2)))


def _scaled(x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else x * _of_channels(x, weight)
    return x if bias is None else x + _of_channels(x, bias)


@aten("group_norm")
def group_norm(
    x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-05,
) -> Value:  # fmt: skip
    """The norm of groups of channels."""
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
@aten("_native_batch_norm_legit_no_training", training=False, several=True)
@aten("_native_batch_norm_legit.no_stats", running_mean=None, running_var=None, several=True)
def batch_norm(
    x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, training: bool, eps: float, *, several: bool = False,
) -> Value | Several:  # fmt: skip
    """Channels normalised by given statistics, or, without these, by their own. `several`: with the
    latter."""
    if training and running_mean is not None:
        raise unsupported("a batch norm while training; call module.eval()")
    if running_mean is None or running_var is None:
        axes = [a for a in range(x.rank) if a != 1]
        found = _scaled(normal(x.wide(), axes, eps).cast(x.dtype), weight, bias)
        own = _statistics(x.wide(), axes, eps) if several else []
        return [found, *(v.reshape(x.shape[1:2]) for v in own)] if several else found
    mean = _of_channels(x, running_mean)
    factor = 1 / sqrt(_of_channels(x, running_var) + eps)
    if weight is not None:
        factor = _of_channels(x, weight) * factor
    found = _scaled((x - mean) * factor, None, bias)
    return [found, *[x.wide().like(0).broadcast((0,))] * 2] if several else found


@aten("instance_norm")
def _instance_norm(
    x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, use_input_stats: bool, eps: float,
) -> Value | Several:  # fmt: skip
    if not use_input_stats:
        return batch_norm(x, weight, bias, running_mean, running_var, False, eps)
    if running_mean is not None:
        raise unsupported("an instance norm that updates statistics; call module.eval()")
    return _scaled(normal(x.wide(), range(2, x.rank), eps).cast(x.dtype), weight, bias)
