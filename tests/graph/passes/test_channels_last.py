"""Transpositions around convolutions cancel, what first layers read is padded, and pools between
transpositions are of single channels."""

from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Maker,
    S,
    T,
    applied,
    assert_close,
    assert_left_alone,
    assert_runs,
    graph_of,
    inputs_of,
    ops,
    reference,
)

from ftuner.core.dim import Dim
from ftuner.core.dtype import BFLOAT16, FLOAT32, INT64, DType
from ftuner.core.evaluation import evaluate
from ftuner.graph.algebra import apply, concat, exp, gather, iota, tanh
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.channels_last import (
    LEAST_CHANNELS,
    LEAST_ROW,
    move_transpositions,
    pad_channels,
    pad_first_layers,
    write_single_channels,
)
from ftuner.graph.verify import verify
from ftuner.runtime.cpu.backend import CpuBackend

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def convolution(g: Maker, x: Value, columns: int, kernel: int = 3) -> Value:
    """As the importer writes it: channels last between two transpositions. Extents are kept."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    return apply(
        "convolution", x.transpose(LAST), g.weight(kernel, kernel, channels, columns), groups=1,
        strides=(1, 1), dilations=(1, 1), begin=(kernel // 2,) * 2, extents=x.shape[2:],
    ).transpose(FIRST)  # fmt: skip


def picture(g: Maker, channels: int = 6) -> Value:
    return g.given("x", B, channels, S, T)


def norm(g: Maker, x: Value) -> Value:
    channels = x.shape[1]
    assert isinstance(channels, int)
    scaled = x * g.weight(channels, 1, 1)
    return (scaled + g.weight(1, channels, 1, 1)).at_least(0)


def squeezed(g: Maker, x: Value) -> Value:
    """Squeeze and excitation: each channel is scaled by a function of all means."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    return x * tanh(convolution(g, x.reduce("sum", (2, 3)), channels, 1))


def pool(x: Value, kind: str = "maximum") -> Value:
    """Of a picture or a line that is channels last. Extents are kept."""
    extents = x.shape[1:-1]
    window: dict[str, Any] = {"kernel": (3,) * len(extents), "begin": (1,) * len(extents)}
    ones = (1,) * len(extents)
    return apply("window_reduce", x, kind=kind, strides=ones, dilations=ones, extents=extents,
                 **window)  # fmt: skip


def pooled(x: Value) -> Value:
    return pool(x.transpose(LAST)).transpose(FIRST)


def residual(g: Maker) -> Value:
    x = convolution(g, picture(g), 5)
    return convolution(g, norm(g, x + convolution(g, norm(g, x), 5)), 3)


def side_by_side(g: Maker) -> Value:
    x = convolution(g, picture(g), 4)
    return convolution(g, concat([norm(g, x), pooled(x)], 1), 3)


def halves(g: Maker) -> Value:
    left, right = convolution(g, picture(g), 6).pieces(1, (3, 3))
    return convolution(g, left * right, 2)


def shuffled(g: Maker) -> Value:
    """Channels in another order, as two axes exchanged."""
    split = convolution(g, picture(g), 6).reshape((B, 2, 3, S, T))
    return convolution(g, split.transpose((0, 2, 1, 3, 4)).reshape((B, 6, S, T)), 2)


def enlarged(g: Maker) -> Value:
    rows = g.constant(np.array([0, 0, 0]), INT64)
    return convolution(g, gather(convolution(g, picture(g), 6), rows, axis=2), 2)


def rows_of(x: Value) -> Value:
    """Positions of a map as rows, as vision transformers read them."""
    return x.reshape((x.shape[0], 4, S * T)).transpose((0, 2, 1))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (lambda g: convolution(g, norm(g, convolution(g, picture(g), 5)), 4), 2),
        (residual, 2), (side_by_side, 2),
        (lambda g: convolution(g, squeezed(g, convolution(g, picture(g), 4)), 3), 2),
        (halves, 2), (shuffled, 3), (enlarged, 2),
        (lambda g: g.linear(norm(g, convolution(g, picture(g), 4)).reduce("sum", (2, 3), False), 3),
         1),
        (lambda g: g.linear(rows_of(convolution(g, picture(g), 4)), 3), 1),
        # All elements of a map in the order of the file.
        (lambda g: convolution(g, picture(g), 4).reshape((B, 4 * S * T)), 2),
    ],
)  # fmt: skip
def test_transpositions_that_are_left(body: Body, left: int) -> None:
    """One before the first convolution, and one where the result is channels first."""
    graph = applied(move_transpositions, graph_of(body))
    assert ops(graph).count("transpose") == left, graph


def test_an_operand_that_is_channels_first_is_transposed() -> None:
    def body(g: Maker) -> Value:
        x = convolution(g, picture(g), 4)
        return convolution(g, x + g.given("y", B, 4, S, T), 3)

    graph = applied(move_transpositions, graph_of(body))
    assert ops(graph).count("transpose") == 3


def test_a_table_that_is_broadcast_does_not_turn_what_it_is_added_to() -> None:
    """Positions of (1, S * T, 4), which were channels first, and rows of a map."""

    def body(g: Maker) -> Value:
        positions = rows_of(g.given("table", 1, 4, S, T))
        return g.linear(rows_of(convolution(g, picture(g), 4)) + positions, 3)

    graph = applied(move_transpositions, graph_of(body))
    assert {n.output.shape[0] for n in graph.nodes if n.op == "transpose"} == {B, 1}


def test_a_table_is_resized_with_channels_last() -> None:
    """What else reads the table reads it as it is."""

    def body(g: Maker) -> list[Value]:
        x = convolution(g, picture(g), 4)
        table = g.weight(1, 4, 3, 3)
        # Positions beyond the table are those of its last row and column.
        resized = apply("resample", table, *(iota(n, 1, 2) for n in (S, T)), axes=(2, 3))
        return [g.linear(rows_of(x) + rows_of(resized), 3), exp(table)]

    graph = applied(move_transpositions, graph_of(body))
    assert ops(graph).count("transpose") == 1
    (resample,) = (n for n in graph.nodes if n.op == "resample")
    assert resample.attributes["axes"] == (1, 2)


@pytest.mark.parametrize("scale", [1, 0.5])
def test_biases_of_scores_do_not_turn_the_scores(scale: float) -> None:
    """Biases of positions that a table has for each head, in a network of pictures and text."""

    def body(g: Maker) -> list[Value]:
        q, k, v = (g.given(name, B, 4, S, 8) for name in "qkv")
        scores = q @ k.swapped() * scale
        biased = scores + g.given("table", B, S, S, 4).transpose(FIRST)
        weights = apply("softmax", biased, axis=3, log=False)
        return [weights @ v, convolution(g, picture(g), 4)]

    graph = applied(move_transpositions, graph_of(body))
    (softmax,) = (n for n in graph.nodes if n.op == "softmax")
    assert softmax.attributes["axis"] == 3


def test_graphs_without_windows_stay() -> None:
    assert_left_alone(
        move_transpositions, lambda g: g.given("x", B, S, T, 4).transpose(FIRST) + g.weight(4, 1, 1)
    )


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
        return convolution(g, g.given("x", B, S, T, 3).transpose(FIRST), 5).transpose(LAST)

    graph = applied(both, graph_of(body))
    assert ops(graph) == ["reshape", "pad", "reshape", "convolution"]


def test_products_between_pictures_are_channels_last() -> None:
    """A convolution by windows of one element is a product, and may be the only one of a graph."""

    def body(g: Maker) -> Value:
        y = g.given("x", B, S, T, 6).transpose(FIRST).transpose(LAST) @ g.weight(6, 5)
        return (y + g.weight(5)).transpose(FIRST).at_least(0).transpose(LAST)

    assert ops(applied(both, graph_of(body))) == ["matmul", "add", "maximum"]


def test_symbols_that_data_bind_stay_bound() -> None:
    """Of a node whose results are read for their extents alone, and whose operand has moved."""

    def counted(g: Maker) -> Value:
        plain = convolution(g, picture(g), 4).transpose(LAST)
        found = g.add("non_zero", plain, count="K")
        return g.dims(found.shape)

    graph = graph_of(counted)
    after = applied(move_transpositions, graph)
    assert after is not graph
    assert [node.binds for node in after.nodes if node.op == "non_zero"] == [("K",)]


# Channels that a GPU pads to whole vectors.


def layer(channels: int, kernel: int, fill: float = 0.0, reads: int = 1) -> Graph:
    g = Maker()
    x = g.given("x", B, S, T, channels)
    pads = {"before": (0, 1, 1, 0), "after": (0, kernel, kernel, 0), "mode": "constant"}
    padded = g.add("pad", x, g.number(fill), **pads)
    extents = (S + 2, T + 2)
    results = [
        g.add("convolution", padded, g.weight(kernel, kernel, channels, 5), groups=1,
              strides=(1, 1), dilations=(1, 1), begin=(0, 0), extents=extents)
        for _ in range(reads)
    ]  # fmt: skip
    return g.made(*results)


@pytest.mark.parametrize(
    ("channels", "kernel", "dtype", "expected"),
    [(3, 7, FLOAT32, 4), (3, 3, BFLOAT16, 8), (1, 3, FLOAT32, 4), (3, 11, BFLOAT16, 3),
     (3, 4, FLOAT32, 3), (3, 8, BFLOAT16, 3)],
)  # fmt: skip
def test_rows_of_windows_become_whole_vectors(
    channels: int, kernel: int, dtype: DType, expected: int
) -> None:
    """But for those that have whole vectors, and for those that would take more steps."""
    graph = layer(channels, kernel)
    found = pad_channels(dict.fromkeys((n.output for n in graph.nodes), dtype))(graph)
    verify(found)
    *_, node = found.nodes
    assert node.inputs[0].shape[-1] == node.inputs[1].shape[-2] == expected
    feeds = inputs_of(graph, {"B": 2, "S": 6, "T": 5})
    assert_close(reference(found, feeds), reference(graph, feeds))


def test_what_is_padded_with_something_else_or_read_twice_stays() -> None:
    for graph in (layer(3, 3, fill=1.0), layer(3, 3, reads=2)):
        assert pad_channels({})(graph).nodes == graph.nodes


# Pools of images of one channel.


def channels_first(g: Maker, row: Dim = T) -> Value:
    return g.given("x", B, 5, S, row).transpose(LAST)


POOLS: dict[str, Body] = {
    "alone": lambda g: pool(channels_first(g)).transpose(FIRST),
    # Each position has its share, and all have a factor.
    "averaged": lambda g: (
        pool(channels_first(g), "sum") * g.given("share", S, T, 1) * g.number(0.5)
    ).transpose(FIRST),
    "along a line": lambda g: pool(g.given("x", B, 5, T).swapped(), "sum").swapped(),
}


@pytest.mark.parametrize("body", POOLS.values(), ids=POOLS)
def test_pools_without_transpositions(body: Body, widest: CpuBackend) -> None:
    found = applied(write_single_channels, graph_of(body))
    assert "transpose" not in ops(found)
    runs = [{"B": 2, "S": s, "T": t} for s, t in ((5, 3), (3, 21), (1, 1), (7, 40), (0, 4))]
    assert_runs(found, widest, *runs)


def test_there_are_both_pools_where_extents_are_not_known(widest: CpuBackend) -> None:
    graph = graph_of(lambda g: pooled(g.given("x", B, LEAST_CHANNELS, S, T)))
    found = applied(write_single_channels, graph)
    pools = [node for node in found.nodes if node.op == "window_reduce"]
    least = 2 * LEAST_ROW
    for row, images in ((least - 1, [0, 3]), (least, [3 * LEAST_CHANNELS, 0])):
        extents = {"B": 3, "S": 5, "T": row}
        assert [evaluate(pool.output.shape[0], extents) for pool in pools] == images
    extents = (5, least - 1), (3, least), (1, 1), (4, 3 * least), (0, 4), (7, 0)
    assert_runs(found, widest, *({"B": b, "S": s, "T": t} for b in (0, 1, 3) for s, t in extents))


OTHER_POOLS: dict[str, Body] = {
    "of numbers": lambda g: pool(channels_first(g), "argmax").transpose(FIRST),
    "of short rows": lambda g: pool(channels_first(g, LEAST_ROW - 1)).transpose(FIRST),
    "of channels last": lambda g: pool(g.given("x", B, S, T, 5)).transpose(FIRST),
    "with a number for each channel": lambda g: (
        pool(channels_first(g)) * g.constant(np.arange(5, dtype=np.float32))
    ).transpose(FIRST),
}


@pytest.mark.parametrize("body", OTHER_POOLS.values(), ids=OTHER_POOLS)
def test_other_pools_stay(body: Body) -> None:
    assert_left_alone(write_single_channels, body)
