"""Few combinations of parameters stand for all, and shares of what is alike for the whole."""

from itertools import combinations, product

import pytest
from tests.conftest import THOROUGH, covering, each_value, pairs_of_values, share


def test_every_pair_of_values_is_chosen() -> None:
    cases = [frozenset(enumerate(values)) for values in product(range(4), range(3), range(3))]
    chosen = pairs_of_values(cases)
    assert {pair for n in chosen for pair in combinations(sorted(cases[n]), 2)} == {
        pair for case in cases for pair in combinations(sorted(case), 2)
    }
    assert len(chosen) < len(cases) / 2
    assert {value for n in each_value(cases) for value in cases[n]} == frozenset().union(*cases)
    assert len(each_value(cases)) == 4


def test_covers_and_shares_are_whole_in_a_thorough_run(monkeypatch: pytest.MonkeyPatch) -> None:
    axes, items = ("abc", (1, 2), (None, 0.5)), range(10)
    monkeypatch.delenv(THOROUGH, raising=False)
    few, shares = covering(*axes), [share(items, 3, first) for first in range(3)]
    assert sorted(item for part in shares for item in part) == [*items]
    assert {len(part) for part in shares} == {3, 4}
    monkeypatch.setenv(THOROUGH, "1")
    assert covering(*axes) == [*product(*axes)]
    assert share(items, 3, 1) == items
    every = {pair for case in product(*axes) for pair in combinations(case, 2)}
    assert {pair for case in few for pair in combinations(case, 2)} == every
    assert len(few) < 12
