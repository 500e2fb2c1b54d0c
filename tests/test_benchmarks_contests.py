"""A contest of each kind of step runs on small extents, and each way gives what the others give."""

import numpy as np
import pytest
from benchmarks.step_contests import Step, attention, chain, convolution, hold, ring

from ftuner.runtime.cpu.backend import CpuBackend

SMALL = (
    convolution(16, 16, 13, 11),
    chain(16, 4, 1, 20),
    attention(2, 33, 33, 32),
    attention(2, 33, 33, 32, causal=True),
)


@pytest.mark.parametrize("step", SMALL, ids=lambda step: step.label)
def test_contest(step: Step) -> None:
    backend = CpuBackend()
    outcome = hold(ring(backend.hardware, backend.cache, 1), step)
    assert outcome.case == step.label
    assert len(outcome.ways) == len(step.ways)
    assert outcome.regret >= 0.0
    assert outcome.chosen_s > 0.0
    assert outcome.best_s > 0.0


@pytest.mark.parametrize("step", SMALL[:2], ids=lambda step: step.label)
def test_ways_agree(step: Step) -> None:
    backend = CpuBackend()
    place = ring(backend.hardware, backend.cache, 1)
    expected = step.make(place.backend({}))()[0]
    for changes in step.ways:
        result = step.make(place.backend(changes))()[0]
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3, err_msg=str(changes))
