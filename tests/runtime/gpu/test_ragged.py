"""Batches of requests of unequal length on a GPU, in the interpreter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, graph_of, inputs_of
from tests.runtime.batch_graphs import assert_equal, encoder_of, requests, translator
from tests.runtime.gpu.test_recurrent import feeds as sequences
from tests.runtime.gpu.test_recurrent import layer

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.errors import AllocationError, IndexRangeError, InputError, ShapeError
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.ragged import RaggedGraph
from ftuner.runtime.gpu.step_kind import TiledLaunch
from ftuner.runtime.model import Model
from ftuner.schedules.attention.gpu_binding_launches import Attentions

LENGTHS = [5, 9, 30, 5, 4]


@pytest.fixture(scope="module")
def encoder(h200: GpuBackend) -> Model:
    return Model(optimised(encoder_of(1, 64), halves=False), h200)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts the products with a weight, by their rows."""
    found = Counter[int]()
    run = Products.launch

    def counted(self: Products, product: Any) -> Any:
        if product.b.dim() == 2:
            found[product.c.numel() // product.c.shape[-1]] += 1
        return run(self, product)

    monkeypatch.setattr(Products, "launch", counted)
    return found


def test_row_wise_steps_run_once(encoder: Model, launched: Counter[int]) -> None:
    batch = requests(encoder_of(1, 64), LENGTHS)
    reasons = [why for _, why in encoder.ragged]
    assert "" in reasons
    assert any(reasons)
    alone = [encoder.run(feeds) for feeds in batch]
    launched.clear()
    found = encoder.run_batch(batch, exact=False)
    assert launched[sum(LENGTHS)]
    # What is left is by one row of a sentence.
    assert launched.keys() <= {sum(LENGTHS), len(LENGTHS)}
    for own, wanted in zip(found, alone, strict=True):
        for x, y in zip(own, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4)


def test_requests_have_the_bits_that_they_have_alone(
    encoder: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    run = RaggedGraph._together

    def counted(self: RaggedGraph, group: Any, *rest: Any) -> Any:
        together.append(len(group))
        return run(self, group, *rest)

    monkeypatch.setattr(RaggedGraph, "_together", counted)
    # Half a tile of rows and more, of one kernel.
    batch = requests(encoder_of(1, 64), [5, 9, 1, 3, 70, 80])
    alone = [encoder.run(feeds) for feeds in batch]
    for _ in range(2):
        assert_equal(encoder.run_batch(batch), alone)
        batch, alone = batch[::-1], alone[::-1]
    assert max(together) > 1


def test_texts_of_two_lengths(backend: GpuBackend) -> None:
    model = Model(optimised(translator(), halves=False), backend)
    pairs = [(9, 18), (33, 16), (1, 40)]
    batch = [inputs_of(translator(), {"B": 2, "S": s, "T": t}) for s, t in pairs]
    alone = [model.run(feeds) for feeds in batch]
    for own, wanted in zip(model.run_batch(batch, exact=False), alone, strict=True):
        for x, y in zip(own, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4)


def test_requests_read_aligned_rows_of_outputs(
    h200: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled for addresses that are multiples of 16 bytes."""

    def made(g: Maker) -> Any:
        x = g.linear(g.given("x", B, S, 64), 5)
        return x, g.linear(g.add("softmax", x, axis=1, log=False), 64)

    model = Model(optimised(graph_of(made), halves=False), h200)
    batch = requests(graph_of(made), [5, 9, 7])
    alone = [model.run(feeds) for feeds in batch]
    launched = TiledLaunch.launched

    def checked(self: TiledLaunch, arrays: Any) -> Any:
        given = [arrays[x] if isinstance(x, int) else x for x in self._buffers]
        assert not any(x.data_ptr() % ALIGNMENT_BYTES for x in given)
        return launched(self, arrays)

    monkeypatch.setattr(TiledLaunch, "launched", checked)
    assert_equal(model.run_batch(batch), alone)


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_recurrent_layers(op: str, h200: GpuBackend) -> None:
    model = Model(optimised(layer(op, 17)), h200)
    batch = [sequences(steps, rows) for steps, rows in ((3, 2), (4, 2), (5, 1))]
    alone = [model.run(own) for own in batch]
    assert model.rows_together
    assert_equal(model.run_batch(batch), alone)


def test_an_error_after_a_bad_index(encoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches before it have noted the index, of which later runs do not hear."""
    good, bad, *_ = requests(encoder_of(1, 64), [5, 7])
    bad = {**bad, "at": bad["at"] + 100}
    run = RaggedGraph._together

    def failing(self: RaggedGraph, *arguments: Any) -> Any:
        run(self, *arguments)
        raise InputError("made up")

    monkeypatch.setattr(RaggedGraph, "_together", failing)
    with pytest.raises(IndexRangeError, match="request 1: "):
        encoder.run_batch([good, bad, good], exact=False)


def test_a_batch_without_memory_for_all_runs_one_by_one(
    encoder: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise AllocationError("made up")

    monkeypatch.setattr(RaggedGraph, "_together", failing)
    batch = requests(encoder_of(1, 64), [5, 7])
    alone = [encoder.run(feeds) for feeds in batch]
    assert_equal(encoder.run_batch(batch, exact=False), alone)


def test_empty_requests_run_alone(encoder: Model) -> None:
    batch = requests(encoder_of(1, 64), [5, 7])
    batch.append({name: x[:0] for name, x in batch[0].items()})
    alone = [encoder.run(feeds) for feeds in batch]
    found = encoder.run_batch(batch, exact=False)
    assert [[x.shape for x in own] for own in found] == [[x.shape for x in own] for own in alone]


def test_the_request_that_fails_is_named(encoder: Model) -> None:
    batch = requests(encoder_of(1, 64), [5, 7, 4])
    bad = {**batch[1], "at": batch[1]["at"] + 100}
    with pytest.raises(IndexRangeError, match="request 1: "):
        encoder.run_batch([batch[0], bad, batch[2]], exact=False)
    with pytest.raises(ShapeError, match="request 2: "):
        encoder.run_batch([batch[0], batch[1], {**batch[2], "mask": batch[0]["mask"]}])
    alone = [encoder.run(feeds) for feeds in batch]
    assert_equal(encoder.run_batch(batch), alone)


def attending(width: int, shared: int, causal: bool, masked: bool, swapped: bool = False) -> Graph:
    """Attention of two heads of keys, each of which `shared` heads of queries read. `swapped`: the
    axis of heads of keys comes last."""
    one, other = (3, 2) if swapped else (2, 3)

    def made(g: Maker) -> Any:
        x, mask = g.given("x", B, S, width), g.given("mask", B, S)
        depth = width // (2 * shared)
        q, k, v = (g.linear(x, 2 * n * depth) for n in (shared, 1, 1))
        with g.writing():
            q, k, v = (
                g.add("reshape", y, shape=(B, S, 2, n, depth)).transpose(perm)
                for y, n, perm in ((q, shared, (0, one, other, 1, 4)),
                                   (k, 1, (0, one, other, 4, 1)), (v, 1, (0, one, other, 1, 4)))
            )  # fmt: skip
            hidden = g.add("reshape", (mask - 1) * 1e9, shape=(B, 1, 1, 1, S))
            softmax = AttentionSoftmax(0.3, 0 if causal else None)
            y = g.add("attention", q, k, v, *[hidden] * masked, **vars(softmax))
            y = y.transpose((0, 3, one - 1, other - 1, 4))
            return g.linear(g.add("reshape", y, shape=x.shape), width)

    return graph_of(made)


def test_heads_of_keys_after_those_that_share_them(h200: GpuBackend) -> None:
    graph = attending(64, 2, causal=False, masked=True, swapped=True)
    model, batch = Model(optimised(graph, halves=False), h200), requests(graph, [7, 13, 1, 31])
    assert_equal(model.run_batch(batch), [model.run(feeds) for feeds in batch])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("width", "shared"), [(64, 1), (64, 2), (20, 1)])
def test_attentions_are_launched_once(
    width: int, shared: int, causal: bool, masked: bool, backend: GpuBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    graph = attending(width, shared, causal, masked)
    model = Model(optimised(graph, halves=False), backend)
    compiled = len(backend.kernels)
    launched = Counter[int]()
    run = Attentions.run

    def counted(self: Attentions, *given: Any) -> Any:
        requests = given[-1].requests
        launched[1 if requests is None else len(requests.rows) - 1] += 1
        return run(self, *given)

    monkeypatch.setattr(Attentions, "run", counted)
    for batch in ([*requests(graph, [7, 13, 1, 13, 31, 70, 5])], requests(graph, [3, 11, 5], 2)):
        alone = [model.run(feeds) for feeds in batch]
        launched.clear()
        assert_equal(model.run_batch(batch), alone)
        # One launch for all whose kernels agree.
        assert max(launched) > 1
        assert launched.total() < len(batch)
        launched.clear()
        found = model.run_batch(batch, exact=False)
        sequences = sum(feeds["x"].shape[0] for feeds in batch)
        assert launched == {sequences: 1}
        for own, wanted in zip(found, alone, strict=True):
            np.testing.assert_allclose(own[0], wanted[0], rtol=2e-4, atol=2e-4)
    # Those of all batches when the model is loaded.
    assert len(backend.kernels) == compiled
