"""Softmax written out, and what only looks like it."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, T, applied, assert_left_alone, graph_of, ops

from ftuner.core.dim import Dim
from ftuner.graph.algebra import apply, exp, log, sin
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.runtime.reference import run_reference

Inner = Callable[[Value], Value]


def of_x(function: Inner, *shape: Dim) -> Body:
    return lambda g: function(g.given("x", *(shape or (B, S))))


def shifted(x: Value, axis: int, keep: bool = True) -> Value:
    return x - x.reduce("maximum", (axis,), keep)


def shares(power: Value, axis: int = 1, keep: bool = True) -> Value:
    return power / power.reduce("sum", (axis,), keep)


def softmax(x: Value, axis: int, keep: bool = True) -> Value:
    return shares(exp(shifted(x, axis, keep)), axis, keep)


def plain(x: Value, axis: int = 1) -> Value:
    return apply("softmax", x, axis=axis, log=False)


def log_softmax(x: Value) -> Value:
    above = shifted(x, 2)
    return above - log(exp(above).reduce("sum", (2,)))


WRITTEN: tuple[tuple[Body, int, bool], ...] = (
    # What, its axis, whether it is the logarithm.
    (of_x(lambda x: softmax(x, 2), B, S, T), 2, False),
    (of_x(lambda x: softmax(x, 1), B, S, T), 1, False),
    (of_x(lambda x: softmax(x, 1), B, 7), 1, False),
    # The first axis need not be kept to broadcast.
    (of_x(lambda x: softmax(x, 0, keep=False), S, T), 0, False),
    (of_x(log_softmax, B, S, T), 2, True),
)


@pytest.mark.parametrize(("body", "axis", "log"), WRITTEN)
def test_softmax(body: Body, axis: int, log: bool) -> None:
    graph = applied(rules.softmax, graph_of(body))
    assert ops(graph) == ["softmax"]
    assert graph.nodes[0].attributes == {"axis": axis, "log": log}


def test_softmax_of_a_result() -> None:
    graph = graph_of(of_x(lambda x: exp(softmax(sin(x), 1))))
    assert ops(applied(rules.softmax, graph)) == ["sin", "softmax", "exp"]


without_the_maximum = of_x(lambda x: shares(exp(x)))


def over(power: Value, kind: str, *axes: int) -> Value:
    return power / power.reduce(kind, axes or (1,))


def over_two_axes(x: Value) -> Value:
    return over(exp(x - x.reduce("maximum", (1, 2))), "sum", 1, 2)


def the_other_way_around(x: Value) -> Value:
    power = exp(shifted(x, 1))
    return power.reduce("sum", (1,)) / power


def logarithm_of_the_powers(x: Value) -> Value:
    above = shifted(x, 1)
    return above - log(exp(above))


NO_SOFTMAX: dict[str, Body] = {
    "without the maximum": without_the_maximum,
    "less the minimum": of_x(lambda x: shares(exp(x - x.reduce("minimum", (1,))))),
    "less the maximum of another": lambda g: shares(
        exp(g.given("x", B, S) - g.given("y", B, S).reduce("maximum", (1,)))
    ),
    "over two axes": of_x(over_two_axes, B, S, T),
    "over the largest": of_x(lambda x: over(exp(shifted(x, 1)), "maximum")),
    "the other way around": of_x(the_other_way_around),
    "over one axis and another": of_x(lambda x: shares(exp(shifted(x, 1)), 2), B, S, T),
    # Not kept, the last axis broadcasts along the first.
    "of a square": of_x(lambda x: softmax(x, 1, keep=False), 3, 3),
    "logarithm of the powers": of_x(logarithm_of_the_powers),
}


@pytest.mark.parametrize("body", NO_SOFTMAX.values(), ids=NO_SOFTMAX)
def test_what_is_no_softmax(body: Body) -> None:
    assert_left_alone(rules.softmax, body)


@pytest.mark.parametrize(("divided", "factor"), [(1, 1), (32, 32), (5, 5), (4, 0.5), (1, 0.5)])
def test_softmax_of_what_is_above_the_largest(divided: float, factor: float) -> None:
    """As LayoutLMv3 has it: divided by 32, less the largest, times 32."""

    def function(x: Value) -> Value:
        above = shifted(x if divided == 1 else x / divided, 2)
        return plain(above if factor == 1 else above * factor, 2)

    found = applied(rules.plain_softmax, graph_of(of_x(function, B, S, T)))
    (softmax,) = (n for n in found.nodes if n.op == "softmax")
    assert "reduce" not in ops(found)
    if divided == factor:
        assert softmax.inputs == found.inputs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: plain(shifted(x, 0)),  # Above the largest along another axis.
        lambda x: plain(shifted(x, 1) * -2),
        lambda x: plain(shifted(x, 1) * 2),  # Elements that are multiplied first may overflow.
    ],
)
def test_softmax_that_is_not_plain(function: Inner) -> None:
    assert_left_alone(rules.plain_softmax, of_x(function))


@pytest.mark.parametrize("part", ["power", "total"])
def test_softmax_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        power = exp(shifted(g.given("x", B, S), 1))
        total = power.reduce("sum", (1,))
        return [power / total, {"power": power, "total": total}[part]]

    assert "softmax" not in ops(applied(rules.softmax, graph_of(body)))


def test_large_numbers_without_the_maximum_stay_as_written() -> None:
    """The sum overflows, and with it all of the result is zero."""
    graph = optimised(graph_of(without_the_maximum))
    x = np.full((1, 3), 88.5, np.float32)
    assert not np.any(run_reference(graph, [x])[0])


def test_attention_with_a_softmax_written_out() -> None:
    def body(g: Maker) -> Value:
        q, k, v = g.given("q", B, 2, S, 4), g.given("k", B, 2, 4, T), g.given("v", B, 2, T, 4)
        return softmax(q @ k * 0.5 + g.given("mask", S, T), 3) @ v

    assert ops(applied(optimised, graph_of(body))) == ["attention"]
