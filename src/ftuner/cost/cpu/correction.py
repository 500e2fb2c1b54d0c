"""Evaluation of a learned correction: factors of the estimates of candidates and of covers.

The component of a candidate is evaluated when it is made, for each kind of cover, and that of a
cover when it is solved. Planning a new number of rows then costs a look-up and two multiplications
for each candidate. The factor 0 stands for an estimate that stays as it is, because the model has
not seen such a product or is too uncertain of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.hardware.correction import Array, Component, LearnedCorrection, Trees

UNKNOWN = 0.0
"""The factor where the estimate is not corrected."""
MAX_LOG = 2.0
"""Largest correction of a component that is believed, as a logarithm. Assumed: an estimate that is
wrong by a factor of seven is one of a different computation."""


class Correction:
    """A learned correction, ready to be evaluated."""

    def __init__(self, learned: LearnedCorrection) -> None:
        self.learned = learned
        self.workers = frozenset(learned.workers)
        self._unknown = (UNKNOWN,) * len(learned.kinds)

    def share_factors(self, features: Sequence[float]) -> tuple[float, ...]:
        """The factors of a candidate by kind of cover. `features`: those of `share.names`."""
        learned = self.learned
        rows = np.array([features], np.float64)
        if not inside(learned.share, rows)[0]:
            return self._unknown
        logs = evaluate(learned.share, rows)[0] - learned.bias
        known = half_widths(learned, rows)[0] <= learned.uncertainty.limit
        return tuple(_factors(logs, known).tolist())

    def cover_factors(self, features: Sequence[Sequence[float]]) -> list[float]:
        """The factor of each of several covers. `features`: those of `cover.names` of each."""
        component = self.learned.cover
        rows = np.array(features, np.float64).reshape(-1, len(component.names))
        factors: list[float] = _factors(
            evaluate(component, rows)[:, 0], inside(component, rows)
        ).tolist()
        return factors


def _factors(logs: Array, known: Array) -> Array:
    believed = np.logical_and(known, np.abs(logs) <= MAX_LOG)
    return np.where(believed, np.exp(np.where(believed, logs, 0.0)), UNKNOWN)


def inside(component: Component, rows: Array) -> Array:
    """Whether each row of features is in the range that the component is used for."""
    inner: Array = np.all((rows >= component.low) & (rows <= component.high), axis=1)
    return inner


def evaluate(component: Component, rows: Array) -> Array:
    """The outputs of a component for each row of features: (rows, outputs)."""
    found: Array = rows @ component.weights + component.intercept
    if component.trees is None:
        return found
    outputs = len(component.intercept)
    if outputs == 1:
        return found + walk(component.trees, rows)[:, None]
    for kind in range(outputs):
        kinds = np.full((len(rows), 1), float(kind))
        found[:, kind] += walk(component.trees, np.hstack([rows, kinds]))
    return found


def walk(trees: Trees, rows: Array) -> Array:
    """The sum of the leaves that each row of features leads to."""
    at = np.tile(trees.roots, (len(rows), 1))
    row = np.arange(len(rows))[:, None]
    # scikit-learn compares features in single precision.
    features = rows.astype(np.float32)
    for _ in range(trees.depth):
        smaller = features[row, trees.feature[at]] <= trees.threshold[at]
        at = np.where(smaller, trees.left[at], trees.right[at])
    total: Array = trees.value[at].sum(axis=1)
    return total


def half_widths(learned: LearnedCorrection, rows: Array) -> Array:
    """Half the width of the interval of each prediction by kind of cover: (rows, kinds)."""
    known = learned.uncertainty
    standard = np.hstack([(rows - known.mean) / known.scale, np.ones((len(rows), 1))])
    leverage = ((standard @ known.whitening.T) ** 2).sum(axis=1)
    widths: Array = np.sqrt(1.0 + leverage)[:, None] * known.spread
    return widths
