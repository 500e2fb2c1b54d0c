"""Kendall's tau and regret, on examples that are worked out by hand."""

import math
from dataclasses import fields

import numpy as np
import pytest

from ftuner.learn.evaluation import gains, regrets
from ftuner.learn.features import Table
from ftuner_tools.learning.evaluation import kendall_tau, score


def table(measured: list[float], estimated: list[float], contest: list[int]) -> Table:
    count = len(measured)
    arrays = {f.name: np.zeros(count) for f in fields(Table)}
    arrays["log_estimated"] = np.log(estimated)
    arrays["log_ratio"] = np.log(measured) - np.log(estimated)
    arrays["contest"] = np.array(contest)
    return Table(**arrays)


def test_tau() -> None:
    one, two = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
    assert kendall_tau(one, one) == 1.0
    assert kendall_tau(one, -one) == -1.0
    assert kendall_tau(one, two) == pytest.approx(4 / 6)
    assert kendall_tau(one, np.zeros(4)) == 0.0


def test_pairs_within_noise_do_not_count() -> None:
    measured, predicted = np.array([1.0, 1.01, 2.0]), np.array([1.5, 1.0, 2.0])
    assert kendall_tau(measured, predicted) == pytest.approx(1 / 3)
    assert kendall_tau(measured, predicted, np.full(3, 0.02)) == 1.0
    assert math.isnan(kendall_tau(measured, predicted, np.full(3, 2.0)))


def test_score() -> None:
    found = score(
        table([2.0, 1.0, 3.0, 3.0, 5.0], [1.0, 1.0, 3.0, 4.0, 5.0], [7, 7, 3, 3, 9]),
        np.log([1.0, 4.0, 1.0, 1.0, 1.0]),
    )
    # In one contest the slower plan is predicted to be the faster; the other two have no order.
    assert found.tau == -1.0
    assert found.regret == pytest.approx(0.5)
    assert found.worst_regret == pytest.approx(1.0)
    assert found.error == pytest.approx((math.log(2) + math.log(4) + math.log(4 / 3)) / 5)


def test_regrets_name_the_plans() -> None:
    some = table([2.0, 1.0, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0], [7, 7, 3, 3])
    some.spread[:] = [0.1, 0.2, 0.0, 0.0]
    equal, other = regrets(some, np.zeros(4))
    assert (equal.chosen, equal.regret) == (2, 0.0)
    assert (other.chosen, other.fastest, other.noise) == (0, 1, 0.2)
    assert other.regret == pytest.approx(1.0)


def test_gains_are_paired_by_contest() -> None:
    measured, estimated = [1.0, 1.5], [2.0, 1.0]
    some = table(measured * 5, estimated * 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    some.workers[:] = [1, 1, 1, 1, 1, 1, 8, 8, 2, 2]
    # With one worker predictions are right in two contests of three.
    right, wrong = [0.0, 2.0], [0.0, 0.0]
    one, two, eight = gains(some, np.array([*right, *right, *wrong, *right, *wrong]))
    assert [gain.workers for gain in (one, two, eight)] == [1, 2, 8]
    assert one.of_estimate == pytest.approx(0.5)
    assert one.of_model == pytest.approx(0.5 / 3)
    assert one.standard_error == pytest.approx(np.std([0.5, 0.5, 0.0], ddof=1) / math.sqrt(3))
    assert one.certain
    # One contest alone proves nothing.
    assert (eight.of_model, eight.of_estimate) == (0.0, pytest.approx(0.5))
    assert not eight.certain
    assert "8 workers: 0.00% longer than the fastest plans, by the estimate 50.00%" in str(eight)


def test_a_tie_is_no_gain() -> None:
    some = table([1.0, 1.5] * 3, [2.0, 1.0] * 3, [0, 0, 1, 1, 2, 2])
    (gain,) = gains(some, np.zeros(6))
    assert gain.of_model == gain.of_estimate > 0.0 == gain.standard_error
    assert not gain.certain
    assert gains(some.take(np.array([0, 2, 4])), np.zeros(3)) == []


def test_scores_without_contests() -> None:
    found = score(table([2.0], [1.0], [0]), np.zeros(1))
    assert found[1:] == (0.0, 0.0, 0.0)
