"""Activations written out as x times a gate: gelu with tanh, silu, hard swish."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Function,
    Maker,
    Pass,
    S,
    applied,
    assert_left_alone,
    assert_runs,
    graph_of,
    of_x,
    ops,
    titles,
)

from ftuner.core.dtype import FLOAT32, INT64
from ftuner.graph.algebra import apply, exp, log, scalar, sigmoid, tanh
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

ROOT = (2 / np.pi) ** 0.5


def of_y_and_x(function: Callable[[Value, Value], Value]) -> Body:
    return lambda g: function(g.given("y", B, S), g.given("x", B, S))


def one() -> Value:
    return scalar(1, FLOAT32)


# Gelu with tanh: cubes, and what becomes of them.


def by_power(x: Value) -> Value:
    return (x + x**3 * 0.044715) * ROOT


def by_products(x: Value) -> Value:
    return (x * x * x * 0.044715 + x) * ROOT


def by_squares(x: Value) -> Value:
    return x * ROOT * (x * 0.044715 * x + one())


def expanded(x: Value) -> Value:
    return x**3 * 0.035677408 + x * 0.7978845608


ORDERS: tuple[Callable[[Value, Value], Value], ...] = (
    lambda x, lifted: x * 0.5 * lifted, lambda x, lifted: x * (lifted * 0.5),
    lambda x, lifted: lifted * x * 0.5, lambda x, lifted: lifted * x / 2,
)  # fmt: skip


def gelu_of(argument: Function, order: int = 0) -> Function:
    return lambda x: ORDERS[order](x, tanh(argument(x)) + 1)


GELU = [gelu_of(a, n) for a in (by_power, by_products, by_squares, expanded) for n in range(4)]


@pytest.mark.parametrize("function", GELU)
def test_gelu_with_tanh(function: Function) -> None:
    assert ops(applied(rules.gelu_tanh, graph_of(of_x(function)))) == ["gelu_tanh"]


def test_gelu_of_a_sum() -> None:
    """The sum is no part of the polynomial."""
    graph = graph_of(of_x(lambda x: GELU[0](x + 2)))
    assert ops(applied(rules.gelu_tanh, graph)) == ["add", "gelu_tanh"]


NO_GELU: tuple[Body, ...] = (
    # Another cube, another root, another square, another half, another x, of a degree too high.
    of_x(gelu_of(lambda x: (x + x * x * x * 0.04) * ROOT)),
    of_x(gelu_of(lambda x: by_power(x) * 1.01)),
    of_x(gelu_of(lambda x: (x + x * x * 0.044715) * ROOT)),
    of_x(lambda x: x * 0.25 * (tanh(by_power(x)) + 1)),
    of_y_and_x(lambda y, x: y * 0.5 * (tanh(by_power(x)) + 1)),
    of_x(gelu_of(lambda x: by_power(x) * (x * x))),
    of_x(gelu_of(lambda x: by_power(x) ** 0.5)),
    of_x(gelu_of(lambda x: by_power(x) + 1e-3)),
)


@pytest.mark.parametrize("body", NO_GELU)
def test_what_is_no_gelu_with_tanh(body: Body) -> None:
    assert_left_alone(rules.gelu_tanh, body)


# Silu.


def silu(x: Value) -> Value:
    return x * sigmoid(x)


def swish(factor: float) -> Function:
    return lambda x: sigmoid(x * factor) * x


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (silu, ["silu"]),
        (lambda x: sigmoid(x) * x, ["silu"]),
        (swish(1.702), ["swish"]),
        (swish(-1.0), ["swish"]),
        (swish(1.0), ["silu"]),
        (lambda x: silu(x * 3.0), ["multiply", "silu"]),
        (lambda x: silu(silu(x)), ["silu", "silu"]),
    ],
)
def test_silu(function: Function, expected: list[str]) -> None:
    assert ops(applied(rules.silu, graph_of(of_x(function)))) == expected


NO_SILU: tuple[Body, ...] = (
    # Another x, one that broadcasts, a shifted one, none at all; a factor out of swish's range.
    of_y_and_x(lambda y, x: x * sigmoid(y)),
    lambda g: g.given("x", S) * sigmoid(g.given("y", B, S)),
    of_x(lambda x: x * sigmoid(x + 1.0)),
    of_x(lambda x: sigmoid(x) * sigmoid(x)),
    of_x(lambda x: x / sigmoid(x)),
    of_x(swish(1e-30)),
)


@pytest.mark.parametrize("body", NO_SILU)
def test_what_is_no_silu(body: Body) -> None:
    assert_left_alone(rules.silu, body)


def test_silu_whose_gate_somebody_reads() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S)
        gate = sigmoid(x)
        return [x * gate, gate]

    assert "silu" not in ops(applied(rules.silu, graph_of(body)))


# Hard swish.


def clipped(x: Value, high: float, low: float = 0) -> Value:
    return x.at_least(low).at_most(high)


def hard_sigmoid(x: Value) -> Value:
    return clipped(x * (1 / 6) + 0.5, 1)


HARD_SWISH: tuple[Function, ...] = (
    lambda x: x * clipped(x + 3, 6) / 6,
    lambda x: clipped(x + 3, 6) * x * (1 / 6),
    lambda x: x * ((x + 3).at_most(6).at_least(0) / 6),
    lambda x: x / 6 * clipped(x + 3, 6),
    lambda x: x * hard_sigmoid(x),
    lambda x: hard_sigmoid(x) * x,
    lambda x: x * clipped((x + 3) / 6, 1),
    lambda x: x * one().at_most(scalar(0, FLOAT32).at_least(x * (1 / 6) + 0.5)),
)


@pytest.mark.parametrize("function", HARD_SWISH)
def test_hard_swish(function: Function) -> None:
    graph = graph_of(of_x(function))
    found = applied(rules.hard_swish, graph)
    assert ops(found) == ["hard_swish"]
    x = np.linspace(-5, 5, 101, dtype=np.float32)[None]
    np.testing.assert_allclose(run_reference(found, [x]), run_reference(graph, [x]), 1e-5, 1e-6)


NO_HARD_SWISH: tuple[Body, ...] = (
    # Other bounds, another number, another slope (ONNX's own default), another x, no division.
    of_x(lambda x: x * clipped(x + 3, 5) / 6),
    of_x(lambda x: x * clipped(x * (1 / 6) + 0.5, 1, low=-1)),
    of_x(lambda x: x * clipped(x + 3, 6) * 0.2),
    of_x(lambda x: x * clipped(x * 0.2 + 0.5, 1)),
    of_y_and_x(lambda y, x: y * hard_sigmoid(x)),
    of_x(lambda x: x * clipped(x + 3, 6)),
    of_x(lambda x: x * (x * (1 / 6) + 0.5).at_least(0)),
    # What the bounds and the factor of a hard swish would be, were these no integers.
    lambda g: (lambda x: x * clipped(x + 7, 6))(g.given("x", B, S, dtype=INT64)),
)


@pytest.mark.parametrize("apply", [rules.gelu_tanh, rules.silu, rules.hard_swish])
def test_nodes_of_several_results(apply: Pass) -> None:
    graph = graph_of(lambda g: g.add_many("top_k", g.given("x", B, 9), axis=1, k=4, largest=True))
    assert ops(applied(apply, graph)) == ["top_k"]


@pytest.mark.parametrize("body", NO_HARD_SWISH)
def test_what_is_no_hard_swish(body: Body) -> None:
    assert_left_alone(rules.hard_swish, body)


# What cancels, or overflows, as it is written out.


def mish(x: Value) -> Value:
    return x * tanh(apply("softplus", x))


def erf(x: Value) -> Value:
    return apply("erf", x)


WRITTEN_OUT: tuple[tuple[Pass, Function, str], ...] = (
    (rules.expm1, lambda x: exp(x) + -1, "expm1"),
    (rules.expm1, lambda x: scalar(-1, FLOAT32) + exp(x), "expm1"),
    (rules.expm1, lambda x: exp(x) - 1, "expm1"),
    (rules.erfc, lambda x: 1 - erf(x), "erfc"),
    (rules.log_sigmoid, lambda x: log(sigmoid(x)), "negative softplus negative"),
    (rules.mish, mish, "mish"),
    (rules.mish, lambda x: tanh(apply("softplus", x)) * x, "mish"),
)


@pytest.mark.parametrize(("rule", "function", "name"), WRITTEN_OUT)
def test_functions_written_out(rule: Pass, function: Function, name: str) -> None:
    graph = graph_of(of_x(function))
    found = applied(rule, graph)
    assert ops(found) == name.split()
    x = np.linspace(-5, 5, 101, dtype=np.float32)[None]
    np.testing.assert_allclose(run_reference(found, [x]), run_reference(graph, [x]), 1e-4, 1e-6)


NOT_WRITTEN_OUT: tuple[tuple[Pass, Body], ...] = (
    (rules.expm1, of_x(lambda x: 1 - exp(x))),
    (rules.expm1, of_x(lambda x: exp(x) + -1.001)),
    (rules.expm1, of_x(lambda x: tanh(x) + -1)),
    # One that broadcasts.
    (rules.expm1, lambda g: exp(g.given("y")) - g.constant(np.ones((1, 1), np.float32))),
    (rules.erfc, of_x(lambda x: erf(x) - 1)),
    (rules.erfc, of_x(lambda x: erf(x) + 1)),
    (rules.log_sigmoid, of_x(lambda x: sigmoid(log(x)))),
    (rules.log_sigmoid, of_x(lambda x: log(sigmoid(x) + 1e-6))),
    (rules.mish, of_y_and_x(lambda y, x: y * tanh(apply("softplus", x)))),
    (rules.mish, of_x(lambda x: x * tanh(x))),
)


@pytest.mark.parametrize(("rule", "body"), NOT_WRITTEN_OUT)
def test_what_is_written_out_otherwise(rule: Pass, body: Body) -> None:
    assert_left_alone(rule, body)


def test_logarithms_of_sigmoids_that_are_rounded_to_zero_or_one(backend: CpuBackend) -> None:
    model = Model(optimised(graph_of(of_x(lambda x: log(sigmoid(x))))), backend)
    x = np.array([[-np.inf, -1e30, -200, -104, -90, -1, 0, 1, 17, 50, 87, np.inf, np.nan]])
    with np.errstate(invalid="ignore"):
        wanted = -np.logaddexp(0, -x).astype(np.float32)
    np.testing.assert_array_max_ulp(model.run({"x": np.float32(x)})[0], wanted, 4)


# In a product.

EPILOGUES: tuple[tuple[Pass, Function, str], ...] = (
    (rules.gelu_tanh, GELU[0], "gelu_tanh"),
    (rules.silu, silu, "silu"),
    (rules.silu, swish(1.702), "swish"),
    (rules.hard_swish, HARD_SWISH[0], "hard_swish"),
    (rules.mish, mish, "mish"),
)


@pytest.mark.parametrize(("rule", "function", "title"), EPILOGUES)
def test_activations_end_in_the_epilogue_of_a_product(
    rule: Pass, function: Function, title: str, backend: CpuBackend
) -> None:
    graph = graph_of(lambda g: function(g.linear(g.given("x", B, S, 6), 20)))
    found = applied(optimised, graph)
    assert titles(found) == [f"matmul + add + {title}"]
    assert_runs(found, backend, {"B": 2, "S": 5}, threads=(1,))


@pytest.mark.parametrize(("rule", "function", "title"), EPILOGUES)
def test_an_activation_again_changes_nothing(rule: Pass, function: Function, title: str) -> None:
    once = rule(graph_of(of_x(function)))
    assert ops(rule(once)) == ops(once)
