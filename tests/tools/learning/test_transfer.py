"""Transfer: machines on record help a new one, and what is measured next helps most."""

import math
import zlib
from functools import cache

import numpy as np
import pytest
from tests.learn.synthetic import SHAPES, machine, one_cause, synthetic

from ftuner.cost.cpu.correction import UNKNOWN, Correction, half_widths
from ftuner.errors import DatasetError
from ftuner.hardware.model import CpuHardware
from ftuner.learn.features import Table, joined, table_of
from ftuner.learn.samples import Sample
from ftuner.learn.training import Additive
from ftuner_tools.learning.transfer import (
    METHODS,
    Machine,
    Result,
    adapted,
    evaluated,
    picked,
    source_model,
    transferred,
)

NAMES = ("xeon-8375c", "epyc-milan-2", "core-i7-8700", "graviton2")


def partly_own(hardware: CpuHardware, sample: Sample) -> float:
    """What all machines have in common, and half as much that only this one has."""
    generator = np.random.default_rng(zlib.crc32(hardware.name.encode()))
    offset, depth, alone, threads = 0.05 * generator.normal(size=4)
    tiles = sum(tiles for _, tiles in sample.plan.segments)
    own = offset + depth * math.log2(sample.problem.k / 512) + alone * (tiles == 1)
    return one_cause(hardware, sample) + own + threads * math.log2(sample.workers)


@cache
def table(name: str) -> Table:
    return table_of(synthetic(name, partly_own, 0.02, shapes=SHAPES[:12]))


def others(name: str) -> list[Table]:
    return [table(other) for other in NAMES if other != name]


@cache
def results() -> tuple[Result, ...]:
    return tuple(evaluated([Machine(name, table(name)) for name in NAMES], (0, 8, 32, 128)))


def mean_error(method: str, measurements: int, how: str = "random") -> float:
    found = [
        r.score.error for r in results()
        if r.method == method and r.measurements == measurements and r.picked in (how, "")
    ]  # fmt: skip
    assert len(found) == len(NAMES)
    return float(np.mean(found))


def test_measurements_and_other_machines_help() -> None:
    for method in ("tuned", "scratch"):
        for how in ("random", "informative"):
            few, some, many = (mean_error(method, count, how) for count in (8, 32, 128))
            assert few > some > many
            assert few > 1.3 * many
    assert mean_error("weighted", 8) > mean_error("weighted", 128)
    assert mean_error("weighted", 8) < 0.8 * mean_error("scratch", 8)
    assert mean_error("tuned", 8) < mean_error("shifted", 8) < mean_error("source", 0)
    assert mean_error("tuned", 128) < 0.4 * mean_error("estimate", 0)


def test_results_are_plain_documents() -> None:
    document = results()[-1].to_document()
    assert document["method"] in METHODS
    assert {"target", "restricted", "measurements", "picked", "error", "tau", "regret"} <= set(
        document
    )


def test_restricted_machines_are_learned_from_restricted_ones() -> None:
    """And whole ones from whole ones; a machine alone is not evaluated."""
    machines = [Machine("whole", table(NAMES[0]))]
    machines += [Machine(name, table(name), restricted=True) for name in NAMES[:2]]
    found = {(r.target, r.restricted) for r in evaluated(machines, counts=(0,))}
    assert found == {(name, True) for name in NAMES[:2]}


def test_a_model_of_other_machines_is_not_extrapolated() -> None:
    model = source_model(others(NAMES[0]))
    far = table(NAMES[0])
    further = far.take(np.arange(len(far)))
    further.share[:, 1] += 10.0
    near, beyond = (adapted(model, t).predict(t) for t in (far, further))
    assert np.abs(near - beyond).max() < 1.0
    # Its machine's features are constants now: other values of them change nothing.
    fixed = adapted(model, far)
    np.testing.assert_allclose(fixed.predict(far), fixed.predict(further))


def test_picked_samples_are_distinct_and_spread() -> None:
    pool, model = table(NAMES[0]), source_model(others(NAMES[0]))
    for how in ("random", "informative", "close"):
        for count in (0, 1, 40, len(pool) + 5):
            found = picked(model, pool, count, how)
            assert len(np.unique(found)) == len(found) == min(count, len(pool))
    # Diverse samples cover the kinds of cover and the numbers of workers.
    informative = pool.take(picked(model, pool, 12, "informative"))
    assert len(np.unique(informative.kind)) == 4
    again = picked(model, pool, 12, "random"), picked(model, pool, 12, "random", seed=1)
    assert not np.array_equal(*again)


def test_close_samples_are_those_that_the_model_cannot_tell_apart() -> None:
    pool, model = table(NAMES[0]), source_model(others(NAMES[0]))
    first, second = picked(model, pool, 2, "close")
    assert pool.contest[first] == pool.contest[second]
    predicted = pool.log_estimated + model.predict(pool)
    assert abs(predicted[first] - predicted[second]) < 0.01


@pytest.mark.parametrize("count", [0, 8, 20])
def test_a_new_machine_has_a_correction(count: int) -> None:
    """With few samples its interval is that of machines that were left out."""
    name = NAMES[1]
    pool = table(name)
    base = source_model(others(name))
    chosen = picked(base, pool, count, "random")
    own, test = pool.take(chosen), pool.take(np.setdiff1d(np.arange(len(pool)), chosen))
    found = transferred(others(name), own, machine(name).fingerprint, "a test")
    assert found.fingerprint == machine(name).fingerprint
    assert found.provenance["source"] == "a test"
    assert int(found.provenance["samples"]) == count
    model = Additive(found.share, found.cover)
    errors = np.abs(test.log_ratio - model.predict(test))
    widths = half_widths(found, test.share)[np.arange(len(test)), test.kind]
    assert np.mean(errors <= widths) > 0.7
    if count == 0:
        # A machine beyond those on record keeps its estimates.
        unlike = tuple(test.share[0] + 3.0)
        assert set(Correction(found).share_factors(unlike)) == {UNKNOWN}


def test_own_samples_show_whether_a_correction_is_kept() -> None:
    """All plans of a third of the products show a gain; few plans of each product show none."""
    pool, sources = table(NAMES[0]), others(NAMES[0])[:1]
    products = np.random.default_rng(0).permutation(np.unique(pool.contest))
    own = pool.take(np.isin(pool.contest, products[: len(products) // 3]))
    assert transferred(sources, own, "a").workers == (1, 2)
    few = pool.take(picked(source_model(sources), pool, 100, "random"))
    with pytest.raises(DatasetError, match="do not choose better plans"):
        transferred(sources, few, "a")


def test_nothing_is_transferred_from_one_machine_alone() -> None:
    few = table(NAMES[0]).take(np.arange(5))
    with pytest.raises(DatasetError, match="5 samples and 1 other machines"):
        transferred([table(NAMES[1])], few, "a")


def test_joined_tables_keep_contests_apart() -> None:
    both = joined([table(NAMES[0]), table(NAMES[1])])
    count = len(table(NAMES[0]))
    assert set(both.contest[:count]).isdisjoint(both.contest[count:])
    assert set(both.shape[:count]) == set(both.shape[count:])
