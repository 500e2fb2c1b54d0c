"""Windows and interpolation of several axes, one axis after the other."""

from typing import Any

import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, inputs_of, ops, reference

from ftuner.core.dim import Dim
from ftuner.core.dtype import INT64
from ftuner.graph.ir import Graph
from ftuner.graph.rewrite.rules import separate_axes
from ftuner.graph.verify import verify


def pool(kernel: tuple[Dim, ...], strides: tuple[int, ...], kind: str = "sum") -> Graph:
    g = Maker()
    x = g.given("x", B, *(S, T)[: len(kernel)], 2)
    attributes: dict[str, Any] = {
        "strides": strides, "begin": (2,) * len(kernel), "dilations": (2, 1)[: len(kernel)],
        "extents": (S, T)[: len(kernel)], "kernel": kernel, "kind": kind,
    }  # fmt: skip
    return g.made(g.add("window_reduce", x, **attributes))


def interpolation(
    axes: tuple[int, ...], sizes: tuple[Dim, ...], weighted: bool = True, taps: Dim = 2
) -> Graph:
    g = Maker()
    x = g.given("x", B, S, T)
    tables = [g.given(f"at{i}", taps, n, dtype=INT64) for i, n in enumerate(sizes)]
    weights = [g.given(f"w{i}", taps, n) for i, n in enumerate(sizes)] if weighted else []
    return g.made(g.add("resample", x, *tables, *weights, axes=axes))


@pytest.mark.parametrize(
    ("graph", "parts"),
    [
        (pool((9, 9), (1, 1)), 2),
        (pool((3, 3), (1, 1)), 2),
        (pool((5, 5), (1, 1), "maximum"), 2),
        (pool((9, 4), (3, 2), "minimum"), 2),
        # Reading a small window is less than a result in between; argmax numbers all elements.
        (pool((2, 2), (1, 1)), 1),
        (pool((3, 3), (2, 2)), 1),
        (pool((8, 8), (8, 8)), 1),
        (pool((9,), (1,)), 1),
        (pool((9, 9), (1, 1), "argmax"), 1),
        (interpolation((1, 2), (2 * S, 2 * T)), 2),
        (interpolation((2, 1), (3, 4), taps=4), 2),
        (interpolation((2, 1), (3, 4), taps=B), 2),
        (interpolation((1, 2), (2 * S, 2 * T), weighted=False), 2),
        # Whole vectors along the last axis; few elements of each are looked up.
        (interpolation((0, 1), (3, 4), taps=4), 1),
        (interpolation((2, 1), (3, 4)), 1),
        (interpolation((1, 2), (3, 4), weighted=False), 1),
    ],
)
def test_axes_are_separate_where_that_reads_less(graph: Graph, parts: int) -> None:
    found = separate_axes(graph)
    verify(found)
    assert len(ops(found)) == parts
    feeds = inputs_of(graph, {"B": 2, "S": 7, "T": 5})
    assert_close(reference(found, feeds), reference(graph, feeds))


def test_an_axis_that_grows_is_looked_up_first() -> None:
    first, second = separate_axes(interpolation((1, 2), (2 * S, 2 * T))).nodes
    assert (first.attributes["axes"], second.attributes["axes"]) == ((2,), (1,))
    first, second = separate_axes(interpolation((1, 2), (3, 4), taps=4)).nodes
    assert (first.attributes["axes"], second.attributes["axes"]) == ((1,), (2,))
