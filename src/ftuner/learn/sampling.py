"""Samples of this machine: products of random extents, each with the plans that compete for it.

Extents are drawn evenly in logarithm. Where the predictions of competing plans are close, or the
variance of the model is large, more could be learned from one product; on the machines measured so
far extents chosen so were no better than random ones, which repeat nothing. Each product is
appended as soon as it is measured, so that an interrupted run loses one product at most.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.cost.cpu.tile import Reading
from ftuner.errors import DatasetError
from ftuner.hardware.model import MemoryLevel
from ftuner.learn.features import table_of
from ftuner.learn.samples import SUFFIX, Header, Sample, SamplePlan, SampleProblem, append, read
from ftuner.learn.training import learn
from ftuner.planner.cpu.candidates import Candidate
from ftuner.planner.cpu.cover import Segments, one_or_two_heights
from ftuner.planner.cpu.plan import Plan, Problem
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.trials import Bed, Pace, Timing, timed
from ftuner.runtime.known_hardware import forget, keep
from ftuner.runtime.shown_progress import Progress

_LOG = logging.getLogger(__name__)

SECONDS = 30.0
"""That a thorough calibration samples products."""
FOLDER = "samples"
"""In the cache folder."""
MOST_SAMPLES = 20_000
"""Of one machine and tuning: more are not measured."""
_PLANS = 10
_ROUNDS = 8
_MOST_ROWS, _MOST_COLUMNS, _MOST_STEPS = 128, 2048, 4096
_LEAST_COLUMNS, _LEAST_STEPS = 128, 128
_SHARE_OF_LEVEL = 3
"""Least size of a cache that is to hold a weight, in sizes of the weight: others use it, too."""
Readings = Callable[[Candidate, Segments], Sequence[Reading]]
"""The ways of reading B that compete for a cover."""


class Competitor(NamedTuple):
    """A plan that competes."""

    candidate: Candidate
    plan: Plan
    segments: Segments
    """How it covers the rows."""
    reading: Reading


class Setting(NamedTuple):
    """What the samples of one product share."""

    isa: str
    dtype: str
    level: str
    """Where B comes from."""


def competing(planner: Planner, problem: Problem, readings: Readings) -> Iterator[Competitor]:
    """Plans of a product whose rows are not cut, for each candidate, cover of one or two heights
    and reading."""
    for candidate in planner.candidates(problem):
        if not candidate.fits(problem.m):
            continue
        base = planner.lay_out(problem, candidate)
        for segments in one_or_two_heights(problem.m, candidate.family.max_mr):
            for reading in readings(candidate, segments):
                plan = base.covered(segments, reading)
                if plan is not None:
                    yield Competitor(candidate, plan, segments, reading)


def best_reading(candidate: Candidate, segments: Segments) -> Sequence[Reading]:
    """The reading that the tuning has for a cover."""
    heights = tuple(mr for mr, tiles in segments for _ in range(tiles))
    return (candidate.table.cover(heights).reading,)


def sample_of(
    planner: Planner, plan: Plan, segments: Segments, timing: Timing, setting: Setting, chosen: bool
) -> Sample:
    """A plan that was timed, with its estimate by `planner`. `chosen`: whether `planner` chose
    it."""
    problem, choice = plan.problem, plan.choice
    terms = planner.candidate(problem, choice).estimate_covered(problem.m, segments)
    return Sample(
        isa=setting.isa, dtype=setting.dtype, workers=problem.workers, level=setting.level,
        problem=SampleProblem(problem.m, problem.n, problem.k),
        plan=SamplePlan(choice.grid, choice.vectors, choice.kc, segments), chosen=chosen,
        terms=terms, seconds=timing.seconds, spread=timing.spread, rounds=timing.rounds,
    )  # fmt: skip


class Learned(NamedTuple):
    """What a run learned."""

    samples: int
    """Of this machine, those of earlier runs included."""
    kept: bool
    """Whether a correction is kept: one that chooses better plans than the estimate."""
    why: str
    """The form of the model and its error, or why there is none."""


def improve(backend: CpuBackend, seconds: float, progress: Progress | None = None) -> Learned:
    """Sample this machine for some seconds, and learn a correction of its estimates from these and
    earlier samples, for processes that follow. If they support none, one that was kept before is
    removed: it was learned from fewer of them."""
    hardware = backend.hardware
    # Estimates of another tuning have other errors.
    name = f"{hardware.fingerprint}-{backend.target}-{hardware.tuning.digest}{SUFFIX}"
    path = backend.cache.folder / FOLDER / name
    try:
        sample(backend, path, seconds, progress)
        table = table_of(read(path))
    except (DatasetError, OSError) as error:
        _LOG.info("no correction was learned: %s", error)
        return Learned(0, False, str(error))
    try:
        learned = learn(table, hardware.fingerprint, source="ftuner tune")
    except DatasetError as error:
        _LOG.info("no correction was learned: %s", error)
        forget(backend.cache, hardware)
        return Learned(len(table), False, str(error))
    keep(backend.cache, hardware, learned)
    return Learned(len(table), True, learned.provenance.get("form", ""))


def sample(
    backend: CpuBackend, path: Path, seconds: float, progress: Progress | None = None
) -> int:
    """Measure for some seconds and append to a dataset; returns how many samples were appended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = len(read(path).samples) if path.exists() else 0
    header = Header(backend.hardware)
    sampler = _Sampler(backend)
    generator = np.random.default_rng(known)
    began, taken = time.perf_counter(), 0
    while known + taken < MOST_SAMPLES:
        passed = time.perf_counter() - began
        if progress is not None:
            progress("sample", min(int(passed), int(seconds)), int(seconds))
        if passed >= seconds:
            break
        found = sampler.product(generator)
        append(path, header, found)
        taken += len(found)
    return taken


class _Sampler:
    """Measures competing plans of products, with one worker or all."""

    def __init__(self, backend: CpuBackend) -> None:
        self._products = backend.products(product_types(FLOAT32))
        self._library = library = self._products.compiled.library
        self._bed = Bed(self._products)
        self._planner = Planner(library)
        self._isa = backend.target
        self._cores = backend.hardware.cores
        self._nr = library.widths[0] * library.lanes
        levels = library.hardware.levels
        # Nothing is learned of L1 and L2.
        self._levels = levels[2:] if len(levels) > 2 else levels[-1:]
        empty = self._bed.weights(levels[0], self._nr, 1)
        plan = self._planner.plan(panel_problem(self._nr, 1, library.widths[0], 1, 1))
        self._pace = Pace(self._bed.trial(plan, empty))

    def product(self, generator: np.random.Generator) -> list[Sample]:
        """The samples of one product."""
        workers = int(generator.choice(sorted({1, self._cores})))
        level = self._levels[int(generator.integers(len(self._levels)))]
        n, k = self._extents(generator, level)
        m = _drawn(generator, 1, _MOST_ROWS)
        weights = self._bed.weights(level, n, k)
        held = sum(copy.nbytes for copy in weights.copies)
        last = self._library.hardware.levels[-1]
        problem = panel_problem(
            n, k, self._library.widths[0], m, workers, footprint_bytes=held if level is last else 0
        )
        chosen = self._planner.plan(problem)
        plans = [(chosen, chosen.shares[0].bands[0].segments)]
        ranked: list[tuple[float, Plan, Segments]] = []
        for entry in competing(self._planner, problem, best_reading):
            terms = entry.candidate.estimate_covered(m, entry.segments)
            ranked.append((terms.seconds, entry.plan, entry.segments))
        ranked.sort(key=lambda place: place[0])
        others = [
            (plan, segments)
            for _, plan, segments in ranked
            if (plan.choice, segments) != (chosen.choice, plans[0][1])
        ]
        plans += others[:_PLANS]
        trials = [self._bed.trial(plan, weights) for plan, _ in plans]
        times = timed(trials, _ROUNDS, pace=self._pace)
        setting = Setting(self._isa, FLOAT32.name, level.name)
        return [
            sample_of(self._planner, plan, segments, timing, setting, plan is chosen)
            for (plan, segments), timing in zip(plans, times, strict=True)
        ]

    def _extents(self, generator: np.random.Generator, level: MemoryLevel) -> tuple[int, int]:
        """Columns and steps of a weight that the level holds."""
        size = self._library.types.b.itemsize
        while True:
            n = _drawn(generator, _LEAST_COLUMNS, _MOST_COLUMNS)
            k = _drawn(generator, _LEAST_STEPS, _MOST_STEPS)
            if _SHARE_OF_LEVEL * n * k * size <= level.capacity_bytes:
                return n, k


def _drawn(generator: np.random.Generator, least: int, most: int) -> int:
    """An integer, evenly in logarithm."""
    return round(math.exp(generator.uniform(math.log(least), math.log(most))))
