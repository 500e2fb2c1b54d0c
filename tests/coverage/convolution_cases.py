"""Convolutions that fill the cells of families that read through windows: of every panel width."""

from unittest.mock import patch

import numpy as np
from tests.coverage.product_cases import columns_of
from tests.graph.graphs import Maker
from tests.reference import uniform

from ftuner.core.dtype import DTYPES, DType
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import product_types
from ftuner.graph.operators import OPERATORS
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

EXTENT, CHANNELS = 17, 5
ATTRIBUTES = {"strides": (1,), "dilations": (3,), "begin": (2,), "extents": (EXTENT,), "groups": 1}


def run_convolutions(backend: CpuBackend) -> None:
    """All widths of panels, whichever the planner would choose, with all tails."""
    for dtype in DTYPES.values():
        library = backend.kernels.library(product_types(dtype), ACCUMULATOR)
        for width in library.widths:
            with patch("ftuner.schedules.product.cpu_binding.best_width", lambda *_, w=width: w):
                _run(backend, dtype, columns_of(library))


def _run(backend: CpuBackend, dtype: DType, columns: list[int]) -> None:
    """One graph of a convolution for each number of columns, compared with float64."""
    maker = Maker()
    x = maker.given("x", 2, EXTENT, CHANNELS, dtype=dtype)
    weights = [uniform(n, (2, CHANNELS, n), dtype.name) for n in columns]
    graph = maker.made(
        *(maker.add("convolution", x, maker.constant(w), **ATTRIBUTES) for w in weights)
    )
    given = uniform(0, (2, EXTENT, CHANNELS), dtype.name)
    results = Model(graph, backend).run({"x": given})
    for w, found in zip(weights, results, strict=True):
        wide = (given.astype(np.float64), w.astype(np.float64))
        expected = OPERATORS["convolution"].reference(*wide, **ATTRIBUTES)  # type: ignore[arg-type]
        allowed = 4 * CHANNELS * dtype.unit_roundoff
        assert np.all(np.abs(found - expected) <= allowed), w.shape
