"""Writes norms of groups of channels so that the channels of a picture may be last.

Exporters merge the channels of a group with the positions of the picture, normalise along the
merged axis, and split it again. No transposition moves through that. The pass reduces the positions
of each channel first, then the channels of each group, which leaves the axes of the picture apart:
`channels_last` can move them, and vectors lie along all channels.
"""

from __future__ import annotations

import numpy as np

from ftuner.core.dim import Shape, product
from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.graph.algebra import apply, constant, sqrt
from ftuner.graph.ir import Array, Graph, Value
from ftuner.graph.passes.channels_last import has_windows
from ftuner.graph.rewrite.matching import alone, named
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.rules import Axes, centred


def _result(normalised: Value) -> Value:
    return apply("reshape", alone(normalised))


def _groups(x: Value, groups: Value, axes: Axes, epsilon: Value) -> Value:
    return alone(centred(named(groups, apply("reshape", x)), axes, epsilon))


@rule(
    lambda x, groups, axes, epsilon: _result(_groups(x, groups, axes, epsilon)),
    lambda x, groups, axes, epsilon, scale: _result(_groups(x, groups, axes, epsilon) * scale),
    lambda x, groups, axes, epsilon, shift: _result(_groups(x, groups, axes, epsilon) + shift),
    lambda x, groups, axes, epsilon, scale, shift: _result(
        alone(_groups(x, groups, axes, epsilon) * scale) + shift
    ),
)
def group_norm(
    x: Value, groups: Value, axes: Axes, epsilon: float,
    scale: Value | None = None, shift: Value | None = None,
) -> Value | None:  # fmt: skip
    """A norm of (images, groups, elements of a group...) of a picture (images, channels,
    positions...)."""
    channels, count = (v.shape[1] if v.rank > 2 else None for v in (x, groups))
    if not isinstance(channels, int) or not isinstance(count, int) or not channels or not count:
        return None
    each = axes == tuple(range(2, groups.rank)) and x.shape[0] == groups.shape[0]
    if not each or channels % count or x.dtype not in (FLOAT32, FLOAT64):
        return None
    scales, shifts = (None if v is None else _of_groups(v, groups.shape) for v in (scale, shift))
    if (scale is None) != (scales is None) or (shift is None) != (shifts is None):
        return None
    return _written(x, count, epsilon, scales, shifts)


def separate_groups(graph: Graph) -> Graph:
    """Write norms of groups as described above, in graphs with windows."""
    return group_norm(graph) if has_windows(graph) else graph


def _of_groups(value: Value, shape: Shape) -> Array | None:
    """A constant that has one number for each group of (images, groups, elements...), or one for
    all; else None."""
    if value.constant is None or value.rank > len(shape):
        return None
    whole = (1,) * (len(shape) - value.rank) + value.constant.shape
    if whole[0] != 1 or any(n != 1 for n in whole[2:]):
        return None
    groups = shape[1]
    assert isinstance(groups, int)
    return np.broadcast_to(value.constant.reshape(whole[1]), (groups,))


def _written(
    x: Value, groups: int, epsilon: float, scale: Array | None, shift: Array | None
) -> Value:
    """The norm. What is divided is per channel, so that it is computed once and not for each
    position."""
    images, channels, *positions = x.shape
    assert isinstance(channels, int)
    of_group = channels // groups
    ones = (1,) * len(positions)
    count = apply("dims", dims=(of_group * product(positions),)).cast(x.dtype)

    def mean(value: Value) -> Value:
        """The mean of each group, for each of its channels."""
        sums = value.reduce("sum", range(2, x.rank), keep=False)
        total = sums.reshape((images, groups, of_group)).reduce("sum", [2])
        each = apply("broadcast", total, shape=(images, groups, of_group))
        return each.reshape((images, channels)) / count

    deviation = x - mean(x).reshape((images, channels, *ones))
    root = sqrt(mean(deviation * deviation) + epsilon)
    scales = np.repeat(np.ones(groups) if scale is None else scale, of_group)
    factor = constant(scales, x.dtype) / root
    result = deviation * factor.reshape((images, channels, *ones))
    if shift is None or not shift.any():
        return result
    return result + constant(np.repeat(shift, of_group).reshape((channels, *ones)), x.dtype)
