"""Latencies by shape."""

from ftuner_tools.demo.latencies import Latency, latencies, latency_table, timed_call


def test_latencies() -> None:
    rows = latencies("m", {(1, 9): [3.0, 1.0, 2.0, 1.0], (1, 5): [1.0, 2.0], (1, 7): [1.0]})
    assert rows == [Latency("m", (1, 5), 2, 1.0, 2.0), Latency("m", (1, 9), 4, 3.0, 1.0)]


def test_timed_call() -> None:
    timed: dict[tuple[int, ...], list[float]] = {(2,): [1.0]}
    assert timed_call(timed, (2,), lambda: "result") == "result"
    (first, second) = timed[2,]
    assert first == 1.0
    assert 0 <= second < 1


def test_table() -> None:
    """The ends of each model's rows; one that was called at one shape has one."""
    rows = [Latency("m", (1, n), 2, 1.0, 1.0) for n in range(30)]
    table = latency_table([*rows, Latency("one", (7,), 2, 1.0, 1.0)])
    assert list(table.columns[1].cells) == ["1x0", "1x29", "7"]
