"""How good the plans are that predicted times choose: the regret, and the gain over the estimate.

A *contest* is one product of which several plans were measured in one setting; the planner has to
find the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ftuner.core.units import count
from ftuner.hardware.correction import Array
from ftuner.learn.features import Table


class Regret(NamedTuple):
    """What a choice costs in one contest. `chosen` and `fastest` are indices of the table."""

    chosen: int
    """The plan with the least prediction."""
    fastest: int
    regret: float
    """What the chosen plan takes longer than the fastest, relatively."""
    noise: float
    """The larger relative spread of both: regrets below it may be none."""


class Gain(NamedTuple):
    """What predictions gain over the estimate in the contests of one number of workers."""

    workers: int
    of_estimate: float
    """Mean regret of the estimate's choices."""
    of_model: float
    """Mean regret of the choices by predictions."""
    standard_error: float
    """Of the mean difference between both, which is paired by contest; infinite for one contest."""

    @property
    def certain(self) -> bool:
        """Whether the gain is more than its standard error: a tie is none."""
        return self.of_estimate - self.of_model > self.standard_error

    def __str__(self) -> str:
        return (
            f"{count(self.workers, 'worker')}: {self.of_model:.2%} longer than the fastest plans, "
            f"by the estimate {self.of_estimate:.2%}, standard error {self.standard_error:.2%}"
        )


def regrets(table: Table, predicted: Array) -> list[Regret]:
    """The regret in each contest if plans are chosen by predictions of log(measured / estimated);
    zeros are the choices of the estimate."""
    log_predicted = table.log_estimated + predicted
    found = []
    for index in contests(table):
        chosen = index[np.argmin(log_predicted[index])]
        fastest = index[np.argmin(table.log_measured[index])]
        longer = np.expm1(table.log_measured[chosen] - table.log_measured[fastest])
        noise = max(table.spread[chosen], table.spread[fastest])
        found.append(Regret(int(chosen), int(fastest), float(longer), float(noise)))
    return found


def gains(table: Table, predicted: Array) -> list[Gain]:
    """The gain of predictions of log(measured / estimated) for each number of workers that has
    contests."""
    by_workers: dict[int, list[tuple[float, float]]] = {}
    by_estimate = regrets(table, np.zeros(len(table)))
    for estimated, by_model in zip(by_estimate, regrets(table, predicted), strict=True):
        workers = int(table.workers[estimated.fastest])
        by_workers.setdefault(workers, []).append((estimated.regret, by_model.regret))
    found = []
    for workers, pairs in sorted(by_workers.items()):
        of_estimate, of_model = np.transpose(pairs)
        error = math.inf
        if len(pairs) > 1:
            error = float(np.std(of_estimate - of_model, ddof=1) / math.sqrt(len(pairs)))
        found.append(Gain(workers, float(of_estimate.mean()), float(of_model.mean()), error))
    return found


def contests(table: Table) -> Iterator[Array]:
    """The samples of each contest of two plans or more."""
    order = np.argsort(table.contest, kind="stable")
    starts = np.flatnonzero(np.diff(table.contest[order])) + 1
    for index in np.split(order, starts):
        if len(index) > 1:
            yield index
