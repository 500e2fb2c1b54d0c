"""The digest of graphs tells what they compute, and nothing else."""

import pytest

pytest.importorskip("onnx")

from tests.graph_digest import graph_hash

from ftuner.core.dtype import FLOAT32
from ftuner.graph.algebra import exp
from ftuner.graph.builder import Builder


def hashed(turn: int) -> str:
    """The hash of a graph, written in one of several ways."""
    builder = Builder()
    for _ in range(turn):
        builder.name()
    x, y = (builder.input(name, FLOAT32, (3,)) for name in ("x", "y"))
    with builder.writing():
        found = {
            0: lambda: exp(x) + (x - y),
            1: lambda: (x - y) + exp(x),
            2: lambda: exp(x) + (y - x),
            3: lambda: exp(x) + (x - y) * 2,
        }[turn]()
    return graph_hash(builder.graph([x, y], [("z", found)]))


def test_hashes_are_of_what_a_graph_computes() -> None:
    assert hashed(0) == hashed(1)
    assert len({hashed(turn) for turn in range(4)}) == 3
