"""Norms, composed of reductions and functions of elements."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.graph.algebra import sqrt
from ftuner.graph.checks import expect_shape
from ftuner.graph.ir import Value


def centre(x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """x minus its mean, and its variance along some axes, which are kept."""
    found = x - x.mean(axes)
    return found, (found * found).mean(axes)


def normal(x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """`(x - mean) / sqrt(variance + epsilon)`."""
    found, variance = centre(x, axes)
    return found / sqrt(variance + epsilon)


def scaled_channels(x: Value, scale: Value, bias: Value) -> Value:
    """x by a scale and a bias with an element for each channel (second axis)."""
    parameters = []
    for p in (scale, bias):
        what = f"a scale or bias {p.type} for the channels of {x.type}"
        expect_shape(p, (x.shape[1],), what)
        parameters.append(p.reshape((*p.shape, *[1] * (x.rank - 2))))
    return x * parameters[0] + parameters[1]
