"""Pairwise coupling against libsvm's iteration, row by row."""

import numpy as np
import pytest
from tests.graph.graphs import Maker, S

from ftuner.core.dtype import DTYPES
from ftuner.graph.ops.learning import CONVERGED, MOST_ROUNDS
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.schedules.coupling.step import ROWS, CouplingStep


def by_definition(pairs: np.ndarray, k: int) -> np.ndarray:
    """`multiclass_probability` of libsvm, with the limit that onnxruntime has."""
    r = np.zeros((k, k), pairs.dtype)
    first, second = np.triu_indices(k, 1)
    r[first, second], r[second, first] = pairs, 1 - pairs
    q = -r.T * r
    for t in range(k):
        q[t, t] = sum(r[j, t] * r[j, t] for j in range(k) if j != t)
    p = np.full(k, 1 / k, pairs.dtype)
    for _ in range(MOST_ROUNDS):
        qp = q @ p
        total = p @ qp
        if np.abs(qp - total).max() < CONVERGED / k:
            break
        for t in range(k):
            step = (total - qp[t]) / q[t, t]
            p[t] += step
            total = (total + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) / (1 + step)
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step
    return p


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [2, 3, 4, 7, 40])
def test_the_kernel_gives_what_the_iteration_does(
    classes: int, dtype: str, backend: CpuBackend
) -> None:
    """Of several tasks; probabilities of pairs next to 0 and 1, and one that is NaN."""
    count = classes * (classes - 1) // 2
    g = Maker()
    pairs = g.given("pairs", S, count, dtype=DTYPES[dtype])
    graph = g.made(g.add("coupled_probabilities", pairs))
    model = Model(optimised(graph, halves=False), backend)
    assert any(isinstance(step, CouplingStep) for step in model.steps)
    rng = np.random.default_rng(classes)
    for rows in (0, 1, ROWS - 1, 2 * ROWS + 3):
        x = rng.random((rows, count)).astype(dtype)
        x[::3] = np.where(x[::3] < 0.5, 1e-7, 1 - 1e-7)
        (found,), (expected,) = model.run({"pairs": x}), run_reference(graph, [x])
        each = [by_definition(row, classes) for row in x]
        np.testing.assert_allclose(found, expected, 1e-3, 1e-5)
        np.testing.assert_allclose(found, np.reshape(each, found.shape), 1e-3, 1e-5)
    x[1, 0] = np.nan
    (found,), (expected,) = model.run({"pairs": x}), run_reference(graph, [x])
    np.testing.assert_allclose(found, expected, 1e-3, 1e-5)
