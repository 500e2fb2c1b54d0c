"""How good predicted times of a table are: their error, the order that they put plans in, and their
regret."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ftuner.hardware.correction import Array
from ftuner.learn.evaluation import contests, regrets
from ftuner.learn.features import Table


class Score(NamedTuple):
    """How good predictions of a table are."""

    error: float
    """Mean of |log(measured / predicted)|."""
    tau: float
    """Mean of Kendall's tau over the contests; 0 without any."""
    regret: float
    """Mean over the contests of what the plan with the least prediction takes longer than the
    fastest, relatively."""
    worst_regret: float


def score(table: Table, predicted: Array) -> Score:
    """The score of predictions of log(measured / estimated)."""
    log_predicted = table.log_estimated + predicted
    taus = [
        kendall_tau(table.log_measured[index], log_predicted[index], table.spread[index])
        for index in contests(table)
    ]
    costs = [found.regret for found in regrets(table, predicted)]
    return Score(
        error=float(np.mean(np.abs(table.log_ratio - predicted))),
        tau=float(np.nanmean(taus)) if np.isfinite(taus).any() else 0.0,
        regret=float(np.mean(costs)) if costs else 0.0,
        worst_regret=max(costs, default=0.0),
    )


def kendall_tau(measured: Array, predicted: Array, spread: Array | None = None) -> float:
    """Kendall's tau of two orders (Kendall, 1938): of the pairs, what is in the same order minus
    what is in the other. Pairs that are equal in `measured`, or within the `spread` of both, do not
    count; NaN if none counts."""
    difference = np.subtract.outer(measured, measured)
    noise = 0.0 if spread is None else np.maximum.outer(spread, spread)
    counted = np.triu(np.abs(difference) > noise, 1)
    if not counted.any():
        return float("nan")
    agreement = np.sign(difference) * np.sign(np.subtract.outer(predicted, predicted))
    return float(agreement[counted].mean())
