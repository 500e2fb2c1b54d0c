"""Products over one element: what becomes of them, and that they end in what reads them."""

import pytest
from tests.graph.graphs import (
    B,
    Maker,
    S,
    T,
    applied,
    assert_close,
    assert_left_alone,
    assert_runs,
    graph_of,
    inputs_of,
    ops,
    reference,
    titles,
)

from ftuner.core.dim import Shape
from ftuner.core.dtype import FLOAT32, INT64, DType
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [FLOAT32, INT64], ids=str)
@pytest.mark.parametrize(
    ("x", "y"),
    [((S, 1), (1, T)), ((B, S, 1), (1, T)), ((S, 1), (B, 1, T)), ((B, 3, S, 1), (B, 1, 1, T))],
)
def test_multiplied(x: Shape, y: Shape, dtype: DType, backend: CpuBackend) -> None:
    graph = graph_of(
        lambda g: g.add("matmul", g.given("x", *x, dtype=dtype), g.given("y", *y, dtype=dtype))
    )
    found = applied(rules.outer_product, graph)
    assert ops(found) == ["multiply"]
    model = Model(found, backend)
    for bindings in ({"B": 2, "S": 5, "T": 3}, {"B": 1, "S": 1, "T": 17}, {"B": 3, "S": 0, "T": 4}):
        inputs = inputs_of(graph, bindings)
        assert_close(model.run(inputs), reference(graph, inputs))


def angles(g: Maker) -> Value:
    at = g.add("cast", g.given("at", B, S, dtype=INT64), to=FLOAT32)
    return g.add("matmul", g.add("reshape", at, shape=(B, S, 1)), g.weight(1, 4))


def test_angles_end_in_their_cosines(backend: CpuBackend) -> None:
    graph = optimised(graph_of(lambda g: g.add("cos", angles(g))))
    (title,) = titles(graph)
    assert title.endswith("multiply + cos")
    assert_runs(graph, backend, {"B": 2, "S": 5}, {"B": 1, "S": 1}, {"B": 0, "S": 3})


def test_longer_axes_are_left_alone() -> None:
    assert_left_alone(
        rules.outer_product, lambda g: g.add("matmul", g.given("x", S, T), g.given("y", T, 3))
    )


def test_axes_that_may_be_one_are_left_alone() -> None:
    maker = Maker()
    graph = maker.made(maker.add("matmul", maker.given("x", S, T), maker.given("y", 1, 3)))
    assert ops(rules.outer_product(graph)) == ["matmul"]
