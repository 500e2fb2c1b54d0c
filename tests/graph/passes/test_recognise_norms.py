"""Norms written out, and what only looks like one."""

from __future__ import annotations

import pytest
from tests.graph.graphs import B, Body, Maker, S, applied, assert_left_alone, graph_of, ops

from ftuner.graph.ir import Value
from ftuner.graph.rewrite import rules

D = 8
EPSILON = 1e-6


def mean_square(g: Maker, x: Value, count: float = D) -> Value:
    """The mean of squares as a power, a sum and a division."""
    squares = g.add("power", x, g.number(2))
    total = g.add("reduce", squares, kind="sum", axes=(x.rank - 1,))
    kept = g.add("reshape", total, shape=(*x.shape[:-1], 1))
    return g.add("divide", kept, g.number(count))


def root(g: Maker, x: Value, count: float = D) -> Value:
    return g.add("sqrt", g.add("add", mean_square(g, x, count), g.number(EPSILON)))


def reciprocal(g: Maker, x: Value, one: float = 1) -> Value:
    return g.add("divide", g.number(one), root(g, x))


def with_reciprocal(g: Maker) -> Value:
    """As torch.rsqrt is exported."""
    x = g.given("x", B, S, D)
    return g.add("multiply", x, reciprocal(g, x))


def reciprocal_first(g: Maker) -> Value:
    x = g.given("x", B, S, D)
    return g.add("multiply", reciprocal(g, x), x)


def with_division(g: Maker) -> Value:
    x = g.given("x", B, S, D)
    return g.add("divide", x, root(g, x))


def weighted(g: Maker) -> Value:
    return g.add("multiply", g.weight(D), with_reciprocal(g))


def above_one(g: Maker) -> Value:
    """As Gemma scales it."""
    scale = g.add("add", g.number(1), g.given("scale", D))
    return g.add("multiply", with_reciprocal(g), scale)


WRITTEN: tuple[tuple[Body, int], ...] = (
    # What, its operands.
    (with_reciprocal, 1), (reciprocal_first, 1), (with_division, 1), (weighted, 2), (above_one, 2),
)  # fmt: skip


@pytest.mark.parametrize(("body", "operands"), WRITTEN)
def test_rms_norms(body: Body, operands: int) -> None:
    graph = applied(rules.norms, graph_of(body))
    (node,) = [n for n in graph.nodes if n.op != "add"]
    assert node.op == "norm"
    assert len(node.inputs) == operands
    assert node.attributes["rms"]
    assert node.attributes["epsilon"] == pytest.approx(EPSILON)


def of_another(g: Maker) -> Value:
    return g.add("multiply", g.given("y", B, S, D), reciprocal(g, g.given("x", B, S, D)))


def of_two(g: Maker) -> Value:
    x = g.given("x", B, S, D)
    return g.add("multiply", x, reciprocal(g, x, one=2))


def by_another_count(g: Maker) -> Value:
    x = g.given("x", B, S, D)
    return g.add("divide", x, root(g, x, D - 1))


def added(g: Maker) -> Value:
    x = g.given("x", B, S, D)
    return g.add("add", x, reciprocal(g, x))


@pytest.mark.parametrize("body", [of_another, of_two, by_another_count, added])
def test_what_is_no_norm(body: Body) -> None:
    assert_left_alone(rules.norms, body)


@pytest.mark.parametrize("part", ["root", "reciprocal"])
def test_norms_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, D)
        below = root(g, x)
        inverse = g.add("divide", g.number(1), below)
        return [g.add("multiply", x, inverse), {"root": below, "reciprocal": inverse}[part]]

    assert "norm" not in ops(applied(rules.norms, graph_of(body)))
