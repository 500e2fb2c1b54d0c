"""Throughput of several callers: what is counted, and what becomes of it."""

import time

import pytest
from benchmarks import callers
from benchmarks.callers import scaling, window


@pytest.mark.alone
def test_a_window_counts_the_calls_of_all_threads() -> None:
    body = [lambda: time.sleep(0.002)]
    alone = window([body], 0.1)
    together = window([body] * 3, 0.1)
    assert 50 < alone < 500
    assert together > 1.5 * alone


def test_the_share_is_of_perfect_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([100.0, 180.0, 10.0, 20.0, 100.0, 150.0])
    monkeypatch.setattr(callers, "window", lambda bodies: next(rates))
    found = scaling("a case", "an engine", [[lambda: None]] * 2, 3)
    assert found.callers == 2
    assert found.share == pytest.approx(0.9)
    assert found.together_per_s == 150.0
