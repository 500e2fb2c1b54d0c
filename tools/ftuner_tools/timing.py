"""Engines beside each other: interleaved timing on one case, tolerances, and the mean of ratios.

In each round every engine runs one burst of calls, in an order drawn anew, so that what the
machine's neighbours do falls on all alike. Before a burst the other engines' worker threads are
given time to fall asleep, and untimed calls bring the engine's own threads and code back.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

Call = Callable[[], object]

SUBJECT = "ftuner"
"""The engine that ratios are about; the others are its peers."""
ATOL, RTOL = 1e-4, 1e-3
"""Absolute and relative differences by which outputs of engines may differ, by default."""


@dataclass(frozen=True)
class Settings:
    """How long to measure. Every number is a choice of this suite."""

    budget_s_per_engine: float = 0.3
    """Wall-clock time for one case, over its engines and limits; rounds stop when it is spent."""
    burst_s: float = 1e-3
    """A burst lasts at least this long."""
    burst_calls: int = 3
    """A burst has at least so many calls."""
    min_rounds: int = 5
    max_rounds: int = 60
    long_call_s: float = 0.1
    """A call this long is a burst by itself and needs no warming up."""
    long_call_min_rounds: int = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of one call of one engine, as the mean of a burst, over the rounds."""

    min_s: float
    """Least over the rounds: what the code does when the machine's neighbours are quiet."""
    median_s: float
    rounds: int
    calls_per_burst: int
    samples_s: tuple[float, ...] = field(default=(), repr=False)
    """Of each round."""

    def to_json(self, subject: Timing | None = None) -> dict[str, Any]:
        """What results keep. With a subject that was timed in the same rounds, `paired` is the
        median over the rounds of this engine's seconds over the subject's: both met the same state
        of the machine, which may change from round to round."""
        kept = {"min_s": self.min_s, "median_s": self.median_s}
        if subject is not None:
            pairs = zip(self.samples_s, subject.samples_s, strict=True)
            kept["paired"] = statistics.median(own / other for own, other in pairs)
        return kept


def geomean(values: Iterable[float]) -> float:
    """Geometric mean of positive numbers; NaN of none."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


MULTIPLY_ADDS, READS = "multiply-adds", "reads"
"""The names of what the machine lets through at most (`limits.Limits`), among what is timed."""


def share(engine: Timing, *limits: Timing) -> tuple[float, float]:
    """The part that an engine reaches of the longest of some limits, timed in the same rounds: by
    minima, and the median over the rounds of the part within a round."""
    longest = [max(samples) for samples in zip(*(t.samples_s for t in limits), strict=True)]
    pairs = zip(longest, engine.samples_s, strict=True)
    by_minima = max(limit.min_s for limit in limits) / engine.min_s
    return by_minima, statistics.median(limit / own for limit, own in pairs)


SETTLE_WINDOW_S = 1e-3
SETTLE_TIMEOUT_S = 0.5
"""Several times the longest spin seen among the engines: OpenBLAS counts 2^28 ticks of the
time-stamp counter, 120 ms at 2.3 GHz, unless told otherwise; see `run.environment`."""
TASKS = Path("/proc/self/task")
"""A folder for each thread of this process, on Linux."""


def other_threads_run() -> bool:
    """Whether any thread of this process but the caller's is running or waiting for a core. Told by
    the state of each, as Linux has it: CPU time is counted by ticks, which are longer than a
    window. False on other systems."""
    own = str(threading.get_native_id())
    for thread in TASKS.glob("*"):
        try:
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "R" and thread.name != own:
            return True
    return False


def settle(others: Callable[[], bool] = other_threads_run) -> None:
    """Sleep until no other thread of this process has been running for two windows in a row.

    Engines let their workers spin for milliseconds after a call, ONNX Runtime's for forty.
    `others` tells whether one is running.
    """
    quiet = 0
    deadline = time.perf_counter() + SETTLE_TIMEOUT_S
    while quiet < 2 and time.perf_counter() < deadline:
        time.sleep(SETTLE_WINDOW_S)
        quiet = 0 if others() else quiet + 1


class Runner:
    """One engine's calls, taken round robin, and the size of its bursts."""

    def __init__(self, calls: Sequence[Call], settings: Settings, clock: Callable[[], float]):
        assert calls
        self._rotation: Iterator[Call] = cycle(calls)
        self._clock = clock
        estimate_s = self.burst(1)
        self.long = estimate_s >= settings.long_call_s
        self.warm_up_calls = 0 if self.long else max(2, len(calls))
        if not self.long:
            self.run(self.warm_up_calls)
            estimate_s = min(estimate_s, self.burst(1))
        by_time = math.ceil(settings.burst_s / max(estimate_s, 1e-9))
        self.calls_per_burst = 1 if self.long else max(settings.burst_calls, by_time)
        self.samples_s: list[float] = []

    def run(self, count: int) -> None:
        for call in islice(self._rotation, count):
            call()

    def burst(self, count: int) -> float:
        """Run `count` calls; seconds a call."""
        calls = list(islice(self._rotation, count))
        start = self._clock()
        for call in calls:
            call()
        return (self._clock() - start) / count


def measure(
    engines: Mapping[str, Sequence[Call]],
    settings: Settings,
    rng: random.Random,
    clock: Callable[[], float] = time.perf_counter,
    settle: Callable[[], None] = settle,
) -> dict[str, Timing]:
    """Time each engine's `calls` (one for each copy of the operands) in interleaved rounds.

    Every engine runs the same number of rounds, so that the minima compare.
    """
    if not engines:
        return {}
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        runners: dict[str, Runner] = {}
        for name, calls in engines.items():
            settle()
            runners[name] = Runner(calls, settings, clock)
        any_long = any(runner.long for runner in runners.values())
        min_rounds = settings.long_call_min_rounds if any_long else settings.min_rounds
        budget_s = settings.budget_s_per_engine * len(engines)
        order = list(runners)
        rounds = 0
        while rounds < min_rounds or (rounds < settings.max_rounds and clock() - start < budget_s):
            rng.shuffle(order)
            for name in order:
                runner = runners[name]
                settle()
                runner.run(runner.warm_up_calls)
                runner.samples_s.append(runner.burst(runner.calls_per_burst))
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return {
        name: Timing(
            min(runner.samples_s),
            statistics.median(runner.samples_s),
            rounds,
            runner.calls_per_burst,
            tuple(runner.samples_s),
        )
        for name, runner in runners.items()
    }
