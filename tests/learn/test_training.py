"""Training finds a known distortion, keeps to what it has seen, and knows how far it may be off."""

import sys
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learn.synthetic import SHAPES, machine, synthetic

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.cost.cpu.correction import UNKNOWN, Correction, half_widths
from ftuner.cost.cpu.correction_features import COVER_FEATURES, KINDS, SHARE_FEATURES
from ftuner.errors import ConfigurationError, DatasetError, DatasetWarning
from ftuner.hardware.correction import LearnedCorrection
from ftuner.learn import training
from ftuner.learn.checked import MAX_EXTENT
from ftuner.learn.evaluation import contests
from ftuner.learn.features import Table, table_of
from ftuner.learn.samples import MAX_WORKERS, Dataset, Sample, SamplePlan
from ftuner.learn.training import Additive, choose, competing, folds_of, learn
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.ukernels.cpu.library import build_library
from ftuner_tools.learning.boosting import FORMS
from ftuner_tools.learning.evaluation import score

NAME = "xeon-8375c"
NAMES = ["linear", pytest.param("boosted", marks=pytest.mark.full)]


@cache
def table(noise: float = 0.01, odd: bool = False) -> Table:
    """Samples of one half of the shapes."""
    return table_of(synthetic(NAME, noise=noise, shapes=SHAPES[odd::2]))


@cache
def learned(form: str = "linear", noise: float = 0.01) -> LearnedCorrection:
    if form == "boosted":
        pytest.importorskip("sklearn")
    return learn(table(noise), machine(NAME).fingerprint, forms={form: FORMS[form]})


def model_of(found: LearnedCorrection) -> Additive:
    return Additive(found.share, found.cover)


@pytest.mark.parametrize("form", NAMES)
def test_a_known_distortion_is_found(form: str) -> None:
    """Of shapes that were not trained on."""
    other = table(odd=True)
    before = score(other, np.zeros(len(other)))
    after = score(other, model_of(learned(form)).predict(other))
    assert before.error > 0.1
    assert after.error < 0.02
    assert after.tau > before.tau + 0.2
    assert after.regret < 0.01 < before.regret


def test_the_better_form_is_taken_and_the_errors_of_all_are_told() -> None:
    pytest.importorskip("sklearn")
    found = choose(table(), forms=FORMS)
    assert {"estimate", "boosted", "linear 1", "linear 100"} <= set(found.errors)
    label = found.form if found.form == "boosted" else f"linear {found.penalty:g}"
    assert found.errors[label] == min(found.errors.values()) < 0.3 * found.errors["estimate"]


def test_predictions_of_shapes_that_were_held_out() -> None:
    before = score(table(), np.zeros(len(table())))
    after = score(table(), table().log_ratio - choose(table()).residuals)
    assert after.tau > before.tau + 0.2
    assert after.error < 0.2 * before.error


def test_boosting_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ftuner-tools\[learn\]'"):
        learn(table(), "a", forms={"boosted": FORMS["boosted"]})


def test_few_samples_are_not_learned_from() -> None:
    with pytest.raises(DatasetError, match="29 samples; expected at least 30"):
        learn(table().take(np.arange(29)), "a")
    one_shape = table().take(table().shape == table().shape[0])
    with pytest.raises(DatasetError, match="one shape only"):
        learn(one_shape, "a")


def test_a_shape_is_in_one_fold() -> None:
    fold = folds_of(table())
    assert len(np.unique(fold)) == training.FOLDS
    for shape in np.unique(table().shape):
        assert len(np.unique(fold[table().shape == shape])) == 1


@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_nine_in_ten_errors_are_within_the_interval(form: str, noise: float) -> None:
    """Of plans that compete, of shapes that were not trained on."""
    found, other = learned(form, noise), table(noise, odd=True)
    other = other.take(competing(other))
    widths = half_widths(found, other.share)[np.arange(len(other)), other.kind]
    errors = np.abs(other.log_ratio - model_of(found).predict(other))
    assert 0.82 <= np.mean(errors <= widths) <= 0.97


def test_a_few_disturbed_samples_change_little() -> None:
    disturbed = table().log_ratio.copy()
    disturbed[::20] += 1.0
    found = learn(replace(table(), log_ratio=disturbed), "a")
    other = table(odd=True)
    assert score(other, model_of(found).predict(other)).error < 0.03


def features_of(problem_k: int, n: int = 768, m: int = 5) -> tuple[float, ...]:
    """Of the first candidate of a product."""
    planner = Planner(build_library(machine(NAME), "avx512", product_types(FLOAT32)))
    candidate = planner.candidates(panel_problem(n, problem_k, 4, m, 1))[0]
    return candidate.features()


def test_what_was_not_seen_keeps_its_estimate() -> None:
    correction = Correction(learned())
    assert min(correction.share_factors(features_of(384))) > 0.5
    unknown = (UNKNOWN,) * len(KINDS)
    assert correction.share_factors(features_of(1 << 16)) == unknown
    assert correction.share_factors(features_of(384, n=1 << 18)) == unknown
    other = list(features_of(384))
    other[SHARE_FEATURES.index("machine.registers")] -= 1.0
    assert correction.share_factors(other) == unknown
    other[0] = float("nan")
    assert correction.share_factors(other) == unknown
    cover = list(table().cover[0])
    assert correction.cover_factors([cover])[0] > 0.5
    cover[COVER_FEATURES.index("cover.rows")] = 40.0
    assert correction.cover_factors([cover]) == [UNKNOWN]
    assert correction.cover_factors([]) == []


def test_noise_alone_teaches_nothing() -> None:
    """Where the truth is the estimate and noise."""
    for seed in range(3):
        data = synthetic(NAME, lambda hardware, sample: 0.0, 0.05, shapes=SHAPES[::2], seed=seed)
        noisy = table_of(data)
        try:
            found = Correction(learn(noisy, "a"))
        except DatasetError as error:
            assert "do not choose better plans" in str(error)  # noqa: PT017, either is right
            continue
        factors = np.array([found.share_factors(row) for row in noisy.share[::10]])
        assert np.all(np.abs(factors[factors != UNKNOWN] - 1.0) < 0.02)


def lucky(*workers: int) -> Table:
    """In each contest with these numbers of workers the plan that the estimate takes is faster than
    anything its features tell."""
    found = table().log_ratio.copy()
    estimated = table().log_estimated
    for index in contests(table()):
        if table().workers[index[0]] in workers:
            best = index[np.argmin(estimated[index])]
            found[best] = (found + estimated)[index].min() - 0.3 - estimated[best]
    return replace(table(), log_ratio=found)


def test_a_model_that_chooses_worse_is_not_learned() -> None:
    with pytest.raises(DatasetError, match="held-out predictions do not choose better plans"):
        learn(lucky(1, 2), "a")


def test_a_model_that_chooses_as_well_is_not_learned() -> None:
    """The truth is the estimate: a tie."""
    exact = table_of(synthetic(NAME, lambda hardware, sample: 0.0, 0.0, shapes=SHAPES[::2]))
    with pytest.raises(DatasetError, match=r"1 worker: 0.00% longer .* by the estimate 0.00%"):
        learn(exact, "a")


def test_a_correction_is_used_with_those_workers_with_which_it_chooses_better() -> None:
    hardware = machine(NAME)
    assert learned().workers == (1, 2)
    found = learn(lucky(2), hardware.fingerprint)
    assert found.workers == (1,)
    assert "2 workers: " in found.provenance["regret"]
    library = build_library(hardware, "avx512", product_types(FLOAT32))
    plain, corrected = Planner(library), Planner(library, found)
    n, k = SHAPES[0]
    alone, both = (panel_problem(n, k, library.widths[0], 5, workers) for workers in (1, 2))
    assert corrected.estimate(corrected.plan(alone)).correction != 1.0
    assert corrected.plan(both) == plain.plan(both)
    assert corrected.least_seconds(both) == plain.least_seconds(both)
    # Ranges of rows that are decided together have the correction, too.
    many = tuple(range(1, 200, 7))
    each = [corrected.decided(alone._replace(m=m)) for m in many]
    assert corrected.decided_at(alone, many) == each


def test_the_interval_grows_away_from_the_samples() -> None:
    """Between the ranges of single features there are products that no sample is like."""
    found = learned()
    generator = np.random.default_rng(0)
    corners = np.where(generator.random((50, 1)) < 0.5, found.share.low, found.share.high)
    corners = np.where(generator.random(corners.shape) < 0.5, corners, table().share[:50])
    near, far = half_widths(found, table().share), half_widths(found, corners)
    assert np.median(far[:, 0]) > 1.5 * np.median(near[:, 0])
    uncertain = replace(found.uncertainty, limit=np.median(far, axis=0))
    factors = Correction(replace(found, uncertainty=uncertain)).share_factors
    unknown = [factors(row)[0] == UNKNOWN for row in corners]
    assert unknown == (far[:, 0] > np.median(far[:, 0])).tolist()


def test_the_planner_takes_what_is_faster() -> None:
    """On the machine with the distortion, the corrected planner's choices take less time."""
    hardware = machine(NAME)
    found = learn(table(), hardware.fingerprint)
    other = synthetic(NAME, shapes=SHAPES[1::2])
    library = build_library(hardware, "avx512", product_types(FLOAT32))
    plain, corrected = (mean_regret(Planner(library, some), other) for some in (None, found))
    assert corrected < 0.4 * plain


def mean_regret(planner: Planner, dataset: Dataset) -> float:
    """What the plans that a planner takes for the samples' products take longer than the fastest
    ones."""
    contests: dict[object, dict[object, float]] = {}
    for sample in dataset.samples:
        times = contests.setdefault((sample.problem, sample.workers), {})
        times[sample.plan.grid, sample.plan.segments] = sample.seconds
    regrets = []
    for (problem, workers), times in contests.items():  # type: ignore[misc]
        m, n, k = problem
        plan = planner.plan(panel_problem(n, k, 4, m, workers))
        taken = times.get((tuple(plan.choice.grid), plan.bands()[0].segments))
        if taken is not None:
            regrets.append(taken / min(times.values()) - 1.0)
    assert len(regrets) > 0.8 * len(contests)
    return float(np.mean(regrets))


def test_of_samples_of_one_plan_the_fastest_counts() -> None:
    data = synthetic(NAME, shapes=SHAPES[:1])
    slower = tuple(replace(sample, seconds=2 * sample.seconds) for sample in data.samples)
    for samples in ((*data.samples, *slower), (*slower, *data.samples)):
        found = table_of(Dataset(data.header, samples))
        np.testing.assert_array_equal(found.log_ratio, table_of(data).log_ratio)


def test_plans_of_another_version_are_left_out() -> None:
    data = synthetic(NAME, shapes=SHAPES[:1])
    odd = replace(data.samples[0], plan=SamplePlan((1, 1, 1, 1), 9, 64, ((1, 1),)))
    tall = replace(data.samples[0], plan=SamplePlan((1, 1, 1, 1), 4, 64, ((99, 1),)))
    with pytest.warns(DatasetWarning, match="2 of .* samples of .* are left out"):
        found = table_of(Dataset(data.header, (*data.samples, odd, tall)))
    assert len(found) == len(data.samples)
    with pytest.raises(DatasetError, match="no sample"):
        table_of(data, lambda sample: False)


def test_samples_from_a_level_that_the_planner_does_not_assume_are_left_out() -> None:
    data = synthetic(NAME, shapes=SHAPES[:1])
    near = tuple(replace(sample, level="L2") for sample in data.samples)
    found = table_of(Dataset(data.header, (*near, *data.samples)))
    np.testing.assert_array_equal(found.place, len(near) + np.arange(len(near)))


def test_covers_of_any_size_have_features() -> None:
    """The tiles of a cover may be billions."""

    def sample(m: int, segments: tuple[tuple[int, int], ...]) -> Sample:
        first = synthetic(NAME, shapes=SHAPES[:1]).samples[0]
        plan = first.plan._replace(segments=segments)
        return replace(first, problem=first.problem._replace(m=m), plan=plan)

    data = synthetic(NAME, shapes=SHAPES[:1])
    huge = [sample(7 * (1 << 30), ((7, 1 << 30),)), sample(7 * 10_000, ((7, 10_000),))]
    huge.append(sample(8 * (1 << 30), ((7, 1 << 30), (1, 1 << 30))))
    found = table_of(Dataset(data.header, tuple(huge)))
    assert np.isfinite(found.cover).all()
    np.testing.assert_array_equal(found.cover[0], found.cover[1])


@settings(max_examples=150)
@given(st.data())
def test_samples_of_strangers_have_finite_features_or_are_left_out(data: st.DataObject) -> None:
    """Whatever passes the checks of a dataset."""
    extent = st.sampled_from([1, 2, 7, 16, 100, 4096, 1 << 20, MAX_EXTENT])
    parts = st.sampled_from([1, 2, 3, 64, MAX_WORKERS])
    heights = st.sampled_from([1, 2, 7, 14, 28, 29, 1000])
    tiles = st.sampled_from([1, 2, 1000, 1 << 30])
    segments = tuple(data.draw(st.lists(st.tuples(heights, tiles), min_size=1, max_size=4)))
    grid = (1, 1, 1, 1)
    place = data.draw(st.integers(0, 3))
    grid = (*grid[:place], data.draw(parts), *grid[place + 1 :])
    sample = synthetic(NAME, shapes=SHAPES[:1]).samples[0]
    problem = sample.problem._replace(n=data.draw(extent), k=data.draw(extent))
    plan = SamplePlan(grid, data.draw(st.sampled_from([1, 4, 9])), data.draw(extent), segments)  # type: ignore[arg-type]
    level = data.draw(st.sampled_from(["L2", "L3", "DRAM"]))
    odd = replace(sample, workers=MAX_WORKERS, problem=problem, plan=plan, level=level)
    header = synthetic(NAME, shapes=SHAPES[:1]).header
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)
        found = table_of(Dataset(header, (sample, odd)))
    assert len(found) in (1, 2)
    assert np.isfinite(found.share).all()
    assert np.isfinite(found.cover).all()
