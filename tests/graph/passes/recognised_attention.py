"""Scores of attention and their masks, and graphs after attention is recognised in them: valid, and
with the same results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tests.graph.graphs import Array, B, Maker, S, T, assert_close, inputs_of, ops, reference

from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import BOOL
from ftuner.graph.algebra import apply, iota, where
from ftuner.graph.ir import Graph, Node, Operand, Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.verify import verify
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

P = symbol("P")
H, D, G = 2, 4, 3
LOWEST = float(np.finfo(np.float32).min)
Body = Callable[[Maker], Value]
BINDINGS = ({"B": 2, "S": 5, "T": 7, "P": 2}, {"B": 1, "S": 1, "T": 1, "P": 3})
MORE = (*BINDINGS, {"B": 3, "S": 33, "T": 40, "P": 1})


def scores(g: Maker, rows: Dim = S, steps: Dim = T) -> Value:
    """Of `q`, `k` and `v`; there is a symbol P as well."""
    q, k = g.given("q", B, H, rows, D), g.given("k", B, H, D, steps)
    g.given("v", B, H, steps, D)
    g.given("past", P)
    return (q @ k) * 0.5


def softmax(x: Value) -> Value:
    return apply("softmax", x, axis=3, log=False)


def v_of(g: Maker) -> Value:
    (v,) = [given for given in g.inputs if given.name == "v"]
    return v


def values(g: Maker, masked: Value) -> Value:
    return softmax(masked) @ v_of(g)


def positions(extent: Dim, axis: int, ahead: Dim = 0) -> Value:
    return iota(extent, axis, 2) + ahead if ahead != 0 else iota(extent, axis, 2)


def triangle(ahead: Dim = 0) -> Value:
    return positions(T, 1) <= positions(S, 0, ahead)


def padding(g: Maker, rows: bool = False) -> Value:
    return g.given("shown", B, 1, S if rows else 1, T, dtype=BOOL)


def hiding(g: Maker, shown: Value, number: float = LOWEST) -> Value:
    return where(shown, g.number(0), number)


def chosen(g: Maker, mask: Value, number: Operand = LOWEST) -> Value:
    return values(g, where(mask, scores(g), number))


def hidden_by(g: Maker, hidden: Value, number: float = -math.inf) -> Value:
    return values(g, where(hidden, g.number(number), scores(g)))


def applied(graph: Graph) -> Graph:
    """The graph after the pass: valid, and with the same results."""
    found = recognise_attention(graph)
    verify(found)
    assert [v.type for _, v in found.outputs] == [v.type for _, v in graph.outputs]
    for bindings in BINDINGS:
        inputs = inputs_of(graph, bindings)
        before, after = reference(graph, inputs), reference(found, inputs)
        for x, y in zip(before, after, strict=True):
            assert np.array_equal(np.isnan(x), np.isnan(y))
        assert_close([np.nan_to_num(x) for x in after], [np.nan_to_num(x) for x in before])
    return found


def is_recognised(graph: Graph) -> bool:
    return "attention" in ops(recognise_attention(graph))


def assert_runs_as(
    graph: Graph, found: Graph, backend: CpuBackend,
    change: Callable[[dict[str, Array]], None] = lambda inputs: None,
    extents: Sequence[Mapping[str, int]] = MORE,
) -> None:  # fmt: skip
    """A model of `found` gives what the references give for a graph, at all extents."""
    model = Model(found, backend)
    for bindings in extents:
        inputs = inputs_of(graph, bindings)
        change(inputs)
        assert_close(model.run(inputs), reference(graph, inputs))


def show_first(inputs: dict[str, Array]) -> None:
    """So that no row is hidden whole."""
    for x in inputs.values():
        if x.dtype == np.bool_:
            x[..., 0] = True


def attention_of(graph: Graph) -> Node:
    (node,) = [n for n in graph.nodes if n.op == "attention"]
    return node
