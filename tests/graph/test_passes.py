"""What passes recognise and what they leave alone; results stay the same."""

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
    of_x,
    ops,
)

from ftuner.core.dtype import FLOAT32
from ftuner.graph.algebra import apply, constant, exp, scalar
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.merged_products import merge_products
from ftuner.graph.passes.pipeline import PASSES, optimised
from ftuner.graph.rewrite import rules
from ftuner.graph.verify import verify

# Gelu.


def erf(x: Value) -> Value:
    return apply("erf", x)


def erf_of(x: Value) -> Value:
    return erf(x * 0.5**0.5)


def number(value: float) -> Value:
    return scalar(value, FLOAT32)


GELU: tuple[Body, ...] = (
    lambda g: g.gelu(g.given("x", B, S)),
    of_x(lambda x: number(0.5) * ((number(1) + erf_of(x)) * x)),
    of_x(lambda x: x * 0.5 * (erf_of(x) + 1)),
    of_x(lambda x: x * (number(0.5) * (erf_of(x) + 1))),
    of_x(lambda x: x / 2 * (erf(x / constant(np.full(1, 2**0.5, "f"))) + 1)),
)
NO_GELU: tuple[Body, ...] = (
    # Another factor, another sum, another argument, another reader.
    of_x(lambda x: x * 0.4 * (erf_of(x) + 1)),
    of_x(lambda x: x * 0.5 * (erf_of(x) + 2)),
    of_x(lambda x: x * 0.5 * (1 - erf_of(x))),
    of_x(lambda x: x * 0.5 * (erf(x) + 1)),
    lambda g: g.given("x", B, S) * 0.5 * (erf_of(g.given("y", B, S)) + 1),
    of_x(lambda x: 0.5 / x * (erf_of(x) + 1)),
)


@pytest.mark.parametrize("body", GELU)
def test_gelu(body: Body) -> None:
    assert ops(applied(rules.gelu, graph_of(body))) == ["gelu"]


@pytest.mark.parametrize("body", NO_GELU)
def test_what_is_no_gelu(body: Body) -> None:
    assert_left_alone(rules.gelu, body)


def test_gelu_whose_parts_somebody_reads() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S)
        lifted = erf_of(x) + 1
        return [x * 0.5 * lifted, lifted]

    assert "gelu" not in ops(applied(rules.gelu, graph_of(body)))


def test_what_is_scaled_after_a_gelu() -> None:
    graph = graph_of(lambda g: g.gelu(g.given("x", B, S)) * 3)
    assert ops(applied(rules.gelu, graph)) == ["gelu", "multiply"]


def test_several_gelus() -> None:
    graph = graph_of(lambda g: g.gelu(g.gelu(g.given("x", B, S))))
    assert ops(applied(rules.gelu, graph)) == ["gelu", "gelu"]


# Attention.

H, D = 2, 4


def qkv(g: Maker) -> tuple[Value, Value, Value]:
    return g.given("q", B, H, S, D), g.given("k", B, H, D, T), g.given("v", B, H, T, D)


def softmax(x: Value, axis: int = 3, log: bool = False) -> Value:
    return apply("softmax", x, axis=axis, log=log)


def attended(weights: Callable[[Maker, Value], Value]) -> Body:
    """An attention by weights that are a function of the scores."""

    def body(g: Maker) -> Value:
        q, k, v = qkv(g)
        return weights(g, q @ k) @ v

    return body


def masked(*shape: object) -> Body:
    return lambda g: g.attention(*qkv(g), 0.5, g.given("mask", *shape))  # type: ignore[arg-type]


ATTENTION: tuple[tuple[Body, float, int], ...] = (
    # What, its scale, its operands.
    (attended(lambda g, x: softmax(x)), 1.0, 3),
    (lambda g: g.attention(*qkv(g), 0.5, None), 0.5, 3),
    (attended(lambda g, x: softmax(x / 2)), 0.5, 3),
    (lambda g: g.attention(g.given("q", B, S, D), g.given("k", B, D, T), g.given("v", B, T, D),
                           1.0, None), 1.0, 3),
    (attended(lambda g, x: softmax(g.given("mask", S, T) + x)), 1.0, 4),
    (masked(T), 0.5, 4), (masked(S, T), 0.5, 4), (masked(1, T), 0.5, 4),
    (masked(B, 1, 1, T), 0.5, 4), (masked(B, H, S, T), 0.5, 4), (masked(H, 1, T), 0.5, 4),
)  # fmt: skip


@pytest.mark.parametrize(("body", "scale", "operands"), ATTENTION)
def test_attention(body: Body, scale: float, operands: int) -> None:
    graph = applied(recognise_attention, graph_of(body))
    assert ops(graph) == ["attention"]
    (node,) = graph.nodes
    assert len(node.inputs) == operands
    assert node.attributes["scale"] == pytest.approx(scale)


def other_axis(g: Maker) -> Value:
    scores = g.given("q", B, H, 3, D) @ g.given("k", B, H, D, 3)
    return softmax(scores, axis=2) @ g.given("v", B, H, 3, D)


NO_ATTENTION: dict[str, Body] = {
    "another axis": other_axis,
    "logarithm": attended(lambda g, x: softmax(x, log=True)),
    "two axes": lambda g: g.attention(
        g.given("q", S, D), g.given("k", D, T), g.given("v", T, D), 1.0, None
    ),
    "one column of mask": masked(S, 1),
    "weights on the right": lambda g: (
        g.given("w", B, H, 3, S) @ softmax(g.given("q", B, H, S, D) @ g.given("k", B, H, D, T))
    ),
    # Of other batch axes: a product that broadcasts.
    "shared keys": lambda g: g.attention(
        g.given("q", B, H, S, D), g.given("k", D, T), g.given("v", T, D), 1.0, None
    ),
}


@pytest.mark.parametrize("body", NO_ATTENTION.values(), ids=NO_ATTENTION)
def test_what_is_no_attention(body: Body) -> None:
    assert_left_alone(recognise_attention, body)


@pytest.mark.parametrize("part", ["scores", "scaled", "sums", "weights"])
def test_attention_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        q, k, v = qkv(g)
        scores = q @ k
        smaller = scores * 0.5
        sums = smaller + g.given("mask", S, T)
        weights = softmax(sums)
        parts = {"scores": scores, "scaled": smaller, "sums": sums, "weights": weights}
        return [weights @ v, parts[part]]

    assert "attention" not in ops(applied(recognise_attention, graph_of(body)))


# Products.


def products(biases: tuple[bool, ...], widths: tuple[int, ...] = (3, 5, 4)) -> Graph:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, 6)
        return [g.linear(x, n, bias) for n, bias in zip(widths, biases, strict=False)]

    return graph_of(body)


MERGED: tuple[tuple[tuple[bool, ...], str], ...] = (
    ((True, True, True), "add matmul slice slice slice"),
    ((False, False, False), "matmul slice slice slice"),
    ((True, False, True), "add matmul matmul slice slice"),
    ((True,), "add matmul"),
    ((True, False), "add matmul matmul"),
)


@pytest.mark.parametrize(("biases", "expected"), MERGED)
def test_products_of_one_tensor(biases: tuple[bool, ...], expected: str) -> None:
    assert sorted(ops(applied(merge_products, products(biases)))) == expected.split()


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
            g.linear(x, 3), g.linear(y, 3), x @ g.weight(2, 6, 3),
            x @ g.given("w", 6, T), g.weight(3, B_FIXED) @ y,
        ]  # fmt: skip

    B_FIXED = 2
    graph = graph_of(body)
    found = merge_products(graph)
    verify(found)
    assert ops(found) == ops(graph)


def test_a_product_that_is_an_output_has_no_bias() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, 6)
        y = x @ g.weight(6, 3)
        return [y, y + g.weight(3), g.linear(x, 4, bias=False)]

    graph = applied(merge_products, graph_of(body))
    assert ops(graph).count("matmul") == 1


def activated(g: Maker) -> list[Value]:
    """As the first block of a residual network: one branch begins with an activation."""
    x = g.given("x", B, S, 6)
    y = g.linear(x, 3).at_least(0)
    return [y @ g.weight(3, 3), g.linear(x, 4)]


def gated(g: Maker) -> list[Value]:
    """The activation is multiplied by the other product."""
    x = g.given("x", B, S, 6)
    gate, up = g.linear(x, 3), g.linear(x, 3)
    return [g.add("silu", gate) * up @ g.weight(3, 3)]


@pytest.mark.parametrize(("body", "left"), [(activated, 3), (gated, 2)])
def test_a_product_with_an_activation_stays_alone(
    body: Callable[[Maker], list[Value]], left: int
) -> None:
    assert ops(applied(merge_products, graph_of(body))).count("matmul") == left


def test_products_whose_bias_is_no_row() -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, 4, 6)
        other = x @ g.weight(6, 3) + g.weight(4, 3)
        return [other, g.linear(x, 5), g.linear(x, 3, bias=False)]

    assert ops(applied(merge_products, graph_of(body))).count("matmul") == 2


# All of them.


def test_passes_leave_an_encoder_layer_right() -> None:
    graph = layer()
    for rule in PASSES:
        graph = applied(rule, graph)
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
    live = graph_of(lambda g: exp(g.given("x", B, S)))
    (node,) = live.nodes
    unread = Node("negative", node.outputs, (Value("unread", node.output.type),))
    given = replace(live, nodes=(*live.nodes, unread))
    assert optimised(given) == live
