"""Numbers in documents."""

import math

import pytest

from ftuner.core.given import expected_range, to_float


@pytest.mark.parametrize("value", [1, 0.5, 1 << 90])
def test_accepted(value: float) -> None:
    assert to_float(value) == value
    assert expected_range(to_float(value), zero=False) is None


@pytest.mark.parametrize("value", [0, -1, -0.5, math.nan, math.inf, -math.inf, 10**400])
def test_out_of_range(value: float) -> None:
    number = to_float(value)
    assert expected_range(number, zero=False) == "finite and positive"
    expected = None if value == 0 else "finite and not negative"
    assert expected_range(number, zero=True) == expected
