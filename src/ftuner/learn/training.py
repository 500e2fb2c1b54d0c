"""Training: from a table of samples to a learned correction, chosen by cross-validation.

Forms of model are compared. Tuning uses one, *linear*: ridge regression on the features of the
share, those of the cover, and the products of the first with the kind of cover. It is fitted
robustly (Huber weights), because other load on a machine lengthens some measurements.

The interval of a prediction is leverage-weighted conformal (arXiv:2602.12693): the residuals of the
cross-validation over `sqrt(1 + h)`, h being the leverage of the share, have a quantile that covers
nine in ten; far from the samples h grows, and the interval with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ftuner.core.frozen import dataclass
from ftuner.cost.cpu.correction import evaluate
from ftuner.cost.cpu.correction_features import COVER_FEATURES, KINDS, SHARE_FEATURES
from ftuner.errors import DatasetError
from ftuner.hardware.correction import (
    Array,
    Component,
    LearnedCorrection,
    Uncertainty,
    from_document,
)
from ftuner.learn.evaluation import contests, gains
from ftuner.learn.features import Table

COVERAGE = 0.9
FOLDS = 5
LEAST_SAMPLES = 30
"""Fewer leave no quantile of nine in ten in any kind of cover that could be trusted."""
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Of ridge regression on standardised features: about the number of samples that a feature needs
to count."""
INTERACTION_PENALTY = 4.0
"""Multiple of the penalty for what differs between kinds of cover, so that a kind with few samples
follows the others; features of covers, of which each machine shows many, have as much less."""
HUBER = 1.345
"""Residuals beyond this multiple of their scale lose weight; 95% efficient for normal errors
(Huber, 1964)."""
MARGIN = 0.25
"""A model is used this far beyond the range of its samples: a quarter of an octave of a ratio,
less than the step of a flag."""
COMPETING = 1.65
"""Plans that take longer than this multiple of the fastest of their contest are not learned from:
planners do not choose them, and an additive model that follows their errors is less exact where
plans are close. A ratio, and a hyperparameter of the method: not a constant of a machine. Its value
was compared on the samples of one machine only, an AMD Zen 4: the regret of held-out predictions is
4.7%, with all plans 6 to 9%, and that of the estimate 6.3%. Each machine keeps a correction only if
held-out predictions choose better plans than the estimate does (`proven`)."""
CONTEST_SAMPLES = 30
"""A contest counts as at most this many samples, so that products with hundreds of covers do not
outweigh the others."""
Fit = Callable[[Table, Array], "Additive"]
"""From samples and their targets to a model."""


@dataclass(frozen=True, eq=False)
class Additive:
    """A fitted model of the sum of two components, which have the ranges of training."""

    share: Component
    cover: Component

    def predict(self, table: Table) -> Array:
        """The predicted log(measured / estimated) of each sample."""
        by_kind = evaluate(self.share, table.share)
        found: Array = by_kind[np.arange(len(table)), table.kind]
        return found + evaluate(self.cover, table.cover)[:, 0]

    def plus(self, other: Additive) -> Additive:
        """The sum of two models, of which at most one has trees; it has the ranges of both."""
        return Additive(_sum(self.share, other.share), _sum(self.cover, other.cover))


def _sum(one: Component, other: Component) -> Component:
    assert one.trees is None or other.trees is None
    return replace(
        other,
        low=np.minimum(one.low, other.low),
        high=np.maximum(one.high, other.high),
        weights=one.weights + other.weights,
        intercept=one.intercept + other.intercept,
        trees=one.trees or other.trees,
    )


def fit_linear(table: Table, target: Array, penalty: float) -> Additive:
    """Ridge regression of `target`; Huber weights by iteration."""
    share_mean, share_scale = standard(table.share, table.weight)
    cover_mean, cover_scale = standard(table.cover, table.weight)
    share = (table.share - share_mean) / share_scale
    cover = (table.cover - cover_mean) / cover_scale
    kinds = np.eye(len(KINDS))[table.kind]
    crossed = (share[:, :, None] * kinds[:, None, :]).reshape(len(table), -1)
    # The typical error of a kind is the cover's, so that covers of one product compare by it.
    rows = np.hstack([np.ones((len(table), 1)), cover, share, crossed])
    blocks = [
        (1, 1e-6),
        (cover.shape[1], penalty / INTERACTION_PENALTY),
        (share.shape[1], penalty),
        (crossed.shape[1], penalty * INTERACTION_PENALTY),
    ]
    penalties = np.concatenate([np.full(count, value) for count, value in blocks])
    found = _robust(rows, target, table.weight, penalties)
    sizes = np.cumsum([1, cover.shape[1], share.shape[1]])
    constant, of_cover, of_share, of_both = np.split(found, sizes)
    weights = (of_share[:, None] + of_both.reshape(-1, len(KINDS))) / share_scale[:, None]
    cover_weights = of_cover[:, None] / cover_scale[:, None]
    return Additive(
        component(SHARE_FEATURES, table.share, weights, constant - share_mean @ weights),
        component(COVER_FEATURES, table.cover, cover_weights, -(cover_mean @ cover_weights)),
    )


def _robust(rows: Array, target: Array, weight: Array, penalties: Array) -> Array:
    found: Array = np.zeros(rows.shape[1])
    huber = np.ones(len(target))
    for _ in range(4):
        weighted = rows * (weight * huber)[:, None]
        found = np.linalg.solve(weighted.T @ rows + np.diag(penalties), weighted.T @ target)
        size = np.abs(target - rows @ found)
        scale = 1.4826 * float(np.median(size)) or 1.0
        huber = np.minimum(1.0, HUBER * scale / np.maximum(size, 1e-12))
    return found


def standard(rows: Array, weight: Array) -> tuple[Array, Array]:
    """Mean and scale of each feature. A feature that does not vary has the scale infinity: a model
    does not use it."""
    mean = np.average(rows, axis=0, weights=weight)
    scale = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weight))
    return mean, np.where(scale > 1e-9, scale, np.inf)


def component(names: Sequence[str], rows: Array, weights: Array, intercept: Array) -> Component:
    """A component without trees, in the range of its samples and a margin."""
    low, high = rows.min(axis=0) - MARGIN, rows.max(axis=0) + MARGIN
    return Component(tuple(names), low, high, weights, intercept, None)


class Form(NamedTuple):
    """A form of model: how it is fitted to a target, and the penalties that compete."""

    fit: Callable[[Table, Array, float], Additive]
    penalties: tuple[float, ...]

    def of(self, table: Table, target: Array, penalty: float) -> Additive:
        """A model of the plans that compete."""
        index = competing(table)
        return self.fit(balanced(table.take(index)), target[index], penalty)


LINEAR: Mapping[str, Form] = {"linear": Form(fit_linear, PENALTIES)}


def competing(table: Table) -> Array:
    """The indices of the plans that are not much slower than the fastest of their contest. Of the
    others it is enough to know that they are slow."""
    near = np.ones(len(table), np.bool_)
    for index in contests(table):
        measured = table.log_measured[index]
        near[index] = measured <= measured.min() + math.log(COMPETING)
    return np.flatnonzero(near)


def balanced(table: Table) -> Table:
    """The table with less importance of the samples of contests that have many."""
    importance = table.importance.copy()
    for index in contests(table):
        importance[index] *= min(1.0, CONTEST_SAMPLES / len(index))
    return replace(table, importance=importance)


def folds_of(table: Table, folds: int = FOLDS) -> Array:
    """The fold of each sample; all samples of a shape are in one fold."""
    shapes, numbers = np.unique(table.shape, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(shapes))
    found: Array = order[numbers] % min(folds, max(len(shapes), 2))
    return found


def cross_validated(table: Table, target: Array, fit: Fit) -> Array:
    """The prediction for each sample by a model of the folds that it is not in."""
    fold = folds_of(table)
    predicted = np.zeros(len(table))
    for number in np.unique(fold):
        test = fold == number
        if test.all():
            raise DatasetError("samples of one shape only: nothing to cross-validate with")
        predicted[test] = fit(table.take(~test), target[~test]).predict(table.take(test))
    return predicted


@dataclass(frozen=True)
class Choice:
    """The form of model that cross-validation found best, and the errors of all."""

    form: str
    penalty: float
    errors: Mapping[str, float]
    """Mean absolute error of log(measured) by form and penalty, and of the `estimate` with its
    typical error left out."""
    residuals: Array
    """What each sample differs by from the prediction of a model of the chosen form that did not
    see its shape."""


def choose(
    table: Table, base: Additive | None = None, forms: Mapping[str, Form] = LINEAR
) -> Choice:
    """Compare the forms of model by cross-validation over shapes. `base`: a model of other machines
    whose errors are learned."""
    target = table.log_ratio if base is None else table.log_ratio - base.predict(table)
    centred = table.log_ratio - np.median(table.log_ratio)
    errors = {"estimate": _mean_error(centred, table)}
    best: tuple[float, str, float, Array] | None = None
    for name, form in forms.items():
        for penalty in form.penalties:
            fit = partial(form.of, penalty=penalty)
            residuals = target - cross_validated(table, target, fit)
            error = _mean_error(residuals, table)
            errors[f"{name} {penalty:g}" if penalty else name] = error
            if best is None or error < best[0]:
                best = (error, name, penalty, residuals)
    assert best is not None
    return Choice(best[1], best[2], errors, best[3])


def _mean_error(residuals: Array, table: Table) -> float:
    """The mean error over the plans that compete."""
    index = competing(table)
    weights = balanced(table.take(index)).weight
    return float(np.average(np.abs(residuals[index]), weights=weights))


def learn(
    table: Table, fingerprint: str, base: Additive | None = None,
    forms: Mapping[str, Form] = LINEAR, source: str = "",
) -> LearnedCorrection:  # fmt: skip
    """The correction that the samples of one machine support. `base`: a linear model of other
    machines that it starts from. `source`: where the samples are from, for people.

    Raises:
        DatasetError: too few samples, or of too few shapes; or predictions of shapes that were held
            out choose better plans than the estimate with no number of workers.
    """
    if len(table) < LEAST_SAMPLES:
        raise DatasetError(f"{len(table)} samples; expected at least {LEAST_SAMPLES}")
    chosen = choose(table, base, forms)
    target = table.log_ratio if base is None else table.log_ratio - base.predict(table)
    model = forms[chosen.form].of(table, target, chosen.penalty)
    if base is not None:
        model = base.plus(model)
    workers, regret = proven(table, chosen.residuals)
    provenance = {
        "samples": str(len(table)),
        "source": source,
        "regret": regret,
        "form": chosen.form if base is None else f"{chosen.form} after one of other machines",
        **{f"error of {name}": f"{error:.4f}" for name, error in chosen.errors.items()},
    }
    index = competing(table)
    own = balanced(table.take(index))
    return packaged(model, workers, own, chosen.residuals[index], fingerprint, provenance)


def proven(table: Table, residuals: Array) -> tuple[tuple[int, ...], str]:
    """The numbers of workers with which predictions choose better plans than the estimate, by more
    than a standard error, and the regrets with all, for people. `residuals`: errors of the samples
    by models that did not see them.

    Raises:
        DatasetError: with no number of workers do they.
    """
    found = gains(table, table.log_ratio - residuals)
    regret = "; ".join(map(str, found))
    workers = tuple(gain.workers for gain in found if gain.certain)
    if not workers:
        raise DatasetError(
            "held-out predictions do not choose better plans than the estimate by more than a "
            f"standard error ({regret or 'no product has two plans'})"
        )
    return workers, regret


def packaged(
    model: Additive, workers: tuple[int, ...], table: Table, residuals: Array, fingerprint: str,
    provenance: Mapping[str, str],
) -> LearnedCorrection:  # fmt: skip
    """A model with its interval, checked as one that is read. `workers` and `residuals`: as of
    `proven`."""
    bias = float(np.median(table.log_ratio))
    found = LearnedCorrection(
        fingerprint=fingerprint, workers=workers, kinds=KINDS, share=model.share,
        cover=model.cover, bias=bias, uncertainty=calibrated(table, residuals, bias),
        provenance=provenance,
    )  # fmt: skip
    return from_document(found.to_document())


def calibrated(table: Table, residuals: Array, bias: float) -> Uncertainty:
    """The interval of predictions, from residuals of a cross-validation."""
    mean, scale = standard(table.share, table.weight)
    varies = np.isfinite(scale)
    # What does not vary is compared with the range of training instead.
    scale = np.where(varies, scale, 1e6)
    rows = np.hstack([(table.share - mean) / scale, np.ones((len(table), 1))])
    gram = rows.T @ (rows * table.weight[:, None]) + np.eye(rows.shape[1])
    whitening = np.linalg.inv(np.linalg.cholesky(gram))
    leverage = ((rows @ whitening.T) ** 2).sum(axis=1)
    score = np.abs(residuals) / np.sqrt(1.0 + leverage)
    spread, limit = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    for kind in range(len(KINDS)):
        own = table.kind == kind
        # A kind with few samples has the interval of all, if that is wider.
        enough = own.sum() >= LEAST_SAMPLES
        spread[kind] = quantile(score[own] if enough else score, COVERAGE)
        errors = np.abs(table.log_ratio - bias)
        limit[kind] = quantile(errors[own] if enough else errors, COVERAGE)
    return Uncertainty(COVERAGE, mean, scale, whitening, spread, limit)


def quantile(scores: Array, coverage: float) -> float:
    """The conformal quantile: at least `coverage` of new scores are not larger, if they are
    exchangeable with these; the largest of few."""
    rank = math.ceil((len(scores) + 1) * coverage)
    return float(np.sort(scores)[min(rank, len(scores)) - 1])
