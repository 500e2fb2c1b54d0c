"""Variants of the k loop's code compete on representative covers; the winner is compiled for the
library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ftuner.cost.cpu.intake import Reading
from ftuner.hardware.calibration import Fitted
from ftuner.hardware.constants import part_of
from ftuner.hardware.tuning import CpuTuning, KLoopTuning
from ftuner.runtime.cpu.calibration.fits import preferred
from ftuner.runtime.cpu.calibration.stand import Segments, Stand

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
    kernels = [stand.family.kernels[mr - 1] for mr in heights]
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
            stand.trial(cover, weights, way, _by_height(heights, addresses))
            for addresses in compiled
            for cover in covers
        ]
        timings = stand.timed(trials, _ROUNDS, 1.0 / (len(_CONTESTS) - number))
        scores: dict[int, float] = {}
        for place, value in enumerate(values):
            some = timings[place * len(covers) : (place + 1) * len(covers)]
            scores[value] = sum(math.log(t.seconds) for t in some) / len(some)
        noise = max(t.spread for t in timings)
        found[contest.field] = Fitted(preferred(scores, prior, noise), noise)
    return found


def _by_height(heights: Sequence[int], addresses: Sequence[int]) -> list[int]:
    """The addresses by height; those of other heights are 0 and must not be run."""
    found = [0] * max(heights)
    for mr, address in zip(heights, addresses, strict=True):
        found[mr - 1] = address
    return found
