"""Heads that share keys and values, and windows that share masks, are axes of one attention."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, graph_of, inputs_of, reference
from tests.graph.passes.recognised_attention import (
    BINDINGS,
    Body,
    D,
    G,
    H,
    P,
    applied,
    attention_of,
    ops,
)

from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, FLOAT32
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.schedules.attention.step import AttentionStep


def repeated(g: Maker, x: Value, times: int = G) -> Value:
    batch, heads, rows, columns = x.shape
    wide = g.add("reshape", x, shape=(batch, heads, 1, rows, columns))
    wide = g.add("broadcast", wide, shape=(batch, heads, times, rows, columns))
    return g.add("reshape", wide, shape=(batch, heads * times, rows, columns))


def grouped(
    g: Maker, *mask: Dim, turned: bool = True, tiled: bool = False, dtype: Any = FLOAT32
) -> Value:
    """Products of heads with keys and values that are repeated for them."""
    q = g.given("q", B, H * G, S, D)
    k = g.given("k", B, H, T, D) if turned else g.given("k", B, H, D, T)
    v = g.given("v", B, H, T, D)
    k = repeated(g, k)
    if turned:
        k = g.add("transpose", k, perm=(0, 1, 3, 2))
    if tiled:
        wide = g.add("tile", g.add("reshape", v, shape=(B, H, 1, T, D)), repeats=(1, 1, G, 1, 1))
        v = g.add("reshape", wide, shape=(B, H * G, T, D))
    else:
        v = repeated(g, v)
    found = q @ k
    if mask and dtype == BOOL:
        found = g.add("where", g.given("mask", *mask, dtype=BOOL), found, g.number(-1e9))
    elif mask:
        found = found + g.given("mask", *mask)
    found = g.add("softmax", found, axis=3, log=False) @ v
    return g.add("transpose", found, perm=(0, 2, 1, 3))


GROUPED: tuple[Mapping[str, Any], ...] = (
    {}, {"turned": False}, {"tiled": True}, {"mask": (T,)}, {"mask": (S, T)},
    {"mask": (B, 1, 1, T)}, {"mask": (B, H * G, S, T)}, {"mask": (1, S, T)},
    {"mask": (H * G, 1, T)}, {"mask": (B, 1, S, T), "dtype": BOOL},
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(GROUPED)))
def test_shared_heads(widest: CpuBackend, number: int) -> None:
    options = dict(GROUPED[number])
    mask = options.pop("mask", ())
    graph = graph_of(lambda g: grouped(g, *mask, **options))
    found = applied(graph)
    node = attention_of(found)
    assert node.inputs[0].shape == (B, H, G, S, D)
    assert [v.shape[2] for v in node.inputs[1:3]] == [1, 1]
    assert not {"broadcast", "tile"} & set(ops(found))
    # Nothing is copied, and the result is written where it is wanted.
    kinds = [type(step) for step in lower(found).steps]
    assert kinds == [AttentionStep]
    model = Model(found, widest)
    for bindings in BINDINGS:
        inputs = inputs_of(graph, bindings)
        for threads in (1, 2):
            widest.threads = threads
            assert_close(model.run(inputs), reference(graph, inputs))


def test_values_that_are_not_shared() -> None:
    def body(g: Maker) -> Value:
        q, v = g.given("q", B, H * G, S, D), g.given("v", B, H * G, T, D)
        k = repeated(g, g.given("k", B, H, D, T))
        return g.attention(q, k, v, 0.5, None)

    assert ops(applied(graph_of(body))) == ["reshape", "broadcast", "reshape", "attention"]


def test_one_head_for_all() -> None:
    """A product that broadcasts keys and values."""

    def body(g: Maker) -> Value:
        q, k, v = g.given("q", B, H, S, D), g.given("k", B, 1, D, T), g.given("v", B, 1, T, D)
        return g.attention(q, k, v, 0.5, None)

    assert ops(applied(graph_of(body))) == ["attention"]


def windows(g: Maker, *names: str) -> list[Value]:
    """P windows of B pictures, along one axis."""
    given = (g.given(name, B, P, H, S, D) for name in names)
    return [g.add("reshape", x, shape=(B * P, H, S, D)) for x in given]


def of_windows(g: Maker, bias: Value | None, mask: Value) -> Value:
    """An addend of heads, then one of windows."""
    q, k, v = windows(g, "q", "k", "v")
    y = q @ g.add("transpose", k, perm=(0, 1, 3, 2))
    if bias is not None:
        y = y + bias
    apart = g.add("reshape", y, shape=(B, P, H, S, S))
    y = g.add("reshape", apart + mask, shape=(B * P, H, S, S))
    return g.add("softmax", y, axis=3, log=False) @ v


def of_windows_alone(g: Maker) -> Value:
    return of_windows(g, None, g.given("mask", 1, P, 1, S, S))


def of_windows_and_heads(g: Maker) -> Value:
    return of_windows(g, g.given("bias", 1, H, S, S), g.given("mask", 1, P, 1, S, S))


def of_windows_and_keys(g: Maker) -> Value:
    return of_windows(g, g.given("bias", S), g.given("mask", B, P, H, S, S))


def of_windows_of_all(g: Maker) -> Value:
    """The first addend already has windows of all pictures."""
    return of_windows(g, g.given("bias", B * P, H, S, S), g.given("mask", 1, P, 1, S, S))


def of_windows_that_share_values(g: Maker) -> Value:
    q, k = windows(g, "q", "k")
    y = q @ g.add("transpose", k, perm=(0, 1, 3, 2))
    apart = g.add("reshape", y, shape=(B, P, H, S, S))
    y = apart + g.given("mask", 1, P, 1, S, S)
    y = g.add("reshape", y, shape=(B * P, H, S, S))
    return g.add("softmax", y, axis=3, log=False) @ g.given("v", 1, H, S, D)


BODIES = (
    of_windows_alone, of_windows_and_heads, of_windows_and_keys, of_windows_of_all,
    of_windows_that_share_values,
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_addends_of_windows(widest: CpuBackend, body: Body) -> None:
    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.inputs[0].shape == (B, P, H, S, D)
    assert "softmax" not in ops(found)
    model = Model(found, widest)
    for bindings in (*BINDINGS, {"B": 0, "S": 2, "P": 2}, {"B": 3, "S": 49, "P": 4}):
        inputs = inputs_of(graph, bindings)
        assert_close(model.run(inputs), reference(graph, inputs))
