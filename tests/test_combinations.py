"""Few combinations of parameters stand for all: which ones, of a test marked `each_value`."""

from __future__ import annotations

from itertools import combinations, product

from tests.conftest import each_value, pairs_of_values


def test_every_pair_of_values_is_chosen() -> None:
    cases = [frozenset(enumerate(values)) for values in product(range(4), range(3), range(3))]
    chosen = pairs_of_values(cases)
    assert {pair for n in chosen for pair in combinations(sorted(cases[n]), 2)} == {
        pair for case in cases for pair in combinations(sorted(case), 2)
    }
    assert len(chosen) < len(cases) / 2
    assert {value for n in each_value(cases) for value in cases[n]} == frozenset().union(*cases)
    assert len(each_value(cases)) == 4
