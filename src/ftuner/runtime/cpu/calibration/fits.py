"""What a fit finds, and small tools that fits share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ftuner.hardware.calibration import Fitted, confidence

LEAST_GAIN = 0.02
"""Code and ways of reading are changed for at least this share of the time: less is noise."""


Found = Mapping[str, Fitted]
"""What a fit found, by field."""


def geometric(least: float, most: float, steps: int) -> list[float]:
    """`steps` numbers from `least` to `most`, each by the same ratio above the last."""
    return [least * (most / least) ** (i / (steps - 1)) for i in range(steps)]


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Where the line of least squares through some points begins, and its slope."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return mean_y - slope * mean_x, slope


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
