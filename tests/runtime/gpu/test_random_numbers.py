"""Models that draw random numbers, by the kernels for a GPU in the interpreter."""

import numpy as np
import pytest
from tests.runtime.cpu.test_random_numbers import noise

from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.runtime.backend import Options
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

SEED = 2**64 - 1


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", ["random_uniform", "random_normal"])
def test_right_at_any_extents(op: str, dtype: DType, h200: GpuBackend) -> None:
    """In each run those of its key, which what is measured between runs does not take."""
    graph = noise(op, dtype)
    model = Model(graph, h200, Options(random_seed=SEED))
    for run, shape in enumerate([(3, 37), (0, 5), (1, 1), (2, 300), (2, 300)]):
        x = np.full(shape, 2, dtype.name)
        wanted = run_reference(graph, [x, np.array([SEED, run], np.uint64)])
        model.memory({"x": x})
        for found, other in zip(model.run({"x": x}), wanted, strict=True):
            bound = 16 * dtype.unit_roundoff * (4 + np.abs(other))
            assert np.all(np.abs(found - other) <= bound), shape
