"""Norms of groups of channels keep the axes of a picture, and what only looks like one is left
alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, T, applied, assert_left_alone, graph_of, ops

from ftuner.core.dim import product
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.graph.ir import Value
from ftuner.graph.passes.group_norm import separate_groups

C, G = 12, 4


def picture(g: Maker) -> Value:
    """Channels first, after a convolution."""
    x = g.given("x", B, S, T, C)
    window = {"strides": (1, 1), "dilations": (1, 1), "begin": (0, 0), "extents": (S, T)}
    y = g.add("convolution", x, g.weight(1, 1, C, C), groups=1, **window)
    return g.add("transpose", y, perm=(0, 3, 1, 2))


def mean(g: Maker, x: Value, scale: float = 1.0) -> Value:
    axes = tuple(range(2, x.rank))
    total = g.add("reduce", x, kind="sum", axes=axes)
    kept = g.add("reshape", total, shape=(*x.shape[:2], *(1 for _ in axes)))
    elements = g.add("cast", g.add("dims", dims=(product(x.shape[2:]),)), to=FLOAT32)
    count = g.add("reshape", elements, shape=())
    found = g.add("divide", kept, count)
    return found if scale == 1.0 else g.add("multiply", found, g.number(scale))


def normal(
    g: Maker, x: Value, spread: Callable[[Maker, Value], Value] = mean, axes: int = 0
) -> Value:
    """`axes`: of the epsilon."""
    centred = g.add("subtract", x, mean(g, x))
    variance = spread(g, g.add("multiply", centred, centred))
    epsilon = g.constant(np.full((1,) * axes, 1e-5, np.float32))
    root = g.add("sqrt", g.add("add", variance, epsilon))
    return g.add("divide", centred, root)


def merged(g: Maker, groups: int = G) -> tuple[Value, Value]:
    x = picture(g)
    return x, g.add("reshape", x, shape=(B, groups, C // groups * S * T))


def plain(g: Maker) -> Value:
    x, groups = merged(g)
    return g.add("reshape", normal(g, groups), shape=x.shape)


def epsilon_with_axes(g: Maker) -> Value:
    x, groups = merged(g)
    return g.add("reshape", normal(g, groups, axes=3), shape=x.shape)


def one_group(g: Maker) -> Value:
    x, groups = merged(g, 1)
    return g.add("reshape", normal(g, groups), shape=x.shape)


def scaled(g: Maker) -> Value:
    x, groups = merged(g)
    y = g.add("multiply", normal(g, groups), g.weight(G, 1))
    return g.add("reshape", g.add("add", y, g.weight(G, 1)), shape=x.shape)


def with_ones(g: Maker) -> Value:
    """As PyTorch's exporter writes it: a norm of instances, and parameters of channels after it."""
    x, groups = merged(g)
    ones, zeros = (g.constant(np.full((G, 1), n, np.float32)) for n in (1, 0))
    y = g.add("add", g.add("multiply", normal(g, groups), ones), zeros)
    y = g.add("multiply", g.add("reshape", y, shape=x.shape), g.weight(C, 1, 1))
    return g.add("add", y, g.weight(C, 1, 1))


def apart(g: Maker) -> Value:
    """As the operator of ONNX is defined."""
    x = picture(g)
    groups = g.add("reshape", x, shape=(B, G, C // G, S, T))
    return g.add("reshape", normal(g, groups), shape=x.shape)


@pytest.mark.parametrize("body", [plain, epsilon_with_axes, one_group, scaled, with_ones, apart])
def test_groups_are_reduced_after_positions(body: Body) -> None:
    found = applied(separate_groups, graph_of(body))
    assert ops(found).count("reduce") == 4
    reduced = [n.inputs[0].shape for n in found.nodes if n.op == "reduce"]
    assert (B, C, S, T) in reduced
    assert INT64 in {n.output.dtype for n in found.nodes if n.op == "dims"}


def of_double(g: Maker, x: Value) -> Value:
    return mean(g, x, 2.0)


def another_spread(g: Maker) -> Value:
    """Twice the variance."""
    x, groups = merged(g)
    return g.add("reshape", normal(g, groups, of_double), shape=x.shape)


def never_split(g: Maker) -> Value:
    return normal(g, merged(g)[1])


def computed_scale(g: Maker) -> Value:
    x, groups = merged(g)
    y = g.add("multiply", normal(g, groups), g.given("scale", G, 1))
    return g.add("reshape", y, shape=x.shape)


def without_windows(g: Maker) -> Value:
    x = g.given("x", B, C, S)
    groups = g.add("reshape", x, shape=(B, G, C // G * S))
    return g.add("reshape", normal(g, groups), shape=x.shape)


@pytest.mark.parametrize("body", [another_spread, never_split, computed_scale, without_windows])
def test_what_is_no_norm_of_groups_is_left_alone(body: Body) -> None:
    assert_left_alone(separate_groups, body)
