"""Streams of sentences of real lengths: what is drawn, padded and timed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from benchmarks.ragged import batches, drawn, from_clients, least_seconds, padded, requests


def test_lengths_are_between_the_quantiles() -> None:
    lengths = drawn("mnli", 2000, np.random.default_rng(0))
    assert min(lengths) == 17
    assert max(lengths) <= 128
    assert 38 <= np.median(lengths) <= 44


def test_padding_is_hidden_by_the_mask() -> None:
    rng = np.random.default_rng(0)
    stream = requests([3, 5, 4], rng)
    whole = padded(stream)
    assert whole["input_ids"].shape == (3, 5)
    assert whole["attention_mask"].sum(1).tolist() == [3, 5, 4]
    np.testing.assert_array_equal(whole["input_ids"][:1, :3], stream[0]["input_ids"])
    assert [len(part) for part in batches(stream, 2)] == [2, 1]


def test_ways_take_turns() -> None:
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) for name in ("one", "other")}
    assert least_seconds(ways, 2).keys() == ways.keys()
    assert order == ["one", "other"] * 3


def test_each_client_waits_for_its_answer() -> None:
    stream = requests([3, 5, 4], np.random.default_rng(0))
    with ThreadPoolExecutor(2) as clients:
        answers = from_clients(lambda feeds: feeds["input_ids"].shape[1], stream, clients)()
    assert answers == [3, 5, 4]
