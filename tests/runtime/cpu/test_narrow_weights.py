"""Products with weights of 8-bit integers and of half precision equal float64 references, read as
they are or widened."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.conftest import recorded_cpus
from tests.reference import lie, product_bound, uniform

from ftuner.core.cpu.tile import ROW
from ftuner.core.dtype import DTYPES, FLOAT32, INT8, NARROW_DTYPES, DType
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import product_types
from ftuner.graph.arrays import converted
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.plan import Choice
from ftuner.planner.cpu.planner import best_width, planner_for
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.packed_weights import Panels, pack
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.cpu.products import Products
from ftuner.ukernels.cpu.library import Operands, build_library

ROWS = (*range(1, 20), 31, 64, 100, 257)
PANELS = Operands((ROW,), ("panels",))
COLUMNS = (1, 7, 16, 17, 31, 33, 64, 80, 81, 159, 333)


def integers(seed: int, n: int, k: int) -> np.ndarray:
    """All of int8, its ends included."""
    found = np.random.default_rng(seed).integers(-128, 128, (n, k)).astype(np.int8)
    found.flat[0], found.flat[-1] = -128, 127
    return found


def halves(seed: int, n: int, k: int, dtype: DType) -> np.ndarray:
    """Numbers of all magnitudes, the subnormal ones included."""
    rng = np.random.default_rng(seed)
    return converted(rng.standard_normal((n, k)) * 2.0 ** rng.integers(-26, 4, (n, k)), dtype)


def weights(seed: int, n: int, k: int, dtype: DType) -> np.ndarray:
    return integers(seed, n, k) if dtype == INT8 else halves(seed, n, k, dtype)


def narrow_products(backend: CpuBackend, dtype: str, b: DType = INT8) -> Products:
    """Products with all families that narrow weights may use."""
    types = product_types(DTYPES[dtype], b)
    families = backend.kernels.library(types, ACCUMULATOR).families(PANELS)
    return backend.products(types, families=families)


def packed(products: Products, weight: np.ndarray, workers: int) -> Panels:
    n, k = weight.shape
    width = best_width(products.planner, n, k, workers)
    return pack(products, weight, width)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("b", NARROW_DTYPES, ids=str)
def test_every_candidate_is_right(backend: CpuBackend, b: DType, dtype: str, n: int) -> None:
    products = narrow_products(backend, dtype, b)
    for k in (1, 37, 1000):
        weight = weights(n, n, k, b)
        panels = packed(products, weight, 2)
        for workers in (1, 2):
            for rows in ROWS if k == 37 else (1, 5, 40):
                x, widens = uniform(rows, (rows, k), dtype), set()
                sums, bound = product_bound(x, weight.T.astype(np.float64))
                for choice, y in by_candidates(products, panels, x, workers):
                    assert np.all(np.abs(y - sums) <= bound)
                    widens.add(choice.widen)
                assert widens == {False, True}


def by_candidates(
    products: Products, panels: Panels, x: Any, workers: int
) -> Iterator[tuple[Choice, Any]]:
    """The choice and the result of each candidate, which writes nothing else."""
    rows, types = len(x), products.compiled.library.types
    problem = panels.problem(rows, workers)
    for candidate in products.planner.candidates(problem):
        if candidate.fits(rows):
            y, memory = lie("padded", np.full((rows, panels.n), np.nan, types.c.name), guard=99.0)
            plan = products.planner.lay_out(problem, candidate)
            strides = Strides(x.strides[0], types.a.itemsize, 0, 0, y.strides[0], (), (), False)
            products.launch(products.encode(plan, strides), x, panels.packed, y, None)
            assert np.count_nonzero(memory == 99.0) == memory.size - y.size
            yield candidate.choice, y


@pytest.mark.parametrize("machine", recorded_cpus(), ids=lambda machine: machine.name)
def test_short_inputs_read_integers_and_long_ones_widen_first(machine: CpuHardware) -> None:
    for isa in machine.isas:
        planner = planner_for(build_library(machine, isa.name, product_types(FLOAT32, INT8)))
        width = best_width(planner, 1536, 384, 1)
        panels = Panels(np.empty(0, np.int8), width, 1536, 384)
        widens = [planner.plan(panels.problem(rows, 1)).choice.widen for rows in (1, 2, 3, 512)]
        assert widens == [False, False, False, True], isa.name


def test_the_estimate_of_one_row_falls_with_its_bytes(backend: CpuBackend) -> None:
    """A weight that does not stay in L2 is read in a quarter of the time."""
    products = narrow_products(backend, "float32")
    narrow = packed(products, integers(0, 4096, 4096), 1)
    problem = narrow.problem(1, 1)
    planners = (products.planner, backend.products(product_types(FLOAT32)).planner)
    l3 = [planner.estimate(planner.plan(problem)).l3_s for planner in planners]
    assert l3[0] == pytest.approx(l3[1] / 4, rel=0.05)


@pytest.mark.parametrize("b", NARROW_DTYPES, ids=str)
def test_packing_takes_any_strides(backend: CpuBackend, b: DType) -> None:
    products = narrow_products(backend, "float32", b)
    weight = weights(3, 90, 41, b)
    for view in (weight, weight.T.copy().T, weight[::-1], weight[:, ::-1], weight[::2, ::3]):
        again = np.ascontiguousarray(view)
        found, expected = (packed(products, w, 1) for w in (view, again))
        assert np.array_equal(found.packed, expected.packed)
