"""Batches of requests of unequal length on a GPU, in the interpreter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import inputs_of
from tests.runtime.batch_graphs import assert_equal, encoder_of, requests, translator

from ftuner.errors import IndexRangeError, ShapeError
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.ragged import RaggedGraph
from ftuner.runtime.model import Model

LENGTHS = [5, 9, 30, 5, 4]


@pytest.fixture(scope="module")
def encoder(h200: GpuBackend) -> Model:
    return Model(optimised(encoder_of(1, 64), halves=False), h200)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts the products with a weight, by their rows."""
    found = Counter[int]()
    run = Products.launch

    def counted(self: Products, a: Any, b: Any, c: Any, *rest: Any) -> Any:
        if b.dim() == 2:
            found[c.numel() // c.shape[-1]] += 1
        return run(self, a, b, c, *rest)

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
