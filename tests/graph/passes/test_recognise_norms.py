"""Norms written out, and what only looks like one."""

from collections.abc import Callable

import pytest
from tests.graph.graphs import B, Body, Maker, S, applied, assert_left_alone, graph_of, ops

from ftuner.graph.algebra import sqrt
from ftuner.graph.ir import Value
from ftuner.graph.rewrite import rules

D = 8
EPSILON = 1e-6


def root(x: Value, count: float = D) -> Value:
    """Of the mean of squares, as a power, a sum and a division."""
    return sqrt((x**2).reduce("sum", (x.rank - 1,)) / count + EPSILON)


def of_x(function: Callable[[Value], Value]) -> Body:
    return lambda g: function(g.given("x", B, S, D))


with_reciprocal = of_x(lambda x: x * (1 / root(x)))
"""As torch.rsqrt is exported."""
WRITTEN: tuple[tuple[Body, int], ...] = (
    # What, its operands.
    (with_reciprocal, 1),
    (of_x(lambda x: 1 / root(x) * x), 1),
    (of_x(lambda x: x / root(x)), 1),
    (lambda g: g.weight(D) * with_reciprocal(g), 2),
    # As Gemma scales it: above one.
    (lambda g: with_reciprocal(g) * (g.number(1) + g.given("scale", D)), 2),
)


@pytest.mark.parametrize(("body", "operands"), WRITTEN)
def test_rms_norms(body: Body, operands: int) -> None:
    graph = applied(rules.norms, graph_of(body))
    (node,) = [n for n in graph.nodes if n.op != "add"]
    assert node.op == "norm"
    assert len(node.inputs) == operands
    assert node.attributes["rms"]
    assert node.attributes["epsilon"] == pytest.approx(EPSILON)


@pytest.mark.parametrize(
    "body",
    [
        lambda g: g.given("y", B, S, D) * (1 / root(g.given("x", B, S, D))),
        of_x(lambda x: x * (2 / root(x))),
        of_x(lambda x: x / root(x, D - 1)),
        of_x(lambda x: x + 1 / root(x)),
    ],
)
def test_what_is_no_norm(body: Body) -> None:
    assert_left_alone(rules.norms, body)


@pytest.mark.parametrize("part", ["root", "reciprocal"])
def test_norms_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, D)
        below = root(x)
        inverse = 1 / below
        return [x * inverse, {"root": below, "reciprocal": inverse}[part]]

    assert "norm" not in ops(applied(rules.norms, graph_of(body)))
