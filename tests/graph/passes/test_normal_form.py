"""Spellings that are rewritten before patterns are recognised."""

import math

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, T, applied, assert_left_alone, graph_of, ops

from ftuner.core.dim import Shape
from ftuner.core.dtype import INT64
from ftuner.graph.ir import Value
from ftuner.graph.rewrite import rules
from ftuner.runtime.reference import run_reference

H, D = 3, 4
SPECIAL = (0.0, -0.0, 1e30, -1e30, 1e-30, math.inf, -math.inf, math.nan, 1.5, -2.0)


def power(exponent: float) -> Body:
    return lambda g: g.add("power", g.given("x", S), g.number(exponent))


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(2, ["multiply"]), (3, ["multiply", "multiply"]), (-1, ["divide"])],
)  # fmt: skip
def test_powers(exponent: float, expected: list[str]) -> None:
    before = graph_of(power(exponent))
    after = applied(rules.normal_form, before)
    assert ops(after) == expected
    x = np.array(SPECIAL, np.float32)
    with np.errstate(all="ignore"):
        (wanted,), (found,) = (run_reference(graph, [x]) for graph in (before, after))
    np.testing.assert_array_max_ulp(found, wanted, 2)
    assert np.array_equal(np.signbit(found), np.signbit(wanted))


def of_integers(g: Maker) -> Value:
    return g.add("power", g.given("x", S, dtype=INT64), g.constant(np.int64(2)))


def of_a_tensor(g: Maker) -> Value:
    return g.add("power", g.number(2), g.given("x", S))


@pytest.mark.parametrize("body", [power(0.5), power(-0.5), power(4), of_integers, of_a_tensor])
def test_powers_that_stay(body: Body) -> None:
    assert_left_alone(rules.normal_form, body)


def turned(merged: Shape, perm: tuple[int, ...], apart: Shape) -> Body:
    def body(g: Maker) -> Value:
        x = g.add("reshape", g.given("x", B, H, T, D), shape=merged)
        return g.add("reshape", g.add("transpose", x, perm=perm), shape=apart)

    return body


def test_transpositions_of_merged_axes() -> None:
    graph = applied(rules.normal_form, graph_of(turned((B * H, T, D), (0, 2, 1), (B, H, D, T))))
    assert ops(graph) == ["transpose"]
    assert graph.nodes[0].attributes == {"perm": (0, 1, 3, 2)}


@pytest.mark.parametrize(
    "body",
    [turned((B * H, T, D), (0, 2, 1), (H, B, D, T)), turned((B * H, D, T), (0, 2, 1), (B, H, T, D)),
     turned((B * H, T, D), (2, 1, 0), (D, T, B, H)), turned((B, H * T, D), (0, 2, 1), (B, D, H, T)),
    ],
)  # fmt: skip
def test_other_transpositions(body: Body) -> None:
    assert_left_alone(rules.normal_form, body)


def test_reshapes_in_a_row_are_one() -> None:
    def body(g: Maker) -> Value:
        x = g.given("x", B, T, H, D)
        for shape in ((B, T, H * D), (B * T, H * D), (B * T * H, D)):
            x = g.add("reshape", x, shape=shape)
        return x

    before = graph_of(body)
    after = applied(rules.normal_form, before)
    assert ops(after) == ["reshape"]
    assert after.nodes[0].output.shape == before.nodes[-1].output.shape
