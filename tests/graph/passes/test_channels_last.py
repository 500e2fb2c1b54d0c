"""Transpositions around convolutions cancel, and what first layers read is padded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, applied, assert_left_alone, graph_of, ops

from ftuner.core.dtype import INT64
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.channels_last import move_transpositions, pad_first_layers

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def convolution(g: Maker, x: Value, columns: int, kernel: int = 3) -> Value:
    """As the importer writes it: channels last between two transpositions. Extents are kept."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    y = g.add(
        "convolution", g.add("transpose", x, perm=LAST),
        g.weight(kernel, kernel, channels, columns),
        groups=1, strides=(1, 1), dilations=(1, 1), begin=(kernel // 2,) * 2, extents=x.shape[2:],
    )  # fmt: skip
    return g.add("transpose", y, perm=FIRST)


def picture(g: Maker, channels: int = 6) -> Value:
    return g.given("x", B, channels, S, T)


def norm(g: Maker, x: Value) -> Value:
    channels = x.shape[1]
    assert isinstance(channels, int)
    scaled = g.add("multiply", x, g.weight(channels, 1, 1))
    return g.add("maximum", g.add("add", scaled, g.weight(1, channels, 1, 1)), g.number(0))


def squeezed(g: Maker, x: Value) -> Value:
    """Squeeze and excitation: each channel is scaled by a function of all means."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    mean = g.add("reduce", x, kind="sum", axes=(2, 3))
    mean = g.add("reshape", mean, shape=(B, channels, 1, 1))
    small = convolution(g, mean, channels, 1)
    return g.add("multiply", x, g.add("tanh", small))


def pooled(g: Maker, x: Value) -> Value:
    y = g.add(
        "window_reduce", g.add("transpose", x, perm=LAST), kind="maximum", kernel=(3, 3),
        strides=(1, 1), dilations=(1, 1), begin=(1, 1), extents=x.shape[2:],
    )  # fmt: skip
    return g.add("transpose", y, perm=FIRST)


def chain(g: Maker) -> Value:
    return convolution(g, norm(g, convolution(g, picture(g), 5)), 4)


def residual(g: Maker) -> Value:
    x = convolution(g, picture(g), 5)
    y = convolution(g, norm(g, x), 5)
    return convolution(g, norm(g, g.add("add", x, y)), 3)


def side_by_side(g: Maker) -> Value:
    x = convolution(g, picture(g), 4)
    both = g.add("concat", norm(g, x), pooled(g, x), axis=1)
    return convolution(g, both, 3)


def excited(g: Maker) -> Value:
    return convolution(g, squeezed(g, convolution(g, picture(g), 4)), 3)


def halves(g: Maker) -> Value:
    x = convolution(g, picture(g), 6)
    left, right = (
        g.add("slice", x, starts=(0, start, 0, 0), steps=(1,) * 4, shape=(B, 3, S, T))
        for start in (0, 3)
    )
    return convolution(g, g.add("multiply", left, right), 2)


def shuffled(g: Maker) -> Value:
    """Channels in another order, as two axes exchanged."""
    x = convolution(g, picture(g), 6)
    split = g.add("reshape", x, shape=(B, 2, 3, S, T))
    turned = g.add("transpose", split, perm=(0, 2, 1, 3, 4))
    return convolution(g, g.add("reshape", turned, shape=(B, 6, S, T)), 2)


def enlarged(g: Maker) -> Value:
    x = convolution(g, picture(g), 6)
    rows = g.constant(np.array([0, 0, 0]), INT64)
    return convolution(g, g.add("gather", x, rows, axis=2), 2)


def classified(g: Maker) -> Value:
    x = norm(g, convolution(g, picture(g), 4))
    mean = g.add("reduce", x, kind="sum", axes=(2, 3))
    return g.linear(mean, 3)


def of_patches(g: Maker) -> Value:
    """Positions of a map as rows, as vision transformers read them."""
    x = convolution(g, picture(g), 4)
    rows = g.add("reshape", x, shape=(B, 4, S * T))
    return g.linear(g.add("transpose", rows, perm=(0, 2, 1)), 3)


def flattened(g: Maker) -> Value:
    """All elements of a map in the order of the file."""
    x = convolution(g, picture(g), 4)
    return g.add("reshape", x, shape=(B, 4 * S * T))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (chain, 2), (residual, 2), (side_by_side, 2), (excited, 2), (halves, 2), (shuffled, 3),
        (enlarged, 2), (classified, 1), (of_patches, 1), (flattened, 2),
    ],
)  # fmt: skip
def test_transpositions_that_are_left(body: Callable[[Maker], Value], left: int) -> None:
    """One before the first convolution, and one where the result is channels first."""
    graph = applied(move_transpositions, graph_of(body))
    assert ops(graph).count("transpose") == left, graph


def test_an_operand_that_is_channels_first_is_transposed() -> None:
    def body(g: Maker) -> Value:
        x = convolution(g, picture(g), 4)
        return convolution(g, g.add("add", x, g.given("y", B, 4, S, T)), 3)

    graph = applied(move_transpositions, graph_of(body))
    assert ops(graph).count("transpose") == 3


def test_a_table_that_is_broadcast_does_not_turn_what_it_is_added_to() -> None:
    """Positions of (1, S * T, 4), which were channels first, and rows of a map."""

    def body(g: Maker) -> Value:
        table = g.add("reshape", g.given("table", 1, 4, S, T), shape=(1, 4, S * T))
        positions = g.add("transpose", table, perm=(0, 2, 1))
        x = g.add("reshape", convolution(g, picture(g), 4), shape=(B, 4, S * T))
        rows = g.add("add", g.add("transpose", x, perm=(0, 2, 1)), positions)
        return g.linear(rows, 3)

    graph = applied(move_transpositions, graph_of(body))
    assert {n.output.shape[0] for n in graph.nodes if n.op == "transpose"} == {B, 1}


def test_a_table_is_resized_with_channels_last() -> None:
    """What else reads the table reads it as it is."""

    def body(g: Maker) -> list[Value]:
        x = convolution(g, picture(g), 4)
        table = g.weight(1, 4, 3, 3)
        # Positions beyond the table are those of its last row and column.
        places = (g.add("reshape", g.add("iota", shape=(n,), axis=0), shape=(1, n))
                  for n in (S, T))  # fmt: skip
        resized = g.add("resample", table, *places, axes=(2, 3))
        rows = [
            g.add("transpose", g.add("reshape", y, shape=(n, 4, S * T)), perm=(0, 2, 1))
            for y, n in ((x, B), (resized, 1))
        ]
        return [g.linear(g.add("add", *rows), 3), g.add("exp", table)]

    graph = applied(move_transpositions, graph_of(body))
    assert ops(graph).count("transpose") == 1
    (resample,) = (n for n in graph.nodes if n.op == "resample")
    assert resample.attributes["axes"] == (1, 2)


@pytest.mark.parametrize("scale", [1, 0.5])
def test_biases_of_scores_do_not_turn_the_scores(scale: float) -> None:
    """Biases of positions that a table has for each head, in a network of pictures and text."""

    def body(g: Maker) -> list[Value]:
        q, k, v = (g.given(name, B, 4, S, 8) for name in "qkv")
        scores = g.add("matmul", q, g.add("transpose", k, perm=(0, 1, 3, 2)))
        scores = g.add("multiply", scores, g.number(scale)) if scale != 1 else scores
        table = g.given("table", B, S, S, 4)
        biased = g.add("add", scores, g.add("transpose", table, perm=FIRST))
        weights = g.add("softmax", biased, axis=3, log=False)
        return [g.add("matmul", weights, v), convolution(g, picture(g), 4)]

    graph = applied(move_transpositions, graph_of(body))
    (softmax,) = (n for n in graph.nodes if n.op == "softmax")
    assert softmax.attributes["axis"] == 3


def test_graphs_without_windows_stay() -> None:
    def body(g: Maker) -> Value:
        x = g.add("transpose", g.given("x", B, S, T, 4), perm=FIRST)
        return g.add("add", x, g.weight(4, 1, 1))

    assert_left_alone(move_transpositions, body)


def both(graph: Graph) -> Graph:
    return pad_first_layers(move_transpositions(graph))


def test_what_a_first_layer_reads_is_padded() -> None:
    graph = applied(both, graph_of(lambda g: convolution(g, picture(g, 3), 5)))
    assert ops(graph) == ["transpose", "pad", "convolution", "transpose"]
    (node,) = (n for n in graph.nodes if n.op == "convolution")
    assert node.attributes["begin"] == (0, 0)


def test_other_layers_are_not_padded() -> None:
    assert_left_alone(pad_first_layers, lambda g: convolution(g, picture(g, 8), 5))


def test_pictures_with_channels_last_are_padded_line_by_line() -> None:
    def body(g: Maker) -> Value:
        x = g.add("transpose", g.given("x", B, S, T, 3), perm=FIRST)
        return g.add("transpose", convolution(g, x, 5), perm=LAST)

    graph = applied(both, graph_of(body))
    assert ops(graph) == ["reshape", "pad", "reshape", "convolution"]


def test_products_between_pictures_are_channels_last() -> None:
    """A convolution by windows of one element is a product, and may be the only one of a graph."""

    def body(g: Maker) -> Value:
        x = g.add("transpose", g.given("x", B, S, T, 6), perm=FIRST)
        y = g.add("matmul", g.add("transpose", x, perm=LAST), g.weight(6, 5))
        y = g.add("transpose", g.add("add", y, g.weight(5)), perm=FIRST)
        return g.add("transpose", g.add("maximum", y, g.number(0)), perm=LAST)

    assert ops(applied(both, graph_of(body))) == ["matmul", "add", "maximum"]


def test_symbols_that_data_bind_stay_bound() -> None:
    """Of a node whose results are read for their extents alone, and whose operand has moved."""

    def counted(g: Maker) -> Value:
        plain = g.add("transpose", convolution(g, picture(g), 4), perm=LAST)
        found = g.add("non_zero", plain, count="K")
        return g.dims(found.shape)

    graph = graph_of(counted)
    after = applied(move_transpositions, graph)
    assert after is not graph
    assert [node.binds for node in after.nodes if node.op == "non_zero"] == [("K",)]
