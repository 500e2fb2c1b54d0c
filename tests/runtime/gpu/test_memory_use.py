"""Memory and times of the steps of a model on a GPU, in the interpreter."""

import numpy as np
import pytest
import torch
from tests.graph.graphs import B, Maker, S, assert_close, reference

from ftuner.core.dtype import BFLOAT16, INT64
from ftuner.errors import IndexRangeError, UnsupportedKernelError
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.chain import Timed
from ftuner.runtime.gpu import executable
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.shared_weights import SharedWeights

FLOAT_BYTES = 4


def encoder() -> Graph:
    """A layer, attention of its result with itself, and a table that is read as it is."""
    g = Maker()
    x = g.given("x", B, S, 32)
    q = g.heads(g.linear(x, 32), 2, (0, 2, 1, 3))
    k = g.add("transpose", q, perm=(0, 1, 3, 2))
    y = g.attention(q, k, q, 0.25, None)
    return optimised(g.made(g.add("add", y, g.weight(1, 2, 1, 16))))


def test_what_is_counted(h200: GpuBackend) -> None:
    model = Model(encoder(), h200)
    feeds = {"x": np.ones((2, 9, 32), np.float32)}
    found = model.memory(feeds)
    (y,) = model.run(feeds)
    assert found.outputs_bytes == y.nbytes
    assert found.weights_bytes == FLOAT_BYTES * (32 * 32 + 32 + 32)
    assert found.arena_bytes >= FLOAT_BYTES * 2 * 9 * 32
    assert found.records_bytes == 0
    large = model.memory({"x": np.ones((2, 90, 32), np.float32)})
    assert large.weights_bytes == found.weights_bytes
    assert large.outputs_bytes == 10 * found.outputs_bytes
    assert large.arena_bytes > 9 * found.arena_bytes


def test_partial_sums_and_copies_are_workspace(h200: GpuBackend) -> None:
    g = Maker()
    x = g.given("x", 4, S)
    reversed_x = g.add("slice", x, starts=(3, 0), steps=(-1, 1), shape=(4, S))
    model = Model(g.made(g.add("matmul", reversed_x, g.given("w", S, 16))), h200)
    short, long = (
        model.memory({"x": np.ones((4, n), np.float32), "w": np.ones((n, 16), np.float32)})
        for n in (16, 4096)
    )
    assert short.workspace_bytes == FLOAT_BYTES * 4 * 16
    # One tile of 16 rows or more, whose k is split over multiprocessors.
    assert long.workspace_bytes > FLOAT_BYTES * (4 * 4096 + 16 * 16)


def test_recorded_programs_keep_inputs_and_outputs(h200: GpuBackend) -> None:
    g = Maker()
    y = g.given("x", S, 16)
    for _ in range(8):
        y = g.linear(y, 16)
    model = Model(g.made(y), h200)
    feeds = {"x": torch.ones(3, 16)}
    for _ in range(h200.hardware.tuning.recorded_run):
        model.run(feeds)
    assert model.memory(feeds).records_bytes == 2 * FLOAT_BYTES * 3 * 16


def test_each_step_has_a_time(h200: GpuBackend) -> None:
    graph = encoder()
    model = Model(graph, h200)
    feeds = {"x": np.random.default_rng(0).random((2, 5, 32), np.float32)}
    seconds = model.step_seconds(feeds)
    assert len(seconds) == len(model.steps)
    assert min(seconds) > 0
    noted: list[Timed] = []
    expected = model.run(feeds)
    assert_close(expected, reference(graph, feeds))
    for x, y in zip(expected, model.run_noted(feeds, noted.append), strict=True):
        assert x.tobytes() == y.tobytes()
    assert [step.title for step in noted] == [step.title for step in model.steps]


def test_steps_without_elements(h200: GpuBackend) -> None:
    model = Model(encoder(), h200)
    feeds = {"x": np.ones((2, 0, 32), np.float32)}
    assert len(model.step_seconds(feeds)) == len(model.steps)
    assert model.memory(feeds).outputs_bytes == 0


def test_indices_are_checked(h200: GpuBackend) -> None:
    g = Maker()
    model = Model(
        g.made(g.add("gather", g.weight(5, 3), g.given("i", S, dtype=INT64), axis=0)), h200
    )
    with pytest.raises(IndexRangeError):
        model.step_seconds({"i": np.array([0, 5])})
    assert len(model.step_seconds({"i": np.array([0, 4])})) == 1


def test_nothing_is_measured_in_a_capture(
    h200: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(encoder(), h200)
    feeds = {"x": torch.ones(2, 5, 32)}
    monkeypatch.setattr(executable, "is_capturing", lambda device: True)
    for measure in (model.step_seconds, model.memory):
        with pytest.raises(UnsupportedKernelError, match="cannot be measured while"):
            measure(feeds)
    noted: list[Timed] = []
    for x, y in zip(model.run(feeds), model.run_noted(feeds, noted.append), strict=True):
        assert torch.equal(x, y)
    assert [step.kind for step in noted] == ["captured"]


def test_models_share_constants(h200: GpuBackend) -> None:
    shared = SharedWeights()
    graph = encoder()
    models = [Model(graph, h200, Options(shared=shared)) for _ in range(2)]
    kept = [list(part.constants.values()) for m in models for part in m.parts]
    assert len(kept[0]) >= 3
    assert all(one is other for one, other in zip(*kept, strict=True))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 9, 32)).astype(np.float32)}
    assert_close(models[1].run(feeds), reference(graph, feeds))
    # The operand of a product is another one in another dtype.
    (half,) = Model(graph, h200, Options(held=BFLOAT16, shared=shared)).parts
    own = [x for x in half.constants.values() if all(x is not other for other in kept[0])]
    assert [x.dtype for x in own] == [torch.bfloat16]
