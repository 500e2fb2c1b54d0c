"""Look-ups of strings that are moved become one look-up of all of them."""

from collections.abc import Sequence

import numpy as np
from tests.graph.graphs import B, Maker, graph_of, ops

from ftuner.core.dim import Shape
from ftuner.core.dtype import INT64, STRING
from ftuner.graph.ir import Value
from ftuner.graph.ops.learning import Words
from ftuner.graph.passes.shared_words import share_words
from ftuner.graph.verify import verify
from ftuner.runtime.reference import run_reference

FIRST = Words(("a", "b", "a"), np.array([10, 20, 30, -1]))
SECOND = Words(("c", "b"), np.array([0.5, 1.5, 2.5], np.float32))
NAMES = np.array([["a", "b", "x"], ["b", "c", ""], ["c", "x", "b"], ["\0", "a", "a"]], object)


def looked_up(g: Maker, x: Value, words: Words) -> Value:
    return g.add("translated", x, words=words)


def column(g: Maker, x: Value, at: int) -> Value:
    return g.add("slice", x, starts=(0, at), steps=(1, 1), shape=(B, 1))


def columns(g: Maker) -> Sequence[Value]:
    """Slices, one of them reshaped, and what numbers of an input gather."""
    x, at = g.given("x", B, 3, dtype=STRING), g.given("at", B, dtype=INT64)
    flat: Shape = (B,)
    return [
        looked_up(g, column(g, x, 0), FIRST),
        looked_up(g, g.add("reshape", column(g, x, 2), shape=flat), SECOND),
        looked_up(g, g.add("gather", x, at, axis=0, node=""), SECOND),
    ]


def test_one_look_up() -> None:
    graph = graph_of(columns)
    found = share_words(graph)
    verify(found)
    assert ops(found).count("translated") == 1
    assert all(v.dtype != STRING for node in found.nodes for v in node.outputs)
    inputs = [NAMES, np.array([3, 0, 2, 2])]
    for x, wanted in zip(run_reference(found, inputs), run_reference(graph, inputs), strict=True):
        assert x.dtype == wanted.dtype
        assert x.tolist() == wanted.tolist()


def one_of_many(g: Maker) -> Value:
    """All strings would be looked up instead of a third."""
    return looked_up(g, column(g, g.given("x", B, 3, dtype=STRING), 1), FIRST)


def not_moved(g: Maker) -> Sequence[Value]:
    x = g.given("x", B, 3, dtype=STRING)
    return [looked_up(g, x, FIRST), looked_up(g, x, SECOND)]


def to_strings(g: Maker) -> Value:
    words = Words(("a",), np.array(["b", "c"], object))
    return looked_up(g, g.add("reshape", g.given("x", B, 3, dtype=STRING), shape=(B * 3,)), words)


def test_left_alone() -> None:
    for body in (one_of_many, not_moved, to_strings):
        graph = graph_of(body)
        assert ops(share_words(graph)) == ops(graph)
