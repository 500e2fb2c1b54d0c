"""Attention whose masks are written out becomes one node, where that is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, graph_of, inputs_of, ops, reference
from tests.graph.passes.recognised_attention import (
    BINDINGS,
    LOWEST,
    Body,
    D,
    H,
    P,
    applied,
    assert_runs_as,
    attention_of,
    chosen,
    hidden_by,
    hiding,
    is_recognised,
    positions,
    scores,
    show_first,
    softmax,
    triangle,
    values,
)

from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, INT64
from ftuner.graph.algebra import apply, equal, isnan, tanh, where
from ftuner.graph.ir import Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


def with_addend(g: Maker, addend: Value) -> Value:
    return values(g, scores(g) + addend)


def mask_of_keys(g: Maker) -> Value:
    return g.given("mask", B, 1, 1, T)


def addend_with_axes(g: Maker) -> Value:
    mask = where(~triangle(), g.number(LOWEST), 0).reshape((1, S, T)).reshape((1, 1, S, T))
    return with_addend(g, mask.broadcast((B, 1, S, T)))


def of_numbers(g: Maker) -> Value:
    """As `scaled_dot_product_attention` is exported: the lower triangle of ones, where it is 0."""
    low = where(triangle(), g.number(1).broadcast((S, T)), 0)
    return with_addend(g, where(equal(low, 0), g.number(-math.inf), 0))


def of_ones(g: Maker) -> Value:
    """As `triu` of a mask of ones is exported."""
    ones = g.constant(np.array(True)).broadcast((S, T))
    return hidden_by(g, ones & (positions(S, 0, 1) <= positions(T, 1)), LOWEST)


def buffered(g: Maker) -> Value:
    """As GPT-2 does it: rows and columns of a large triangle."""
    whole = g.constant(np.tri(16, dtype=bool).reshape(1, 1, 16, 16))
    starts, shape = (0, 0, P, 0), (1, 1, S, T)
    return chosen(g, apply("slice", whole, starts=starts, steps=(1,) * 4, shape=shape))


def of_slices(g: Maker) -> Value:
    """Positions that are cut out of longer ones."""
    row = positions(S + P, 0).slice(0, P, S).reshape((1, S)).swapped()
    return chosen(g, positions(T, 1) <= apply("cast", row, to=INT64))


def padded(g: Maker, number: float, added: bool) -> Value:
    shown = triangle() & g.given("mask", B, 1, 1, T, dtype=BOOL)
    return with_addend(g, hiding(g, shown, number)) if added else chosen(g, shown, number)


CAUSAL: tuple[tuple[Body, Dim, int], ...] = (
    # What, its offset, its operands.
    (lambda g: chosen(g, triangle()), 0, 3), (lambda g: chosen(g, triangle(P)), P, 3),
    (lambda g: chosen(g, triangle(3), -math.inf), 3, 3),
    (lambda g: hidden_by(g, positions(S, 0) < positions(T, 1)), 0, 3),
    (lambda g: hidden_by(g, ~triangle(1), -1e9), 1, 3),
    (lambda g: chosen(g, triangle().reshape((1, 1, S, T)).broadcast((B, 1, S, T))), 0, 3),
    (lambda g: with_addend(g, hiding(g, triangle(P), -math.inf)), P, 3),
    (addend_with_axes, 0, 3), (of_numbers, 0, 3), (of_ones, 0, 3), (buffered, P, 3),
    (of_slices, P, 3),
    (lambda g: values(g, where(triangle(), scores(g), LOWEST) + mask_of_keys(g)), 0, 4),
    (lambda g: values(g, where(triangle(), scores(g) + mask_of_keys(g), -math.inf)), 0, 4),
    (lambda g: values(g, (scores(g) + g.given("mask", T)) + hiding(g, triangle())), 0, 4),
    (lambda g: padded(g, -math.inf, False), 0, 4), (lambda g: padded(g, -math.inf, True), 0, 4),
)  # fmt: skip


@pytest.mark.parametrize(("body", "offset", "operands"), CAUSAL)
def test_limits(widest: CpuBackend, body: Body, offset: Dim, operands: int) -> None:
    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.attributes["causal"] == offset
    assert len(node.inputs) == operands
    assert not {"softmax", "where", "less_equal", "less"} & set(ops(found))
    assert_runs_as(graph, found, widest, show_first, BINDINGS)


@pytest.mark.parametrize("ahead", [0, 2])
def test_limits_of_constants(ahead: int) -> None:
    mask = np.where(np.tri(6, 8, ahead, dtype=bool), 0, LOWEST).astype(np.float32)

    def body(g: Maker) -> Value:
        return values(g, scores(g, 6, 8) + g.constant(mask))

    node = attention_of(applied(graph_of(body)))
    assert node.attributes["causal"] == ahead
    assert len(node.inputs) == 3


MASKED: tuple[tuple[Body, dict[str, Any]], ...] = (
    # Rows might see nothing; other shapes; numbers that other scores may be; what hides whole rows.
    (lambda g: chosen(g, triangle(-1)), {"hidden": LOWEST}),
    (lambda g: chosen(g, triangle(T - S)), {"hidden": LOWEST}),
    (lambda g: chosen(g, positions(S, 0) <= positions(T, 1)), {}),
    (lambda g: chosen(g, positions(T, 1) * 2 <= positions(S, 0)), {}),
    (lambda g: chosen(g, triangle(), -2.0), {"hidden": -2.0}),
    (lambda g: chosen(g, g.given("mask", B, 1, S, T, dtype=BOOL)), {"hidden": LOWEST}),
    (lambda g: chosen(g, g.given("mask", dtype=BOOL)), {"hidden": LOWEST}),
    (lambda g: padded(g, LOWEST, False), {"hidden": LOWEST}),
    (lambda g: padded(g, LOWEST, True), {"hidden": -math.inf}),
    # Rows that the mask hides whole count what is beyond the limit.
    (lambda g: values(g, where(triangle(), scores(g) + mask_of_keys(g), LOWEST)),
     {"hidden": -math.inf}),
)  # fmt: skip


@pytest.mark.parametrize(("body", "attributes"), MASKED)
def test_masks_that_stay(widest: CpuBackend, body: Body, attributes: dict[str, Any]) -> None:
    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.attributes["causal"] is None
    assert len(node.inputs) == 4
    for name, value in attributes.items():
        assert node.attributes[name] == value
    assert_runs_as(graph, found, widest, extents=BINDINGS)


def test_windows() -> None:
    def body(g: Maker) -> Value:
        near = positions(S, 0, -2) <= positions(T, 1)
        return chosen(g, triangle() & near, -math.inf)

    graph = applied(graph_of(body))
    assert attention_of(graph).attributes["causal"] == 0
    assert attention_of(graph).inputs[3].dtype == BOOL


@pytest.mark.parametrize("negated", [False, True])
def test_what_a_mask_hides(negated: bool) -> None:
    """The contrary of a mask is made, unless the mask is a contrary itself."""

    def body(g: Maker) -> Value:
        hidden = g.given("mask", B, 1, S, T, dtype=BOOL)
        return hidden_by(g, ~hidden if negated else hidden)

    graph = applied(graph_of(body))
    assert ops(graph) == (["attention"] if negated else ["logical_not", "attention"])


def test_masks_of_masks_of_masks() -> None:
    """However often a mask or a position is put together with itself, it is looked at once."""

    def body(g: Maker) -> Value:
        row = positions(S, 0)
        for _ in range(60):
            row = row + (row - row)
        mask = positions(T, 1) <= row
        for _ in range(60):
            mask = mask & (mask | mask)
        return chosen(g, mask)

    node = attention_of(recognise_attention(graph_of(body)))
    assert node.attributes["causal"] is None


def test_what_is_no_attention() -> None:
    graph = graph_of(lambda g: chosen(g, triangle(), g.given("other", S, T)))
    assert ops(recognise_attention(graph)) == ops(graph)


@pytest.mark.parametrize("part", ["where", "scores"])
def test_masks_that_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        raw = scores(g)
        masked = where(triangle(), raw, LOWEST)
        return [values(g, masked), {"where": masked, "scores": raw}[part]]

    assert not is_recognised(graph_of(body))


def test_operands_that_are_scaled() -> None:
    """The root of the scale on either side, as PyTorch exports it."""

    def body(g: Maker) -> Value:
        q, k, v = g.given("q", B, H, S, D), g.given("k", B, H, D, T), g.given("v", B, H, T, D)
        q, k = (x * 0.5 for x in (q, k))
        return g.attention(q, k, v, 2.0, None)

    graph = applied(graph_of(body))
    assert ops(graph) == ["attention"]
    assert attention_of(graph).attributes["scale"] == pytest.approx(0.5)


def exported(g: Maker, shown: Value) -> Value:
    """As PyTorch exports `scaled_dot_product_attention` of heads that share keys and values."""

    def repeated(name: str) -> Value:
        x = g.given(name, B, 1, T, D).reshape((B, 1, 1, T, D))
        return x.broadcast((B, 1, H, T, D)).reshape((B, H, T, D))

    q, k, v = g.given("q", B, H, S, D), repeated("k"), repeated("v")
    k = k.reshape((B * H, T, D)).swapped().reshape((B, H, D, T))
    q, k = (x * 0.5 for x in (q, k))
    weights = softmax((q @ k) + hiding(g, shown, -math.inf))
    return where(isnan(weights), 0, weights) @ v


def product(g: Maker) -> Value:
    return g.given("q", B, H, S, D) @ g.given("k", B, H, D, T)


def test_softmax_whose_nan_are_zeros(widest: CpuBackend) -> None:
    """Rows that see nothing, and rows with scores that are NaN or infinite, give zeros."""
    graph = graph_of(lambda g: exported(g, g.given("mask", B, 1, S, T, dtype=BOOL)))
    found = optimised(graph)
    node = attention_of(found)
    assert node.attributes["hides_nan"]
    assert not {"softmax", "isnan", "matmul", "broadcast"} & set(ops(found))
    model = Model(found, widest)
    for bindings in BINDINGS:
        inputs = inputs_of(graph, bindings)
        inputs["mask"][..., 0, :] = False
        for name, number in (("q", math.nan), ("k", math.inf), ("k", math.nan)):
            given = {n: x.copy() for n, x in inputs.items()}
            given[name][0, 0, 0, 0] = number
            assert_close(model.run(given), reference(graph, given))
            assert_close(reference(found, given), reference(graph, given))


@pytest.mark.parametrize("part", ["weights", "isnan"])
def test_guards_that_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        weights = softmax(product(g))
        test = isnan(weights)
        guarded = where(test, 0, weights)
        return [guarded @ g.given("v", B, H, T, D), {"weights": weights, "isnan": test}[part]]

    assert not is_recognised(graph_of(body))


def test_guards_with_another_number() -> None:
    def body(g: Maker) -> Value:
        weights = softmax(product(g))
        return where(isnan(weights), 1, weights) @ g.given("v", B, H, T, D)

    assert not is_recognised(graph_of(body))


def test_all_passes_together() -> None:
    graph = optimised(graph_of(lambda g: chosen(g, triangle())))
    assert ops(graph) == ["attention"]
    assert ops(optimised(graph)) == ["attention"]


@pytest.mark.parametrize("cap", [3.0, -3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_soft_caps(masked: bool, cap: float) -> None:
    """Gemma 2's; the mask is applied to capped scores."""

    def body(g: Maker) -> Value:
        found = tanh(scores(g) / 3.0) * cap
        mask = g.given("mask", S, T, dtype=BOOL) if masked else None
        return values(g, found if mask is None else where(mask, found, LOWEST))

    graph = applied(graph_of(body))
    assert ops(graph).count("tanh") == 0
    node = attention_of(graph)
    assert node.attributes["softcap"] == 3.0
    assert node.attributes["scale"] == pytest.approx(0.5 * cap / 3.0)


def test_a_cap_that_others_read_stays() -> None:
    def body(g: Maker) -> tuple[Value, Value]:
        bent = tanh(scores(g))
        return values(g, bent * 2.0), bent

    assert not is_recognised(graph_of(body))


@pytest.mark.parametrize("of_data", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_factor_for_each_head(biased: bool, of_data: bool) -> None:
    """Swin V2's: a scale that is learned for each head."""

    def body(g: Maker) -> Value:
        factor = g.given("factor", B, H, 1, 1) if of_data else g.weight(H, 1, 1)
        found = factor * scores(g)
        if biased:
            found = found + g.given("bias", H, S, T)
        return values(g, found)

    graph = applied(graph_of(body))
    assert ops(graph) == ["multiply", "attention"]
    assert attention_of(graph).attributes["scale"] == 0.5


@pytest.mark.parametrize("shape", [(1, T), (H, S, 1)])
def test_factors_that_differ_within_a_matrix_stay(shape: tuple[Dim, ...]) -> None:
    graph = graph_of(lambda g: values(g, scores(g) * g.given("factor", *shape)))
    assert "attention" not in ops(applied(graph))


def test_a_factor_that_adds_matrices_stays() -> None:
    """Queries that all matrices share have no room for a factor of each."""

    def body(g: Maker) -> Value:
        q, k = g.given("q", S, D), g.given("k", B, H, D, T)
        g.given("v", B, H, T, D)
        g.given("past", P)
        return values(g, (q @ k) * g.weight(H, 1, 1))

    assert "attention" not in ops(applied(graph_of(body)))


def one_node(g: Maker, mask: Value, repeated: bool = True) -> Value:
    """An attention as a front end writes it: one node, with keys for each head of the queries."""
    groups, times = H, 3
    heads = groups * times

    def of_heads(name: str) -> Value:
        if not repeated:
            return g.given(name, B, heads, T, D)
        x = g.given(name, B, groups, T, D).reshape((B, groups, 1, T, D))
        return x.broadcast((B, groups, times, T, D)).reshape((B, heads, T, D))

    q, k, v = g.given("q", B, heads, S, D), of_heads("k").swapped(), of_heads("v")
    return apply("attention", q, k, v, mask, scale=0.5, safe=True)


def test_one_node_shares_heads_and_has_a_limit() -> None:
    def made(g: Maker) -> Value:
        g.given("past", P)
        return one_node(g, triangle(P).reshape((1, 1, S, T)).broadcast((B, 1, S, T)))

    node = attention_of(applied(graph_of(made)))
    assert len(node.inputs) == 3
    assert [x.shape[1:3] for x in node.inputs] == [(H, 3), (H, 1), (H, 1)]
    assert str(node.attributes["causal"]) == "P"


@pytest.mark.parametrize("repeated", [False, True])
def test_one_node_keeps_a_mask_that_is_no_limit(repeated: bool) -> None:
    node = attention_of(
        applied(graph_of(lambda g: one_node(g, g.given("mask", B, 1, S, T, dtype=BOOL), repeated)))
    )
    assert len(node.inputs) == 4
    assert node.inputs[0].rank == 4 + repeated
    assert node.attributes.get("causal") is None


def test_one_node_with_rows_that_see_nothing_keeps_its_mask() -> None:
    def made(g: Maker) -> Value:
        g.given("past", P)
        return one_node(g, triangle(P - 3), repeated=False)

    assert len(attention_of(applied(graph_of(made))).inputs) == 4
