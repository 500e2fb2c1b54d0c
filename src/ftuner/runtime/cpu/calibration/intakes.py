"""Fits how tiles take in a B from after L2: the `Intake` of each kind of cover and each level.

Ways of reading compete on covers of each kind. Covers of all kinds, each by the way that is kept,
are then timed in the same rounds: the planner chooses between kinds, and other load that fell on
one of them alone would decide for it. Their times give the share of the level's bandwidth and the
overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from ftuner.cost.cpu.tile import (
    LOW,
    PARTS,
    SEVERAL,
    TALL,
    Reading,
    intake_field,
    overlapped,
    reading,
)
from ftuner.hardware.constants import Fitted, part_of
from ftuner.hardware.intake_tuning import Intake
from ftuner.hardware.model import MemoryLevel
from ftuner.hardware.tuning import CpuTuning, KLoopTuning
from ftuner.runtime.cpu.calibration.stand import (
    Segments,
    Stand,
    between,
    closest,
    geometric,
    mean_logarithms,
    preferred,
)
from ftuner.runtime.cpu.trials import Timing, Weights

_STREAMS_LOG2 = (0, 1, 2, 3)
_AHEAD_BYTES = (1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14)
_FIRST_ROUNDS, _LAST_ROUNDS = 3, 10
_FINALISTS = 4
_SHARES = geometric(0.15, 1.6, 60)
_OVERLAPS = (1.0, 1.2, 1.5, 1.8, 2.2, 2.6, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
_PRIOR_WEIGHT = 2e-3
_UNSEEN_ERROR = 0.6
"""Error of times of several workers where all bursts are slow on the caller's core: what slows the
other workers down is not seen."""
_Losses = dict[Reading, float]
"""By way of reading, the logarithm of its time over that of the best one."""
_WAY_SHARE = 0.4
"""Share of the time in which ways of reading compete; in the rest covers of all kinds are timed."""


class _Kind(NamedTuple):
    """A kind of cover: its covers on a stand."""

    name: str
    covers: tuple[Segments, ...]


class _Place(NamedTuple):
    """Where panels come from, and how many workers read theirs from there."""

    level: MemoryLevel
    weights: Weights
    workers: int


def _kinds(stand: Stand, tuning: CpuTuning) -> list[_Kind]:
    low, tallest = min(tuning.low_tile_rows, stand.tallest), stand.tallest
    found = [_Kind(LOW, tuple(((mr, 1),) for mr in sorted({1, low})))]
    if tallest > low:
        found.append(_Kind(TALL, tuple(((mr, 1),) for mr in sorted({low + 1, tallest}))))
    in_parts = range(tallest + 1, stand.family.max_mr + 1)
    if in_parts:
        some = sorted({in_parts[0], in_parts[len(in_parts) // 2], in_parts[-1]})
        found.append(_Kind(PARTS, tuple(((mr, 1),) for mr in some)))
    half = max(tallest - 2, 1)
    uneven: Segments = ((low, 1), (1, 1)) if low > 1 else ((1, 2),)
    found.append(_Kind(SEVERAL, (uneven, ((half, 2),), ((tallest, 2),), ((tallest, 4),))))
    return found


def fit_intakes(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """The intakes of all kinds of covers, by field: `low_l3` and so on."""
    found: dict[str, Fitted] = {}
    if not stand.far_levels:
        return found
    kinds, last = _kinds(stand, tuning), stand.hardware.levels[-1]
    counts = sorted({1, stand.hardware.cores})
    left = float(len(kinds) * len(stand.far_levels) * len(counts))
    for workers in counts:
        places = [_Place(x, stand.weights(x), workers) for x in stand.far_levels]
        ways = []
        for kind in kinds:
            usual = reading(getattr(tuning, intake_field(kind.name, True, workers > 1)))
            ways.append(_way(stand, kind, places, usual, _WAY_SHARE * len(places) / left))
            left -= _WAY_SHARE * len(places)
        for place in places:
            fields = [intake_field(kind.name, place.level is last, workers > 1) for kind in kinds]
            priors = [getattr(tuning, field) for field in fields]
            covers = [(w, c) for w, kind in zip(ways, kinds, strict=True) for c in kind.covers]
            together = len(kinds) * (1.0 - _WAY_SHARE)
            slow, bursts = stand.pace.slow, stand.pace.bursts
            timings = iter(_timed(stand, place, covers, _LAST_ROUNDS, together / left))
            left -= together
            unseen = 0.0
            if workers > 1:
                unseen = _UNSEEN_ERROR * (stand.pace.slow - slow) / (stand.pace.bursts - bursts)
            for field, kind, way, prior in zip(fields, kinds, ways, priors, strict=True):
                some = [next(timings) for _ in kind.covers]
                found[field] = _fit(stand, tuning, kind, place, prior, way, some, unseen)
    return found


def _way(
    stand: Stand, kind: _Kind, places: Sequence[_Place], usual: Reading, part: float
) -> Reading:
    """The way of reading by which covers of a kind lose least in the place where they lose most: a
    weight that fits the last cache comes from DRAM where a process has others. `usual`: before the
    calibration; `part`: of the time that is left."""
    readings = [Reading(*pair) for pair in product(_STREAMS_LOG2, _AHEAD_BYTES)]
    if kind.name == SEVERAL:
        # Later panels are fetched by the tiles of the panel before: only the first one is read so.
        readings = [Reading(0, ahead) for ahead in _AHEAD_BYTES[-2:]]
    if usual not in readings:
        readings.append(usual)

    def losses(ways: Sequence[Reading], rounds: int, part: float) -> tuple[_Losses, float]:
        pairs = list(product(ways, kind.covers))
        timings = [_timed(stand, place, pairs, rounds, part) for place in places]
        scores = np.array([mean_logarithms(some, len(ways)) for some in timings])
        lost = (scores - scores.min(axis=1, keepdims=True)).max(axis=0)
        noise = max(t.spread for some in timings for t in some)
        return dict(zip(ways, lost.tolist(), strict=True)), noise

    found, _ = losses(readings, _FIRST_ROUNDS, 0.0)
    finalists = sorted(readings, key=found.__getitem__)[:_FINALISTS]
    finalists += [usual] if usual not in finalists else []
    found, noise = losses(finalists, _LAST_ROUNDS, part / len(places))
    chosen: Reading = preferred(found, usual, noise)
    return chosen


def _fit(
    stand: Stand, tuning: CpuTuning, kind: _Kind, place: _Place, prior: Intake, way: Reading,
    timings: Sequence[Timing], least_error: float,
) -> Fitted:  # fmt: skip
    """The intake that explains the times of a kind's covers, read by the chosen way."""
    measured = [
        stand.cycles(t, c, place.weights, place.workers)
        for t, c in zip(timings, kind.covers, strict=True)
    ]
    own = [stand.own_cycles(cover, tuning) for cover in kind.covers]
    fetch = stand.fetch_cycles(place.level, place.workers)

    def modelled(share: float, overlap: float) -> list[float]:
        return [overlapped(cycles, fetch / share, overlap) for cycles in own]

    (share, overlap), error = closest(
        product(_SHARES, _OVERLAPS), modelled, measured, (prior.share, prior.overlap), _PRIOR_WEIGHT
    )
    error = max(error, least_error, *(t.spread for t in timings))
    intake = Intake(
        k_streams=1 << way.streams_log2,
        prefetch_bytes=way.ahead_bytes,
        share=between(share, prior.share, error),
        overlap=between(overlap, prior.overlap, error),
    )
    return Fitted(intake, error)


def _timed(
    stand: Stand, place: _Place, covers: Sequence[tuple[Reading, Segments]], rounds: int,
    part: float,
) -> list[Timing]:  # fmt: skip
    """The times of covers, each read in some way, in the same rounds."""
    trials = [stand.trial(c, place.weights, way, workers=place.workers) for way, c in covers]
    return stand.timed(trials, rounds, part)


_ROUNDS = 12


class _Contest(NamedTuple):
    """A field of the k loop, and the values that compete."""

    field: str
    values: tuple[int, ...]
    far: bool
    """Whether B comes from the last level, and else from L2."""


_CONTESTS = (
    _Contest("steps_per_round", (2, 4, 8), far=False),
    _Contest("steps_per_prefetch", (4, 8, 16), far=True),
)


def fit_code(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """The fields of the k loop's code that pay on this machine."""
    found: dict[str, Fitted] = {}
    loop = part_of(tuning, KLoopTuning)
    tallest = stand.tallest
    lower = max(tallest - 2, 1)
    heights = sorted({lower, tallest})
    kernels = [stand.family.by_height[mr] for mr in heights]
    for number, contest in enumerate(_CONTESTS):
        prior = getattr(loop, contest.field)
        values = sorted({*contest.values, prior})
        loops = [replace(loop, **{contest.field: value}) for value in values]
        compiled = stand.products.kernels.variants([kernels] * len(loops), loops)
        level = stand.hardware.levels[-1 if contest.far else 1]
        weights = stand.weights(level)
        tiles = 2 if contest.far else 1
        covers: list[Segments] = [((mr, tiles),) for mr in heights]
        way = Reading(0, 1 << 13)
        trials = [
            stand.trial(cover, weights, way, dict(zip(heights, addresses, strict=True)))
            for addresses in compiled
            for cover in covers
        ]
        timings = stand.timed(trials, _ROUNDS, 1.0 / (len(_CONTESTS) - number))
        scores = dict(zip(values, mean_logarithms(timings, len(values)), strict=True))
        noise = max(t.spread for t in timings)
        found[contest.field] = Fitted(preferred(scores, prior, noise), noise)
    return found
