"""The memory of a model, at the shapes that it is asked about."""

from dataclasses import astuple

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S

from ftuner.errors import InputError
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.kept_memory import Memory, together
from ftuner.runtime.model import Model


def encoder() -> Graph:
    """A layer, attention of its result with itself, and a table that is read as it is."""
    g = Maker()
    x = g.given("x", B, S, 64)
    q = g.heads(g.linear(x, 64), 4, (0, 2, 1, 3))
    k = g.add("transpose", q, perm=(0, 1, 3, 2))
    y = g.attention(q, k, q, 0.25, None)
    return optimised(g.made(g.add("add", y, g.weight(1, 4, 1, 16))))


def test_what_is_counted(widest: CpuBackend) -> None:
    model = Model(encoder(), widest, Options(threads=1))
    x = np.ones((2, 9, 64), np.float32)
    (y,) = model.run({"x": x})
    found = model.memory({"x": x})
    assert found.outputs_bytes == y.nbytes
    # The layer's weight and bias, and the table; panels begin on whole vectors.
    assert found.weights_bytes >= 4 * (64 * 64 + 64 + 64)
    assert found.weights_bytes < 4 * (64 * 64 + 64 + 64) + 4096
    assert found.arena_bytes >= 4 * 2 * 9 * 64
    assert found.workspace_bytes >= found.attention_worker_bytes > 4 * 2 * 9 * 16
    assert found.records_bytes > 0
    counted = astuple(found)
    assert found.total_bytes == sum(counted) - found.attention_worker_bytes


def test_more_rows_take_more(widest: CpuBackend) -> None:
    model = Model(encoder(), widest, Options(threads=1))
    small, large = (model.memory({"x": np.ones((2, n, 64), np.float32)}) for n in (8, 800))
    assert large.weights_bytes == small.weights_bytes
    assert large.outputs_bytes == 100 * small.outputs_bytes
    assert large.arena_bytes > 50 * small.arena_bytes
    assert large.attention_worker_bytes > small.attention_worker_bytes


def test_each_worker_has_an_attention(widest: CpuBackend) -> None:
    x = {"x": np.ones((2, 31, 64), np.float32)}
    one, two = (Model(encoder(), widest, Options(threads=n)).memory(x) for n in (1, 2))
    assert one.workspace_bytes == one.attention_worker_bytes
    assert two.workspace_bytes >= 2 * two.attention_worker_bytes > 0


def test_parts_are_together(widest: CpuBackend) -> None:
    """Where data tells an extent, the parts before it are run, the last one is not."""
    g = Maker()
    x = g.given("x", S)
    found = g.add("non_zero", g.add("exp", x), count="found")
    g.made(found)
    graph = g.made(g.add("negative", g.add("add", found, found)))
    model = Model(graph, widest, Options(threads=1))
    assert len(model.parts) == 2
    memory = model.memory({"x": np.ones(100, np.float32)})
    assert memory.outputs_bytes == 4 * 100 + 8 * 100
    one = Memory(1, 2, 3, 4, 5, 6)
    assert together([one, one]) == Memory(2, 4, 6, 8, 10, 12)


def test_named_errors(widest: CpuBackend) -> None:
    model = Model(encoder(), widest, Options(threads=1))
    with pytest.raises(InputError, match="missing: x"):
        model.memory({})
