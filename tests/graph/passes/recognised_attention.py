"""Graphs after attention is recognised in them: valid, and with the same results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.graph.graphs import Maker, assert_close, inputs_of, reference

from ftuner.core.dim import symbol
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.verify import verify

P = symbol("P")
H, D, G = 2, 4, 3
LOWEST = float(np.finfo(np.float32).min)
Body = Callable[[Maker], Value]
BINDINGS = ({"B": 2, "S": 5, "T": 7, "P": 2}, {"B": 1, "S": 1, "T": 1, "P": 3})


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


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def attention_of(graph: Graph) -> Node:
    (node,) = [n for n in graph.nodes if n.op == "attention"]
    return node
