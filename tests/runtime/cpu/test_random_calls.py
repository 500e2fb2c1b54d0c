"""Products, layers, grouped products and attention of any extents and layouts touch nothing but
their arrays, and are right."""

import pytest
from tests.apart import apart
from tests.runtime.cpu.random_calls import KINDS, run

from ftuner.runtime.cpu.backend import CpuBackend

COUNTS = {"product": 150, "layer": 30, "grouped": 30, "attention": 60}


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
def test_random_calls(kind: str, backend: CpuBackend) -> None:
    for part in (0, 1):
        seeds = range(part, COUNTS[kind], 2)
        apart(lambda note, seeds=seeds: run(kind, seeds, backend, note))
