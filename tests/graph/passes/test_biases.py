"""Attention whose masks are finite numbers beside other addends, where these are known to be
scores, or to leave or replace them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, graph_of, inputs_of, reference
from tests.graph.passes.recognised_attention import LOWEST, Body, D, H, applied, attention_of, ops
from tests.graph.passes.test_recognise_attention import scores, triangle, values
from tests.graph.passes.test_recognise_biases import MORE, hiding, padding

from ftuner.core.dtype import BOOL, FLOAT16, FLOAT32, INT64
from ftuner.graph.ir import Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


def products(g: Maker) -> Value:
    return g.given("places", H, S, D) @ g.weight(D, 3)


def gathered(g: Maker) -> Value:
    """As DeBERTa has it."""
    at = g.add("broadcast", g.constant(np.int64([[[0]]])), shape=(H, S, T))
    found = g.add("gather_elements", products(g), at, axis=2, node="gather")
    return (found + 2.0) / 13.0


def enlarged(g: Maker) -> Value:
    found = g.add("slice", products(g), starts=(0, 0, 0), steps=(1, 1, 1), shape=(H, S, 1))
    return g.add("broadcast", found, shape=(H, S, T)) * (-1e4)


def hiding_itself(g: Maker) -> Value:
    return gathered(g) + hiding(g, g.given("seen", T, dtype=BOOL))


def of_large_numbers(g: Maker) -> Value:
    return gathered(g) + g.constant(np.float32([[[3.0]], [[-1e4]]]))


def chosen_of(g: Maker, bias: Value, number: float) -> Value:
    masked = g.add("where", padding(g), scores(g) + bias, g.number(number))
    return values(g, masked)


@pytest.mark.parametrize("number", [-65504.0, -1e4])
def test_numbers_that_no_sum_of_products_comes_near(widest: CpuBackend, number: float) -> None:
    """As files in half precision hide what is padded. The first request is hidden whole."""
    graph = graph_of(lambda g: chosen_of(g, gathered(g), number))
    found = applied(graph)
    assert attention_of(found).attributes["hidden"] == -math.inf
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        inputs["shown"][0] = False
        assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


@pytest.mark.parametrize("bias", [enlarged, hiding_itself, of_large_numbers])
def test_biases_that_may_hide_scores(bias: Body) -> None:
    """Where they hide all that a number leaves, the number counts."""
    graph = graph_of(lambda g: chosen_of(g, bias(g), -65504.0))
    assert "attention" not in ops(recognise_attention(graph))


def padded(g: Maker, number: float = LOWEST) -> Value:
    """Zero, or a low number where a mask of whole numbers is zero."""
    mask = g.add("cast", g.given("seen", B, 1, 1, T, dtype=INT64), to=FLOAT32)
    return (1 - mask) * number


def ahead_then_padded(g: Maker, addend: Value) -> Value:
    masked = g.add("where", triangle(g), scores(g), g.number(-1e4))
    return values(g, masked + addend)


def chosen_padding(g: Maker) -> Value:
    return hiding(g, g.given("choice", B, 1, 1, T, dtype=BOOL))


@pytest.mark.parametrize("addend", [padded, chosen_padding])
def test_addends_that_leave_scores_or_replace_them(widest: CpuBackend, addend: Body) -> None:
    """Rows whose seen scores are padded have the weights of what is ahead."""
    graph = graph_of(lambda g: ahead_then_padded(g, addend(g)))
    found = applied(graph)
    assert attention_of(found).attributes["causal"] is None
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        for name in {"seen", "choice"} & {*inputs}:
            inputs[name] = inputs[name] > 0
            inputs[name][..., :2] = False
            inputs[name] = inputs[name].astype(np.int64 if name == "seen" else np.bool_)
        assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


@pytest.mark.parametrize("number", [-65504.0, -1e9])
def test_addends_that_do_not_replace_scores(number: float) -> None:
    graph = graph_of(lambda g: ahead_then_padded(g, padded(g, number)))
    assert "attention" not in ops(recognise_attention(graph))


def test_numbers_that_half_precision_does_not_hold() -> None:
    """Rows whose seen scores are padded have the weights of what is ahead, and are not NaN."""

    def body(g: Maker) -> Value:
        q, k = g.given("q", B, H, S, D, dtype=FLOAT16), g.given("k", B, H, D, T, dtype=FLOAT16)
        v, choice = g.given("v", B, H, T, D, dtype=FLOAT16), g.given("choice", T, dtype=BOOL)
        low, zero, none = (g.constant(np.float16(n)) for n in (-1e4, 0, -math.inf))
        masked = g.add("where", triangle(g), q @ k, low)
        masked = masked + g.add("where", choice, zero, none)
        return g.add("softmax", masked, axis=3, log=False) @ v

    graph = graph_of(body)
    inputs = inputs_of(graph, {"B": 2, "S": 5, "T": 7})
    inputs["choice"] = np.arange(7) >= 2
    (found,) = reference(recognise_attention(graph), inputs)
    assert np.isfinite(found).all()
    assert_close([found], reference(graph, inputs))


def then_biased(g: Maker, masked: Value) -> Value:
    return masked + g.given("late", H, S, T)


def then_hidden(g: Maker, masked: Value) -> Value:
    return masked + hiding(g, g.given("choice", B, 1, 1, T, dtype=BOOL))


def then_chosen(g: Maker, masked: Value) -> Value:
    return g.add("where", g.given("choice", S, T, dtype=BOOL), masked, g.number(LOWEST))


def then_scaled(g: Maker, masked: Value) -> Value:
    return masked * 2.0


@pytest.mark.parametrize("last", [then_biased, then_hidden, then_chosen, then_scaled])
@pytest.mark.parametrize("of_products", [True, False])
def test_numbers_that_change_after_they_hide(
    last: Callable[[Maker, Value], Value], of_products: bool
) -> None:
    """A row that is hidden whole has the softmax of what comes after the number."""

    def body(g: Maker) -> Value:
        if of_products:
            hidden = scores(g) + gathered(g)
            hidden = g.add("where", padding(g), hidden, g.number(-1e4))
        else:
            hidden = g.add("where", triangle(g), scores(g), g.number(-1e4))
            hidden = hidden + padded(g)
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
    low, zero, mask = g.number(number), g.number(0), g.add("logical_not", shown)
    masked = [biased, low] if contrary else [low, biased]
    masked = g.add("where", shown if contrary else mask, *masked)
    weights = g.add("softmax", masked, axis=3, log=False)
    kept = [weights, zero] if contrary else [zero, weights]
    (v,) = [given for given in g.inputs if given.name == "v"]
    return g.add("where", shown if contrary else mask, *kept) @ v


@pytest.mark.parametrize("number", [LOWEST, -65504.0])
@pytest.mark.parametrize("contrary", [False, True])
def test_weights_of_hidden_scores(widest: CpuBackend, number: float, contrary: bool) -> None:
    graph = graph_of(lambda g: without_weight(g, number, contrary))
    found = applied(graph)
    assert attention_of(found).attributes["safe"]
    assert "softmax" not in ops(found)
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        inputs["shown"][0, :, 0] = False
        assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


def added_to(g: Maker) -> Value:
    return scores(g) + g.given("bias", H, S, T)


def padded_before(g: Maker) -> Value:
    return scores(g) + padded(g)


def chosen_before(g: Maker) -> Value:
    choice = g.given("choice", B, 1, 1, T, dtype=BOOL)
    return g.add("where", choice, scores(g), g.number(-math.inf))


@pytest.mark.parametrize("before", [added_to, padded_before, chosen_before])
@pytest.mark.parametrize("number", [LOWEST, -65504.0, -math.inf])
def test_scores_that_are_lower_than_those_without_weight(before: Body, number: float) -> None:
    """Scores that another mask hides have no weights beside those that lose theirs."""
    graph = graph_of(lambda g: without_weight(g, number, biased=before(g)))
    found = applied(graph)
    assert "attention" not in ops(found)


def of_another_mask(g: Maker) -> Value:
    masked = g.add("where", padding(g, True), scores(g), g.number(LOWEST))
    weights = g.add("softmax", masked, axis=3, log=False)
    other = g.given("other", B, 1, S, T, dtype=BOOL)
    (v,) = [given for given in g.inputs if given.name == "v"]
    return g.add("where", other, weights, g.number(0)) @ v


def of_high_numbers(g: Maker) -> Value:
    return without_weight(g, -3.0)


def of_other_addends(g: Maker) -> Value:
    """If they hide all seen scores, the others take a part of the weights, but add nothing."""
    return without_weight(g, biased=scores(g) + hiding_itself(g))


@pytest.mark.parametrize("body", [of_another_mask, of_high_numbers, of_other_addends])
def test_weights_of_other_scores(body: Body) -> None:
    assert "attention" not in ops(recognise_attention(graph_of(body)))
