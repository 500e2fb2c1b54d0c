"""Competing plans of one product: every cover of one or two heights on every grid, and the samples
that they become when they have been timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ftuner.cost.cpu.tile import Reading
from ftuner.learn.samples import Sample, SamplePlan, SampleProblem
from ftuner.planner.cpu.candidates import Candidate
from ftuner.planner.cpu.cover import Segments, one_or_two_heights
from ftuner.planner.cpu.plan import Plan, Problem
from ftuner.planner.cpu.planner import Planner
from ftuner.runtime.cpu.trials import Timing

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
    terms = planner.estimate_covered(planner.candidate(problem, choice), problem.m, segments)
    return Sample(
        isa=setting.isa, dtype=setting.dtype, workers=problem.workers, level=setting.level,
        problem=SampleProblem(problem.m, problem.n, problem.k),
        plan=SamplePlan(choice.grid, choice.vectors, choice.kc, segments), chosen=chosen,
        terms=terms, seconds=timing.seconds, spread=timing.spread, rounds=timing.rounds,
    )  # fmt: skip
