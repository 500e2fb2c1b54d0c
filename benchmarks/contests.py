"""Contests: of one product, the plans that tunings choose, and every cover of one or two heights.

All plans run the same uKernels with the same weights, interleaved. A weight comes from one level of
memory. The fastest of many is fast by luck too, so the best few are timed again with the chosen
ones, more often; regret is the median over these rounds of a chosen plan's time over another's,
less one, for the other that makes it largest.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.product import product_types
from ftuner.cost.cpu.tile import Reading
from ftuner.hardware.model import CpuHardware, MemoryLevel
from ftuner.learn.samples import Sample
from ftuner.learn.sampling import Competitor, Setting, competing, sample_of
from ftuner.planner.cpu.candidates import Candidate
from ftuner.planner.cpu.cover import Segments
from ftuner.planner.cpu.plan import Plan, Problem
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.trials import BURST_S, Bed, Pace, Trial, timed

READINGS = (Reading(0, 1 << 12), Reading(0, 1 << 13), Reading(2, 1 << 11), Reading(3, 1 << 12))
"""Ways of reading B that compete where one tile covers the rows."""
FIRST_ROUNDS, SECOND_ROUNDS, FINAL_ROUNDS = 4, 8, 40
SECONDS, FINALISTS = 12, 4
OTHERS = 8
"""Plans of one contest that become samples, besides the fastest and the chosen ones."""
MOST_PLANS = 160
"""Plans of one contest; beyond, every second one is left out."""


class Shape(NamedTuple):
    """A product of `m` rows with a weight of `n` columns and `k` steps."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Entry:
    """A plan of a contest."""

    name: str
    plan: Plan
    segments: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Outcome:
    """What a contest found."""

    regrets: Mapping[str, dict[str, Any]]
    """By the name of the tuning that chose the plan."""
    samples: list[Sample]
    plans: int
    """That competed."""


class Arena:
    """Contests of one back end, dtype and number of workers."""

    def __init__(
        self, backend: CpuBackend, dtype: DType, workers: int, tunings: Mapping[str, CpuHardware]
    ) -> None:
        """`tunings`: the machine with each tuning that chooses plans; the first is the one whose
        estimates samples have."""
        backend.threads = workers
        self._workers = workers
        types = product_types(dtype)
        self._products = backend.products(types)
        self._bed = Bed(self._products)
        self._isa, self._dtype = backend.target, dtype
        # Tunings choose among the same uKernels: those that are compiled.
        library = self._products.compiled.library
        self._planners = {
            name: Planner(replace(library, hardware=hardware), hardware.correction)
            for name, hardware in tunings.items()
        }
        empty = self._bed.weights(backend.hardware.levels[0], self._width_columns, 1)
        plan = self._products.planner.plan(self._problem(Shape(1, self._width_columns, 1), 0))
        self.pace = Pace(self._bed.trial(plan, empty))

    @property
    def _width_columns(self) -> int:
        library = self._products.compiled.library
        return library.widths[0] * library.lanes

    def _problem(self, shape: Shape, footprint_bytes: int, width: int = 0) -> Problem:
        m, n, k = shape
        width = width or self._products.compiled.library.widths[0]
        return panel_problem(n, k, width, m, self._workers, footprint_bytes=footprint_bytes)

    def hold(self, level: MemoryLevel, shape: Shape, widths: Sequence[int] = ()) -> Outcome:
        """One contest with a weight that comes from a level. `widths`: panel widths that compete,
        of which tunings choose plans of the first; by default the library's first width. A weight
        is all ones, so that one serves every width."""
        weights = self._bed.weights(level, shape.n, shape.k)
        held = sum(copy.nbytes for copy in weights.copies)
        levels = self._products.compiled.library.hardware.levels
        footprint_bytes = held if level is levels[-1] else 0
        problems = [self._problem(shape, footprint_bytes, width) for width in widths or (0,)]
        problem = problems[0]
        chosen = {name: planner.plan(problem) for name, planner in self._planners.items()}
        entries = self._entries(problems, chosen)
        trials = [self._bed.trial(entry.plan, weights) for entry in entries]
        times = timed(trials, FIRST_ROUNDS, pace=self.pace)
        order = sorted(range(len(trials)), key=lambda i: times[i].seconds)[:SECONDS]
        again = timed([trials[i] for i in order], SECOND_ROUNDS, pace=self.pace)
        best = sorted(range(len(order)), key=lambda i: again[i].seconds)[:FINALISTS]
        for place, number in enumerate(order):
            times[number] = again[place]
        ratios = _finals(
            {name: self._bed.trial(plan, weights) for name, plan in chosen.items()},
            {entries[order[i]].name: trials[order[i]] for i in best},
            self._bed.trial(next(iter(chosen.values())), weights),
        )
        plans = len(entries)
        # Of all plans, those that matter and some of the rest, evenly.
        kept = sorted({*order[:FINALISTS], *range(0, len(entries), -(-len(entries) // OTHERS))})
        kept += [i for i in range(len(entries) - len(chosen), len(entries)) if i not in kept]
        entries, times = [entries[i] for i in kept], [times[i] for i in kept]
        planner, own = next(iter(self._planners.values())), next(iter(chosen.values()))
        setting = Setting(self._isa, self._dtype.name, level.name)
        samples = [
            sample_of(planner, entry.plan, entry.segments, timing, setting, entry.plan is own)
            for entry, timing in zip(entries, times, strict=True)
        ]
        return Outcome(ratios, samples, plans)

    def _entries(self, problems: Sequence[Problem], chosen: Mapping[str, Plan]) -> list[Entry]:
        planner = next(iter(self._planners.values()))
        found = [
            Entry(_name(entry), entry.plan, entry.segments)
            for problem in problems
            for entry in competing(planner, problem, _readings)
        ]
        while len(found) > MOST_PLANS:
            found = found[::2]
        for plan in chosen.values():
            # What is chosen competes, also where m is cut.
            found.append(Entry("chosen", plan, plan.shares[0].bands[0].segments))
        return found


def _readings(_: Candidate, segments: Segments) -> Sequence[Reading]:
    alone = len(segments) == 1 and segments[0][1] == 1
    return READINGS if alone else READINGS[1:2]


def _name(entry: Competitor) -> str:
    grid = "x".join(map(str, entry.plan.choice.grid))
    reading = entry.reading
    how = f"{1 << reading.streams_log2} streams, {reading.ahead_bytes} ahead"
    heights = " + ".join(f"{tiles} x {mr}" for mr, tiles in entry.segments)
    return f"{entry.plan.choice.vectors}v {grid} {heights}, {how}"


def _finals(
    chosen: Mapping[str, Trial], others: Mapping[str, Trial], twin: Trial
) -> dict[str, dict[str, Any]]:
    """The regret of each chosen plan. `twin`: the first of them again, which tells the noise."""
    trials = [*chosen.values(), *others.values(), twin]
    samples: list[list[float]] = [[] for _ in trials]
    for trial in trials:
        trial.burst(1)
        trial.calls = max(1, math.ceil(BURST_S / max(trial.burst(1), 1e-9)))
    for done in range(FINAL_ROUNDS):
        for place in range(len(trials)):
            number = (place + done) % len(trials)
            trials[number].burst(1)
            samples[number].append(trials[number].burst(trials[number].calls))
    named = dict(zip([*chosen, *others], samples, strict=False))
    first = samples[0]
    noise = abs(_ratio(first, samples[-1]) - 1.0)
    found = {}
    for name in chosen:
        best = max(named, key=lambda other: _ratio(named[name], named[other]))
        found[name] = {
            "chosen_s": statistics.median(named[name]),
            "best_s": statistics.median(named[best]),
            "best": best,
            "regret": max(_ratio(named[name], named[best]) - 1.0, 0.0),
            "noise": noise,
        }
    return found


def _ratio(own: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, other, strict=True))
