"""Attention whose scores have biases of positions, and sinks, becomes one node."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, graph_of, inputs_of, reference
from tests.graph.passes.recognised_attention import (
    BINDINGS,
    LOWEST,
    Body,
    D,
    G,
    H,
    applied,
    attention_of,
    ops,
)
from tests.graph.passes.test_recognise_attention import positions, scores, triangle, values

from ftuner.core.dtype import BOOL
from ftuner.errors import GraphError
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.merged_axes import undo_merged_axes
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.graph.verify import verify
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

MORE = (*BINDINGS, {"B": 3, "S": 33, "T": 40, "P": 1})


def padding(g: Maker, rows: bool = False) -> Value:
    return g.given("shown", B, 1, S if rows else 1, T, dtype=BOOL)


def hiding(g: Maker, shown: Value, number: float = LOWEST) -> Value:
    return g.add("where", shown, g.number(0), g.number(number))


def alibi(g: Maker) -> Value:
    """As MPT has it: a slope of a head times positions, then booleans that hide."""
    slopes = g.constant(np.float32([0.5, 0.25]).reshape(H, 1, 1))
    distance = g.add("cast", positions(g, T, 1), to=slopes.dtype)
    biased = scores(g) + (slopes * distance)
    return values(g, g.add("where", padding(g, True), biased, g.number(LOWEST)))


def alibi_with_addend(g: Maker) -> Value:
    biased = scores(g) + g.given("bias", B, H, 1, T)
    return values(g, biased + hiding(g, padding(g, True)))


def hidden_then_biased(g: Maker) -> Value:
    masked = g.add("where", padding(g), scores(g), g.number(-math.inf))
    return values(g, masked + g.given("bias", H, S, T))


def scaled_together(g: Maker) -> Value:
    """As Falcon has ALiBi, and BROS its boxes: a factor of scores and bias."""
    biased = scores(g) + g.given("bias", H, 1, T)
    return values(g, biased / 4.0)


def two_masks(g: Maker) -> Value:
    one = g.add("where", padding(g), scores(g), g.number(LOWEST))
    other = g.given("other", S, T, dtype=BOOL)
    return values(g, g.add("where", other, one, g.number(LOWEST)))


def along_rows(g: Maker) -> Value:
    return values(g, (scores(g) + g.given("bias", H, 1, T)) + g.given("rows", B, 1, S, 1))


BODIES = (alibi, alibi_with_addend, hidden_then_biased, scaled_together, two_masks, along_rows)


@pytest.mark.parametrize("body", BODIES)
def test_biases(widest: CpuBackend, body: Body) -> None:
    graph = graph_of(body)
    found = applied(graph)
    assert len(attention_of(found).inputs) == 4
    assert "softmax" not in ops(found)
    model = Model(optimised(graph), widest)
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        for x in inputs.values():
            if x.dtype == np.bool_:
                x[..., 0] = True
        assert_close(model.run(inputs), reference(graph, inputs))


@pytest.mark.parametrize("number", [-1e9, -1e4])
def test_numbers_that_scores_may_change_stay(number: float) -> None:
    """A row that is hidden whole would have the softmax of its bias."""

    def body(g: Maker) -> Value:
        biased = scores(g) + g.given("bias", H, S, T)
        return values(g, g.add("where", padding(g), biased, g.number(number)))

    assert "attention" not in ops(recognise_attention(graph_of(body)))


def within_a_triangle(g: Maker) -> Value:
    """As T5's decoder has it: the bias is part of the mask."""
    bias = g.given("bias", 1, H, S, T)
    return values(g, scores(g) + g.add("where", triangle(g), bias, g.number(LOWEST)))


def test_a_bias_within_a_triangle_leaves_a_limit(widest: CpuBackend) -> None:
    graph = graph_of(within_a_triangle)
    found = applied(graph)
    node = attention_of(found)
    assert ops(found) == ["attention"]
    assert node.attributes["causal"] == 0
    assert node.inputs[3].shape == (1, H, S, T)
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


def test_layers_share_their_mask() -> None:
    def body(g: Maker) -> Value:
        bias, shown = g.given("bias", B, H, 1, T), hiding(g, padding(g, True))
        k, v = g.given("k", B, H, D, T), g.given("v", B, H, T, D)
        x = g.given("q", B, H, S, D)
        for _ in range(3):
            biased = ((x @ k) + bias) + shown
            x = g.add("softmax", biased, axis=3, log=False) @ v
        return x

    found = applied(graph_of(body))
    assert ops(found) == ["where", "add", *["attention"] * 3]


# Merged axes.


def merged(g: Maker, x: Value) -> Value:
    batch, heads, *matrix = x.shape
    return g.add("reshape", x, shape=(batch * heads, *matrix))


def split(g: Maker, x: Value) -> Value:
    return g.add("reshape", x, shape=(B, H, *x.shape[1:]))


def bloom(g: Maker) -> Value:
    """Products of one batch axis; the mask of requests has two."""
    q, k = g.given("q", B, H, S, D), g.given("k", B, H, T, D)
    v, bias = g.given("v", B, H, T, D), g.given("bias", B, H, T)
    q, k, v = (merged(g, x) for x in (q, k, v))
    raw = q @ g.add("transpose", k, perm=(0, 2, 1))
    raw = raw * 0.5
    raw = raw + g.add("reshape", bias, shape=(B * H, 1, T))
    masked = split(g, raw) + hiding(g, padding(g, True))
    weights = g.add("softmax", masked, axis=3, log=False)
    return split(g, merged(g, weights) @ v)


def deberta(g: Maker) -> Value:
    """Scores of positions are products that are gathered by distance."""
    q, k, v = (merged(g, g.given(name, B, H, S, D)) for name in "qkv")
    table = g.add("tile", g.given("table", H, D, 8), repeats=(B, 1, 1))
    raw = q @ g.add("transpose", k, perm=(0, 2, 1))
    back = positions(g, S, 0) - positions(g, S, 1)
    back = g.add("maximum", g.add("minimum", back, g.constant(np.int64(3))),
                 g.constant(np.int64(-4)))  # fmt: skip
    back = back + g.constant(np.int64(4))
    at = g.add("broadcast", g.add("reshape", back, shape=(1, S, S)), shape=(B * H, S, S))
    how = {"axis": 2, "node": "gather"}
    to_positions = g.add("gather_elements", q @ table, at, **how)
    of_positions = g.add("gather_elements", k @ table, at, **how)
    of_positions = g.add("transpose", of_positions, perm=(0, 2, 1))
    raw = raw + (to_positions + of_positions)
    shown = g.given("shown", B, 1, S, S, dtype=BOOL)
    masked = g.add("where", shown, split(g, raw), g.number(LOWEST))
    weights = g.add("softmax", masked, axis=3, log=False)
    return split(g, merged(g, weights) @ v)


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
        x = g.add("reshape", g.given("x", 2, H, 3, 4), shape=(2 * H, 3, 4))
        return g.add("reshape", x + g.constant(bias), shape=(2, H, 3, 4))

    graph = graph_of(body)
    found = verified(undo_merged_axes(graph))
    assert ops(found) == ["reshape", "add"]
    inputs = inputs_of(graph, {})
    assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


def read_twice(g: Maker) -> list[Value]:
    raw = merged(g, g.given("x", B, H, S, T)) * 2.0
    return [split(g, raw), raw]


def merged_by_nobody(g: Maker) -> list[Value]:
    return [split(g, g.given("x", B * H, S, T) * 2.0)]


@pytest.mark.parametrize("body", [read_twice, merged_by_nobody])
def test_splits_that_stay(body: Body) -> None:
    graph = graph_of(body)
    assert undo_merged_axes(graph) is graph


# Sinks.


def with_sinks(g: Maker, shape: tuple[int, ...] = (1, H, 1, 1), masked: bool = True) -> Value:
    raw = scores(g)
    if masked:
        raw = raw + hiding(g, padding(g, True), -math.inf)
    column = g.add("broadcast", g.given("sinks", *shape), shape=(B, H, S, 1))
    joined = g.add("concat", raw, column, axis=3)
    largest = g.add("reduce", joined, kind="maximum", axes=(3,))
    shifted = joined - g.add("reshape", largest, shape=(B, H, S, 1))
    weights = g.add("softmax", shifted, axis=3, log=False)
    begin = {"starts": (0,) * 4, "steps": (1,) * 4, "shape": (B, H, S, T)}
    (v,) = [given for given in g.inputs if given.name == "v"]
    return g.add("slice", weights, **begin) @ v


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
            x = g.add("reshape", x, shape=(B, H, 1, *x.shape[2:]))
            wide = g.add("broadcast", x, shape=(B, H, G, *x.shape[3:]))
            return g.add("reshape", wide, shape=(B, H * G, *x.shape[3:]))

        q, k = g.given("q", B, H * G, S, D), repeated(g.given("k", B, H, D, T))
        v = repeated(g.given("v", B, H, T, D))
        column = g.add("broadcast", g.given("sinks", H * G, 1, 1), shape=(B, H * G, S, 1))
        joined = g.add("concat", q @ k, column, axis=3)
        weights = g.add("softmax", joined, axis=3, log=False)
        begin = {"starts": (0,) * 4, "steps": (1,) * 4, "shape": (B, H * G, S, T)}
        return g.add("slice", weights, **begin) @ v

    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.inputs[0].shape == (B, H, G, S, D)
    assert node.inputs[3].shape == (H, G, 1, 1)
    for bindings in MORE:
        inputs = inputs_of(graph, bindings)
        assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


def test_columns_that_count_stay() -> None:
    """Weights of the last column are read, or the first one is cut off."""

    def body(g: Maker, start: int) -> Value:
        joined = g.add("concat", scores(g), g.given("sinks", B, H, S, 1), axis=3)
        weights = g.add("softmax", joined, axis=3, log=False)
        (v,) = [given for given in g.inputs if given.name == "v"]
        how = {"starts": (0, 0, 0, start), "steps": (1,) * 4, "shape": (B, H, S, T)}
        return g.add("slice", weights, **how) @ v

    assert ops(recognise_attention(graph_of(lambda g: body(g, 0))))[-1] == "attention"
    assert "attention" not in ops(recognise_attention(graph_of(lambda g: body(g, 1))))


def test_sinks_are_an_operand_of_the_node() -> None:
    graph = graph_of(lambda g: with_sinks(g, masked=False))
    found = recognise_attention(rules.plain_softmax(graph))
    node = attention_of(found)
    without = replace(node, inputs=node.inputs[:3])
    nodes = tuple(without if n is node else n for n in found.nodes)
    with pytest.raises(GraphError, match="attention of 3 operands"):
        verify(replace(found, nodes=nodes))
