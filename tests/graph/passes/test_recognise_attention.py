"""Attention whose masks are written out becomes one node, where that is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, graph_of, inputs_of, reference
from tests.graph.passes.recognised_attention import (
    BINDINGS,
    LOWEST,
    Body,
    D,
    H,
    P,
    applied,
    attention_of,
    ops,
)

from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, INT64
from ftuner.graph.ir import Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


def scores(g: Maker, rows: Dim = S, steps: Dim = T) -> Value:
    """Of `q`, `k` and `v`; there is a symbol P as well."""
    q, k = g.given("q", B, H, rows, D), g.given("k", B, H, D, steps)
    g.given("v", B, H, steps, D)
    g.given("past", P)
    return (q @ k) * 0.5


def values(g: Maker, masked: Value) -> Value:
    (v,) = [given for given in g.inputs if given.name == "v"]
    return g.add("softmax", masked, axis=3, log=False) @ v


def positions(g: Maker, extent: Dim, axis: int, ahead: Dim = 0) -> Value:
    shape = tuple(extent if i == axis else 1 for i in range(2))
    found = g.add("iota", shape=shape, axis=axis)
    return found if ahead == 0 else found + g.dims([ahead], ())


def triangle(g: Maker, ahead: Dim = 0, rows: Dim = S, steps: Dim = T) -> Value:
    return positions(g, steps, 1) <= positions(g, rows, 0, ahead)


def chosen(g: Maker, mask: Value, number: float = LOWEST) -> Value:
    return values(g, g.add("where", mask, scores(g), g.number(number)))


def with_addend(g: Maker, addend: Value) -> Value:
    return values(g, scores(g) + addend)


def contrary(g: Maker) -> Value:
    hidden = positions(g, S, 0) < positions(g, T, 1)
    return values(g, g.add("where", hidden, g.number(-math.inf), scores(g)))


def negated(g: Maker) -> Value:
    hidden = g.add("logical_not", triangle(g, 1))
    return values(g, g.add("where", hidden, g.number(-1e9), scores(g)))


def with_axes(g: Maker) -> Value:
    mask = g.add("reshape", triangle(g), shape=(1, 1, S, T))
    return chosen(g, g.add("broadcast", mask, shape=(B, 1, S, T)))


def addend(g: Maker) -> Value:
    zero, low = g.number(0), g.number(-math.inf)
    return with_addend(g, g.add("where", triangle(g, P), zero, low))


def addend_with_axes(g: Maker) -> Value:
    hidden = g.add("logical_not", triangle(g))
    mask = g.add("where", hidden, g.number(LOWEST), g.number(0))
    mask = g.add("reshape", g.add("reshape", mask, shape=(1, S, T)), shape=(1, 1, S, T))
    return with_addend(g, g.add("broadcast", mask, shape=(B, 1, S, T)))


def of_numbers(g: Maker) -> Value:
    """As `scaled_dot_product_attention` is exported: the lower triangle of ones, where it is 0."""
    ones = g.add("broadcast", g.number(1), shape=(S, T))
    low = g.add("where", triangle(g), ones, g.number(0))
    hidden = g.add("equal", low, g.number(0))
    return with_addend(g, g.add("where", hidden, g.number(-math.inf), g.number(0)))


def of_ones(g: Maker) -> Value:
    """As `triu` of a mask of ones is exported."""
    ones = g.add("broadcast", g.constant(np.array(True)), shape=(S, T))
    above = positions(g, S, 0, 1) <= positions(g, T, 1)
    hidden = ones & above
    return values(g, g.add("where", hidden, g.number(LOWEST), scores(g)))


def buffered(g: Maker) -> Value:
    """As GPT-2 does it: rows and columns of a large triangle."""
    whole = g.constant(np.tri(16, dtype=bool).reshape(1, 1, 16, 16))
    mask = g.add("slice", whole, starts=(0, 0, P, 0), steps=(1, 1, 1, 1), shape=(1, 1, S, T))
    return chosen(g, mask)


def of_slices(g: Maker) -> Value:
    """Positions that are cut out of longer ones."""
    row = g.add("slice", positions(g, S + P, 0), starts=(P, 0), steps=(1, 1), shape=(S, 1))
    row = g.add("transpose", g.add("reshape", row, shape=(1, S)), perm=(1, 0))
    return chosen(g, positions(g, T, 1) <= g.add("cast", row, to=INT64))


def then_addend(g: Maker) -> Value:
    first = g.add("where", triangle(g), scores(g), g.number(LOWEST))
    return values(g, first + g.given("mask", B, 1, 1, T))


def after_addend(g: Maker) -> Value:
    masked = scores(g) + g.given("mask", B, 1, 1, T)
    return values(g, g.add("where", triangle(g), masked, g.number(-math.inf)))


def addend_and_limit(g: Maker) -> Value:
    limit = g.add("where", triangle(g), g.number(0), g.number(LOWEST))
    return values(g, (scores(g) + g.given("mask", T)) + limit)


def padded(g: Maker, number: float, added: bool) -> Value:
    shown = triangle(g) & g.given("mask", B, 1, 1, T, dtype=BOOL)
    if not added:
        return chosen(g, shown, number)
    return with_addend(g, g.add("where", shown, g.number(0), g.number(number)))


CAUSAL: tuple[tuple[Body, Dim, int], ...] = (
    # What, its offset, its operands.
    (lambda g: chosen(g, triangle(g)), 0, 3), (lambda g: chosen(g, triangle(g, P)), P, 3),
    (lambda g: chosen(g, triangle(g, 3), -math.inf), 3, 3), (contrary, 0, 3), (negated, 1, 3),
    (with_axes, 0, 3), (addend, P, 3), (addend_with_axes, 0, 3), (of_numbers, 0, 3),
    (of_ones, 0, 3), (buffered, P, 3), (of_slices, P, 3), (then_addend, 0, 4),
    (after_addend, 0, 4), (addend_and_limit, 0, 4), (lambda g: padded(g, -math.inf, False), 0, 4),
    (lambda g: padded(g, -math.inf, True), 0, 4),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(CAUSAL)))
def test_limits(widest: CpuBackend, number: int) -> None:
    body, offset, operands = CAUSAL[number]
    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.attributes["causal"] == offset
    assert len(node.inputs) == operands
    assert not {"softmax", "where", "less_equal", "less"} & set(ops(found))
    model = Model(found, widest)
    for bindings in BINDINGS:
        inputs = inputs_of(graph, bindings)
        for x in inputs.values():
            # No row is hidden whole.
            if x.dtype == np.bool_:
                x[..., 0] = True
        assert_close(model.run(inputs), reference(graph, inputs))


@pytest.mark.parametrize("ahead", [0, 2])
def test_limits_of_constants(ahead: int) -> None:
    mask = np.where(np.tri(6, 8, ahead, dtype=bool), 0, LOWEST).astype(np.float32)

    def body(g: Maker) -> Value:
        return values(g, scores(g, 6, 8) + g.constant(mask))

    node = attention_of(applied(graph_of(body)))
    assert node.attributes["causal"] == ahead
    assert len(node.inputs) == 3


def window(g: Maker) -> Value:
    near = positions(g, S, 0, -2) <= positions(g, T, 1)
    return triangle(g) & near


def doubled(g: Maker) -> Value:
    steps = positions(g, T, 1) * g.constant(np.int64(2))
    return steps <= positions(g, S, 0)


def before_a_limit(g: Maker) -> Value:
    """Rows that the mask hides whole count what is beyond the limit."""
    masked = scores(g) + g.given("mask", B, 1, 1, T)
    return values(g, g.add("where", triangle(g), masked, g.number(LOWEST)))


MASKED: tuple[tuple[Body, dict[str, Any]], ...] = (
    # Rows might see nothing; other shapes; numbers that other scores may be; what hides whole rows.
    (lambda g: chosen(g, triangle(g, -1)), {"hidden": LOWEST}),
    (lambda g: chosen(g, triangle(g, T - S)), {"hidden": LOWEST}),
    (lambda g: chosen(g, positions(g, S, 0) <= positions(g, T, 1)), {}),
    (lambda g: chosen(g, doubled(g)), {}),
    (lambda g: chosen(g, triangle(g), -2.0), {"hidden": -2.0}),
    (lambda g: chosen(g, g.given("mask", B, 1, S, T, dtype=BOOL)), {"hidden": LOWEST}),
    (lambda g: chosen(g, g.given("mask", dtype=BOOL)), {"hidden": LOWEST}),
    (lambda g: padded(g, LOWEST, False), {"hidden": LOWEST}),
    (lambda g: padded(g, LOWEST, True), {"hidden": -math.inf}),
    (before_a_limit, {"hidden": -math.inf}),
)


@pytest.mark.parametrize("number", range(len(MASKED)))
def test_masks_that_stay(widest: CpuBackend, number: int) -> None:
    body, attributes = MASKED[number]
    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.attributes["causal"] is None
    assert len(node.inputs) == 4
    for name, value in attributes.items():
        assert node.attributes[name] == value
    for bindings in BINDINGS:
        inputs = inputs_of(graph, bindings)
        assert_close(Model(found, widest).run(inputs), reference(graph, inputs))


def test_windows() -> None:
    graph = applied(graph_of(lambda g: chosen(g, window(g), -math.inf)))
    assert attention_of(graph).attributes["causal"] == 0
    assert attention_of(graph).inputs[3].dtype == BOOL


@pytest.mark.parametrize("negated", [False, True])
def test_what_a_mask_hides(negated: bool) -> None:
    """The contrary of a mask is made, unless the mask is a contrary itself."""

    def body(g: Maker) -> Value:
        hidden = g.given("mask", B, 1, S, T, dtype=BOOL)
        if negated:
            hidden = g.add("logical_not", hidden)
        return values(g, g.add("where", hidden, g.number(-math.inf), scores(g)))

    graph = applied(graph_of(body))
    assert ops(graph) == (["attention"] if negated else ["logical_not", "attention"])


def test_masks_of_masks_of_masks() -> None:
    """However often a mask or a position is put together with itself, it is looked at once."""

    def body(g: Maker) -> Value:
        row = positions(g, S, 0)
        for _ in range(60):
            row = row + (row - row)
        mask = positions(g, T, 1) <= row
        for _ in range(60):
            mask = mask & (mask | mask)
        return chosen(g, mask)

    node = attention_of(recognise_attention(graph_of(body)))
    assert node.attributes["causal"] is None


def not_a_number(g: Maker) -> Value:
    return values(g, g.add("where", triangle(g), scores(g), g.given("other", S, T)))


def test_what_is_no_attention() -> None:
    graph = graph_of(not_a_number)
    assert ops(recognise_attention(graph)) == ops(graph)


@pytest.mark.parametrize("part", ["where", "scores"])
def test_masks_that_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        raw = scores(g)
        masked = g.add("where", triangle(g), raw, g.number(LOWEST))
        return [values(g, masked), {"where": masked, "scores": raw}[part]]

    assert "attention" not in ops(recognise_attention(graph_of(body)))


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
        x = g.add("reshape", g.given(name, B, 1, T, D), shape=(B, 1, 1, T, D))
        wide = g.add("broadcast", x, shape=(B, 1, H, T, D))
        return g.add("reshape", wide, shape=(B, H, T, D))

    q, k, v = g.given("q", B, H, S, D), repeated("k"), repeated("v")
    merged = g.add("reshape", k, shape=(B * H, T, D))
    turned = g.add("transpose", merged, perm=(0, 2, 1))
    k = g.add("reshape", turned, shape=(B, H, D, T))
    q, k = (x * 0.5 for x in (q, k))
    addend = g.add("where", shown, g.number(0), g.number(-math.inf))
    masked = (q @ k) + addend
    weights = g.add("softmax", masked, axis=3, log=False)
    guarded = g.add("where", g.add("isnan", weights), g.number(0), weights)
    return guarded @ v


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
        v = g.given("v", B, H, T, D)
        product = g.given("q", B, H, S, D) @ g.given("k", B, H, D, T)
        weights = g.add("softmax", product, axis=3, log=False)
        test = g.add("isnan", weights)
        guarded = g.add("where", test, g.number(0), weights)
        return [guarded @ v, {"weights": weights, "isnan": test}[part]]

    assert "attention" not in ops(recognise_attention(graph_of(body)))


def test_guards_with_another_number() -> None:
    def body(g: Maker) -> Value:
        product = g.given("q", B, H, S, D) @ g.given("k", B, H, D, T)
        weights = g.add("softmax", product, axis=3, log=False)
        guarded = g.add("where", g.add("isnan", weights), g.number(1), weights)
        return guarded @ g.given("v", B, H, T, D)

    assert "attention" not in ops(recognise_attention(graph_of(body)))


def test_all_passes_together() -> None:
    graph = optimised(graph_of(lambda g: chosen(g, triangle(g))))
    assert ops(graph) == ["attention"]
    assert ops(optimised(graph)) == ["attention"]


def capped(g: Maker, raw: Value, within: float, cap: float) -> Value:
    bent = g.add("tanh", raw / within)
    return bent * cap


@pytest.mark.parametrize("cap", [3.0, -3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_soft_caps(masked: bool, cap: float) -> None:
    """Gemma 2's; the mask is applied to capped scores."""

    def body(g: Maker) -> Value:
        found = capped(g, scores(g), 3.0, cap)
        if masked:
            found = g.add("where", g.given("mask", S, T, dtype=BOOL), found, g.number(LOWEST))
        return values(g, found)

    graph = applied(graph_of(body))
    assert ops(graph).count("tanh") == 0
    node = attention_of(graph)
    assert node.attributes["softcap"] == 3.0
    assert node.attributes["scale"] == pytest.approx(0.5 * cap / 3.0)


def test_a_cap_that_others_read_stays() -> None:
    def body(g: Maker) -> tuple[Value, Value]:
        bent = g.add("tanh", scores(g))
        return values(g, bent * 2.0), bent

    graph = graph_of(body)
    assert "attention" not in ops(recognise_attention(graph))


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
    def body(g: Maker) -> Value:
        return values(g, scores(g) * g.given("factor", *shape))

    assert "attention" not in ops(applied(graph_of(body)))


def test_a_factor_that_adds_matrices_stays() -> None:
    """Queries that all matrices share have no room for a factor of each."""

    def body(g: Maker) -> Value:
        q, k = g.given("q", S, D), g.given("k", B, H, D, T)
        g.given("v", B, H, T, D)
        g.given("past", P)
        return values(g, (q @ k) * g.weight(H, 1, 1))

    assert "attention" not in ops(applied(graph_of(body)))


def one_node(g: Maker, mask: Value | None, repeated: bool = True) -> Value:
    """An attention as a front end writes it: one node, with keys for each head of the queries."""
    groups, times = H, 3
    heads = groups * times

    def of_heads(name: str) -> Value:
        if not repeated:
            return g.given(name, B, heads, T, D)
        x = g.add("reshape", g.given(name, B, groups, T, D), shape=(B, groups, 1, T, D))
        x = g.add("broadcast", x, shape=(B, groups, times, T, D))
        return g.add("reshape", x, shape=(B, heads, T, D))

    q, k = g.given("q", B, heads, S, D), g.add("transpose", of_heads("k"), perm=(0, 1, 3, 2))
    masks = [] if mask is None else [mask]
    return g.add("attention", q, k, of_heads("v"), *masks, scale=0.5, safe=True)


def test_one_node_shares_heads_and_has_a_limit() -> None:
    def made(g: Maker) -> Value:
        g.given("past", P)
        mask = g.add("reshape", triangle(g, P), shape=(1, 1, S, T))
        return one_node(g, g.add("broadcast", mask, shape=(B, 1, S, T)))

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
        return one_node(g, triangle(g, P - 3), repeated=False)

    assert len(attention_of(applied(graph_of(made))).inputs) == 4
