"""Patterns in the algebra: which spellings they match, and what a rule refuses."""

from collections.abc import Callable

import pytest
from tests.graph.graphs import B, Maker, S, applied, assert_left_alone, graph_of, ops

from ftuner.core.dtype import FLOAT64
from ftuner.errors import GraphError
from ftuner.graph.algebra import apply, exp, sigmoid, sin, sqrt, tanh
from ftuner.graph.ir import Node, Value
from ftuner.graph.rewrite.matching import alone, named
from ftuner.graph.rewrite.rule import Rule, rule, together

Function = Callable[[Value], Value]


def written(function: Function) -> Callable[[Maker], Value]:
    """The graph of a function of x, in the algebra."""

    def body(g: Maker) -> Value:
        with g.writing():
            return function(g.given("x", B, S))

    return body


@rule(lambda x: x / sqrt(x * x + 1.0))
def by_root(x: Value) -> Value:
    return x / sqrt(1.0 + x * x)


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
    (sine, lambda x: sin(exp(x) - 2)),
    (hidden, lambda x: tanh(exp(x))),
    (both, lambda x: sigmoid(x) + tanh(x)),
    (steep, lambda x: tanh(sin(x) / 0.25)),
]


@pytest.mark.parametrize("number", range(len(MATCHES)))
def test_spellings(number: int) -> None:
    chosen, function = MATCHES[number]
    graph = graph_of(written(function))
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
]


@pytest.mark.parametrize("number", range(len(LEFT)))
def test_what_does_not_match(number: int) -> None:
    chosen, function = LEFT[number]
    assert_left_alone(chosen, written(function))


def test_parts_that_something_else_reads() -> None:
    def body(g: Maker) -> list[Value]:
        with g.writing():
            power = exp(g.given("x", B, S))
            return [tanh(power), power]

    assert ops(applied(hidden, graph_of(body))) == ["exp", "tanh"]


def test_a_result_of_another_type_is_refused() -> None:
    @rule("exp")
    def wider(node: Node) -> Value:
        return node.inputs[0].cast(FLOAT64)

    graph = graph_of(written(exp))
    assert wider(graph) is graph


def test_the_first_of_two_rules_is_applied_and_equal_nodes_are_written_once() -> None:
    @rule(lambda x: exp(x))
    def first(x: Value) -> Value:
        return sqrt(exp(x + x))

    @rule("exp")
    def second(node: Node) -> Value:
        raise AssertionError

    graph = graph_of(written(lambda x: exp(x) * tanh(exp(x))))
    found = applied(together(first, second), graph)
    assert ops(found) == ["add", "exp", "sqrt", "tanh", "multiply"]


def test_patterns_have_no_shapes() -> None:
    with pytest.raises(GraphError, match="no shapes"):
        rule(lambda x: x.squeeze([0]))(lambda x: x)
