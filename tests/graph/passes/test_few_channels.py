"""Channels that a GPU pads to whole vectors."""

import pytest
from tests.graph.graphs import B, Maker, S, T, assert_close, inputs_of, reference

from ftuner.core.dtype import BFLOAT16, FLOAT32, DType
from ftuner.graph.ir import Graph
from ftuner.graph.passes.channels_last import pad_channels
from ftuner.graph.verify import verify


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
