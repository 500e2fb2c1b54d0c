"""Norms of groups of channels keep the axes of a picture, and what only looks like one is left
alone."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, T, applied, assert_left_alone, graph_of, ops

from ftuner.core.dim import product
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.graph.algebra import apply, constant, sqrt
from ftuner.graph.ir import Value
from ftuner.graph.passes.group_norm import separate_groups

C, G = 12, 4


def picture(g: Maker) -> Value:
    """Channels first, after a convolution."""
    x = g.given("x", B, S, T, C)
    window = {"strides": (1, 1), "dilations": (1, 1), "begin": (0, 0), "extents": (S, T)}
    return apply("convolution", x, g.weight(1, 1, C, C), groups=1, **window).transpose((0, 3, 1, 2))


def mean(x: Value) -> Value:
    axes = tuple(range(2, x.rank))
    elements = apply("dims", dims=(product(x.shape[2:]),)).cast(FLOAT32)
    return x.reduce("sum", axes) / elements.reshape(())


def normal(x: Value, factor: float = 1.0, axes: int = 0) -> Value:
    """`factor`: of the variance. `axes`: of the epsilon."""
    centred = x - mean(x)
    variance = mean(centred * centred) * factor
    return centred / sqrt(variance + constant(np.full((1,) * axes, 1e-5, np.float32)))


def of_groups(function: Callable[[Maker, Value], Value], groups: int = G) -> Body:
    """A function of the elements of groups of a picture, as a picture."""

    def body(g: Maker) -> Value:
        x = picture(g)
        return function(g, x.reshape((B, groups, C // groups * S * T))).reshape(x.shape)

    return body


def with_ones(g: Maker) -> Value:
    """As PyTorch's exporter writes it: a norm of instances, and parameters of channels after it."""
    ones, zeros = (g.constant(np.full((G, 1), n, np.float32)) for n in (1, 0))
    y = of_groups(lambda _, x: normal(x) * ones + zeros)(g)
    return y * g.weight(C, 1, 1) + g.weight(C, 1, 1)


def apart(g: Maker) -> Value:
    """As the operator of ONNX is defined."""
    x = picture(g)
    return normal(x.reshape((B, G, C // G, S, T))).reshape(x.shape)


GROUPS: dict[str, Body] = {
    "plain": of_groups(lambda _, x: normal(x)),
    "epsilon with axes": of_groups(lambda _, x: normal(x, axes=3)),
    "one group": of_groups(lambda _, x: normal(x), 1),
    "scaled": of_groups(lambda g, x: normal(x) * g.weight(G, 1) + g.weight(G, 1)),
    "with ones": with_ones,
    "apart": apart,
}


@pytest.mark.parametrize("body", GROUPS.values(), ids=GROUPS)
def test_groups_are_reduced_after_positions(body: Body) -> None:
    found = applied(separate_groups, graph_of(body))
    assert ops(found).count("reduce") == 4
    reduced = [n.inputs[0].shape for n in found.nodes if n.op == "reduce"]
    assert (B, C, S, T) in reduced
    assert INT64 in {n.output.dtype for n in found.nodes if n.op == "dims"}


def without_windows(g: Maker) -> Value:
    x = g.given("x", B, C, S)
    return normal(x.reshape((B, G, C // G * S))).reshape(x.shape)


OTHERS: dict[str, Body] = {
    "twice the variance": of_groups(lambda _, x: normal(x, 2.0)),
    "never split": lambda g: normal(picture(g).reshape((B, G, C // G * S * T))),
    "computed scale": of_groups(lambda g, x: normal(x) * g.given("scale", G, 1)),
    "without windows": without_windows,
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_what_is_no_norm_of_groups_is_left_alone(body: Body) -> None:
    assert_left_alone(separate_groups, body)
