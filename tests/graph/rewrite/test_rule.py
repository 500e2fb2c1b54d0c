"""Patterns in the algebra: which spellings they match, and what a rule refuses. Graphs that are
rewritten: where new nodes come, and what is left out."""

import pytest
from tests.graph.graphs import (
    B,
    Function,
    Maker,
    S,
    applied,
    assert_left_alone,
    graph_of,
    of_x,
    ops,
)

from ftuner.core.dtype import FLOAT64
from ftuner.errors import GraphError
from ftuner.graph.algebra import apply, exp, sigmoid, sin, sqrt, tanh
from ftuner.graph.ir import Graph, Node, Value, writing_to
from ftuner.graph.rewrite.matching import alone, named
from ftuner.graph.rewrite.rule import Rewriting, Rule, rule, together


@rule(lambda x: x / sqrt(x * x + 1.0))
def by_root(x: Value) -> Value:
    return x / sqrt(1.0 + x * x)


@rule(lambda x: tanh(x * x))
def squared(x):  # type: ignore[no-untyped-def]
    """A parameter without a type is a value."""
    return tanh(x * x) * 1.0


@rule(lambda x: sin(exp(x) - 2))
def sine(x: Value) -> Value:
    return sin(apply("expm1", x) - 1)


@rule(lambda x: tanh(alone(exp(x))))
def hidden(x: Value) -> Value:
    return -apply("negative", tanh(exp(x)))


@rule(lambda x, y: tanh(x) + named(y, sigmoid(x)))
def both(x: Value, y: Value) -> Value:
    return y + tanh(x) * 1.0


@rule(lambda x, factor: tanh(factor * sin(x)))
def steep(x: Value, factor: float) -> Value | None:
    return tanh(sin(x) * (factor / 2) * 2.0) if factor > 2 else None


MATCHES: list[tuple[Rule, Function]] = [
    (by_root, lambda x: x / sqrt(x * x + 1)),
    (by_root, lambda x: (1 / sqrt(1 + x**2)) * x),
    (by_root, lambda x: x * (1 / sqrt(x * x + 1.000001))),
    (squared, lambda x: tanh(x**2)),
    (sine, lambda x: sin(exp(x) - 2)),
    (hidden, lambda x: tanh(exp(x))),
    (both, lambda x: sigmoid(x) + tanh(x)),
    (steep, lambda x: tanh(sin(x) / 0.25)),
]


@pytest.mark.parametrize(("chosen", "function"), MATCHES)
def test_spellings(chosen: Rule, function: Function) -> None:
    graph = graph_of(of_x(function))
    found = applied(chosen, graph)
    assert found is not graph
    assert found.nodes != graph.nodes


LEFT: list[tuple[Rule, Function]] = [
    (by_root, lambda x: x / sqrt(x * x + 1.1)),
    (by_root, lambda x: x / sqrt(x * x * x + 1)),
    (by_root, lambda x: sin(x) / sqrt(x * x + 1)),
    # Integers in a pattern are exact.
    (sine, lambda x: sin(exp(x) - 2.000001)),
    (both, lambda x: sigmoid(x + 1) + tanh(x)),
    (steep, lambda x: tanh(sin(x) * 2)),
    (squared, lambda x: tanh(x**2.0000002)),
]


@pytest.mark.parametrize(("chosen", "function"), LEFT)
def test_what_does_not_match(chosen: Rule, function: Function) -> None:
    assert_left_alone(chosen, of_x(function))


def test_parts_that_something_else_reads() -> None:
    def body(g: Maker) -> list[Value]:
        power = exp(g.given("x", B, S))
        return [tanh(power), power]

    assert ops(applied(hidden, graph_of(body))) == ["exp", "tanh"]


def test_a_result_of_another_type_is_refused() -> None:
    @rule("exp")
    def wider(node: Node) -> Value:
        return node.inputs[0].cast(FLOAT64)

    graph = graph_of(of_x(exp))
    assert wider(graph) is graph


def test_the_first_of_two_rules_is_applied_and_equal_nodes_are_written_once() -> None:
    @rule(lambda x: exp(x))
    def first(x: Value) -> Value:
        return sqrt(exp(x + x))

    @rule("exp")
    def second(node: Node) -> Value:
        raise AssertionError

    graph = graph_of(of_x(lambda x: exp(x) * tanh(exp(x))))
    found = applied(together(first, second), graph)
    assert ops(found) == ["add", "exp", "sqrt", "tanh", "multiply"]


def test_patterns_have_no_shapes() -> None:
    with pytest.raises(GraphError, match="no shapes"):
        rule(lambda x: x.squeeze([0]))(lambda x: x)


def sorted_rows(*read: int) -> Graph:
    """The largest elements of rows, and where they are: what is read of both."""
    g = Maker()
    results = g.add_many("top_k", g.given("x", B, 4), axis=1, k=2, largest=True)
    return g.made(*(results[number] for number in read))


def test_a_graph_of_which_nothing_is_replaced_is_the_same() -> None:
    graph = sorted_rows(0, 1)
    assert Rewriting(graph).rewritten() is graph


def test_a_node_with_several_results_becomes_another() -> None:
    """Which is written once."""

    def negated(graph: Graph) -> Graph:
        new, (node,) = Rewriting(graph), graph.nodes
        with writing_to(new):
            smallest = new.add_many(
                "top_k", -node.inputs[0], **{**node.attributes, "largest": False}
            )
            new.same |= {node.outputs[0]: -smallest[0], node.outputs[1]: smallest[1]}
        return new.rewritten()

    assert ops(applied(negated, sorted_rows(1, 0))) == ["negative", "top_k", "negative"]
    assert ops(applied(negated, sorted_rows(1))) == ["negative", "top_k"]


def test_one_of_the_results_of_a_node_is_replaced() -> None:
    def last(graph: Graph) -> Graph:
        new, (node, *_) = Rewriting(graph), graph.nodes
        with writing_to(new):
            new.same[node.outputs[1]] = new.add_many("top_k", *node.inputs, **node.attributes)[1]
        return new.rewritten()

    assert ops(applied(last, sorted_rows(0, 1))) == ["top_k", "top_k"]
    assert ops(applied(last, sorted_rows(1))) == ["top_k"]


def test_outputs_are_replaced_alone() -> None:
    """Nodes still read the value itself."""
    g = Maker()
    x = g.given("x", B, S)
    graph = g.made(x, g.add("negative", x))
    new = Rewriting(graph)
    with writing_to(new):
        new.outputs = tuple((name, exp(value)) for name, value in graph.outputs)
    negative, *others = new.rewritten().nodes
    assert negative.inputs == (x,)
    assert [node.op for node in others] == ["exp", "exp"]
