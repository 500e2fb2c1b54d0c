"""Graphs that no pass may leave behind are found."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.graph.graphs import B, S, graph_of, layer

from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.errors import FTunerError, GraphError, ShapeError
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.verify import expect_bound, free_symbols, verify

GRAPH = graph_of(lambda g: g.add("exp", g.add("negative", g.given("x", B, S))))


def value(name: str, *shape: int) -> Value:
    return Value(name, TensorType(FLOAT32, shape))


def test_graphs_are_valid() -> None:
    verify(GRAPH)
    verify(layer())
    x = value("x", 3)
    verify(Graph((x,), (("y", x),), ()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": GRAPH.nodes[::-1]}, "before it is made"),
        ({"inputs": ()}, "before it is made"),
        ({"nodes": GRAPH.nodes[:1]}, "output y0 is never made"),
        ({"nodes": (*GRAPH.nodes, GRAPH.nodes[0])}, "made twice"),
    ],
)
def test_values_that_are_not_made_once_before_they_are_read(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        verify(replace(GRAPH, **wrong))


def test_type_that_the_shape_rule_does_not_give() -> None:
    (first, second) = GRAPH.nodes
    for wrong in (TensorType(FLOAT64, (B, S)), TensorType(FLOAT32, (S, B))):
        output = Value("wrong", wrong)
        node = Node(first.op, first.inputs, (output,), first.attributes)
        other = Node(second.op, (output,), second.outputs, second.attributes)
        with pytest.raises(GraphError, match="should give"):
            verify(replace(GRAPH, nodes=(node, other)))


CONTRADICTIONS: tuple[tuple[str, tuple[Value, ...], Mapping[str, object]], ...] = (
    ("add", (value("x", 3), value("y", 4)), {}),
    ("matmul", (value("x", 3, 4), value("y", 3, 4)), {}),
    ("reshape", (value("x", 3, 4),), {"shape": (5, 2)}),
    ("transpose", (value("x", 3, 4),), {"perm": (0, 0)}),
)


@pytest.mark.parametrize(("op", "inputs", "attributes"), CONTRADICTIONS, ids=lambda x: str(x)[:9])
def test_operands_that_do_not_fit(
    op: str, inputs: tuple[Value, ...], attributes: Mapping[str, object]
) -> None:
    node = Node(op, inputs, (value("z", 3, 4),), attributes)
    with pytest.raises((GraphError, ShapeError)) as error:
        verify(Graph(inputs, (("z", node.output),), (node,)))
    assert isinstance(error.value, FTunerError)


def test_symbols_that_lose_their_node() -> None:
    graph = graph_of(lambda g: g.dims(g.add("non_zero", g.given("x", B, S), count="K").shape))
    free = free_symbols(graph)
    assert free == {"B", "S"}
    expect_bound(graph, free)
    with pytest.raises(GraphError, match="no node binds K"):
        expect_bound(replace(graph, nodes=graph.nodes[1:]), free)
