"""Activations written out as x times a gate: gelu with tanh, silu, hard swish."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Maker,
    Pass,
    S,
    applied,
    assert_left_alone,
    assert_runs,
    graph_of,
    ops,
    titles,
)

from ftuner.core.dtype import INT64
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.reference import run_reference

Function = Callable[[Maker, Value], Value]
ROOT = (2 / np.pi) ** 0.5


def of_x(function: Function) -> Body:
    return lambda g: function(g, g.given("x", B, S))


def times(g: Maker, x: Value, y: Value | float) -> Value:
    return g.add("multiply", x, g.number(y) if isinstance(y, int | float) else y)


def plus(g: Maker, x: Value, y: Value | float) -> Value:
    return g.add("add", x, g.number(y) if isinstance(y, int | float) else y)


# Gelu with tanh: cubes, and what becomes of them.


def by_power(g: Maker, x: Value) -> Value:
    cube = g.add("power", x, g.number(3))
    return times(g, plus(g, x, times(g, cube, 0.044715)), ROOT)


def by_products(g: Maker, x: Value) -> Value:
    cube = times(g, times(g, x, x), x)
    return times(g, plus(g, times(g, cube, 0.044715), x), ROOT)


def by_squares(g: Maker, x: Value) -> Value:
    factor = plus(g, times(g, times(g, x, 0.044715), x), 1)
    return times(g, times(g, x, ROOT), factor)


def expanded(g: Maker, x: Value) -> Value:
    cube = g.add("power", x, g.number(3))
    return plus(g, times(g, cube, 0.035677408), times(g, x, 0.7978845608))


def gelu_of(argument: Function, order: int = 0) -> Function:
    def function(g: Maker, x: Value) -> Value:
        lifted = plus(g, g.add("tanh", argument(g, x)), 1)
        if order == 0:
            return times(g, times(g, x, 0.5), lifted)
        if order == 1:
            return times(g, x, times(g, lifted, 0.5))
        if order == 2:
            return times(g, times(g, lifted, x), 0.5)
        return g.add("divide", g.add("multiply", lifted, x), g.number(2))

    return function


GELU = [gelu_of(a, n) for a in (by_power, by_products, by_squares, expanded) for n in range(4)]


@pytest.mark.parametrize("number", range(len(GELU)))
def test_gelu_with_tanh(number: int) -> None:
    assert ops(applied(rules.gelu_tanh, graph_of(of_x(GELU[number])))) == ["gelu_tanh"]


def test_gelu_of_a_sum() -> None:
    """The sum is no part of the polynomial."""
    graph = graph_of(lambda g: GELU[0](g, g.add("add", g.given("x", B, S), g.number(2))))
    assert ops(applied(rules.gelu_tanh, graph)) == ["add", "gelu_tanh"]


NO_GELU: tuple[Body, ...] = (
    # Another cube, another root, another square, another half, another x, of a degree too high.
    of_x(gelu_of(lambda g, x: times(g, plus(g, x, times(
        g, times(g, times(g, x, x), x), 0.04)), ROOT))),
    of_x(gelu_of(lambda g, x: times(g, by_power(g, x), 1.01))),
    of_x(gelu_of(lambda g, x: times(g, plus(g, x, times(g, times(g, x, x), 0.044715)), ROOT))),
    of_x(lambda g, x: times(g, times(g, x, 0.25), plus(g, g.add("tanh", by_power(g, x)), 1))),
    lambda g: times(g, times(g, g.given("y", B, S), 0.5), plus(
        g, g.add("tanh", by_power(g, g.given("x", B, S))), 1)),
    of_x(gelu_of(lambda g, x: times(g, by_power(g, x), times(g, x, x)))),
    of_x(gelu_of(lambda g, x: g.add("power", by_power(g, x), g.number(0.5)))),
    of_x(gelu_of(lambda g, x: plus(g, by_power(g, x), 1e-3))),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(NO_GELU)))
def test_what_is_no_gelu_with_tanh(number: int) -> None:
    assert_left_alone(rules.gelu_tanh, NO_GELU[number])


# Silu.


def silu(g: Maker, x: Value) -> Value:
    return times(g, x, g.add("sigmoid", x))


def swish(factor: float) -> Function:
    return lambda g, x: times(g, g.add("sigmoid", times(g, x, factor)), x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (silu, ["silu"]),
        (lambda g, x: times(g, g.add("sigmoid", x), x), ["silu"]),
        (swish(1.702), ["swish"]),
        (swish(-1.0), ["swish"]),
        (swish(1.0), ["silu"]),
        (lambda g, x: silu(g, times(g, x, 3.0)), ["multiply", "silu"]),
        (lambda g, x: silu(g, silu(g, x)), ["silu", "silu"]),
    ],
)
def test_silu(function: Function, expected: list[str]) -> None:
    assert ops(applied(rules.silu, graph_of(of_x(function)))) == expected


NO_SILU: tuple[Body, ...] = (
    # Another x, one that broadcasts, a shifted one, none at all; a factor out of swish's range.
    lambda g: times(g, g.given("x", B, S), g.add("sigmoid", g.given("y", B, S))),
    lambda g: times(g, g.given("x", S), g.add("sigmoid", g.given("y", B, S))),
    of_x(lambda g, x: times(g, x, g.add("sigmoid", plus(g, x, 1.0)))),
    of_x(lambda g, x: times(g, g.add("sigmoid", x), g.add("sigmoid", x))),
    of_x(lambda g, x: g.add("divide", x, g.add("sigmoid", x))),
    of_x(swish(1e-30)),
)


@pytest.mark.parametrize("number", range(len(NO_SILU)))
def test_what_is_no_silu(number: int) -> None:
    assert_left_alone(rules.silu, NO_SILU[number])


def test_silu_whose_gate_somebody_reads() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S)
        gate = g.add("sigmoid", x)
        return [times(g, x, gate), gate]

    assert "silu" not in ops(applied(rules.silu, graph_of(body)))


# Hard swish.


def clipped(g: Maker, x: Value, high: float, low: float = 0, lower_first: bool = True) -> Value:
    order = (("maximum", low), ("minimum", high))
    for op, bound in order if lower_first else order[::-1]:
        x = g.add(op, x, g.number(bound))
    return x


def relu6(g: Maker, x: Value, lower_first: bool = True) -> Value:
    return clipped(g, plus(g, x, 3), 6, lower_first=lower_first)


def hard_sigmoid(g: Maker, x: Value) -> Value:
    return clipped(g, plus(g, times(g, x, 1 / 6), 0.5), 1)


HARD_SWISH: tuple[Function, ...] = (
    lambda g, x: g.add("divide", times(g, x, relu6(g, x)), g.number(6)),
    lambda g, x: times(g, times(g, relu6(g, x), x), 1 / 6),
    lambda g, x: times(g, x, g.add("divide", relu6(g, x, lower_first=False), g.number(6))),
    lambda g, x: times(g, g.add("divide", x, g.number(6)), relu6(g, x)),
    lambda g, x: times(g, x, hard_sigmoid(g, x)),
    lambda g, x: times(g, hard_sigmoid(g, x), x),
    lambda g, x: times(g, x, clipped(g, g.add("divide", plus(g, x, 3), g.number(6)), 1)),
    lambda g, x: times(g, x, g.add("minimum", g.number(1), g.add(
        "maximum", g.number(0), plus(g, times(g, x, 1 / 6), 0.5)))),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(HARD_SWISH)))
def test_hard_swish(number: int) -> None:
    graph = graph_of(of_x(HARD_SWISH[number]))
    found = applied(rules.hard_swish, graph)
    assert ops(found) == ["hard_swish"]
    x = np.linspace(-5, 5, 101, dtype=np.float32)[None]
    np.testing.assert_allclose(run_reference(found, [x]), run_reference(graph, [x]), 1e-5, 1e-6)


def of_integers(g: Maker, x: Value) -> Value:
    """What the bounds and the factor of a hard swish would be, were these no integers."""
    seven, low, high = (g.constant(np.int64(n)) for n in (7, 0, 6))
    limited = g.add("minimum", g.add("maximum", g.add("add", x, seven), low), high)
    return g.add("multiply", x, limited)


NO_HARD_SWISH: tuple[Body, ...] = (
    # Other bounds, another number, another slope (ONNX's own default), another x, no division.
    of_x(lambda g, x: g.add("divide", times(g, x, clipped(g, plus(g, x, 3), 5)), g.number(6))),
    of_x(lambda g, x: times(g, x, clipped(g, plus(g, times(g, x, 1 / 6), 0.5), 1, low=-1))),
    of_x(lambda g, x: times(g, times(g, x, relu6(g, x)), 0.2)),
    of_x(lambda g, x: times(g, x, clipped(g, plus(g, times(g, x, 0.2), 0.5), 1))),
    lambda g: times(g, g.given("y", B, S), hard_sigmoid(g, g.given("x", B, S))),
    of_x(lambda g, x: times(g, x, relu6(g, x))),
    of_x(lambda g, x: times(g, x, g.add("maximum", plus(g, times(g, x, 1 / 6), 0.5), g.number(0)))),
    # Integers.
    lambda g: of_integers(g, g.given("x", B, S, dtype=INT64)),
)


@pytest.mark.parametrize("apply", [rules.gelu_tanh, rules.silu, rules.hard_swish])
def test_nodes_of_several_results(apply: Pass) -> None:
    graph = graph_of(lambda g: g.add_many("top_k", g.given("x", B, 9), axis=1, k=4, largest=True))
    assert ops(applied(apply, graph)) == ["top_k"]


@pytest.mark.parametrize("number", range(len(NO_HARD_SWISH)))
def test_what_is_no_hard_swish(number: int) -> None:
    assert_left_alone(rules.hard_swish, NO_HARD_SWISH[number])


# What cancels, or overflows, as it is written out.


def mish(g: Maker, x: Value) -> Value:
    return times(g, x, g.add("tanh", g.add("softplus", x)))


WRITTEN_OUT: tuple[tuple[Pass, Function, str], ...] = (
    (rules.expm1, lambda g, x: plus(g, g.add("exp", x), -1), "expm1"),
    (rules.expm1, lambda g, x: g.add("add", g.number(-1), g.add("exp", x)), "expm1"),
    (rules.expm1, lambda g, x: g.add("subtract", g.add("exp", x), g.number(1)), "expm1"),
    (rules.erfc, lambda g, x: g.add("subtract", g.number(1), g.add("erf", x)), "erfc"),
    (rules.mish, mish, "mish"),
    (rules.mish, lambda g, x: times(g, g.add("tanh", g.add("softplus", x)), x), "mish"),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRITTEN_OUT)))
def test_functions_written_out(number: int) -> None:
    apply, function, name = WRITTEN_OUT[number]
    graph = graph_of(of_x(function))
    found = applied(apply, graph)
    assert ops(found) == [name]
    x = np.linspace(-5, 5, 101, dtype=np.float32)[None]
    np.testing.assert_allclose(run_reference(found, [x]), run_reference(graph, [x]), 1e-4, 1e-6)


NOT_WRITTEN_OUT: tuple[tuple[Pass, Body], ...] = (
    (rules.expm1, of_x(lambda g, x: g.add("subtract", g.number(1), g.add("exp", x)))),
    (rules.expm1, of_x(lambda g, x: plus(g, g.add("exp", x), -1.001))),
    (rules.expm1, of_x(lambda g, x: plus(g, g.add("tanh", x), -1))),
    # One that broadcasts.
    (rules.expm1, of_x(lambda g, x: g.add(
        "subtract", g.add("exp", g.given("y")), g.constant(np.ones((1, 1), np.float32))))),
    (rules.erfc, of_x(lambda g, x: g.add("subtract", g.add("erf", x), g.number(1)))),
    (rules.erfc, of_x(lambda g, x: plus(g, g.add("erf", x), 1))),
    (rules.mish, lambda g: times(
        g, g.given("y", B, S), g.add("tanh", g.add("softplus", g.given("x", B, S))))),
    (rules.mish, of_x(lambda g, x: times(g, x, g.add("tanh", x)))),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(NOT_WRITTEN_OUT)))
def test_what_is_written_out_otherwise(number: int) -> None:
    assert_left_alone(*NOT_WRITTEN_OUT[number])


# In a product.

EPILOGUES: tuple[tuple[Pass, Function, str], ...] = (
    (rules.gelu_tanh, GELU[0], "gelu_tanh"),
    (rules.silu, silu, "silu"),
    (rules.silu, swish(1.702), "swish"),
    (rules.hard_swish, HARD_SWISH[0], "hard_swish"),
    (rules.mish, mish, "mish"),
)


@pytest.mark.parametrize("number", range(len(EPILOGUES)))
def test_activations_end_in_the_epilogue_of_a_product(number: int, backend: CpuBackend) -> None:
    _, function, title = EPILOGUES[number]
    graph = graph_of(lambda g: function(g, g.linear(g.given("x", B, S, 6), 20)))
    found = applied(optimised, graph)
    assert titles(found) == [f"matmul + add + {title}"]
    assert_runs(found, backend, {"B": 2, "S": 5}, threads=(1,))


@pytest.mark.parametrize("number", range(len(EPILOGUES)))
def test_an_activation_again_changes_nothing(number: int) -> None:
    apply, function, _ = EPILOGUES[number]
    once = apply(graph_of(of_x(function)))
    assert ops(apply(once)) == ops(once)
