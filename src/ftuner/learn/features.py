"""Tables of features: samples of one or several machines as the arrays that training reads.

The features are those of `ftuner.cost.cpu.correction_features`, computed by the planner's own
candidates and covers, so that training sees what planning sees.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache

import numpy as np

from ftuner.core.dtype import DTYPES
from ftuner.core.frozen import dataclass
from ftuner.core.product import product_types
from ftuner.errors import DatasetError, DatasetWarning
from ftuner.hardware.correction import Array
from ftuner.hardware.model import CpuHardware
from ftuner.learn.samples import Dataset, Sample
from ftuner.planner.cpu.plan import Choice, Grid
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.ukernels.cpu.library import build_library

LEAST_SPREAD = 0.01
"""Assumed of every sample: a median of a few rounds is not known better than to a percent."""


@dataclass(frozen=True, eq=False)
class Table:
    """Samples as arrays, of one length."""

    share: Array
    """(samples, features), in order of `correction_features.SHARE_FEATURES`"""
    cover: Array
    """(samples, features), in order of `correction_features.COVER_FEATURES`"""
    kind: Array
    """Of the cover, as an index of `KINDS`."""
    log_estimated: Array
    log_ratio: Array
    """log(measured / estimated)"""
    spread: Array
    """Relative, of the measured time."""
    shape: Array
    """A number for each (n, k): cross-validation does not divide a shape."""
    contest: Array
    """A number for each product of which several plans were measured in the same setting."""
    workers: Array
    """That the planner had in the setting; those of a contest are equal."""
    chosen: Array
    """Whether the planner takes the plan."""
    place: Array
    """Of the sample in its dataset."""
    importance: Array
    """Weight of the sample beside a quiet one of the machine that is learned for."""

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: Array) -> Table:
        """The samples of an index or a mask."""
        return Table(*(getattr(self, f.name)[index] for f in fields(self)))

    @property
    def log_measured(self) -> Array:
        found: Array = self.log_estimated + self.log_ratio
        return found

    @property
    def weight(self) -> Array:
        """The weight of each sample: the inverse of its variance, times its importance."""
        found: Array = LEAST_SPREAD**2 / (LEAST_SPREAD**2 + self.spread**2)
        return found * self.importance


def joined(tables: Sequence[Table]) -> Table:
    """Samples of several machines as one table. Contests stay apart; a shape is the same one on
    every machine."""
    found = []
    contests = 0
    for table in tables:
        moved = {f.name: getattr(table, f.name) for f in fields(table)}
        moved["contest"] = table.contest + contests
        contests += int(table.contest.max(initial=-1)) + 1
        found.append(Table(**moved))
    return Table(*(np.concatenate([getattr(t, f.name) for t in found]) for f in fields(Table)))


def table_of(dataset: Dataset, keep: Callable[[Sample], bool] = lambda sample: True) -> Table:
    """The features of the samples that `keep` accepts.

    Samples that this version's planner cannot repeat, because a uKernel is not in its library, are
    left out with a DatasetWarning; so are those whose weight came from a level that the planner
    never assumes, without one. Of samples of one plan the fastest counts: they differ in how the
    panel was read, of which calibration takes the best way.

    Raises:
        DatasetError: no sample is left.
    """
    levels = [level.name for level in dataset.hardware.levels]
    assumed = levels[max(len(levels) - 2, 0) :]
    numbered = enumerate(dataset.samples)
    wanted = _fastest((place, s) for place, s in numbered if s.level in assumed and keep(s))
    rows = [(place, sample, _features(dataset.hardware, sample)) for place, sample in wanted]
    known = [(place, sample, row) for place, sample, row in rows if row is not None]
    if len(known) < len(rows):
        warnings.warn(
            f"{len(rows) - len(known)} of {len(rows)} samples of {dataset.hardware.name} have "
            "plans that this version does not make; they are left out",
            DatasetWarning,
            stacklevel=2,
        )
    if not known:
        raise DatasetError(f"no sample of {dataset.hardware.name} can be learned from")
    samples = [sample for _, sample, _ in known]
    features = [row for _, _, row in known]
    contests: dict[object, int] = {}
    for s in samples:
        contests.setdefault(_contest(s), len(contests))
    return Table(
        share=np.array([share for share, _, _ in features], np.float64),
        cover=np.array([cover for _, cover, _ in features], np.float64),
        kind=np.array([kind for _, _, kind in features], np.int64),
        log_estimated=np.log([s.terms.seconds for s in samples]),
        log_ratio=np.array([s.log_ratio for s in samples]),
        spread=np.array([s.spread for s in samples]),
        # Extents are below 2**40; their pair is told apart by a hash of 62 bits.
        shape=np.array([hash((s.problem.n, s.problem.k)) >> 2 for s in samples], np.int64),
        contest=np.array([contests[_contest(s)] for s in samples], np.int64),
        workers=np.array([s.workers for s in samples], np.int64),
        chosen=np.array([s.chosen for s in samples], np.bool_),
        place=np.array([place for place, _, _ in known], np.int64),
        importance=np.ones(len(samples)),
    )


def _fastest(numbered: Iterable[tuple[int, Sample]]) -> list[tuple[int, Sample]]:
    """The fastest sample of each plan, with its place."""
    found: dict[object, tuple[int, Sample]] = {}
    for place, sample in numbered:
        key = (_contest(sample), sample.plan)
        if key not in found or sample.seconds < found[key][1].seconds:
            found[key] = (place, sample)
    return list(found.values())


def _contest(sample: Sample) -> object:
    return (sample.isa, sample.dtype, sample.workers, sample.level, sample.problem)


def _features(
    hardware: CpuHardware, sample: Sample
) -> tuple[tuple[float, ...], tuple[float, ...], int] | None:
    """The features of the share and of the cover of a sample, and its kind of cover; None if the
    planner cannot repeat its plan."""
    planner = _planner(hardware, sample.isa, sample.dtype)
    (m, n, k), plan = sample.problem, sample.plan
    if plan.width not in planner.library.widths or plan.kc > k:
        return None
    footprint_bytes = 0
    if sample.level == hardware.levels[-1].name:
        footprint_bytes = 2 * hardware.levels[-2].capacity_bytes if len(hardware.levels) > 1 else 0
    problem = panel_problem(n, k, plan.width, m, sample.workers, footprint_bytes=footprint_bytes)
    choice = Choice(Grid(*plan.grid), plan.width, plan.kc, False, False, False)
    candidate = planner.candidate(problem, choice)
    if max(mr for mr, _ in plan.segments) > candidate.family.max_mr:
        return None
    table = candidate.table
    return candidate.features(), table.features(plan.segments), table.kind(plan.segments)


@lru_cache(maxsize=64)
def _planner(hardware: CpuHardware, isa: str, dtype: str) -> Planner:
    """A planner without a correction: what was learned before does not matter."""
    return Planner(build_library(hardware, isa, product_types(DTYPES[dtype])))
