"""What passes recognise and what they leave alone; results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Maker,
    Pass,
    S,
    T,
    applied,
    assert_left_alone,
    graph_of,
    layer,
    ops,
)

from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.merged_products import merge_products
from ftuner.graph.passes.pipeline import PASSES, optimised
from ftuner.graph.rewrite import rules
from ftuner.graph.verify import verify

# Gelu.


def erf_of(g: Maker, x: Value) -> Value:
    return g.add("erf", g.add("multiply", x, g.number(0.5**0.5)))


GELU: tuple[Body, ...] = (
    lambda g: g.gelu(g.given("x", B, S)),
    lambda g: g.add("multiply", g.number(0.5), g.add("multiply", g.add(
        "add", g.number(1), erf_of(g, g.given("x", B, S))), g.inputs[0])),
    lambda g: g.add("multiply", g.add("multiply", g.given("x", B, S), g.number(0.5)), g.add(
        "add", erf_of(g, g.inputs[0]), g.number(1))),
    lambda g: g.add("multiply", g.given("x", B, S), g.add("multiply", g.number(0.5), g.add(
        "add", erf_of(g, g.inputs[0]), g.number(1)))),
    lambda g: g.add("multiply", g.add("divide", g.given("x", B, S), g.number(2)), g.add(
        "add", g.add("erf", g.add("divide", g.inputs[0], g.constant(np.full(1, 2**0.5, "f")))),
        g.number(1))),
)  # fmt: skip
NO_GELU: tuple[Body, ...] = (
    # Another factor, another sum, another argument, another reader.
    lambda g: g.add("multiply", g.add("multiply", g.given("x", B, S), g.number(0.4)), g.add(
        "add", erf_of(g, g.inputs[0]), g.number(1))),
    lambda g: g.add("multiply", g.add("multiply", g.given("x", B, S), g.number(0.5)), g.add(
        "add", erf_of(g, g.inputs[0]), g.number(2))),
    lambda g: g.add("multiply", g.add("multiply", g.given("x", B, S), g.number(0.5)), g.add(
        "subtract", g.number(1), erf_of(g, g.inputs[0]))),
    lambda g: g.add("multiply", g.add("multiply", g.given("x", B, S), g.number(0.5)), g.add(
        "add", g.add("erf", g.inputs[0]), g.number(1))),
    lambda g: g.add("multiply", g.add("multiply", g.given("x", B, S), g.number(0.5)), g.add(
        "add", erf_of(g, g.given("y", B, S)), g.number(1))),
    lambda g: g.add("multiply", g.add("divide", g.number(0.5), g.given("x", B, S)), g.add(
        "add", erf_of(g, g.inputs[0]), g.number(1))),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(GELU)))
def test_gelu(number: int) -> None:
    assert ops(applied(rules.gelu, graph_of(GELU[number]))) == ["gelu"]


@pytest.mark.parametrize("number", range(len(NO_GELU)))
def test_what_is_no_gelu(number: int) -> None:
    assert_left_alone(rules.gelu, NO_GELU[number])


def test_gelu_whose_parts_somebody_reads() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S)
        lifted = g.add("add", erf_of(g, x), g.number(1))
        half = g.add("multiply", x, g.number(0.5))
        return [g.add("multiply", half, lifted), lifted]

    assert "gelu" not in ops(applied(rules.gelu, graph_of(body)))


def test_what_is_scaled_after_a_gelu() -> None:
    graph = graph_of(lambda g: g.add("multiply", g.gelu(g.given("x", B, S)), g.number(3)))
    assert ops(applied(rules.gelu, graph)) == ["gelu", "multiply"]


def test_several_gelus() -> None:
    graph = graph_of(lambda g: g.gelu(g.gelu(g.given("x", B, S))))
    assert ops(applied(rules.gelu, graph)) == ["gelu", "gelu"]


# Attention.

H, D = 2, 4


def qkv(g: Maker) -> tuple[Value, Value, Value]:
    return g.given("q", B, H, S, D), g.given("k", B, H, D, T), g.given("v", B, H, T, D)


def weighted(g: Maker, scores: Value, v: Value, axis: int = 3, log: bool = False) -> Value:
    return g.add("matmul", g.add("softmax", scores, axis=axis, log=log), v)


def scored(g: Maker) -> tuple[Value, Value]:
    q, k, v = qkv(g)
    return g.add("matmul", q, k), v


def plain(g: Maker) -> Value:
    return weighted(g, *scored(g))


def scaled(g: Maker) -> Value:
    return g.attention(*qkv(g), 0.5, None)


def divided(g: Maker) -> Value:
    scores, v = scored(g)
    return weighted(g, g.add("divide", scores, g.number(2)), v)


def masked(*shape: object) -> Body:
    def body(g: Maker) -> Value:
        return g.attention(*qkv(g), 0.5, g.given("mask", *shape))  # type: ignore[arg-type]

    return body


def mask_first(g: Maker) -> Value:
    scores, v = scored(g)
    return weighted(g, g.add("add", g.given("mask", S, T), scores), v)


def three_axes(g: Maker) -> Value:
    return g.attention(g.given("q", B, S, D), g.given("k", B, D, T), g.given("v", B, T, D), 1.0,
                       None)  # fmt: skip


ATTENTION: tuple[tuple[Body, float, int], ...] = (
    # What, its scale, its operands.
    (plain, 1.0, 3), (scaled, 0.5, 3), (divided, 0.5, 3), (three_axes, 1.0, 3),
    (mask_first, 1.0, 4), (masked(T), 0.5, 4), (masked(S, T), 0.5, 4), (masked(1, T), 0.5, 4),
    (masked(B, 1, 1, T), 0.5, 4), (masked(B, H, S, T), 0.5, 4), (masked(H, 1, T), 0.5, 4),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(ATTENTION)))
def test_attention(number: int) -> None:
    body, scale, operands = ATTENTION[number]
    graph = applied(recognise_attention, graph_of(body))
    assert ops(graph) == ["attention"]
    (node,) = graph.nodes
    assert len(node.inputs) == operands
    assert node.attributes["scale"] == pytest.approx(scale)


def other_axis(g: Maker) -> Value:
    scores, v = g.add("matmul", g.given("q", B, H, 3, D), g.given("k", B, H, D, 3)), g.given(
        "v", B, H, 3, D)  # fmt: skip
    return weighted(g, scores, v, axis=2)


def logarithm(g: Maker) -> Value:
    return weighted(g, *scored(g), log=True)


def two_axes(g: Maker) -> Value:
    return g.attention(g.given("q", S, D), g.given("k", D, T), g.given("v", T, D), 1.0, None)


def one_column_of_mask(g: Maker) -> Value:
    return g.attention(*qkv(g), 0.5, g.given("mask", S, 1))


def weights_on_the_right(g: Maker) -> Value:
    scores, _ = scored(g)
    return g.add("matmul", g.given("w", B, H, 3, S), g.add("softmax", scores, axis=3, log=False))


def shared_keys(g: Maker) -> Value:
    """Of other batch axes: a product that broadcasts."""
    return g.attention(g.given("q", B, H, S, D), g.given("k", D, T), g.given("v", T, D), 1.0, None)


@pytest.mark.parametrize(
    "body",
    [other_axis, logarithm, two_axes, one_column_of_mask, weights_on_the_right, shared_keys],
)  # fmt: skip
def test_what_is_no_attention(body: Body) -> None:
    assert_left_alone(recognise_attention, body)


@pytest.mark.parametrize("part", ["scores", "scaled", "sums", "weights"])
def test_attention_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        scores, v = scored(g)
        smaller = g.add("multiply", scores, g.number(0.5))
        sums = g.add("add", smaller, g.given("mask", S, T))
        weights = g.add("softmax", sums, axis=3, log=False)
        parts = {"scores": scores, "scaled": smaller, "sums": sums, "weights": weights}
        return [g.add("matmul", weights, v), parts[part]]

    assert "attention" not in ops(applied(recognise_attention, graph_of(body)))


# Products.


def products(biases: tuple[bool, ...], widths: tuple[int, ...] = (3, 5, 4)) -> Graph:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, 6)
        return [g.linear(x, n, bias) for n, bias in zip(widths, biases, strict=False)]

    return graph_of(body)


MERGED: tuple[tuple[tuple[bool, ...], list[str]], ...] = (
    ((True, True, True), ["matmul", "add", "slice", "slice", "slice"]),
    ((False, False, False), ["matmul", "slice", "slice", "slice"]),
    ((True, False, True), ["matmul", "add", "slice", "slice", "matmul"]),
    ((True,), ["matmul", "add"]),
    ((True, False), ["matmul", "add", "matmul"]),
)


@pytest.mark.parametrize(("biases", "expected"), MERGED)
def test_products_of_one_tensor(biases: tuple[bool, ...], expected: list[str]) -> None:
    graph = applied(merge_products, products(biases))
    assert sorted(ops(graph)) == sorted(expected)


def test_the_merged_weight_lies_side_by_side() -> None:
    before = products((False, False))
    weights = [n.inputs[1].constant for n in before.nodes]
    merged = merge_products(before).nodes[0].inputs[1].constant
    assert merged is not None
    assert np.array_equal(merged, np.concatenate([w for w in weights if w is not None], 1))


def test_products_that_are_not_of_one_tensor() -> None:
    def body(g: Maker) -> list[Value]:
        x, y = g.given("x", B, 6), g.given("y", B, 6)
        # Two tensors, a weight of three axes, a weight that is an input, the other side.
        return [
            g.linear(x, 3), g.linear(y, 3), g.add("matmul", x, g.weight(2, 6, 3)),
            g.add("matmul", x, g.given("w", 6, T)), g.add("matmul", g.weight(3, B_FIXED), y),
        ]  # fmt: skip

    B_FIXED = 2
    graph = graph_of(body)
    found = merge_products(graph)
    verify(found)
    assert ops(found) == ops(graph)


def test_a_product_that_is_an_output_has_no_bias() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, 6)
        y = g.add("matmul", x, g.weight(6, 3))
        return [y, g.add("add", y, g.weight(3)), g.linear(x, 4, bias=False)]

    graph = applied(merge_products, graph_of(body))
    assert ops(graph).count("matmul") == 1


def activated(g: Maker) -> list[Value]:
    """As the first block of a residual network: one branch begins with an activation."""
    x = g.given("x", B, S, 6)
    y = g.add("maximum", g.linear(x, 3), g.number(0))
    return [g.add("matmul", y, g.weight(3, 3)), g.linear(x, 4)]


def gated(g: Maker) -> list[Value]:
    """The activation is multiplied by the other product."""
    x = g.given("x", B, S, 6)
    gate, up = g.linear(x, 3), g.linear(x, 3)
    return [g.add("matmul", g.add("multiply", g.add("silu", gate), up), g.weight(3, 3))]


@pytest.mark.parametrize(("body", "left"), [(activated, 3), (gated, 2)])
def test_a_product_with_an_activation_stays_alone(
    body: Callable[[Maker], list[Value]], left: int
) -> None:
    assert ops(applied(merge_products, graph_of(body))).count("matmul") == left


def test_products_whose_bias_is_no_row() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, 4, 6)
        other = g.add("add", g.add("matmul", x, g.weight(6, 3)), g.weight(4, 3))
        return [other, g.linear(x, 5), g.linear(x, 3, bias=False)]

    assert ops(applied(merge_products, graph_of(body))).count("matmul") == 2


# All of them.


def test_passes_leave_an_encoder_layer_right() -> None:
    graph = layer()
    for apply in PASSES:
        graph = applied(apply, graph)
    count = ops(graph).count
    assert (count("attention"), count("gelu"), count("softmax"), count("erf")) == (1, 1, 0, 0)
    assert count("matmul") == 4
    assert ops(optimised(layer())) == ops(graph)


@pytest.mark.parametrize("apply", PASSES)
def test_a_pass_again_changes_nothing(apply: Pass) -> None:
    once = apply(layer())
    assert ops(apply(once)) == ops(once)


@pytest.mark.parametrize("apply", PASSES)
def test_outputs_that_are_inputs_or_constants(apply: Pass) -> None:
    graph = graph_of(lambda g: [g.given("x", B, S), g.weight(3), g.gelu(g.inputs[0])])
    applied(apply, graph)


def test_nodes_that_nothing_reads_go() -> None:
    live = graph_of(lambda g: g.add("exp", g.given("x", B, S)))
    (exp,) = live.nodes
    unread = Node("negative", exp.outputs, (Value("unread", exp.output.type),))
    given = replace(live, nodes=(*live.nodes, unread))
    assert optimised(given) == live
