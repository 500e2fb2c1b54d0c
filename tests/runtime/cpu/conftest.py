"""Models that tests share."""

import pytest
from tests.runtime.cpu.appending import PLAIN, compiled
from tests.runtime.cpu.small_models import LAYER, small

from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


@pytest.fixture(scope="module")
def encoder(widest: CpuBackend) -> Model:
    return Model(LAYER, widest)


@pytest.fixture(scope="module")
def sums(widest: CpuBackend) -> Model:
    return Model(small(), widest)


@pytest.fixture(scope="module")
def plain(widest: CpuBackend) -> Model:
    """A decoder that appends in place."""
    return compiled(PLAIN, widest, append=True)


@pytest.fixture(scope="module")
def copying(widest: CpuBackend) -> Model:
    """The same decoder without."""
    return compiled(PLAIN, widest, append=False)
