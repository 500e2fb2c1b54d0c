"""Whether numbers are of a distribution: bounds that numbers of it pass but for one in 10,000. So
tests give seeds; only `assert_other` is for numbers that are new in each run of the tests."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ftuner.core.references import erf

Array = Any
DEVIATIONS = 4.0
"""Most standard errors of a mean, of a variance or of a correlation."""
KOLMOGOROV = 2.23
"""Most of the distance of two distributions times the root of the count: exp(-2 d^2) < 1 / 10,000.
"""


def assert_uniform(found: Array, step: float = 0.0) -> None:
    """Numbers from 0 to 1. `step`: of the grid that they are on."""
    _assert_moments(found, 0.5, 1 / 12, 1 / 180)
    _assert_distributed(found, lambda x: x, step)


def assert_normal(found: Array, mean: float = 0.0, deviation: float = 1.0) -> None:
    x = (np.asarray(found, np.float64) - mean) / deviation
    _assert_moments(x, 0.0, 1.0, 2.0)
    _assert_distributed(x, lambda x: (1 + erf(x / np.sqrt(2.0))) / 2)


def assert_other(x: Array, y: Array) -> None:
    """Hardly any numbers are equal: of a hundred or more, none in practice."""
    assert np.mean(np.asarray(x) == np.asarray(y)) < 0.05


def assert_independent(x: Array, y: Array) -> None:
    """Neither the numbers nor their squares are correlated, and none are equal."""
    x, y = (np.asarray(a, np.float64).ravel() for a in (x, y))
    assert np.mean(x == y) < 1e-4
    for a, b in ((x, y), (x * x, y * y)):
        assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(x.size) < DEVIATIONS


def _assert_moments(x: Array, mean: float, variance: float, of_variance: float) -> None:
    """`of_variance`: the variance of the squared distance from the mean."""
    x = np.asarray(x, np.float64).ravel()
    error = np.sqrt(x.size)
    assert abs(x.mean() - mean) * error / np.sqrt(variance) < DEVIATIONS
    assert abs(np.mean((x - mean) ** 2) - variance) * error / np.sqrt(of_variance) < DEVIATIONS


def _assert_distributed(x: Array, cumulative: Callable[[Array], Array], step: float = 0.0) -> None:
    """The test of Kolmogorov and Smirnov."""
    x = np.sort(np.asarray(x, np.float64).ravel())
    at = cumulative(x)
    below, to = np.arange(x.size) / x.size, np.arange(1, x.size + 1) / x.size
    distance = max(np.max(at - below), np.max(to - at)) - step
    assert distance * np.sqrt(x.size) < KOLMOGOROV
