"""Choices that are written as sums of products with zeros and ones."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, applied, assert_left_alone, graph_of, ops

from ftuner.core.dtype import BOOL, FLOAT32
from ftuner.graph.ir import Value
from ftuner.graph.passes.choices import choice

TRIANGLE = np.tri(4, dtype=np.float32)


def kept(g: Maker, mask: Value) -> Value:
    return g.add("multiply", g.given("x", B, *[mask.shape[-1]] * 2), mask)


def contrary(g: Maker, mask: Value) -> Value:
    return g.add("subtract", g.number(1), mask)


def first_gpt(g: Maker, mask: Value, number: float = -1e4) -> Value:
    low = g.add("multiply", contrary(g, mask), g.number(number))
    return g.add("add", kept(g, mask), low)


def second_gpt(g: Maker, mask: Value) -> Value:
    """As its first release has it."""
    return g.add("subtract", kept(g, mask), g.add("multiply", g.number(1e10), contrary(g, mask)))


def one_more(g: Maker, mask: Value) -> Value:
    return g.add("add", contrary(g, mask), kept(g, mask))


def of_constant(g: Maker) -> Value:
    return g.constant(TRIANGLE)


def of_part(g: Maker) -> Value:
    whole = g.constant(np.tri(8, dtype=np.float32).reshape(1, 8, 8))
    part = g.add("slice", whole, starts=(0, 0, 0), steps=(1, 1, 1), shape=(1, S, S))
    return g.add("transpose", part, perm=(0, 2, 1))


def of_booleans(g: Maker) -> Value:
    return g.add("cast", g.given("mask", B, 1, 4, dtype=BOOL), to=FLOAT32)


@pytest.mark.parametrize("body", [first_gpt, second_gpt, one_more])
@pytest.mark.parametrize("mask", [of_constant, of_part, of_booleans])
def test_choices(body: Body, mask: Body) -> None:
    graph = applied(choice, graph_of(lambda g: body(g, mask(g))))
    assert ops(graph)[-1] == "where"
    assert not {"multiply", "add", "subtract"} & {*ops(graph)}


def test_infinite_constants_beside_zeros() -> None:
    def body(g: Maker) -> Value:
        low = g.constant(np.where(TRIANGLE == 1, np.float32(0), np.float32(-np.inf)))
        return g.add("add", kept(g, of_constant(g)), low)

    assert ops(applied(choice, graph_of(body))) == ["where"]


def test_layers_share_their_booleans() -> None:
    def body(g: Maker) -> Value:
        mask = of_part(g)
        x = g.given("x", B, S, S)
        for _ in range(3):
            low = g.add("multiply", contrary(g, mask), g.number(-2))
            x = g.add("add", g.add("multiply", x, mask), low)
        return x

    graph = applied(choice, graph_of(body))
    assert ops(graph) == ["slice", "transpose", "where", "where", "where"]


def of_other_numbers(g: Maker) -> Value:
    return first_gpt(g, g.constant(TRIANGLE * 0.5))


def of_an_input(g: Maker) -> Value:
    return first_gpt(g, g.given("mask", B, 4, 4))


def of_another_mask(g: Maker) -> Value:
    low = g.add("multiply", contrary(g, g.constant(TRIANGLE.T)), g.number(-1e4))
    return g.add("add", kept(g, of_constant(g)), low)


def minus_two(g: Maker) -> Value:
    mask = of_constant(g)
    low = g.add("multiply", g.add("subtract", g.number(2), mask), g.number(-1e4))
    return g.add("add", kept(g, mask), low)


def repeated(g: Maker) -> Value:
    mask = of_constant(g)
    x = g.given("x", S, 1, 4)
    low = g.add("multiply", contrary(g, mask), g.number(-1e4))
    return g.add("add", g.add("multiply", x, mask), low)


def infinite(g: Maker) -> Value:
    """NaN where x is kept, too: as files are whose numbers half precision does not hold."""
    return first_gpt(g, of_booleans(g), -np.inf)


@pytest.mark.parametrize(
    "body", [of_other_numbers, of_an_input, of_another_mask, minus_two, repeated, infinite]
)
def test_what_is_no_choice(body: Body) -> None:
    assert_left_alone(choice, body)
