"""Trials: plans of products, timed with B from one level of memory.

There are several copies of the weights, and each call reads the next copy, so that B comes from the
level that holds them all. Trials are timed in rounds that take all of them in turn: what other load
does to the machine falls on all alike. Of a trial's rounds the first quartile counts. Other load
only adds time, and the minimum of a bandwidth that others share would promise too much.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, cycle
from typing import NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.frozen import dataclass
from ftuner.hardware.model import MemoryLevel
from ftuner.planner.cpu.plan import Plan
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.memory import long_lived
from ftuner.runtime.cpu.plan_records import Strides, aligned
from ftuner.runtime.cpu.products import Products

_L2_MULTIPLE = 4
"""Least size of weights that come from L3, in sizes of L2."""
_DRAM_MULTIPLE = 2.5
"""Size of weights that come from DRAM, in sizes of the last cache."""
_MOST_BYTES = 512 << 20
_PACE_CALLS, _PACE_ROUNDS = 6, 50
_SLOW = 1.2
"""A burst does not count if its pace is slower than the best one by more than this factor."""
_LEAST_STEADY = 4
_MOST_CALLS = 400
BURST_S = 100e-6
"""Least time of the calls of one round: the timer and the call from Python take some 1% of it."""


@dataclass(frozen=True)
class Weights:
    """One packed weight of (n, k) in several copies, which come from one level in turn."""

    n: int
    k: int
    copies: tuple[Array, ...]
    turns: Iterator[Array]
    """An endless cycle of the copies, which all trials share."""


class Timing(NamedTuple):
    """The time of one call."""

    seconds: float
    """The first quartile over the rounds."""
    spread: float
    """Relative difference of that of the odd and of the even rounds: what another run may find."""
    rounds: int


class Trial:
    """A plan, ready to run with the copies of a weight in turn."""

    def __init__(self, run: Callable[[], None]) -> None:
        """`run()` is one call."""
        self._run = run
        self.calls = 1
        """Calls of a round."""

    def burst(self, calls: int) -> float:
        """Seconds of one of `calls` calls."""
        run = self._run
        began = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - began) / calls


class Bed:
    """Makes trials of the products of one library."""

    def __init__(self, products: Products) -> None:
        self.products = products
        self._memory: Array | None = None

    def weights(self, level: MemoryLevel, n: int, k: int) -> Weights:
        """Copies of a weight that come from a level: the first two hold one copy, whatever its
        size. Weights of one bed share their memory."""
        types, library = self.products.compiled.library.types, self.products.compiled.library
        levels = library.hardware.levels
        padded = -(-n // library.lanes) * library.lanes
        size = aligned(padded * k * types.b.itemsize + SLACK_BYTES)
        place, wanted = levels.index(level), 0.0
        if place >= 2 and level is not levels[-1]:
            wanted = min(_L2_MULTIPLE * levels[1].capacity_bytes, level.capacity_bytes / 3)
        elif level is levels[-1]:
            wanted = min(_DRAM_MULTIPLE * levels[-2].capacity_bytes, _MOST_BYTES)
        count = max(-(-int(wanted) // size), 1)
        if self._memory is None or self._memory.nbytes < count * size:
            self._memory = long_lived(count * size)
        memory = self._memory[: count * size].view(types.b.name)
        memory[:] = 1
        of_copy = size // types.b.itemsize
        copies = tuple(memory[i * of_copy : (i + 1) * of_copy] for i in range(count))
        return Weights(n, k, copies, cycle(copies))

    def trial(
        self, plan: Plan, weights: Weights, kernels: Mapping[str, Mapping[int, int]] | None = None
    ) -> Trial:
        """A plan of a product with a weight in panels. `kernels`: addresses of other uKernels, by
        family and height; by default those of the library."""
        problem, products = plan.problem, self.products
        types = products.compiled.library.types
        a_size, c_size = types.a.itemsize, types.c.itemsize
        strides = Strides(problem.k * a_size, a_size, 0, 0, problem.n * c_size, (), (), False)
        if kernels is None:
            encoded = products.encode(plan, strides)
        else:
            encoded = products.writer(plan, strides, kernels).write(plan)
        a = np.ones((problem.m, problem.k), types.a.name)
        c = np.empty((problem.m, problem.n), types.c.name)

        turns = weights.turns

        def run() -> None:
            products.launch(encoded, a, next(turns), c, None)

        return Trial(run)


class Pace:
    """Tells when other load slows this process down: by a trial of calls that compute next to
    nothing. A busy neighbour on the core's other hyperthread shows in their branches and loads
    first: on AMD Zen 4 they take 1.7 times as long then, multiply-adds as long as before."""

    def __init__(self, reference: Trial) -> None:
        self._reference = reference
        self.seconds = min(reference.burst(_PACE_CALLS) for _ in range(_PACE_ROUNDS))
        """The shortest time of the reference so far."""
        self.bursts = 0
        self.slow = 0
        """Bursts of which the pace was slow, of all `bursts`."""

    @property
    def slow_share(self) -> float:
        """Share of the bursts of trials beside which the pace was slow."""
        return self.slow / max(self.bursts, 1)

    def slowdown(self) -> float:
        """The time of the reference now, over the shortest so far."""
        self._reference.burst(1)
        now = self._reference.burst(_PACE_CALLS)
        self.seconds = min(self.seconds, now)
        return now / self.seconds


def timed(
    trials: Sequence[Trial], rounds: int, deadline: float = 0.0, spread: float = 0.0,
    pace: Pace | None = None,
) -> list[Timing]:  # fmt: skip
    """The times of all trials, over at least `rounds` rounds, and until no spread is larger than
    `spread` or `deadline` (of `time.perf_counter`) has passed. Bursts at whose begin or end the
    pace is slow do not count, if there are enough others."""
    for trial in trials:
        trial.burst(1)
        # A clock that jumps must not make a burst endless.
        trial.calls = min(max(1, round(BURST_S / max(trial.burst(1), 1e-9))), _MOST_CALLS)
    samples: list[list[_Sample]] = [[] for _ in trials]
    before = 1.0
    for done in count():
        if done >= rounds and done % 2 == 0:
            found = [_timing(some) for some in samples]
            if time.perf_counter() > deadline or max(t.spread for t in found) <= spread:
                return found
        for place in range(len(trials)):
            # Another trial comes first each round.
            number = (place + done) % len(trials)
            trial = trials[number]
            trial.burst(1)
            seconds = trial.burst(trial.calls)
            after = 1.0 if pace is None else pace.slowdown()
            samples[number].append((max(before, after), seconds))
            if pace is not None:
                pace.bursts += 1
                pace.slow += max(before, after) > _SLOW
            before = after
    raise AssertionError


_Sample = tuple[float, float]
"""A slowdown, and the seconds of a call beside it."""


def _timing(samples: Sequence[_Sample]) -> Timing:
    """The timing of the rounds of one trial, of which there are at least two."""
    steady = [seconds for slowdown, seconds in samples if slowdown <= _SLOW]
    if len(steady) < _LEAST_STEADY:
        most = max(len(samples) // 2, 2)
        steady = [seconds for _, seconds in sorted(samples)[:most]]
    first = _quartile(steady)
    halves = _quartile(steady[::2]), _quartile(steady[1::2])
    return Timing(first, abs(halves[0] - halves[1]) / first, len(steady))


def _quartile(samples: Sequence[float]) -> float:
    if len(samples) < 2:
        return samples[0]
    return statistics.quantiles(samples, n=4, method="inclusive")[0]
