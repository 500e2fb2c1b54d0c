"""Chains of constants that are folded, and those that are not."""

from __future__ import annotations

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

from ftuner.core.dtype import FLOAT64, INT32
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
    root = g.add("sqrt", g.add("add", positive(g, *shape), g.number(1e-5)))
    centred = g.add("multiply", g.add("subtract", x, mean), scale)
    return g.add("add", g.add("divide", centred, root), bias)


def chain(g: Maker, x: Value, *links: tuple[str, Value]) -> Value:
    for op, other in links:
        x = g.add(op, x, other)
    return x


FOLDED: tuple[tuple[Body, Sequence[str]], ...] = (
    (lambda g: batch_norm(g, g.given("x", B, S, 6), 6), ["multiply", "add"]),
    (lambda g: batch_norm(g, g.given("x", B, 6, S, T), 6, 1, 1), ["multiply", "add"]),
    (lambda g: batch_norm(g, g.given("x", B, 6, S), 1, 6, 1), ["multiply", "add"]),
    (lambda g: batch_norm(g, g.linear(g.given("x", B, S, 4), 6), 6), ["matmul", "add"]),
    (lambda g: batch_norm(g, g.linear(g.given("x", B, 4), 6, bias=False), 1, 6), ["matmul", "add"]),
    (lambda g: chain(g, g.linear(g.given("x", B, 4), 6), ("add", g.weight(6))), ["matmul", "add"]),
    (lambda g: chain(g, g.linear(g.given("x", B, 4), 6), ("divide", positive(g, 6))),
     ["matmul", "add"]),
    (lambda g: chain(g, g.linear(g.given("x", B, 4), 6, bias=False), ("multiply", g.number(3))),
     ["matmul"]),
    (lambda g: g.add("negative", g.linear(g.given("x", B, 4), 6)), ["matmul", "add"]),
    (lambda g: g.add("subtract", g.weight(6), g.linear(g.given("x", B, 4), 6)), ["matmul", "add"]),
    (lambda g: chain(g, g.given("x", B, S), ("add", g.number(1)), ("add", g.number(2))), ["add"]),
    (lambda g: chain(g, g.given("x", B, S), ("multiply", g.number(4)), ("divide", g.number(2))),
     ["multiply"]),
    (lambda g: g.add("add", g.number(3), chain(
        g, g.given("x", B, S), ("multiply", g.number(2)), ("add", g.number(1)))),
     ["multiply", "add"]),
    (lambda g: chain(g, g.given("x", B, S), ("multiply", g.number(4)), ("divide", g.number(4))),
     []),
    # A scale of rows stays, the chains before and after it do not.
    (lambda g: chain(g, g.given("x", B, 3, 6), ("add", g.weight(6)), ("add", g.weight(6)),
                     ("multiply", g.weight(3, 1)), ("multiply", g.number(2))),
     ["add", "multiply"]),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(FOLDED)))
def test_chains(number: int) -> None:
    body, expected = FOLDED[number]
    graph = applied(fold_affine, graph_of(body))
    assert ops(graph) == list(expected)
    assert ops(fold_affine(graph)) == list(expected)


def test_chains_in_double_precision() -> None:
    def body(g: Maker) -> Value:
        numbers = [g.constant(np.array([n, -n])) for n in (0.1, 0.2, 0.3)]
        links = zip(("add", "multiply", "add"), numbers, strict=True)
        return chain(g, g.given("x", B, 2, dtype=FLOAT64), *links)

    (_, add) = applied(fold_affine, graph_of(body)).nodes
    (shift,) = [v.constant for v in add.inputs if v.constant is not None]
    np.testing.assert_array_equal(shift, [0.1 * 0.2 + 0.3, 0.1 * 0.2 - 0.3])


LEFT: tuple[Body, ...] = (
    # As short as they can be.
    lambda g: g.linear(g.given("x", B, 4), 6),
    lambda g: chain(g, g.given("x", B, 6), ("multiply", g.weight(6)), ("add", g.weight(6))),
    lambda g: g.add("multiply", g.add("subtract", g.number(1), g.given("x", B, S)), g.number(-1e9)),
    # Neither a number for each channel nor constants nor floats nor of the shape of x.
    lambda g: chain(g, g.given("x", B, 3, 6), ("multiply", g.weight(3, 6)), ("add", g.weight(3, 6)),
                    ("add", g.weight(3, 6))),
    lambda g: chain(g, g.given("x", B, 6), ("add", g.given("y", 6)), ("add", g.given("z", 6))),
    lambda g: chain(g, g.given("x", B, dtype=INT32), ("add", g.constant(np.int32(2))),
                    ("add", g.constant(np.int32(3)))),
    lambda g: chain(g, g.given("x", B, 1), ("add", g.weight(6)), ("add", g.weight(1))),
    lambda g: g.add("divide", g.number(1), g.add("add", g.given("x", B, S), g.number(9))),
    # Not finite, or lost.
    lambda g: chain(g, g.given("x", B, S), ("multiply", g.number(1e30)),
                    ("multiply", g.number(1e30))),
    lambda g: chain(g, g.given("x", B, S), ("multiply", g.number(1e-30)),
                    ("multiply", g.number(1e-30))),
    lambda g: chain(g, g.given("x", B, S), ("multiply", g.number(2)), ("divide", g.number(0))),
    # What is counted, and what counts.
    lambda g: g.add("floor", chain(g, g.given("x", B, S), ("add", g.number(0.5)),
                                   ("add", g.number(0.5)))),
    lambda g: chain(g, g.add("rint", g.given("x", B, S)), ("add", g.number(0.5)),
                    ("add", g.number(0.5))),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(LEFT)))
def test_what_is_left_alone(number: int) -> None:
    assert_left_alone(fold_affine, LEFT[number])


def test_a_weight_that_somebody_else_reads_is_not_copied() -> None:
    def body(g: Maker) -> list[Value]:
        weight, x = g.weight(4, 4), g.given("x", B, 4)
        first = g.add("matmul", x, weight)
        return [g.add("multiply", first, g.number(2)), g.add("matmul", g.add("exp", x), weight)]

    assert_left_alone(fold_affine, body)


def test_a_chain_whose_parts_somebody_reads() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.linear(g.given("x", B, 4), 6, bias=False)
        scaled = g.add("multiply", x, g.number(2))
        return [g.add("add", g.add("add", scaled, g.weight(6)), g.weight(6)), scaled, x]

    assert ops(applied(fold_affine, graph_of(body))) == ["matmul", "multiply", "add"]


def test_one_chain_after_another() -> None:
    def body(g: Maker) -> Value:
        x = chain(g, g.linear(g.given("x", B, 3, 4), 6), ("multiply", g.weight(6)))
        return chain(
            g, x, ("multiply", g.weight(3, 1)), ("add", g.number(2)), ("add", g.weight(3, 1))
        )

    assert ops(applied(fold_affine, graph_of(body))) == ["matmul", "add", "multiply", "add"]


def test_a_batch_norm_of_a_product_is_a_product(backend: CpuBackend) -> None:
    def body(g: Maker) -> Value:
        y = batch_norm(g, g.linear(g.given("x", B, S, 8), 20), 20)
        return g.add("maximum", y, g.number(0))

    graph = applied(optimised, graph_of(body))
    assert titles(graph) == ["matmul + add + maximum"]
    assert_runs(graph, backend, {"B": 2, "S": 7}, threads=(1,))


def test_scaled_queries_are_merged_with_keys() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, 8)
        query = g.add("multiply", g.linear(x, 8), g.number(0.5))
        return [query, g.linear(x, 8)]

    assert ops(applied(optimised, graph_of(body))) == ["matmul", "add", "slice", "slice"]


@pytest.mark.filterwarnings("error")
def test_infinite_constants_stay_without_a_warning() -> None:
    """Dropout of all elements scales by infinity."""

    def body(g: Maker) -> Value:
        x = g.given("x", B, S)
        return chain(g, x, ("multiply", g.number(np.inf)), ("multiply", g.number(2)))

    assert_left_alone(fold_affine, body)
