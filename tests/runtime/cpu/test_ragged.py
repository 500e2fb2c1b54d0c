"""Batches of requests of unequal length: each has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, graph_of, inputs_of, layer, reference
from tests.runtime.batch_graphs import assert_equal, biased, encoder_of, requests, translator
from tests.runtime.cpu.small_models import compiled as part_of
from tests.runtime.cpu.small_models import small

from ftuner.core.dtype import INT64
from ftuner.core.evaluation import evaluate
from ftuner.errors import FTunerError, IndexRangeError, InputError
from ftuner.graph import folding
from ftuner.graph.algebra import tanh
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu import ragged
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.record_layout import FIRST_BUFFER
from ftuner.runtime.cpu.run_states import RunState
from ftuner.runtime.kept_memory import KeptMemory
from ftuner.runtime.model import Model
from ftuner.runtime.saved.models import read, save
from ftuner.schedules.product.step import ProductStep

LENGTHS = ([5, 9, 30, 5, 4], [1, 2, 3, 33, 7, 1], [64] * 5, [17], list(range(4, 60, 3)))
ENCODER = layer(64, 2, 96)
ROWS = 64


class Alone:
    """Counts the requests that ran alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        run = CompiledGraph.run

        def counted(graph: CompiledGraph, arrays: Sequence[Any]) -> list[Any]:
            self.count += 1
            return run(graph, arrays)

        monkeypatch.setattr(CompiledGraph, "run", counted)


def assert_same_bits(model: Model, batch: Sequence[dict[str, Any]]) -> None:
    alone = [model.run(feeds) for feeds in batch]
    for _ in range(2):
        # Errors within are not hidden by runs one by one.
        together = model._together(batch) or model.run_batch(batch)
        assert_equal(together, alone)
        batch, alone = batch[::-1], alone[::-1]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return encoder_of(2, 64)


@pytest.fixture(scope="module")
def model(graph: Graph, widest: CpuBackend) -> Model:
    return Model(optimised(graph, halves=False), widest)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, widest: CpuBackend) -> Iterator[int]:
    before = widest.threads
    widest.threads = request.param
    yield request.param
    widest.threads = before


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_requests_have_the_bits_that_they_have_alone(
    lengths: list[int], model: Model, graph: Graph, threads: int
) -> None:
    assert_same_bits(model, requests(graph, lengths))
    assert_same_bits(model, requests(graph, lengths[::-1], batch=2))


@pytest.mark.parametrize("tail", [1, 7, 40])
def test_widths_that_fill_no_vector(tail: int, widest: CpuBackend, threads: int) -> None:
    """Tiles of few columns sum up in chains: requests that would meet them run alone."""
    graph = graph_of(lambda g: g.linear(g.gelu(g.linear(g.given("x", B, S, 24), 40)), tail))
    model = Model(optimised(graph, halves=False), widest)
    assert_same_bits(model, requests(graph, [*range(1, 40), 3, 100]))


def test_a_weight_that_is_read_transposed(
    monkeypatch: pytest.MonkeyPatch, widest: CpuBackend, threads: int
) -> None:
    """As large embeddings are that the last product of a decoder reads, too."""
    monkeypatch.setattr(folding, "MAX_FOLDED_BYTES", 0)

    def made(g: Maker) -> Any:
        words = g.weight(40, 64)
        x = g.add("gather", words, g.given("at", B, S, dtype=INT64), axis=0)
        with g.writing():
            return g.add("matmul", g.gelu(g.linear(x, 64)), words.transpose((1, 0)))

    graph = graph_of(made)
    model = Model(optimised(graph, halves=False), widest)
    last = model.steps[-1]
    assert isinstance(last, ProductStep)
    assert last.b.layout.strides == (1, 64)
    assert {why for _, why in model.ragged} == {""}
    batch = requests(graph, [5, 30, 12, 17])
    assert_same_bits(model, batch)
    for feeds, found in zip(batch, model.run_batch(batch), strict=True):
        np.testing.assert_allclose(found[0], reference(graph, feeds)[0], rtol=1e-4, atol=1e-4)


def test_texts_of_two_lengths(widest: CpuBackend, threads: int) -> None:
    model = Model(optimised(translator(), halves=False), widest)
    pairs = [(9, 18), (33, 16), (64, 24), (25, 12), (1, 40), (12, 10)]
    bindings = [{"B": 1, "S": s, "T": t} for s, t in pairs]
    assert_same_bits(model, [inputs_of(translator(), known) for known in bindings])
    assert_same_bits(model, [inputs_of(translator(), {**known, "B": 3}) for known in bindings])


def test_results_that_depend_on_extents_alone(widest: CpuBackend, threads: int) -> None:
    """Requests of one shape share them."""
    model = Model(optimised(biased(), halves=False), widest)
    assert_same_bits(model, requests(biased(), [30, 30, 17, 30, 17, 40]))


def test_rows_of_all_are_as_many_as_those_of_a_request(widest: CpuBackend) -> None:
    """With one input of one axis, the shapes alone do not tell programs apart."""

    def made(g: Maker) -> Any:
        x = g.add("gather", g.weight(3, 64), g.given("at", S, dtype=INT64), axis=0)
        with g.writing():
            y = g.linear(x, 64)
            weights = g.add("softmax", y @ y.transpose((1, 0)), axis=1, log=False)
            return tanh(g.linear(weights @ y, 64))

    model = Model(optimised(graph_of(made), halves=False), widest, Options(2))
    for lengths in ([40, 30], [70, 50], [30, 40, 70]):
        batch = [{"at": np.arange(n) % 3} for n in lengths]
        for feeds, found in zip(batch, model.run_batch(batch), strict=True):
            np.testing.assert_array_equal(found[0], model.run(feeds)[0])


def test_a_very_long_request(widest: CpuBackend) -> None:
    graph = graph_of(lambda g: g.linear(g.given("x", B, S, 8), 16))
    model = Model(optimised(graph, halves=False), widest)
    assert_same_bits(model, requests(graph, [30, 100_000, 40]))


@pytest.mark.parametrize("graph", [translator(), encoder_of(3, 64)], ids=["two texts", "one"])
def test_what_lives_at_one_time_has_memory_of_its_own(graph: Graph, widest: CpuBackend) -> None:
    model = Model(optimised(graph, halves=False), widest)
    found = part_of(model)._batches
    assert found is not None
    (rows,) = found._programs
    program = found._template(RunState(), 0, rows.symbols(ROWS), 1).program
    lifetimes = rows.part.steps.lifetimes()
    assert lifetimes.keys() == rows.writer.places.keys()
    places = []
    for buffer, lifetime in lifetimes.items():
        begin = program.sources[FIRST_BUFFER + rows.writer.places[buffer]]
        size = evaluate(buffer.elements, {"B": 1, "S": ROWS, "T": ROWS}) * buffer.dtype.itemsize
        places.append((lifetime, begin, begin + size))
    for ((first, last), begin, end), (other, start, stop) in combinations(places, 2):
        if first <= other[1] and other[0] <= last:
            assert end <= start or stop <= begin


def test_long_requests_run_alone(
    model: Model, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Alone(monkeypatch)
    model.run_batch(requests(graph, [30, 40, 63, 30]))
    assert alone.count == 0
    model.run_batch(requests(graph, [30, 64, 40, 200]))
    assert alone.count == 2
    assert [why for _, why in model.ragged].count("") > 8


def test_few_rows_run_together_if_bits_may_differ(
    model: Model, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = requests(graph, [1, 2, 1, 3, 40])
    alone = [model.run(feeds) for feeds in batch]
    runs = Alone(monkeypatch)
    for found, wanted in zip(model.run_batch(batch, exact=False), alone, strict=True):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert runs.count == 0
    model.run_batch(batch)
    assert runs.count > 0


def decoder_of(steps: int) -> Graph:
    """The last rows of texts by products of their own, between which each text is scaled."""

    def made(g: Maker) -> Any:
        at = g.given("at", B, S, dtype=INT64)
        x = g.linear(g.add("gather", g.weight(3, 64), at, axis=0), 64)
        with g.writing():
            q, v = g.heads(x, 2, (0, 2, 1, 3)), g.heads(x, 2, (0, 2, 1, 3))
            seen = g.attention(q, g.heads(x, 2, (0, 2, 3, 1)), v, 0.2, None)
            x = g.linear(g.add("reshape", seen.transpose((0, 2, 1, 3)), shape=x.shape), 64) + x
            ends = {"starts": (0, S - 1, 0), "steps": (1, 1, 1), "shape": (B, 1, 64)}
            last = g.add("reshape", g.add("slice", x, **ends), shape=(B, 64))
            last = last * g.given("v", B, 64)
            for _ in range(steps):
                last = g.gelu(g.linear(last, 64))
                scores = g.add("matmul", x, g.add("reshape", last, shape=(B, 64, 1)))
                last = last * g.add("reshape", scores.mean([1]), shape=(B, 1))
            return g.linear(last, 200), g.linear(x, 8)

    return graph_of(made)


@pytest.mark.parametrize("steps", [0, 2])
def test_last_rows_run_together_if_bits_may_differ(
    steps: int, widest: CpuBackend, threads: int
) -> None:
    graph = decoder_of(steps)
    model = Model(optimised(graph, halves=False), widest)
    part = part_of(model)
    assert part._roughly is not None
    assert part._roughly is not part._batches
    assert len(part._roughly._programs) == 2
    for batch in (1, 3):
        given = requests(graph, [5, 9, 1, 30, 5, 1, 2], batch)
        assert_same_bits(model, given)
        for _ in range(2):
            together = model._together(given, False)
            assert together is not None
            for found, feeds in zip(together, given, strict=True):
                for x, y in zip(found, model.run(feeds), strict=True):
                    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * np.abs(y).max())
            given = given[::-1]
    given[2]["at"] = np.full_like(given[2]["at"], 3)
    with pytest.raises(IndexRangeError):
        model._together(given, False)
    with pytest.raises(IndexRangeError, match=r"^request 2: "):
        model.run_batch(given, exact=False)


def test_rows_are_limited(model: Model, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged.RaggedGraph, "room", 64)
    alone = Alone(monkeypatch)
    assert_same_bits(model, requests(graph, [100, 30, 30, 20, 20, 20, 64]))
    # Those that are compared with, and twice the two that are too long.
    assert alone.count == 7 + 2 * 2


def test_arenas_grow_and_are_trimmed(model: Model, graph: Graph) -> None:
    for lengths in ([4, 5], [300, 20, 400], [4, 5, 6]):
        assert_same_bits(model, requests(graph, lengths))
    before = model.kept_bytes
    model.trim()
    assert model.kept_bytes < before
    assert_same_bits(model, requests(graph, [4, 300]))


def test_many_requests(model: Model, graph: Graph) -> None:
    batch = requests(graph, [4, 7, 9])
    alone = [model.run(feeds) for feeds in batch]
    found = model.run_batch([batch[i % 3] for i in range(10_000)])
    assert len(found) == 10_000
    for number in (0, 1, 5000, 9998, 9999):
        for x, y in zip(found[number], alone[number % 3], strict=True):
            assert x.tobytes() == y.tobytes()


def test_few_requests(model: Model, graph: Graph) -> None:
    (feeds,) = requests(graph, [9])
    assert model.run_batch([]) == []
    assert_same_bits(model, [feeds])
    assert_same_bits(model, (feeds, feeds))


def test_requests_of_no_rows(widest: CpuBackend) -> None:
    model = Model(optimised(ENCODER, halves=False), widest)
    assert_same_bits(model, requests(ENCODER, [0, 5, 0, 8]))
    assert_same_bits(model, requests(ENCODER, [5, 6], batch=0))


def wrong(feeds: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {k: v for k, v in {**feeds, **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"mask": None}, InputError),
        ({"other": np.zeros(3)}, InputError),
        ({"mask": np.zeros((1, 6))}, InputError),
        ({"mask": np.zeros((1, 7), np.float32)}, FTunerError),
        ({"at": np.full((1, 6), 3)}, IndexRangeError),
    ],
)
def test_a_bad_request_is_named(
    changes: dict[str, Any], error: type[Exception], model: Model, graph: Graph
) -> None:
    batch = requests(graph, [4, 6, 5, 6])
    batch[1] = wrong(batch[1], **changes)
    with pytest.raises(error, match=r"^request 1: "):
        model.run_batch(batch)
    del batch[1]
    assert_same_bits(model, batch)


@pytest.mark.parametrize("batch", [{"at": 1}, 3, iter([])])
def test_a_batch_is_a_sequence(batch: Any, model: Model) -> None:
    with pytest.raises(InputError, match="expected a sequence"):
        model.run_batch(batch)


def test_feeds_that_are_no_mapping(model: Model, graph: Graph) -> None:
    feeds = requests(graph, [4])[0]
    with pytest.raises(InputError, match="request 1"):
        model.run_batch([feeds, 3])  # type: ignore[list-item]


def test_outputs_are_apart(model: Model, graph: Graph) -> None:
    batch = requests(graph, [8, 12, 10])
    found = model.run_batch(batch)
    wanted = [x.copy() for x in found[2]]
    for x in (*found[0], *found[1]):
        x.fill(0)
    for x, y in zip(found[2], wanted, strict=True):
        assert x.tobytes() == y.tobytes()


def test_other_models_run_request_by_request(widest: CpuBackend) -> None:
    model = Model(small(), widest)
    assert_same_bits(model, [inputs_of(small(), {"B": 2, "S": n}) for n in (3, 5)])
    assert all("no product" in why for _, why in model.ragged)


def test_a_memory_limit_holds_for_batches(widest: CpuBackend, graph: Graph) -> None:
    options = Options(kept=KeptMemory(1 << 20))
    model = Model(optimised(graph, halves=False), widest, options)
    assert_same_bits(model, requests(graph, [30, 40]))
    assert model.kept_bytes <= 1 << 20


def test_a_saved_model_runs_batches(model: Model, graph: Graph, tmp_path: Any) -> None:
    save([model], tmp_path / "model.ftuner")
    found = read(tmp_path / "model.ftuner")
    loaded = Model(found.graph, found.backend)
    batch = requests(graph, [5, 30, 12])
    for one, other in zip(loaded.run_batch(batch), model.run_batch(batch), strict=True):
        for x, y in zip(one, other, strict=True):
            assert x.tobytes() == y.tobytes()
    assert loaded.ragged == model.ragged
