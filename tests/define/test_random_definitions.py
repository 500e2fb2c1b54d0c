"""Random definitions against their meaning in NumPy."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import share
from tests.define.random_definitions import (
    agree,
    random_arrays,
    random_operator,
    random_recurrence,
    scanned_arrays,
)

ONE_OF = 3


def seeds(core: int, count: int) -> list[Any]:
    more = share(range(core, count), ONE_OF)
    return [*range(core), *(pytest.param(seed, marks=pytest.mark.full) for seed in more)]


@pytest.mark.parametrize("seed", seeds(12, 120))
def test_random_definitions_agree_with_numpy_at_several_shapes(seed: int) -> None:
    operator = random_operator(seed)
    for number in range(3):
        arrays = random_arrays(10 * seed + number)
        agree(operator(*arrays), operator.reference(*arrays))


@pytest.mark.parametrize("seed", seeds(4, 80))
def test_random_recurrences_agree_with_numpy_at_several_shapes(seed: int) -> None:
    operator = random_recurrence(seed)
    for number in range(2):
        arrays = scanned_arrays(10 * seed + number)
        agree([operator(*arrays)], [operator.reference(*arrays)])
