"""What a fit finds, and small tools that fits share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core.cpu.tile import PACKED, ROW, RegisterTile
from ftuner.cost.cpu.tile import AT_HAND, Reading, overlapped, step_cycles, tile_cycles
from ftuner.cost.step import rate_bytes_per_s
from ftuner.hardware.constants import Fitted, confidence
from ftuner.hardware.model import MemoryLevel
from ftuner.hardware.tuning import CpuTuning
from ftuner.planner.cpu.plan import Choice, Grid
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.trials import Bed, Pace, Timing, Trial, Weights, timed
from ftuner.ukernels.cpu.library import Family, Library

LEAST_GAIN = 0.02
"""Code and ways of reading are changed for at least this share of the time: less is noise."""


Found = Mapping[str, Fitted]
"""What a fit found, by field."""


def geometric(least: float, most: float, steps: int) -> list[float]:
    """`steps` numbers from `least` to `most`, each by the same ratio above the last."""
    return [least * (most / least) ** (i / (steps - 1)) for i in range(steps)]


def closest(
    candidates: Iterable[tuple[float, ...]], modelled: Callable[..., Sequence[float]],
    measured: Sequence[float], prior: tuple[float, ...], weight: float,
) -> tuple[tuple[float, ...], float]:  # fmt: skip
    """The candidate whose modelled times are closest to measured ones, and its root mean square
    error; both in logarithms. `weight`: of the distance to the prior, beside one measurement."""

    def loss(candidate: tuple[float, ...]) -> tuple[float, float]:
        times = modelled(*candidate)
        errors = [math.log(t / m) ** 2 for t, m in zip(times, measured, strict=True)]
        apart = sum(math.log(c / p) ** 2 for c, p in zip(candidate, prior, strict=True))
        return sum(errors) + weight * apart, math.sqrt(sum(errors) / len(errors))

    found = min(candidates, key=lambda c: loss(c)[0])
    return found, loss(found)[1]


def mean_logarithms(timings: Sequence[Timing], count: int) -> list[float]:
    """The mean logarithm of the seconds of each of `count` equal parts of some timings."""
    logarithms = np.log([timing.seconds for timing in timings]).reshape(count, -1)
    found: list[float] = logarithms.mean(axis=1).tolist()
    return found


def preferred(scores: Mapping[Any, float], prior: object, noise: float) -> Any:
    """The key of the lowest score, a mean of logarithms of times; the prior unless that gains
    `LEAST_GAIN`, and more than the noise."""
    best = min(scores, key=lambda key: scores[key])
    if prior in scores and scores[prior] - scores[best] < max(LEAST_GAIN, noise):
        return prior
    return best


def between(value: float, prior: float, error: float) -> float:
    """A value that was found with some relative error, nearer to its prior the larger that is."""
    sure = confidence(error)
    return float(prior ** (1.0 - sure) * value**sure)


def believed(value: float, prior: float, error: float) -> float:
    """Like `between`, for the value within a factor of eight of its prior."""
    return between(min(max(value, prior / 8), prior * 8), prior, error)


Segments = tuple[tuple[int, int], ...]

_COLUMNS = 768
"""Columns of the weights of trials: enough panels that the first one does not count."""
_K_STEPS = 768
STEADY = 0.015
"""The spread at which no more rounds are needed."""
_L2_SHARE = 0.5
"""Share of L2 that a weight takes which comes from there."""


def stand_families(library: Library) -> tuple[Family, ...]:
    """The families that a stand runs."""
    return (library.family(library.widths[0], False, ROW, PACKED),)


class Stand:
    """Times covers of one panel width, with one worker."""

    def __init__(
        self, products: Products, deadline: float, session: Callable[[CpuTuning], Any]
    ) -> None:
        """`deadline`: of `time.perf_counter`; rounds after it are left out. `session`: makes a back
        end of this machine with another tuning, for what is not a product."""
        self.session = session
        self.deadline = deadline
        self.products = products
        self.library = library = products.compiled.library
        self.hardware = library.hardware
        (self.family,) = stand_families(library)
        self.width = self.family.vectors
        self.bed = Bed(products)
        whole = [k.mr for k in self.family.kernels if k.tile.parts == 1]
        self.tallest = max(whole)
        """Height of the tallest tile of one part."""
        size = library.types.b.itemsize
        most = int(self.hardware.tuning.panel_bytes / (self.family.nr * size))
        self.k = min(_K_STEPS, most // 8 * 8)
        empty = self.bed.weights(self.hardware.levels[0], self.family.nr, 1)
        self.pace = Pace(self.trial(((1, 1),), empty))

    @property
    def far_levels(self) -> Sequence[MemoryLevel]:
        """The levels after L2."""
        return self.hardware.levels[2:]

    def tile(self, mr: int) -> RegisterTile:
        return self.family.by_height[mr].tile

    def weights(self, level: MemoryLevel) -> Weights:
        """A weight of whole panels that comes from a level."""
        k = self.k
        nr, size = self.family.nr, self.library.types.b.itemsize
        cores = self.hardware.cores
        panels = -(-max(_COLUMNS // nr, 2) // cores) * cores
        place = self.hardware.levels.index(level)
        if place < 2:
            share = self.hardware.tuning.cache_share if place == 0 else _L2_SHARE
            fits = share * level.capacity_bytes / (nr * k * size)
            panels = max(min(panels, int(fits)), 1)
        return self.bed.weights(level, panels * nr, k)

    def trial(
        self, segments: Segments, weights: Weights, reading: Reading = AT_HAND,
        addresses: Mapping[int, int] | None = None, workers: int = 1, chunks: int = 0,
    ) -> Trial:  # fmt: skip
        """A cover of rows, with panels cut for `workers`. `addresses`: of the family's uKernels in
        another code."""
        m = sum(mr * tiles for mr, tiles in segments)
        planner = self.products.planner
        problem = panel_problem(weights.n, weights.k, self.width, m, workers)
        choice = Choice(Grid(1, 1, workers, 1), self.width, weights.k, False, False, False)
        plan = planner.lay_out(problem, planner.candidate(problem, choice), chunks)
        covered = plan.covered(segments, reading)
        assert covered is not None
        kernels = None if addresses is None else {self.family.name: addresses}
        return self.bed.trial(covered, weights, kernels)

    def timed(self, trials: Sequence[Trial], rounds: int, share: float = 1.0) -> list[Timing]:
        """The times of `rounds` rounds, and of more while the times are not steady and `share` of
        the time that is left has not passed."""
        now = time.perf_counter()
        deadline = now + share * max(self.deadline - now, 0.0)
        return timed(trials, rounds, deadline, STEADY, self.pace)

    def cycles(
        self, timing: Timing, segments: Segments, weights: Weights, workers: int = 1
    ) -> float:
        """Cycles of one k step of all tiles of a panel, without entering them and the call."""
        tuning = self.hardware.tuning
        outside = self.pace.seconds + (tuning.synchronise_s if workers > 1 else 0.0)
        panels = -(-(weights.n // self.family.nr) // workers)
        of_panel = max(timing.seconds - outside, 0.0) * self.hardware.clock_hz / panels
        fixed = sum(tiles * tile_cycles(self.tile(mr), tuning) for mr, tiles in segments)
        return max(of_panel - fixed, 1.0) / weights.k

    def l2_cycles(self, mr: int, share: float, overlap: float) -> float:
        """By the estimate: cycles of one k step of a tile whose B comes from L2."""
        library = self.library
        cycles = step_cycles(self.tile(mr), library.isa, library.types).cycles
        return overlapped(cycles, self.fetch_cycles(self.hardware.levels[1]) / share, overlap)

    def own_cycles(self, segments: Segments, tuning: CpuTuning) -> float:
        """The cycles of all tiles of a panel."""
        share, overlap = tuning.l2_share, tuning.l2_overlap
        return sum(tiles * self.l2_cycles(mr, share, overlap) for mr, tiles in segments)

    def fetch_cycles(self, level: MemoryLevel, workers: int = 1) -> float:
        """Cycles in which one k step of a panel arrives at the level's bandwidth, of which each of
        `workers` has its share."""
        row_bytes = self.family.nr * self.library.types.b.itemsize
        return row_bytes * self.hardware.clock_hz / rate_bytes_per_s(level, workers)
