"""Batches of texts whose caches are appended to in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.runtime.cpu.appending import (
    PLAIN,
    Feeds,
    assert_same,
    compiled,
    copied,
    in_place,
    tokens,
)
from tests.runtime.cpu.decoders import Decoder

from ftuner.errors import IndexRangeError
from ftuner.graph.appending import ROOM_ROWS
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.model import Model

ROWS = (0, 3, 100, 17)
DECODERS = (PLAIN, Decoder(heads=4, shared=2), Decoder(layout="rows"), Decoder(layout="columns"))


def named(model: Model, outputs: Sequence[Sequence[np.ndarray]]) -> list[Feeds]:
    return [dict(zip([x.name for x in model.outputs], found, strict=True)) for found in outputs]


@pytest.fixture(scope="module")
def models(widest: CpuBackend) -> tuple[Model, Model]:
    copying, appending = (compiled(PLAIN, widest, append) for append in (False, True))
    return copying, appending


def run_alone(graph: CompiledGraph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    raise AssertionError("a request ran alone")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_texts_token_by_token(
    decoder: Decoder, threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, appending = (
        compiled(decoder, widest, append, threads=threads) for append in (False, True)
    )
    first = [decoder.empty(rows=rows, seed=rows) for rows in ROWS]
    second = [*first]
    moved = [0] * len(ROWS)
    for token in range(40):
        ids = [tokens(token + i, new=4 if token == 20 else 1) for i in range(len(ROWS))]
        wanted = [copying(ids=x, **past) for x, past in zip(ids, first, strict=True)]
        with monkeypatch.context() as patch:
            patch.setattr(CompiledGraph, "run", run_alone)
            feeds = [{"ids": x, **past} for x, past in zip(ids, second, strict=True)]
            found = named(appending, appending.run_batch(feeds, exact=False))
        for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
            for name, values in y.items():
                assert x[name].shape == values.shape
                np.testing.assert_allclose(x[name], values, rtol=1e-3, atol=1e-3)
            kept = in_place(decoder, second[i], x)
            assert len({*kept}) == 1
            moved[i] += not kept[0]
        first, second = ([decoder.continued(x) for x in runs] for runs in (wanted, found))
    # The first ones were the caller's; one of the texts had no room left once.
    assert moved == [1 + (rows + 43 > ROOM_ROWS) for rows in ROWS]


def test_a_text_that_is_continued_twice(models: tuple[Model, Model]) -> None:
    copying, appending = models
    start = appending(ids=tokens(0, new=9), **PLAIN.empty())
    past = PLAIN.continued(start)
    kept = copied(past)
    feeds = [{"ids": tokens(i), **past} for i in (1, 2, 3)]
    found = named(appending, appending.run_batch(feeds, exact=False))
    for i, x in zip((1, 2, 3), found, strict=True):
        wanted = copying(ids=tokens(i), **kept)
        for name, values in wanted.items():
            np.testing.assert_allclose(x[name], values, rtol=1e-3, atol=1e-3)
    assert_same(past, kept)


def test_an_error_leaves_the_texts(models: tuple[Model, Model]) -> None:
    _, appending = models
    pasts = [PLAIN.continued(appending(ids=tokens(i, new=5), **PLAIN.empty())) for i in range(3)]
    wrong = np.array([[PLAIN.words]])
    given = [tokens(1), wrong, tokens(3)]
    feeds = [{"ids": x, **past} for x, past in zip(given, pasts, strict=True)]
    with pytest.raises(IndexRangeError, match="request 1"):
        appending.run_batch(feeds, exact=False)
    feeds[1]["ids"] = tokens(2)
    # The error came from runs one by one, of which the first has continued its text.
    found = named(appending, appending.run_batch(feeds[1:], exact=False))
    for past, x in zip(pasts[1:], found, strict=True):
        assert all(in_place(PLAIN, past, x))
