"""Interleaved timing of several engines on a GPU, by its own events.

A burst of calls is queued while the device is held up, so that it then runs them back to back and
what a call costs its launcher is not in its time; that is measured beside it. Calls rotate through
copies of the operands, so that they do not come from L2.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import NamedTuple, Protocol

import torch

Call = Callable[[], object]
HELD_MARGIN = 1.5
"""How much longer than queueing took last time the device is held up."""
LEAST_HELD_S, MOST_HELD_S = 1e-4, 5e-2
CALIBRATIONS, CALIBRATION_CYCLES = 10, 20_000_000
"""A tenth of a second at the clocks of current chips."""
MAX_BURST_CALLS = 256
"""Launches that fit the driver's queue, of 1024, with some calls of several kernels."""


@dataclass(frozen=True)
class Settings:
    """How long to measure. Every number is a choice of this suite."""

    burst_s: float = 2e-3
    burst_calls: int = 3
    rounds: int = 7
    ahead: bool = True
    """Whether calls are queued while the device is held up. Without, a burst's time is what the
    caller waits for, until the device is done."""


class Burst(NamedTuple):
    """Seconds a call, of the device and of the thread that launches."""

    device_s: float
    host_s: float


@dataclass(frozen=True)
class Timing:
    """Seconds of one call of one engine, over the rounds."""

    min_s: float
    median_s: float
    host_s: float
    """What launching it takes."""
    rounds: int
    calls_per_burst: int


class Meter(Protocol):
    """Runs bursts."""

    def burst(self, calls: Sequence[Call], ahead: bool, host_s: float) -> Burst:
        """Time calls; `host_s`: what launching one of them took before."""


class DeviceMeter:
    """By events of the current device."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda._sleep(1)
        torch.cuda.synchronize(device)
        rates = []
        for _ in range(CALIBRATIONS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(CALIBRATION_CYCLES)
            end.record()
            end.synchronize()
            rates.append(CALIBRATION_CYCLES / (begin.elapsed_time(end) / 1e3))
        # An idle chip runs slower; what it is held up by must last at its full clock.
        self._cycles_per_s = max(rates)

    def burst(self, calls: Sequence[Call], ahead: bool, host_s: float) -> Burst:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if ahead:
            held_s = HELD_MARGIN * host_s * len(calls)
            held_s = min(max(held_s, LEAST_HELD_S), MOST_HELD_S)
            torch.cuda._sleep(int(held_s * self._cycles_per_s))
        else:
            torch.cuda.synchronize()
        began = time.perf_counter()
        begin.record()
        for call in calls:
            call()
        end.record()
        queued = time.perf_counter()
        end.synchronize()
        device_s = begin.elapsed_time(end) / 1e3
        if not ahead:
            device_s = time.perf_counter() - began
        return Burst(device_s / len(calls), (queued - began) / len(calls))


class HostMeter:
    """By the clock of the host, where kernels are interpreted there."""

    def burst(self, calls: Sequence[Call], ahead: bool, host_s: float) -> Burst:
        began = time.perf_counter()
        for call in calls:
            call()
        seconds = (time.perf_counter() - began) / len(calls)
        return Burst(seconds, seconds)


class _Runner:
    """One engine's calls, taken round robin, and the size of its bursts."""

    def __init__(self, calls: Sequence[Call], meter: Meter, settings: Settings) -> None:
        assert calls
        self._rotation: Iterator[Call] = cycle(calls)
        self._meter = meter
        self._ahead = settings.ahead
        # The first call of all may compile and plan; the second may still allocate.
        for count in (1, 2):
            first = meter.burst(list(islice(self._rotation, count)), False, 0.0)
        self.host_s = [first.host_s]
        self.samples_s: list[float] = []
        self.calls = min(
            max(settings.burst_calls, math.ceil(settings.burst_s / max(first.device_s, 1e-9))),
            MAX_BURST_CALLS,
        )

    def burst(self) -> None:
        calls = list(islice(self._rotation, self.calls))
        found = self._meter.burst(calls, self._ahead, statistics.median(self.host_s))
        self.samples_s.append(found.device_s)
        self.host_s.append(found.host_s)

    def timing(self) -> Timing:
        return Timing(
            min(self.samples_s), statistics.median(self.samples_s), statistics.median(self.host_s),
            len(self.samples_s), self.calls,
        )  # fmt: skip


def measure(
    engines: Mapping[str, Sequence[Call]], meter: Meter, settings: Settings, rng: random.Random
) -> dict[str, Timing]:
    """Time each engine's `calls` (one for each copy of the operands) in interleaved rounds, of an
    order drawn anew each time."""
    runners = {name: _Runner(calls, meter, settings) for name, calls in engines.items()}
    order = list(runners.values())
    for _ in range(settings.rounds):
        rng.shuffle(order)
        for runner in order:
            runner.burst()
    return {name: runner.timing() for name, runner in runners.items()}
