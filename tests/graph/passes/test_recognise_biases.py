"""Attention whose scores have biases of positions, and sinks, becomes one node."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, graph_of, inputs_of, ops, reference
from tests.graph.passes.recognised_attention import (
    LOWEST,
    MORE,
    Body,
    D,
    G,
    H,
    applied,
    assert_runs_as,
    attention_of,
    hiding,
    is_recognised,
    padding,
    positions,
    scores,
    show_first,
    softmax,
    triangle,
    v_of,
    values,
)

from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, FLOAT32
from ftuner.errors import GraphError
from ftuner.graph.algebra import apply, concat, where
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.merged_axes import undo_merged_axes
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.graph.verify import verify
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


def alibi(g: Maker) -> Value:
    """As MPT has it: a slope of a head times positions, then booleans that hide."""
    slopes = g.constant(np.array([0.5, 0.25], np.float32).reshape(H, 1, 1))
    biased = scores(g) + slopes * positions(T, 1).cast(FLOAT32)
    return values(g, where(padding(g, True), biased, LOWEST))


def hidden_then_biased(g: Maker) -> Value:
    masked = where(padding(g), scores(g), -math.inf)
    return values(g, masked + g.given("bias", H, S, T))


def two_masks(g: Maker) -> Value:
    one = where(padding(g), scores(g), LOWEST)
    return values(g, where(g.given("other", S, T, dtype=BOOL), one, LOWEST))


def biased(g: Maker, *shape: Dim) -> Value:
    return scores(g) + g.given("bias", *shape)


BODIES: dict[str, Body] = {
    "alibi": alibi,
    "alibi with addend": lambda g: values(g, biased(g, B, H, 1, T) + hiding(g, padding(g, True))),
    "hidden then biased": hidden_then_biased,
    # As Falcon has ALiBi, and BROS its boxes: a factor of scores and bias.
    "scaled together": lambda g: values(g, biased(g, H, 1, T) / 4.0),
    "two masks": two_masks,
    "along rows": lambda g: values(g, biased(g, H, 1, T) + g.given("rows", B, 1, S, 1)),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_biases(widest: CpuBackend, body: Body) -> None:
    graph = graph_of(body)
    found = applied(graph)
    assert len(attention_of(found).inputs) == 4
    assert "softmax" not in ops(found)
    assert_runs_as(graph, optimised(graph), widest, show_first)


@pytest.mark.parametrize("number", [-1e9, -1e4])
def test_numbers_that_scores_may_change_stay(number: float) -> None:
    """A row that is hidden whole would have the softmax of its bias."""

    def body(g: Maker) -> Value:
        return values(g, where(padding(g), biased(g, H, S, T), number))

    assert not is_recognised(graph_of(body))


def test_a_bias_within_a_triangle_leaves_a_limit(widest: CpuBackend) -> None:
    """As T5's decoder has it: the bias is part of the mask."""

    def body(g: Maker) -> Value:
        bias = g.given("bias", 1, H, S, T)
        return values(g, scores(g) + where(triangle(), bias, LOWEST))

    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert ops(found) == ["attention"]
    assert node.attributes["causal"] == 0
    assert node.inputs[3].shape == (1, H, S, T)
    assert_runs_as(graph, found, widest)


def test_layers_share_their_mask() -> None:
    def body(g: Maker) -> Value:
        bias, shown = g.given("bias", B, H, 1, T), hiding(g, padding(g, True))
        k, v = g.given("k", B, H, D, T), g.given("v", B, H, T, D)
        x = g.given("q", B, H, S, D)
        for _ in range(3):
            x = softmax(((x @ k) + bias) + shown) @ v
        return x

    found = applied(graph_of(body))
    assert ops(found) == ["where", "add", *["attention"] * 3]


# Merged axes.


def merged(x: Value) -> Value:
    batch, heads, *matrix = x.shape
    return x.reshape((batch * heads, *matrix))


def split(x: Value) -> Value:
    return x.reshape((B, H, *x.shape[1:]))


def bloom(g: Maker) -> Value:
    """Products of one batch axis; the mask of requests has two."""
    q, k = g.given("q", B, H, S, D), g.given("k", B, H, T, D)
    v, bias = g.given("v", B, H, T, D), g.given("bias", B, H, T)
    q, k, v = map(merged, (q, k, v))
    raw = (q @ k.swapped()) * 0.5 + bias.reshape((B * H, 1, T))
    weights = softmax(split(raw) + hiding(g, padding(g, True)))
    return split(merged(weights) @ v)


def deberta(g: Maker) -> Value:
    """Scores of positions are products that are gathered by distance."""
    q, k, v = (merged(g.given(name, B, H, S, D)) for name in "qkv")
    table = apply("tile", g.given("table", H, D, 8), repeats=(B, 1, 1))
    raw = q @ k.swapped()
    back = (positions(S, 0) - positions(S, 1)).at_most(3).at_least(-4) + 4
    at = back.reshape((1, S, S)).broadcast((B * H, S, S))
    to_positions, of_positions = (
        apply("gather_elements", x @ table, at, axis=2, node="gather") for x in (q, k)
    )
    raw = raw + (to_positions + of_positions.swapped())
    weights = softmax(where(g.given("shown", B, 1, S, S, dtype=BOOL), split(raw), LOWEST))
    return split(merged(weights) @ v)


def verified(graph: Graph) -> Graph:
    verify(graph)
    return graph


@pytest.mark.parametrize("body", [bloom, deberta])
def test_merged_axes(widest: CpuBackend, body: Body) -> None:
    graph = graph_of(body)
    alone = verified(undo_merged_axes(graph))
    assert "tile" not in ops(alone)
    found = verified(recognise_attention(alone))
    node = attention_of(found)
    assert node.inputs[0].shape == (B, H, S, D)
    assert [v.name for v in node.inputs[:1]] == ["q"]
    model = Model(found, widest)
    for bindings in (*MORE, {"B": 0, "S": 2, "T": 2, "P": 1}):
        inputs = inputs_of(graph, bindings)
        wanted = reference(graph, inputs)
        for run in (reference(alone, inputs), reference(found, inputs), model.run(inputs)):
            assert_close(run, wanted)


def test_constants_are_split(widest: CpuBackend) -> None:
    bias = np.random.default_rng(0).standard_normal((2 * H, 3, 4)).astype(np.float32)

    def body(g: Maker) -> Value:
        x = g.given("x", 2, H, 3, 4).reshape((2 * H, 3, 4))
        return (x + g.constant(bias)).reshape((2, H, 3, 4))

    graph = graph_of(body)
    found = verified(undo_merged_axes(graph))
    assert ops(found) == ["reshape", "add"]
    inputs = inputs_of(graph, {})
    assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


def read_twice(g: Maker) -> list[Value]:
    raw = merged(g.given("x", B, H, S, T)) * 2.0
    return [split(raw), raw]


@pytest.mark.parametrize("body", [read_twice, lambda g: split(g.given("x", B * H, S, T) * 2.0)])
def test_splits_that_stay(body: Body) -> None:
    graph = graph_of(body)
    assert undo_merged_axes(graph) is graph


# Sinks.


def with_sinks(g: Maker, shape: tuple[int, ...] = (1, H, 1, 1), masked: bool = True) -> Value:
    raw = scores(g)
    if masked:
        raw = raw + hiding(g, padding(g, True), -math.inf)
    joined = concat([raw, g.given("sinks", *shape).broadcast((B, H, S, 1))], 3)
    weights = softmax(joined - joined.reduce("maximum", (3,)))
    return weights.slice(3, 0, T) @ v_of(g)


@pytest.mark.parametrize("masked", [False, True])
def test_sinks(widest: CpuBackend, masked: bool) -> None:
    """A row that a mask hides whole gives zeros: its weight is that of the sink."""
    graph = graph_of(lambda g: with_sinks(g, masked=masked))
    plain = verified(rules.plain_softmax(graph))
    assert "subtract" not in ops(plain)
    found = applied(plain)
    node = attention_of(found)
    assert node.attributes["sinks"]
    assert node.inputs[-1].name == "sinks"
    assert len(node.inputs) == 4 + masked
    model = Model(found, widest)
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        assert_close(model.run(inputs), reference(graph, inputs))
        if masked:
            inputs["shown"][:] = False
            (rows,) = model.run(inputs)
            assert not rows.any()


def test_sinks_of_heads_that_share_keys(widest: CpuBackend) -> None:
    def body(g: Maker) -> Value:
        def repeated(x: Value) -> Value:
            *_, rows, columns = x.shape
            wide = x.reshape((B, H, 1, rows, columns)).broadcast((B, H, G, rows, columns))
            return wide.reshape((B, H * G, rows, columns))

        q, k = g.given("q", B, H * G, S, D), repeated(g.given("k", B, H, D, T))
        v = repeated(g.given("v", B, H, T, D))
        column = g.given("sinks", H * G, 1, 1).broadcast((B, H * G, S, 1))
        return softmax(concat([q @ k, column], 3)).slice(3, 0, T) @ v

    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.inputs[0].shape == (B, H, G, S, D)
    assert node.inputs[3].shape == (H, G, 1, 1)
    assert_runs_as(graph, found, widest)


def test_columns_that_count_stay() -> None:
    """Weights of the last column are read, or the first one is cut off."""

    def body(g: Maker, start: int) -> Value:
        joined = concat([scores(g), g.given("sinks", B, H, S, 1)], 3)
        return softmax(joined).slice(3, start, T) @ v_of(g)

    assert ops(recognise_attention(graph_of(lambda g: body(g, 0))))[-1] == "attention"
    assert not is_recognised(graph_of(lambda g: body(g, 1)))


def test_sinks_are_an_operand_of_the_node() -> None:
    graph = graph_of(lambda g: with_sinks(g, masked=False))
    found = recognise_attention(rules.plain_softmax(graph))
    node = attention_of(found)
    without = replace(node, inputs=node.inputs[:3])
    nodes = tuple(without if n is node else n for n in found.nodes)
    with pytest.raises(GraphError, match="attention of 3 operands"):
        verify(replace(found, nodes=nodes))
