"""Cases that failed once, and a share of new ones with fixed seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.isolation import Done, Workers
from tests.random_graphs.bench import LIMITS, attempt, variables
from tests.random_graphs.cases import SAVED, read_case
from tests.random_graphs.checking import CPU, GUARDED, check
from tests.random_graphs.reports import crashed_in_peer

GRAPHS = 4
"""Of a test."""
CORE_TESTS, TESTS = 10, 25
SEEDS = [
    pytest.param(GRAPHS * n, marks=[pytest.mark.full] if n >= CORE_TESTS else [])
    for n in range(TESTS)
]
"""Of the first graph of each test."""


@pytest.fixture(scope="module")
def replaying(cache_folder: Path) -> Iterator[Workers]:
    name = f"{check.__module__}:{check.__name__}"
    with Workers(name, 1, LIMITS, environment=variables(cache_folder)) as workers:
        yield workers


@pytest.fixture(scope="module")
def attempting(cache_folder: Path) -> Iterator[Workers]:
    name = f"{attempt.__module__}:{attempt.__name__}"
    with Workers(name, 1, LIMITS, environment=variables(cache_folder)) as workers:
        yield workers


@pytest.mark.parametrize("place", [CPU, GUARDED])
@pytest.mark.parametrize("path", sorted(SAVED.glob("*.onnx")), ids=lambda path: path.stem)
def test_saved_case(path: Path, place: str, replaying: Workers) -> None:
    ((_, result),) = replaying.run([(read_case(path), place)])
    assert isinstance(result, Done), result
    assert not result.value.findings


@pytest.mark.parametrize("first", SEEDS)
def test_graphs_of_fixed_seeds(first: int, attempting: Workers) -> None:
    seeds = [(seed, CPU, True, "") for seed in range(first, first + GRAPHS)]
    results = list(attempting.run(seeds))
    crashed = [n for n, result in results if crashed_in_peer(result)]
    again = attempting.run((*seeds[n][:2], False, "") for n in crashed)
    results = [(n, result) for n, result in results if n not in crashed]
    results += [(crashed[i], result) for i, result in again]
    for number, result in results:
        assert isinstance(result, Done), (seeds[number], result)
        report, rows = result.value
        assert not report.findings, (seeds[number], rows)
