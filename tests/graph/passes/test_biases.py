"""Attention whose masks are finite numbers beside other addends, where these are known to be
scores, or to leave or replace them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import (
    Array,
    B,
    Maker,
    S,
    T,
    assert_close,
    graph_of,
    inputs_of,
    ops,
    reference,
)
from tests.graph.passes.recognised_attention import (
    LOWEST,
    MORE,
    Body,
    D,
    H,
    applied,
    assert_runs_as,
    attention_of,
    hiding,
    is_recognised,
    padding,
    scores,
    softmax,
    triangle,
    v_of,
    values,
)

from ftuner.core.dtype import BOOL, FLOAT16, FLOAT32, INT64
from ftuner.graph.algebra import apply, where
from ftuner.graph.ir import Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend


def products(g: Maker) -> Value:
    return g.given("places", H, S, D) @ g.weight(D, 3)


def gathered(g: Maker) -> Value:
    """As DeBERTa has it."""
    at = g.constant(np.int64([[[0]]])).broadcast((H, S, T))
    found = apply("gather_elements", products(g), at, axis=2, node="gather")
    return (found + 2.0) / 13.0


def hiding_itself(g: Maker) -> Value:
    return gathered(g) + hiding(g, g.given("seen", T, dtype=BOOL))


def chosen_of(g: Maker, bias: Value, number: float) -> Value:
    return values(g, where(padding(g), scores(g) + bias, number))


def hide_first(inputs: dict[str, Array]) -> None:
    """The first request is hidden whole."""
    inputs["shown"][0] = False


@pytest.mark.parametrize("number", [-65504.0, -1e4])
def test_numbers_that_no_sum_of_products_comes_near(widest: CpuBackend, number: float) -> None:
    """As files in half precision hide what is padded."""
    graph = graph_of(lambda g: chosen_of(g, gathered(g), number))
    found = applied(graph)
    assert attention_of(found).attributes["hidden"] == -math.inf
    assert_runs_as(graph, found, widest, hide_first)


@pytest.mark.parametrize(
    "bias",
    [
        lambda g: products(g).slice(2, 0, 1).broadcast((H, S, T)) * (-1e4),
        hiding_itself,
        lambda g: gathered(g) + g.constant(np.float32([[[3.0]], [[-1e4]]])),
    ],
)
def test_biases_that_may_hide_scores(bias: Body) -> None:
    """Where they hide all that a number leaves, the number counts."""
    assert not is_recognised(graph_of(lambda g: chosen_of(g, bias(g), -65504.0)))


def padded(g: Maker, number: float = LOWEST) -> Value:
    """Zero, or a low number where a mask of whole numbers is zero."""
    return (1 - g.given("seen", B, 1, 1, T, dtype=INT64).cast(FLOAT32)) * number


def ahead(g: Maker) -> Value:
    return where(triangle(), scores(g), -1e4)


def chosen_padding(g: Maker) -> Value:
    return hiding(g, g.given("choice", B, 1, 1, T, dtype=BOOL))


@pytest.mark.parametrize("addend", [padded, chosen_padding])
def test_addends_that_leave_scores_or_replace_them(widest: CpuBackend, addend: Body) -> None:
    """Rows whose seen scores are padded have the weights of what is ahead."""

    def pad_first(inputs: dict[str, Array]) -> None:
        for name in {"seen", "choice"} & {*inputs}:
            inputs[name] = inputs[name] > 0
            inputs[name][..., :2] = False
            inputs[name] = inputs[name].astype(np.int64 if name == "seen" else np.bool_)

    graph = graph_of(lambda g: values(g, ahead(g) + addend(g)))
    found = applied(graph)
    assert attention_of(found).attributes["causal"] is None
    assert_runs_as(graph, found, widest, pad_first)


@pytest.mark.parametrize("number", [-65504.0, -1e9])
def test_addends_that_do_not_replace_scores(number: float) -> None:
    assert not is_recognised(graph_of(lambda g: values(g, ahead(g) + padded(g, number))))


def test_numbers_that_half_precision_does_not_hold() -> None:
    """Rows whose seen scores are padded have the weights of what is ahead, and are not NaN."""

    def body(g: Maker) -> Value:
        q, k = g.given("q", B, H, S, D, dtype=FLOAT16), g.given("k", B, H, D, T, dtype=FLOAT16)
        v, choice = g.given("v", B, H, T, D, dtype=FLOAT16), g.given("choice", T, dtype=BOOL)
        low, zero, none = (g.constant(np.float16(n)) for n in (-1e4, 0, -math.inf))
        return softmax(where(triangle(), q @ k, low) + where(choice, zero, none)) @ v

    graph = graph_of(body)
    inputs = inputs_of(graph, {"B": 2, "S": 5, "T": 7})
    inputs["choice"] = np.arange(7) >= 2
    (found,) = reference(recognise_attention(graph), inputs)
    assert np.isfinite(found).all()
    assert_close([found], reference(graph, inputs))


LAST: dict[str, Callable[[Maker, Value], Value]] = {
    "biased": lambda g, masked: masked + g.given("late", H, S, T),
    "hidden": lambda g, masked: masked + chosen_padding(g),
    "chosen": lambda g, masked: where(g.given("choice", S, T, dtype=BOOL), masked, LOWEST),
    "scaled": lambda g, masked: masked * 2.0,
}


@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
@pytest.mark.parametrize("of_products", [True, False])
def test_numbers_that_change_after_they_hide(
    last: Callable[[Maker, Value], Value], of_products: bool
) -> None:
    """A row that is hidden whole has the softmax of what comes after the number."""

    def body(g: Maker) -> Value:
        if of_products:
            hidden = where(padding(g), scores(g) + gathered(g), -1e4)
        else:
            hidden = ahead(g) + padded(g)
        return values(g, last(g, hidden))

    graph = graph_of(body)
    found = applied(graph)
    assert "attention" not in ops(found)
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        inputs["shown" if of_products else "seen"][0] = 0
        assert_close(reference(optimised(graph), inputs), reference(graph, inputs))


def without_weight(
    g: Maker, number: float = LOWEST, contrary: bool = False, biased: Value | None = None
) -> Value:
    """As files of DeBERTa have it: the weights of what is hidden are zeros, in each row."""
    shown = padding(g, True)
    if biased is None:
        biased = scores(g) + gathered(g)

    def chosen(x: Value, other: float) -> Value:
        return where(shown, x, other) if contrary else where(~shown, x.like(other), x)

    return chosen(softmax(chosen(biased, number)), 0) @ v_of(g)


@pytest.mark.parametrize("number", [LOWEST, -65504.0])
@pytest.mark.parametrize("contrary", [False, True])
def test_weights_of_hidden_scores(widest: CpuBackend, number: float, contrary: bool) -> None:
    graph = graph_of(lambda g: without_weight(g, number, contrary))
    found = applied(graph)
    assert attention_of(found).attributes["safe"]
    assert "softmax" not in ops(found)

    def hide_row(inputs: dict[str, Array]) -> None:
        inputs["shown"][0, :, 0] = False

    assert_runs_as(graph, found, widest, hide_row)


BEFORE: dict[str, Body] = {
    "added": lambda g: scores(g) + g.given("bias", H, S, T),
    "padded": lambda g: scores(g) + padded(g),
    "chosen": lambda g: where(g.given("choice", B, 1, 1, T, dtype=BOOL), scores(g), -math.inf),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("number", [LOWEST, -65504.0, -math.inf])
def test_scores_that_are_lower_than_those_without_weight(before: Body, number: float) -> None:
    """Scores that another mask hides have no weights beside those that lose theirs."""
    graph = graph_of(lambda g: without_weight(g, number, biased=before(g)))
    found = applied(graph)
    assert "attention" not in ops(found)


def of_another_mask(g: Maker) -> Value:
    weights = softmax(where(padding(g, True), scores(g), LOWEST))
    return where(g.given("other", B, 1, S, T, dtype=BOOL), weights, 0) @ v_of(g)


@pytest.mark.parametrize(
    "body",
    [
        of_another_mask,
        lambda g: without_weight(g, -3.0),
        # If they hide all seen scores, the others take a part of the weights, but add nothing.
        lambda g: without_weight(g, biased=scores(g) + hiding_itself(g)),
    ],
)
def test_weights_of_other_scores(body: Body) -> None:
    assert not is_recognised(graph_of(body))
