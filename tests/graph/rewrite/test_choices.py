"""Choices that are written as sums of products with zeros and ones."""

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, applied, assert_left_alone, graph_of, ops

from ftuner.core.dtype import BOOL, FLOAT32
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Value
from ftuner.graph.rewrite.rules import choice

TRIANGLE = np.tri(4, dtype=np.float32)


def kept(g: Maker, mask: Value) -> Value:
    return g.given("x", B, *[mask.shape[-1]] * 2) * mask


def first_gpt(g: Maker, mask: Value, number: float = -1e4) -> Value:
    return kept(g, mask) + (1 - mask) * number


def second_gpt(g: Maker, mask: Value) -> Value:
    """As its first release has it."""
    return kept(g, mask) - g.number(1e10) * (1 - mask)


def one_more(g: Maker, mask: Value) -> Value:
    return 1 - mask + kept(g, mask)


def of_constant(g: Maker) -> Value:
    return g.constant(TRIANGLE)


def of_part(g: Maker) -> Value:
    whole = g.constant(np.tri(8, dtype=np.float32).reshape(1, 8, 8))
    part = apply("slice", whole, starts=(0, 0, 0), steps=(1, 1, 1), shape=(1, S, S))
    return part.swapped()


def of_booleans(g: Maker) -> Value:
    return g.given("mask", B, 1, 4, dtype=BOOL).cast(FLOAT32)


@pytest.mark.parametrize("body", [first_gpt, second_gpt, one_more])
@pytest.mark.parametrize("mask", [of_constant, of_part, of_booleans])
def test_choices(body: Body, mask: Body) -> None:
    graph = applied(choice, graph_of(lambda g: body(g, mask(g))))
    assert ops(graph)[-1] == "where"
    assert not {"multiply", "add", "subtract"} & {*ops(graph)}


def test_infinite_constants_beside_zeros() -> None:
    def body(g: Maker) -> Value:
        low = g.constant(np.where(TRIANGLE == 1, np.float32(0), np.float32(-np.inf)))
        return kept(g, of_constant(g)) + low

    assert ops(applied(choice, graph_of(body))) == ["where"]


def test_layers_share_their_booleans() -> None:
    def body(g: Maker) -> Value:
        mask = of_part(g)
        x = g.given("x", B, S, S)
        for _ in range(3):
            x = x * mask + (1 - mask) * -2
        return x

    graph = applied(choice, graph_of(body))
    assert ops(graph) == ["slice", "transpose", "where", "where", "where"]


NO_CHOICES: dict[str, Body] = {
    "of other numbers": lambda g: first_gpt(g, g.constant(TRIANGLE * 0.5)),
    "of an input": lambda g: first_gpt(g, g.given("mask", B, 4, 4)),
    "of another mask": lambda g: kept(g, of_constant(g)) + (1 - g.constant(TRIANGLE.T)) * -1e4,
    "minus two": lambda g: kept(g, of_constant(g)) + (2 - of_constant(g)) * -1e4,
    "repeated": lambda g: g.given("x", S, 1, 4) * of_constant(g) + (1 - of_constant(g)) * -1e4,
    # NaN where x is kept, too: as files are whose numbers half precision does not hold.
    "infinite": lambda g: first_gpt(g, of_booleans(g), -np.inf),
}


@pytest.mark.parametrize("body", NO_CHOICES.values(), ids=NO_CHOICES)
def test_what_is_no_choice(body: Body) -> None:
    assert_left_alone(choice, body)
