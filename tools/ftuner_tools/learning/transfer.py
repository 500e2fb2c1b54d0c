"""Transfer: a correction for a machine of which few samples exist, from machines on record.

Methods, by what they use of the other machines:

- `estimate`: nothing is learned; the base line.
- `source`: the model of the other machines as it is. It needs no sample.
- `shifted`: that model and one number, the median of its errors on the samples.
- `tuned`: that model and a ridge regression of its errors on the samples, as the local model of
  TenSet (Zheng et al., NeurIPS Datasets 2021).
- `weighted`: one model of all samples, in which those of other machines count by how similar the
  features of the machines are.
- `scratch`: a model of the samples alone.

Samples to measure next are picked at random, by I-optimal design (`informative`), or where the
predictions of competing plans are closest (`close`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from ftuner.cost.cpu.correction_features import KINDS, MACHINE_FEATURES
from ftuner.errors import DatasetError
from ftuner.hardware.correction import Array, Component, LearnedCorrection
from ftuner.learn.evaluation import contests
from ftuner.learn.features import Table, joined
from ftuner.learn.training import (
    LEAST_SAMPLES,
    LINEAR,
    Additive,
    choose,
    fit_linear,
    learn,
    packaged,
    proven,
    standard,
)
from ftuner_tools.learning.boosting import FORMS
from ftuner_tools.learning.evaluation import Score, score

COUNTS = (0, 8, 32, 128)
"""Measurements of the new machine that methods are compared with."""
PICKS = ("random", "informative", "close")
FEW = 64
"""Samples of the new machine below which a penalty is not chosen by cross-validation."""
PENALTY_OF_FEW = 30.0
OWN_IMPORTANCE = 8.0
"""Of a sample of the new machine beside one of an equal machine, of which there are tens of times
as many."""


@dataclass(frozen=True, eq=False)
class Machine:
    """The samples of a machine, or of one restricted to an ISA, a dtype and a number of workers."""

    name: str
    table: Table
    restricted: bool = False


@dataclass(frozen=True)
class Result:
    """How good one method is on a machine that it was not trained on."""

    target: str
    restricted: bool
    """Whether the target is a restricted machine; others of the same hardware were trained on."""
    method: str
    picked: str
    measurements: int
    score: Score

    def to_document(self) -> dict[str, object]:
        document = asdict(self)
        document.update(document.pop("score")._asdict())
        return document


Method = Callable[[Additive, Sequence[Table], Table], Additive]
"""From the source model, its samples and those of the new machine to a model."""


def source_model(sources: Sequence[Table]) -> Additive:
    """The linear model of other machines; its penalty is chosen by cross-validation."""
    table = joined(_balanced(sources))
    return fit_linear(table, table.log_ratio, choose(table).penalty)


def _balanced(tables: Sequence[Table]) -> list[Table]:
    """The tables with importances that give each as much weight as the others."""
    mean = float(np.mean([len(table) for table in tables]))
    return [replace(t, importance=t.importance * mean / len(t)) for t in tables]


def adapted(model: Additive, table: Table) -> Additive:
    """A model with the features of one machine put in as constants. Features beyond those of
    training count as the nearest of training: nothing is extrapolated to a larger machine."""
    component, count = model.share, len(MACHINE_FEATURES)
    own = table.share[0, :count]
    within = np.clip(own, component.low[:count], component.high[:count])
    weights = component.weights.copy()
    weights[:count] = 0.0
    low, high = component.low.copy(), component.high.copy()
    low[:count], high[:count] = np.minimum(low[:count], own), np.maximum(high[:count], own)
    intercept = component.intercept + within @ component.weights[:count]
    share = Component(component.names, low, high, weights, intercept, component.trees)
    return Additive(share, model.cover)


def shifted(base: Additive, sources: Sequence[Table], own: Table) -> Additive:
    """The source model and the median of its errors."""
    error = float(np.median(own.log_ratio - base.predict(own)))
    return Additive(replace(base.share, intercept=base.share.intercept + error), base.cover)


def tuned(base: Additive, sources: Sequence[Table], own: Table) -> Additive:
    """The source model and a ridge regression of its errors."""
    target = own.log_ratio - base.predict(own)
    return base.plus(fit_linear(own, target, _penalty(own, base)))


def weighted(base: Additive, sources: Sequence[Table], own: Table) -> Additive:
    """One model of all samples, weighted by the similarity of machines."""
    count = len(MACHINE_FEATURES)
    centre = own.share[:, :count].mean(axis=0)
    apart = [float(np.linalg.norm(t.share[:, :count].mean(axis=0) - centre)) for t in sources]
    scale = float(np.median(apart)) or 1.0
    tables = [
        replace(table, importance=table.importance * np.exp(-0.5 * (distance / scale) ** 2))
        for table, distance in zip(_balanced(sources), apart, strict=True)
    ]
    tables.append(replace(own, importance=own.importance * OWN_IMPORTANCE))
    table = joined(tables)
    return fit_linear(table, table.log_ratio, _penalty(own, base))


def scratch(base: Additive, sources: Sequence[Table], own: Table) -> Additive:
    """A model of the new machine's samples alone."""
    return fit_linear(own, own.log_ratio, _penalty(own, None))


METHODS: Mapping[str, Method] = {
    "shifted": shifted,
    "tuned": tuned,
    "weighted": weighted,
    "scratch": scratch,
}
"""Those that need samples of the new machine."""


def _penalty(own: Table, base: Additive | None) -> float:
    if len(own) < FEW or len(np.unique(own.shape)) < 2:
        return PENALTY_OF_FEW
    return choose(own, base).penalty


def transferred(
    sources: Sequence[Table], own: Table, fingerprint: str, source: str = ""
) -> LearnedCorrection:
    """The correction of a new machine from those on record and its own samples, however few.

    With `LEAST_SAMPLES` or more of its own, it is learned from those, with or without the source
    model, whichever cross-validation finds better. With fewer, the method, the interval and the
    numbers of workers are those of the other machines when each is left out and has as few.

    Raises:
        DatasetError: fewer than two other machines, and too few samples of the new one; or
            predictions choose better plans than the estimate with no number of workers.
    """
    if len(own) >= LEAST_SAMPLES and len(np.unique(own.shape)) > 1:
        base = adapted(source_model(sources), own) if sources else None
        if base is not None:
            alone, on_base = choose(own, forms=FORMS), choose(own, base)
            if min(_learned(alone.errors)) <= min(_learned(on_base.errors)):
                base = None
        forms = FORMS if base is None else LINEAR
        return learn(own, fingerprint, base, forms, source)
    if len(sources) < 2:
        raise DatasetError(
            f"{len(own)} samples and {len(sources)} other machines; expected {LEAST_SAMPLES} "
            "samples, or two other machines"
        )
    method, residuals = _best_on_record(sources, len(own))
    base = source_model(sources)
    known = joined(sources)
    workers, regret = proven(known, residuals)
    if len(own):
        base = adapted(base, own)
        model = METHODS[method](base, sources, own)
        errors = own.log_ratio - model.predict(own)
        known = joined([*sources, replace(own, importance=own.importance * OWN_IMPORTANCE)])
        residuals = np.concatenate([residuals, errors])
    else:
        model = base
    provenance = {
        "samples": str(len(own)),
        "source": source,
        "regret": f"of other machines that were left out, {regret}",
        "form": f"linear, {method} from {len(sources)} other machines",
    }
    return packaged(model, workers, known, residuals, fingerprint, provenance)


def _best_on_record(sources: Sequence[Table], count: int) -> tuple[str, Array]:
    """The method with the least error on the machines on record, each learned from the others and
    `count` samples of its own; its residuals on all samples of all machines."""
    residuals: dict[str, list[Array]] = {}
    for index, left_out in enumerate(sources):
        others = [table for number, table in enumerate(sources) if number != index]
        base = adapted(source_model(others), left_out)
        models = {"source": base}
        if count:
            own = left_out.take(picked(base, left_out, count, "random"))
            models = {name: method(base, others, own) for name, method in METHODS.items()}
        for name, model in models.items():
            residuals.setdefault(name, []).append(left_out.log_ratio - model.predict(left_out))
    found = {name: np.concatenate(some) for name, some in residuals.items()}
    best = min(found, key=lambda name: float(np.mean(np.abs(found[name]))))
    return best, found[best]


def _learned(errors: Mapping[str, float]) -> list[float]:
    return [error for name, error in errors.items() if name != "estimate"]


def picked(model: Additive, pool: Table, count: int, how: str, seed: int = 0) -> Array:
    """The indices of the samples of a pool to measure next: `how` is one of `PICKS`."""
    generator = np.random.default_rng(seed)
    count = min(count, len(pool))
    order = generator.permutation(len(pool))
    if how == "close":
        order = np.concatenate([_close(model, pool), order])
    elif how == "informative":
        order = _informative(pool, count)
    else:
        assert how == "random"
    return order[np.sort(np.unique(order, return_index=True)[1])][:count]


def _close(model: Additive, pool: Table) -> Array:
    """The two best predictions of each contest; contests whose two are closest come first."""
    predicted = pool.log_estimated + model.predict(pool)
    pairs = []
    for index in contests(pool):
        best = index[np.argsort(predicted[index])[:2]]
        pairs.append((float(np.diff(predicted[best])[0]), best))
    pairs.sort(key=lambda pair: pair[0])
    return np.concatenate([pair for _, pair in pairs] or [np.zeros(0, np.int64)])


def _informative(pool: Table, count: int) -> Array:
    """Greedy I-optimal design: each sample is the one that lowers the mean variance of the
    predictions for the pool most, whatever its time will be (Cohn, Ghahramani and Jordan, 1996)."""
    rows = []
    for features in (pool.share, pool.cover, np.eye(len(KINDS))[pool.kind]):
        mean, scale = standard(features, np.ones(len(pool)))
        rows.append((features - mean) / scale)
    standardised = np.hstack([*rows, np.ones((len(pool), 1))])
    gram = standardised.T @ standardised
    inverse = np.eye(standardised.shape[1])
    found: list[int] = []
    for _ in range(count):
        projected = standardised @ inverse
        leverage = (projected * standardised).sum(axis=1)
        gain = ((projected @ gram) * projected).sum(axis=1) / (1.0 + leverage)
        gain[found] = -1.0
        best = int(np.argmax(gain))
        found.append(best)
        step = projected[best]
        inverse = inverse - np.outer(step, step) / (1.0 + leverage[best])
    return np.array(found, np.int64)


def evaluated(
    machines: Sequence[Machine], counts: Sequence[int] = COUNTS, picks: Sequence[str] = PICKS,
    seed: int = 0,
) -> Iterator[Result]:  # fmt: skip
    """Each method on each machine, left out: trained on the others, given some measurements of
    half of its shapes, scored on the other half.

    A whole machine is learned from the other whole machines, and a restricted one from all other
    restricted ones, some of which are of the same hardware: that is easier, so `Result.restricted`
    distinguishes them.
    """
    for target in machines:
        sources = [
            machine.table
            for machine in machines
            if machine is not target and machine.restricted == target.restricted
        ]
        shapes = np.unique(target.table.shape)
        if not sources or len(shapes) < 2:
            continue
        half = np.random.default_rng(seed).permutation(shapes)[: len(shapes) // 2]
        in_pool = np.isin(target.table.shape, half)
        pool, test = target.table.take(in_pool), target.table.take(~in_pool)
        base = adapted(source_model(sources), target.table)

        def result(
            method: str, model: Additive | None, picked: str = "", count: int = 0,
            target: Machine = target, test: Table = test,
        ) -> Result:  # fmt: skip
            predicted = np.zeros(len(test)) if model is None else model.predict(test)
            return Result(
                target.name, target.restricted, method, picked, count, score(test, predicted)
            )

        yield result("estimate", None)
        for count in counts:
            if count == 0:
                yield result("source", base)
            elif count <= len(pool):
                for how in picks:
                    own = pool.take(picked(base, pool, count, how, seed))
                    for name, method in METHODS.items():
                        yield result(name, method(base, sources, own), how, count)
