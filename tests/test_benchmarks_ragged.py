"""Streams of requests of real lengths: what is drawn, padded and timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import clients, ragged
from benchmarks.onnx_models import TINY_DECODER, TINY_ENCODER
from benchmarks.ragged import DOCSTRINGS, Subject, batches, drawn, least_seconds, padded, ways

ENCODER = Subject(TINY_ENCODER)


def requests(subject: Subject, *lengths: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [subject.request(n, rng) for n in lengths]


def test_lengths_are_between_the_quantiles() -> None:
    lengths = drawn("mnli", 2000, np.random.default_rng(0))
    assert min(lengths) == 17
    assert max(lengths) <= 128
    assert 38 <= np.median(lengths) <= 44


def test_lengths_of_docstrings_are_within_the_positions() -> None:
    lengths = drawn(DOCSTRINGS, 2000, np.random.default_rng(0))
    assert min(lengths) > 2
    assert max(lengths) == 256


def test_padding_is_hidden_by_the_mask() -> None:
    stream = requests(ENCODER, 3, 5, 4)
    whole = padded(stream)
    assert whole["input_ids"].shape == (3, 5)
    assert whole["attention_mask"].sum(1).tolist() == [3, 5, 4]
    np.testing.assert_array_equal(whole["input_ids"][:1, :3], stream[0]["input_ids"])
    assert [len(part) for part in batches(stream, 2)] == [2, 1]
    assert ragged.with_padding([3, 5, 4], 2) == 14


def test_each_way_runs_all_requests() -> None:
    """Those of one by one are of no size."""
    seen: list[tuple[int, ...]] = []

    class Model:
        def run(self, feeds: Any) -> None:
            seen.append(feeds["input_ids"].shape)

        def run_batch(self, batch: Any) -> None:
            seen.append((len(batch),))

    found = ways(Model(), {"peer": Model().run}, requests(ENCODER, 3, 5, 4, 2), [2, 4])
    shapes = {}
    for name, way in found.items():
        seen.clear()
        way()
        shapes[name] = [*seen]
    alone = [(1, 3), (1, 5), (1, 4), (1, 2)]
    assert shapes == {
        ("ftuner, one by one", 1): alone, ("peer, one by one", 1): alone,
        ("ftuner, batches", 2): [(2,), (2,)], ("peer, padded", 2): [(2, 5), (2, 4)],
        ("peer, padded, sorted", 2): [(2, 3), (2, 5)],
        ("ftuner, batches", 4): [(4,)], ("peer, padded", 4): [(4, 5)],
    }  # fmt: skip


def test_ways_take_turns() -> None:
    order: list[str] = []
    compared = {name: lambda name=name: order.append(name) for name in ("one", "other")}
    assert least_seconds(compared, 0.0).keys() == compared.keys()
    assert order == ["one", "other"] * 2


@pytest.mark.parametrize("subject", [ENCODER, Subject(TINY_DECODER)])
def test_peers_compute_the_same(subject: Subject, tmp_path: Path) -> None:
    for name in ("torch", "onnxruntime", "openvino"):
        pytest.importorskip(name)
    model, peers = ragged.engines(subject, tmp_path, 1)
    stream = requests(subject, 3, 5)
    for feeds in (stream[0], padded(stream)):
        (wanted,) = model.run(feeds)
        # What is padded differs where the engines differ about rows that see nothing.
        for run in peers.values():
            found: Any = run(feeds)
            found = found[0] if isinstance(found, list) else found
            np.testing.assert_allclose(found[0, :3], wanted[0, :3], atol=1e-4)


def test_a_case_for_each_size_of_a_batch(tmp_path: Path) -> None:
    class Model:
        def run(self, feeds: Any) -> None: ...

        run_batch = run

    short = Subject(replace(TINY_ENCODER, positions=128))
    first, second = ragged.measured(short, Model(), {"peer": Model().run}, "cola", [2, 4], 4, 0.0)
    assert (first["batch"], second["batch"]) == (2, 4)
    assert first["tokens"] == second["tokens"] <= first["padded"] <= second["padded"]
    assert first["sorted"] <= first["padded"]
    assert len(first["seconds"]) == len(second["seconds"]) + 1 == 5


def test_clients_of_another_process_get_their_answers() -> None:
    stream = [np.arange(n, dtype=np.int64).tobytes() for n in (3, 1, 4, 1, 5)]
    seen: list[int] = []

    def run(feeds: Any) -> list[Any]:
        seen.append(feeds["input_ids"].size)
        return [feeds["attention_mask"]]

    found = clients.measured({"way": run}, 0, stream, 2, 1)["way"]
    assert sorted(seen) == [1, 1, 1, 1, 3, 3, 4, 4, 5, 5]
    assert 0 < found.p50_s <= found.p99_s <= found.all_s
