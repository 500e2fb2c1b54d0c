"""Heads that share keys and values, and windows that share masks, are axes of one attention."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.graph.graphs import (
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
    BINDINGS,
    Body,
    D,
    G,
    H,
    P,
    applied,
    assert_runs_as,
    attention_of,
    softmax,
)

from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, FLOAT32
from ftuner.graph.algebra import apply, where
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.schedules.attention.step import AttentionStep


def repeated(x: Value, times: int = G) -> Value:
    batch, heads, rows, columns = x.shape
    wide = x.reshape((batch, heads, 1, rows, columns))
    wide = wide.broadcast((batch, heads, times, rows, columns))
    return wide.reshape((batch, heads * times, rows, columns))


def grouped(
    g: Maker, *mask: Dim, turned: bool = True, tiled: bool = False, dtype: Any = FLOAT32
) -> Value:
    """Products of heads with keys and values that are repeated for them."""
    q = g.given("q", B, H * G, S, D)
    k = g.given("k", B, H, T, D) if turned else g.given("k", B, H, D, T)
    v = g.given("v", B, H, T, D)
    k = repeated(k).swapped() if turned else repeated(k)
    if tiled:
        wide = apply("tile", v.reshape((B, H, 1, T, D)), repeats=(1, 1, G, 1, 1))
        v = wide.reshape((B, H * G, T, D))
    else:
        v = repeated(v)
    found = q @ k
    if mask and dtype == BOOL:
        found = where(g.given("mask", *mask, dtype=BOOL), found, -1e9)
    elif mask:
        found = found + g.given("mask", *mask)
    return (softmax(found) @ v).transpose((0, 2, 1, 3))


GROUPED: tuple[Mapping[str, Any], ...] = (
    {}, {"turned": False}, {"tiled": True}, {"mask": (T,)}, {"mask": (S, T)},
    {"mask": (B, 1, 1, T)}, {"mask": (B, H * G, S, T)}, {"mask": (1, S, T)},
    {"mask": (H * G, 1, T)}, {"mask": (B, 1, S, T), "dtype": BOOL},
)  # fmt: skip


@pytest.mark.parametrize("options", GROUPED)
def test_shared_heads(widest: CpuBackend, options: Mapping[str, Any]) -> None:
    others = {name: value for name, value in options.items() if name != "mask"}
    graph = graph_of(lambda g: grouped(g, *options.get("mask", ()), **others))
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
        k = repeated(g.given("k", B, H, D, T))
        return g.attention(q, k, v, 0.5, None)

    assert ops(applied(graph_of(body))) == ["reshape", "broadcast", "reshape", "attention"]


def test_one_head_for_all() -> None:
    """A product that broadcasts keys and values."""

    def body(g: Maker) -> Value:
        q, k, v = g.given("q", B, H, S, D), g.given("k", B, 1, D, T), g.given("v", B, 1, T, D)
        return g.attention(q, k, v, 0.5, None)

    assert ops(applied(graph_of(body))) == ["attention"]


def of_windows(g: Maker, bias: tuple[Dim, ...], *mask: Dim, shared: bool = False) -> Value:
    """P windows of B pictures, along one axis: an addend of heads, then one of windows."""
    q, k = (g.given(name, B, P, H, S, D).reshape((B * P, H, S, D)) for name in "qk")
    v = g.given("v", 1, H, S, D) if shared else (
        g.given("v", B, P, H, S, D).reshape((B * P, H, S, D)))  # fmt: skip
    y = q @ k.swapped()
    if bias:
        y = y + g.given("bias", *bias)
    y = y.reshape((B, P, H, S, S)) + g.given("mask", *mask)
    return softmax(y.reshape((B * P, H, S, S))) @ v


WINDOWS: dict[str, Body] = {
    "alone": lambda g: of_windows(g, (), 1, P, 1, S, S),
    "and heads": lambda g: of_windows(g, (1, H, S, S), 1, P, 1, S, S),
    "and keys": lambda g: of_windows(g, (S,), B, P, H, S, S),
    # The first addend already has windows of all pictures.
    "of all": lambda g: of_windows(g, (B * P, H, S, S), 1, P, 1, S, S),
    "that share values": lambda g: of_windows(g, (), 1, P, 1, S, S, shared=True),
}


@pytest.mark.parametrize("body", WINDOWS.values(), ids=WINDOWS)
def test_addends_of_windows(widest: CpuBackend, body: Body) -> None:
    graph = graph_of(body)
    found = applied(graph)
    node = attention_of(found)
    assert node.inputs[0].shape == (B, P, H, S, D)
    assert "softmax" not in ops(found)
    extents = (*BINDINGS, {"B": 0, "S": 2, "P": 2}, {"B": 3, "S": 49, "P": 4})
    assert_runs_as(graph, found, widest, extents=extents)
