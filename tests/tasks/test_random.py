"""Random schedules agree with the interpreter on every ISA."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import HOST_ISAS, share
from tests.tasks.random_schedules import made

import ftuner

FEW, MANY = range(4), share(range(4, 104), 2, 1)


@pytest.mark.parametrize(
    "seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.full) for seed in MANY)]
)
def test_random_schedules(seed: int, tmp_path: Path) -> None:
    isa = HOST_ISAS[-1 - seed % len(HOST_ISAS)]
    assert ftuner.check(made(seed, tmp_path), cases=3, seed=seed, isas=[isa]).cases == 3
