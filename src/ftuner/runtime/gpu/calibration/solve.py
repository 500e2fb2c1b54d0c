"""From timed trials to constants, each with a confidence interval.

Each constant minimises the robust (Huber) loss of its own trials' log(measured / estimated), with
the other constants as they are; all take turns until none moves. So an error of the estimate in
one place does not spread to constants that are settled elsewhere. The interval of a constant holds
what the noise of its trials and their misfit explain, and what the intervals of the other constants
add: the covariance of the turns' common solution (an M-estimator's sandwich; Huber and Ronchetti,
Robust Statistics, 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np

from ftuner.hardware.gpu_model import GpuHardware
from ftuner.runtime.gpu.calibration.table import (
    PRIOR_SPREAD,
    STEPPED,
    limits_of,
    sensitivities,
    with_values,
)
from ftuner.runtime.gpu.calibration.trials import Trial

LEAST_ERROR = 0.003
"""Relative error of a trial that is always reckoned with, however close its rounds are."""
HUBER = 1.5
"""Standard errors beyond which a residual counts linearly."""
TWICE_THE_ERROR = 2.0
"""Rise of the loss, half a sum of squares, at two standard errors: a 95% interval."""
PLATEAU = 0.02
"""Rise of the loss within which values count as equally good, of a step function."""
SEARCHED_RATIO = 8.0
"""The search for a constant covers its value from before divided, and multiplied, by this."""
SEARCHED_MOVES = 4.0
"""After the first turns, a search covers this multiple of the largest move of the turn before."""
SETTLED_WIDTH = 0.4
"""A constant whose interval is wider than this on either side is not settled."""
GRID_STEP = 0.13
"""Step of the search in the logarithm of a constant."""
SECTIONS, BISECTIONS = 9, 9
WIDE_TURNS = 2
"""Turns that search far."""
MOST_TURNS = 12
MOVED = 0.002
"""Turns end when no constant moved by more."""


class Timed(NamedTuple):
    """A trial's time."""

    seconds: float
    """The median of the rounds."""
    error: float
    """The relative standard error of the median."""
    spread: float
    """The relative standard deviation of a round, from the median absolute deviation."""
    rounds: int


class Settled(NamedTuple):
    """What calibration says of one constant."""

    field: str
    value: float
    error: float
    """The half-width of the 95% interval, relative to the value."""
    is_settled: bool
    """Whether trials determine it. If not, `value` is that from before, or the one next to it that
    trials allow: some only say that a constant is not larger, or not smaller, than a value."""
    trials: int


def timed(rounds: Sequence[float]) -> Timed:
    """Returns the time of a trial from that of its rounds, of which few may be outliers."""
    middle = median(rounds)
    # 1.4826 and 1.2533: of a normal distribution's MAD, and of the error of its median.
    spread = 1.4826 * median(abs(s - middle) for s in rounds) / middle
    return Timed(middle, 1.2533 * spread / sqrt(len(rounds)), spread, len(rounds))


_Row = Mapping[Trial, Timed]
"""The trials of a constant."""
_Range = tuple[float, float]
"""The least and the greatest logarithm of a constant."""


class _Interval(NamedTuple):
    """Where the loss of a constant is not much larger than its least, in logarithms."""

    low: float
    high: float
    bounded: bool
    """Whether it ends within the search, or at a limit of the constant."""

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def solve(
    hardware: GpuHardware, rows: Mapping[str, Sequence[Trial]], times: Mapping[Trial, Timed]
) -> list[Settled]:
    """Returns all constants of `rows`, by their trials that have times; `hardware` has the values
    from before."""
    own = {f: {t: times[t] for t in trials if t in times} for f, trials in rows.items()}
    before = {field: float(getattr(hardware.tuning, field)) for field in rows}
    ranges = {field: _range_of(field, value) for field, value in before.items()}
    values, turns = dict(before), WIDE_TURNS
    free = [field for field, row in own.items() if row]
    while True:
        _take_turns(hardware, {f: ranges[f] for f in free}, own, values, turns)
        found = with_values(hardware, values)
        intervals = {f: _interval(found, f, ranges[f], own[f]) for f in free}
        loose = [f for f, x in intervals.items() if not x.bounded or x.half > SETTLED_WIDTH]
        widths = _widths(found, own, intervals)
        loose = loose or [field for field in free if widths[field] > SETTLED_WIDTH]
        if not loose:
            break
        # They keep their values, or those next to them that trials allow, and the others are found
        # again beside these.
        for field in loose:
            low, high = exp(intervals[field].low), exp(intervals[field].high)
            values[field] = min(max(before[field], low), high)
        free = [field for field in free if field not in loose]
        turns = 0
    settled = []
    for field in rows:
        is_settled = field in free
        width = widths[field] if is_settled else 2 * PRIOR_SPREAD
        error = exp(width) - 1.0
        settled.append(Settled(field, values[field], error, is_settled, len(own[field])))
    return settled


def _take_turns(
    hardware: GpuHardware, ranges: Mapping[str, _Range], rows: Mapping[str, _Row],
    values: dict[str, float], wide_turns: int,
) -> None:  # fmt: skip
    """Fits the constants in turns, the first of which search all of their ranges; changes
    `values`."""
    moved = log(SEARCHED_RATIO)
    for turn in range(MOST_TURNS):
        reach = SEARCHED_MOVES * moved
        moved = 0.0
        for field, (low, high) in ranges.items():
            least, most = limits_of(field)
            here, around = with_values(hardware, values), log(values[field])
            if turn >= wide_turns:
                low, high = max(around - reach, low), min(around + reach, high)
            x = _fitted(here, field, (low, high), rows[field])
            moved = max(moved, abs(x - around))
            values[field] = min(max(exp(x), least), most)
        if moved <= MOVED:
            return


def _residuals(hardware: GpuHardware, row: _Row) -> list[float]:
    return [log(time.seconds / t.estimate(hardware).seconds) for t, time in row.items()]


def _errors(hardware: GpuHardware, row: _Row) -> list[float]:
    """Returns the standard errors of residuals: noise, and the misfit of this row's trials as far
    as it is larger."""
    noise, residuals = _noise(row), _residuals(hardware, row)
    # 0.6745: the median of a standard normal distribution's absolute values.
    misfit = median(abs(r) / e for r, e in zip(residuals, noise, strict=True)) / 0.6745
    return [error * max(misfit, 1.0) for error in noise]


def _noise(row: _Row) -> list[float]:
    return [sqrt(time.error**2 + LEAST_ERROR**2) for time in row.values()]


def _huber(residual: float) -> float:
    size = abs(residual)
    return size * size / 2 if size <= HUBER else HUBER * (size - HUBER / 2)


def _loss_of(
    hardware: GpuHardware, field: str, row: _Row, errors: Sequence[float]
) -> Callable[[float], float]:
    """Returns the loss of a constant's trials as a function of its logarithm."""

    def loss(x: float) -> float:
        residuals = _residuals(with_values(hardware, {field: exp(x)}), row)
        return sum(_huber(r / e) for r, e in zip(residuals, errors, strict=True))

    return loss


def _range_of(field: str, value: float) -> _Range:
    """Returns the range of the search for the logarithm of a constant of this value."""
    bottom, top = map(log, limits_of(field))
    return max(log(value / SEARCHED_RATIO), bottom), min(log(value * SEARCHED_RATIO), top)


def _fitted(hardware: GpuHardware, field: str, searched: _Range, row: _Row) -> float:
    """Returns the logarithm of a constant at which the loss is least, beside the others of
    `hardware`; of a step function, the middle of the values that are equally good."""
    low, high = searched
    loss = _loss_of(hardware, field, row, _noise(row))
    count = max(round((high - low) / GRID_STEP), 2)
    step = (high - low) / count
    start = min((low + i * step for i in range(count + 1)), key=loss)
    best = _least(loss, max(start - step, low), min(start + step, high))
    if field not in STEPPED:
        return best
    limit = loss(best) + PLATEAU
    return sum(_edge(loss, best, end, limit, step / 4) for end in searched) / 2


def _interval(hardware: GpuHardware, field: str, searched: _Range, row: _Row) -> _Interval:
    """Returns the values of a constant that its trials allow, beside the others of `hardware`."""
    loss = _loss_of(hardware, field, row, _errors(hardware, row))
    best = log(getattr(hardware.tuning, field))
    limit = loss(best) + TWICE_THE_ERROR
    low, high = (_edge(loss, best, end, limit, GRID_STEP) for end in searched)
    bottom, top = map(log, limits_of(field))
    bounded = (low > searched[0] or low == bottom) and (high < searched[1] or high == top)
    return _Interval(low, high, bounded)


def _least(loss: Callable[[float], float], low: float, high: float) -> float:
    """Returns where the loss is least between two values, by golden sections."""
    golden = (sqrt(5.0) - 1.0) / 2.0
    inner = [high - golden * (high - low), low + golden * (high - low)]
    losses = [loss(x) for x in inner]
    for _ in range(SECTIONS):
        if losses[0] <= losses[1]:
            high = inner[1]
            inner = [high - golden * (high - low), inner[0]]
            losses = [loss(inner[0]), losses[0]]
        else:
            low = inner[0]
            inner = [inner[1], low + golden * (high - low)]
            losses = [losses[1], loss(inner[1])]
    return inner[0] if losses[0] <= losses[1] else inner[1]


def _edge(
    loss: Callable[[float], float], inside: float, end: float, limit: float, step: float
) -> float:
    """Returns the value between `inside` and `end` where the loss first exceeds the limit; `end` if
    it does not."""
    step = step if end > inside else -step
    outside = inside
    while outside != end:
        inside, outside = outside, outside + step
        if (outside - end) * step >= 0:
            outside = end
        if loss(outside) > limit:
            break
    else:
        return end
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        if loss(middle) > limit:
            outside = middle
        else:
            inside = middle
    return inside


def _widths(
    hardware: GpuHardware, rows: Mapping[str, _Row], intervals: Mapping[str, _Interval]
) -> dict[str, float]:
    """Returns the half-widths of the constants' 95% intervals, in logarithms.

    A constant's own trials balance residuals against derivatives: `sum w J_i r = 0`. The errors of
    residuals and of the other constants move the solution of all these equations together.
    Constants without an interval have the error of the prior; those whose interval a derivative
    does not explain, because the estimate is a step function, have their interval.
    """
    every = list(rows)
    pool = list(dict.fromkeys(t for field in every for t in rows[field]))
    derivatives = sensitivities(hardware, pool, every)
    matrix, noise = np.eye(len(every)), np.zeros((len(every), len(pool)))
    own = np.zeros(len(every))
    for i, field in enumerate(every):
        if field not in intervals:
            own[i] = PRIOR_SPREAD
            continue
        trials = rows[field]
        errors = _errors(hardware, trials)
        weights = [
            min(1.0, HUBER * e / max(abs(r), 1e-12)) / e**2
            for r, e in zip(_residuals(hardware, trials), errors, strict=True)
        ]
        pairs = [*zip(weights, trials, strict=True)]
        balance = np.array(
            [sum(w * derivatives[t][field] * derivatives[t][x] for w, t in pairs) for x in every]
        )
        half = intervals[field].half
        if balance[i] * half**2 < 0.25:
            # Four times the squared standard error, if the loss were a parabola, is 4.
            own[i] = half / 2
            continue
        matrix[i] = balance / balance[i]
        for w, e, t in zip(weights, errors, trials, strict=True):
            noise[i, pool.index(t)] = w * derivatives[t][field] * e / balance[i]
    errors_in = noise @ noise.T + np.diag(own**2)
    inverse = np.linalg.pinv(matrix)
    covariance = inverse @ errors_in @ inverse.T
    return {
        field: max(2.0 * sqrt(covariance[i, i]), intervals[field].half if field in intervals else 0)
        for i, field in enumerate(every)
    }
