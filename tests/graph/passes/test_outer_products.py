"""Products over one element: what becomes of them, and that they end in what reads them."""

from __future__ import annotations

import pytest
from tests.graph.graphs import (
    B,
    Maker,
    S,
    T,
    applied,
    assert_left_alone,
    assert_runs,
    graph_of,
    ops,
    titles,
)

from ftuner.core.dim import Shape
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.graph.ir import Value
from ftuner.graph.passes.outer import write_outer_products
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.session import Session


@pytest.mark.parametrize(
    ("x", "y"),
    [((S, 1), (1, T)), ((B, S, 1), (1, T)), ((S, 1), (B, 1, T)), ((B, 3, S, 1), (B, 1, 1, T))],
)
def test_multiplied(x: Shape, y: Shape) -> None:
    graph = graph_of(lambda g: g.add("matmul", g.given("x", *x), g.given("y", *y)))
    assert ops(applied(write_outer_products, graph)) == ["multiply"]


def angles(g: Maker) -> Value:
    at = g.add("cast", g.given("at", B, S, dtype=INT64), to=FLOAT32)
    return g.add("matmul", g.add("reshape", at, shape=(B, S, 1)), g.weight(1, 4))


def test_angles_end_in_their_cosines(session: Session) -> None:
    graph = optimised(graph_of(lambda g: g.add("cos", angles(g))))
    (title,) = titles(graph)
    assert title.endswith("multiply + cos")
    assert_runs(graph, session, {"B": 2, "S": 5}, {"B": 1, "S": 1}, {"B": 0, "S": 3})


def test_longer_axes_are_left_alone() -> None:
    assert_left_alone(
        write_outer_products, lambda g: g.add("matmul", g.given("x", S, T), g.given("y", T, 3))
    )


def test_axes_that_may_be_one_are_left_alone() -> None:
    maker = Maker()
    graph = maker.made(maker.add("matmul", maker.given("x", S, T), maker.given("y", 1, 3)))
    assert ops(write_outer_products(graph)) == ["matmul"]
