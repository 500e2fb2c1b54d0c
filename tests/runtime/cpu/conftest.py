"""Models that tests share."""

from __future__ import annotations

import pytest
from tests.runtime.cpu.small_models import LAYER, small

from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


@pytest.fixture(scope="module")
def encoder(widest: CpuBackend) -> Model:
    return Model(LAYER, widest)


@pytest.fixture(scope="module")
def sums(widest: CpuBackend) -> Model:
    return Model(small(), widest)
