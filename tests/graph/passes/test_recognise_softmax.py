"""Softmax written out, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, T, applied, assert_left_alone, graph_of, ops

from ftuner.core.dim import Shape
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.runtime.reference import run_reference


def reduced(g: Maker, x: Value, kind: str, *axes: int, keep: bool = True) -> Value:
    result = g.add("reduce", x, kind=kind, axes=axes)
    shape: Shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return g.add("reshape", result, shape=shape) if keep else result


def shifted(g: Maker, x: Value, axis: int, keep: bool = True) -> Value:
    return g.add("subtract", x, reduced(g, x, "maximum", axis, keep=keep))


def softmax(g: Maker, x: Value, axis: int, keep: bool = True) -> Value:
    power = g.add("exp", shifted(g, x, axis, keep))
    return g.add("divide", power, reduced(g, power, "sum", axis, keep=keep))


def log_softmax(g: Maker, x: Value, axis: int) -> Value:
    above = shifted(g, x, axis)
    total = reduced(g, g.add("exp", above), "sum", axis)
    return g.add("subtract", above, g.add("log", total))


WRITTEN: tuple[tuple[Body, int, bool], ...] = (
    # What, its axis, whether it is the logarithm.
    (lambda g: softmax(g, g.given("x", B, S, T), 2), 2, False),
    (lambda g: softmax(g, g.given("x", B, S, T), 1), 1, False),
    (lambda g: softmax(g, g.given("x", B, 7), 1), 1, False),
    # The first axis need not be kept to broadcast.
    (lambda g: softmax(g, g.given("x", S, T), 0, keep=False), 0, False),
    (lambda g: log_softmax(g, g.given("x", B, S, T), 2), 2, True),
)


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_softmax(number: int) -> None:
    body, axis, log = WRITTEN[number]
    graph = applied(rules.softmax, graph_of(body))
    assert ops(graph) == ["softmax"]
    assert graph.nodes[0].attributes == {"axis": axis, "log": log}


def test_softmax_of_a_result() -> None:
    graph = graph_of(lambda g: g.add("exp", softmax(g, g.add("sin", g.given("x", B, S)), 1)))
    assert ops(applied(rules.softmax, graph)) == ["sin", "softmax", "exp"]


def without_the_maximum(g: Maker) -> Value:
    power = g.add("exp", g.given("x", B, S))
    return g.add("divide", power, reduced(g, power, "sum", 1))


def less_the_minimum(g: Maker) -> Value:
    x = g.given("x", B, S)
    power = g.add("exp", g.add("subtract", x, reduced(g, x, "minimum", 1)))
    return g.add("divide", power, reduced(g, power, "sum", 1))


def less_the_maximum_of_another(g: Maker) -> Value:
    x, y = g.given("x", B, S), g.given("y", B, S)
    power = g.add("exp", g.add("subtract", x, reduced(g, y, "maximum", 1)))
    return g.add("divide", power, reduced(g, power, "sum", 1))


def over_two_axes(g: Maker) -> Value:
    x = g.given("x", B, S, T)
    power = g.add("exp", g.add("subtract", x, reduced(g, x, "maximum", 1, 2)))
    return g.add("divide", power, reduced(g, power, "sum", 1, 2))


def over_one_axis_and_another(g: Maker) -> Value:
    power = g.add("exp", shifted(g, g.given("x", B, S, T), 1))
    return g.add("divide", power, reduced(g, power, "sum", 2))


def over_the_largest(g: Maker) -> Value:
    power = g.add("exp", shifted(g, g.given("x", B, S), 1))
    return g.add("divide", power, reduced(g, power, "maximum", 1))


def the_other_way_around(g: Maker) -> Value:
    power = g.add("exp", shifted(g, g.given("x", B, S), 1))
    return g.add("divide", reduced(g, power, "sum", 1), power)


def of_a_square(g: Maker) -> Value:
    """Not kept, the last axis broadcasts along the first."""
    x = g.given("x", 3, 3)
    power = g.add("exp", shifted(g, x, 1, keep=False))
    return g.add("divide", power, reduced(g, power, "sum", 1, keep=False))


def logarithm_of_the_powers(g: Maker) -> Value:
    above = shifted(g, g.given("x", B, S), 1)
    return g.add("subtract", above, g.add("log", g.add("exp", above)))


@pytest.mark.parametrize(
    "body",
    [without_the_maximum, less_the_minimum, less_the_maximum_of_another, over_two_axes,
     over_one_axis_and_another, over_the_largest, the_other_way_around, of_a_square,
     logarithm_of_the_powers],
)  # fmt: skip
def test_what_is_no_softmax(body: Body) -> None:
    assert_left_alone(rules.softmax, body)


@pytest.mark.parametrize(("divided", "factor"), [(1, 1), (32, 32), (5, 5), (4, 0.5), (1, 0.5)])
def test_softmax_of_what_is_above_the_largest(divided: float, factor: float) -> None:
    """As LayoutLMv3 has it: divided by 32, less the largest, times 32."""

    def body(g: Maker) -> Value:
        x = g.given("x", B, S, T)
        y = x if divided == 1 else g.add("divide", x, g.number(divided))
        y = shifted(g, y, 2)
        y = y if factor == 1 else g.add("multiply", y, g.number(factor))
        return g.add("softmax", y, axis=2, log=False)

    found = applied(rules.plain_softmax, graph_of(body))
    (softmax,) = (n for n in found.nodes if n.op == "softmax")
    assert "reduce" not in ops(found)
    if divided == factor:
        assert softmax.inputs == found.inputs


def above_along_another_axis(g: Maker) -> Value:
    return g.add("softmax", shifted(g, g.given("x", B, S), 0), axis=1, log=False)


def below_the_largest(g: Maker) -> Value:
    y = g.add("multiply", shifted(g, g.given("x", B, S), 1), g.number(-2))
    return g.add("softmax", y, axis=1, log=False)


def steeper(g: Maker) -> Value:
    """Elements that are multiplied first may overflow."""
    y = g.add("multiply", shifted(g, g.given("x", B, S), 1), g.number(2))
    return g.add("softmax", y, axis=1, log=False)


@pytest.mark.parametrize("body", [above_along_another_axis, below_the_largest, steeper])
def test_softmax_that_is_not_plain(body: Body) -> None:
    assert_left_alone(rules.plain_softmax, body)


@pytest.mark.parametrize("part", ["power", "total"])
def test_softmax_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        power = g.add("exp", shifted(g, g.given("x", B, S), 1))
        total = reduced(g, power, "sum", 1)
        return [g.add("divide", power, total), {"power": power, "total": total}[part]]

    assert "softmax" not in ops(applied(rules.softmax, graph_of(body)))


def test_large_numbers_without_the_maximum_stay_as_written() -> None:
    """The sum overflows, and with it all of the result is zero."""
    graph = optimised(graph_of(without_the_maximum))
    x = np.full((1, 3), 88.5, np.float32)
    assert not np.any(run_reference(graph, [x])[0])


def test_attention_with_a_softmax_written_out() -> None:
    def body(g: Maker) -> Value:
        q, k, v = g.given("q", B, 2, S, 4), g.given("k", B, 2, 4, T), g.given("v", B, 2, T, 4)
        scores = g.add("multiply", g.add("matmul", q, k), g.number(0.5))
        masked = g.add("add", scores, g.given("mask", S, T))
        return g.add("matmul", softmax(g, masked, 3), v)

    assert ops(applied(optimised, graph_of(body))) == ["attention"]
