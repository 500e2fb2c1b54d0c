"""Chains of constants that are folded, and those that are not."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
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

from ftuner.core.dim import Dim
from ftuner.core.dtype import FLOAT64, INT32
from ftuner.graph.algebra import exp, floor, rint, sqrt
from ftuner.graph.ir import Value
from ftuner.graph.passes.affine import fold_affine
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend


def positive(g: Maker, *shape: int) -> Value:
    constant = g.weight(*shape).constant
    assert constant is not None
    return g.constant(np.abs(constant) + np.float32(0.5))


def batch_norm(g: Maker, x: Value, *shape: int) -> Value:
    """As it is written: a scale over a root."""
    mean, scale, bias = (g.weight(*shape) for _ in range(3))
    root = sqrt(positive(g, *shape) + 1e-5)
    centred = (x - mean) * scale
    return centred / root + bias


def x_of(g: Maker, *shape: Dim) -> Value:
    return g.given("x", *(shape or (B, S)))


def six(g: Maker, bias: bool = True) -> Value:
    """A product of six columns."""
    return g.linear(g.given("x", B, 4), 6, bias)


FOLDED: tuple[tuple[Body, Sequence[str]], ...] = (
    (lambda g: batch_norm(g, x_of(g, B, S, 6), 6), ["multiply", "add"]),
    (lambda g: batch_norm(g, x_of(g, B, 6, S, T), 6, 1, 1), ["multiply", "add"]),
    (lambda g: batch_norm(g, x_of(g, B, 6, S), 1, 6, 1), ["multiply", "add"]),
    (lambda g: batch_norm(g, g.linear(x_of(g, B, S, 4), 6), 6), ["matmul", "add"]),
    (lambda g: batch_norm(g, six(g, bias=False), 1, 6), ["matmul", "add"]),
    (lambda g: six(g) + g.weight(6), ["matmul", "add"]),
    (lambda g: six(g) / positive(g, 6), ["matmul", "add"]),
    (lambda g: six(g, bias=False) * 3, ["matmul"]),
    (lambda g: -six(g), ["matmul", "add"]),
    (lambda g: g.weight(6) - six(g), ["matmul", "add"]),
    (lambda g: x_of(g) + g.number(1) + 2, ["add"]),
    (lambda g: x_of(g) * 4 / 2, ["multiply"]),
    (lambda g: g.number(3) + (x_of(g) * 2 + 1), ["multiply", "add"]),
    (lambda g: x_of(g) * 4 / 4, []),
    # A scale of rows stays, the chains before and after it do not.
    (
        lambda g: (x_of(g, B, 3, 6) + g.weight(6) + g.weight(6)) * g.weight(3, 1) * 2,
        ["add", "multiply"],
    ),
)


@pytest.mark.parametrize(("body", "expected"), FOLDED)
def test_chains(body: Body, expected: Sequence[str]) -> None:
    graph = applied(fold_affine, graph_of(body))
    assert ops(graph) == list(expected)
    assert ops(fold_affine(graph)) == list(expected)


def test_chains_in_double_precision() -> None:
    def body(g: Maker) -> Value:
        first, factor, last = (g.constant(np.array([n, -n])) for n in (0.1, 0.2, 0.3))
        return (g.given("x", B, 2, dtype=FLOAT64) + first) * factor + last

    (_, add) = applied(fold_affine, graph_of(body)).nodes
    (shift,) = [v.constant for v in add.inputs if v.constant is not None]
    np.testing.assert_array_equal(shift, [0.1 * 0.2 + 0.3, 0.1 * 0.2 - 0.3])


LEFT: tuple[Body, ...] = (
    # As short as they can be.
    six,
    lambda g: x_of(g, B, 6) * g.weight(6) + g.weight(6),
    lambda g: (1 - x_of(g)) * -1e9,
    # Neither a number for each channel nor constants nor floats nor of the shape of x.
    lambda g: x_of(g, B, 3, 6) * g.weight(3, 6) + g.weight(3, 6) + g.weight(3, 6),
    lambda g: x_of(g, B, 6) + g.given("y", 6) + g.given("z", 6),
    lambda g: g.given("x", B, dtype=INT32) + 2 + 3,
    lambda g: x_of(g, B, 1) + g.weight(6) + g.weight(1),
    lambda g: 1 / (x_of(g) + 9),
    # Not finite, or lost.
    lambda g: x_of(g) * 1e30 * 1e30,
    lambda g: x_of(g) * 1e-30 * 1e-30,
    lambda g: x_of(g) * 2 / 0,
    # What is counted, and what counts.
    lambda g: floor(x_of(g) + 0.5 + 0.5),
    lambda g: rint(x_of(g)) + 0.5 + 0.5,
)


@pytest.mark.parametrize("body", LEFT)
def test_what_is_left_alone(body: Body) -> None:
    assert_left_alone(fold_affine, body)


def test_a_weight_that_somebody_else_reads_is_not_copied() -> None:
    def body(g: Maker) -> list[Value]:
        weight, x = g.weight(4, 4), g.given("x", B, 4)
        first = x @ weight
        return [first * 2, exp(x) @ weight]

    assert_left_alone(fold_affine, body)


def test_a_chain_whose_parts_somebody_reads() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.linear(g.given("x", B, 4), 6, bias=False)
        scaled = x * 2
        return [scaled + g.weight(6) + g.weight(6), scaled, x]

    assert ops(applied(fold_affine, graph_of(body))) == ["matmul", "multiply", "add"]


def test_one_chain_after_another() -> None:
    def body(g: Maker) -> Value:
        x = g.linear(g.given("x", B, 3, 4), 6) * g.weight(6)
        return x * g.weight(3, 1) + 2 + g.weight(3, 1)

    assert ops(applied(fold_affine, graph_of(body))) == ["matmul", "add", "multiply", "add"]


def test_a_batch_norm_of_a_product_is_a_product(backend: CpuBackend) -> None:
    graph = graph_of(lambda g: batch_norm(g, g.linear(x_of(g, B, S, 8), 20), 20).at_least(0))
    graph = applied(optimised, graph)
    assert titles(graph) == ["matmul + add + maximum"]
    assert_runs(graph, backend, {"B": 2, "S": 7}, threads=(1,))


def test_scaled_queries_are_merged_with_keys() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, 8)
        query = g.linear(x, 8) * 0.5
        return [query, g.linear(x, 8)]

    assert ops(applied(optimised, graph_of(body))) == ["matmul", "add", "slice", "slice"]


@pytest.mark.filterwarnings("error")
def test_infinite_constants_stay_without_a_warning() -> None:
    """Dropout of all elements scales by infinity."""
    assert_left_alone(fold_affine, lambda g: x_of(g) * np.inf * 2)
