"""Products that fill the cells of families, operands and ways: every candidate of the planner, for
every layout, whether it would choose it here or not."""

from collections.abc import Iterator

import numpy as np
from tests.coverage.claims import EPILOGUE, NARROW
from tests.guarded import Array, Guard, guarded
from tests.reference import assert_product, uniform

from ftuner.core.cpu.tile import COLUMN, ROW
from ftuner.core.dtype import DTYPES, NARROW_DTYPES, DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.product import ProductTypes, product_types
from ftuner.graph.arrays import converted
from ftuner.hardware.tuning import CpuTuning
from ftuner.planner.cpu.plan import Plan, Problem
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.packed_weights import pack
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.cpu.products import Products, words
from ftuner.ukernels.cpu.library import ANY_MATRICES, LAYERS, Library, Operands

ROWS, STEPS = 13, 70
"""Odd rows, so that covers have several heights."""


def products_of(
    backend: CpuBackend, types: ProductTypes, epilogue: Expr, *served: Operands
) -> Products:
    """Products for which all claimed families are compiled."""
    library = backend.kernels.library(types, epilogue)
    families = dict.fromkeys(f for operands in served for f in library.families(operands))
    return backend.products(types, epilogue, tuple(families))


def run_all(backend: CpuBackend) -> None:
    """Every candidate once, and compare it with float64."""
    backend.threads = 2
    for dtype in DTYPES.values():
        types = product_types(dtype)
        plain = products_of(backend, types, ACCUMULATOR, ANY_MATRICES, LAYERS)
        narrow = {
            b: products_of(backend, product_types(dtype, b), ACCUMULATOR, NARROW)
            for b in NARROW_DTYPES
        }
        layer = products_of(backend, types, EPILOGUE, LAYERS)
        for n in columns_of(plain.compiled.library):
            for a_layout in (ROW, COLUMN, "packed"):
                for source in ANY_MATRICES.b_sources:
                    _run_matrices(plain, a_layout, source, n, STEPS)
                for width in plain.compiled.library.widths:
                    _run_panels(plain, a_layout, n, width)
                    _run_layer(layer, a_layout, n, width)
            for width in plain.compiled.library.widths:
                for b, products in narrow.items():
                    _run_narrow(products, b, n, width)
        narrowest = min(plain.compiled.library.widths) * plain.compiled.library.lanes
        # So many steps of k that they are walked in blocks.
        steps = 2 * CpuTuning().panel_bytes // (narrowest * dtype.itemsize)
        _run_matrices(plain, ROW, "rows", 17, steps)
        _run_matrices(plain, ROW, "rows", 3, 2 * CpuTuning().split_k_steps)
        for choice in ("batch", "panels"):
            _run_chunks(plain, choice)


def columns_of(library: Library) -> list[int]:
    """Such that each width has each of its tails, and full panels of it too."""
    found = []
    for width in library.widths:
        nr = width * library.lanes
        found += [nr - 1, nr, *(nr + v * library.lanes - 1 for v in range(1, width + 1))]
    return sorted({*found, 1, 3, 2 * max(library.widths) * library.lanes + 5} - {0})


def _laid(x: Array, layout: str) -> Array:
    """A guarded matrix that is contiguous along its rows, its columns, or neither."""
    if layout in (ROW, "rows"):
        return guarded(x, read_only=True)
    if layout in (COLUMN, "columns"):
        return guarded(np.asfortranarray(x), read_only=True)
    spread = np.zeros((2 * x.shape[0], 2 * x.shape[1]), x.dtype)
    spread[::2, ::2] = x
    return guarded(spread[::2, ::2], read_only=True)


def _candidates(products: Products, problem: Problem) -> Iterator[Plan]:
    for candidate in products.planner.candidates(problem):
        if candidate.fits(problem.m):
            yield products.planner.lay_out(problem, candidate)


def _result(products: Products, m: int, n: int) -> Array:
    return Guard((m, n), products.compiled.library.types.a.name).array


def _run_matrices(products: Products, a_layout: str, source: str, n: int, k: int) -> None:
    dtype = products.compiled.library.types.a.name
    a = _laid(uniform(1, (ROWS, k), dtype), a_layout)
    b = _laid(uniform(2, (k, n), dtype), source)
    layout = ROW if a_layout == ROW else COLUMN
    problem = Problem(
        ROWS, n, k, 1, layout, a_layout == "packed", source, 0,  # type: ignore[arg-type]
        abs(b.strides[0]), 2,
    )  # fmt: skip
    column = b.itemsize if source == "rows" else b.strides[1]
    for plan in _candidates(products, problem):
        c = _result(products, ROWS, n)
        a_row = a.itemsize if a_layout == COLUMN else a.strides[0]
        strides = Strides(a_row, a.strides[1], b.strides[0], column, c.strides[0], (), (), False)
        products.launch(products.encode(plan, strides), a, b, c, None)
        assert_product(c, a, b, message=str(plan.choice))


def _panel_strides(a: Array, a_layout: str, c: Array, operands: tuple[int, ...] = ()) -> Strides:
    a_row = a.itemsize if a_layout == COLUMN else a.strides[0]
    return Strides(a_row, a.strides[1], 0, 0, c.strides[0], (), operands, False)


def _panel_problem(a_layout: str, n: int, width: int) -> Problem:
    layout = ROW if a_layout == ROW else COLUMN
    return panel_problem(n, STEPS, width, ROWS, 2, layout, a_layout == "packed")


def _run_panels(products: Products, a_layout: str, n: int, width: int) -> None:
    dtype = products.compiled.library.types.a.name
    a, weight = _laid(uniform(1, (ROWS, STEPS), dtype), a_layout), uniform(2, (n, STEPS), dtype)
    panels = pack(products, weight, width)
    for plan in _candidates(products, _panel_problem(a_layout, n, width)):
        c = _result(products, ROWS, n)
        encoded = products.encode(plan, _panel_strides(a, a_layout, c))
        products.launch(encoded, a, panels.packed, c, None)
        assert_product(c, a, weight.T, message=str(plan.choice))


def _run_layer(products: Products, a_layout: str, n: int, width: int) -> None:
    """With bias, residual and an activation."""
    dtype = products.compiled.library.types.a.name
    a, weight = _laid(uniform(1, (ROWS, STEPS), dtype), a_layout), uniform(2, (n, STEPS), dtype)
    bias = guarded(uniform(3, (n,), dtype), read_only=True)
    residual = guarded(uniform(4, (ROWS, n), dtype), read_only=True)
    panels = pack(products, weight, width)
    for plan in _candidates(products, _panel_problem(a_layout, n, width)):
        c = _result(products, ROWS, n)
        strides = _panel_strides(a, a_layout, c, (0, residual.strides[0]))
        given = words({0: bias, 1: residual})
        products.launch(products.encode(plan, strides), a, panels.packed, c, given.address)
        expected = np.maximum(a.astype(np.float64) @ weight.T + bias, 0) + residual
        roundoff = products.compiled.library.types.a.unit_roundoff
        assert np.all(np.abs(c - expected) <= 2 * STEPS * STEPS * roundoff), plan.choice


def _run_narrow(products: Products, b: DType, n: int, width: int) -> None:
    dtype = products.compiled.library.types.a.name
    a = _laid(uniform(1, (ROWS, STEPS), dtype), ROW)
    weight = converted(np.random.default_rng(2).integers(-128, 128, (n, STEPS)), b)
    panels = pack(products, weight, width)
    for plan in _candidates(products, _panel_problem(ROW, n, width)):
        c = _result(products, ROWS, n)
        encoded = products.encode(plan, _panel_strides(a, ROW, c))
        products.launch(encoded, a, panels.packed, c, None)
        assert_product(c, a, weight.T.astype(dtype), message=str(plan.choice))


def _run_chunks(products: Products, cut: str) -> None:
    """Work cut into chunks of batch elements, or of panels."""
    dtype = products.compiled.library.types.a.name
    batch, n = (9, 3) if cut == "batch" else (1, 6 * max(products.compiled.library.widths) * 16)
    a = guarded(uniform(1, (batch, ROWS, STEPS), dtype), read_only=True)
    b = guarded(uniform(2, (batch, STEPS, n), dtype), read_only=True)
    problem = Problem(ROWS, n, STEPS, batch, ROW, False, "rows", 0, b.strides[1], 2)
    ran = 0
    for candidate in products.planner.candidates(problem):
        chunks = candidate.chunks(ROWS, seconds=1.0)
        if not candidate.fits(ROWS) or not chunks:
            continue
        c = Guard((batch, ROWS, n), dtype).array
        axes = ((batch, a.strides[0], b.strides[0], c.strides[0]),) if batch > 1 else ()
        strides = Strides(*a.strides[1:], *b.strides[1:], c.strides[1], axes, (), False)
        plan = products.planner.lay_out(problem, candidate, chunks)
        products.launch(products.encode(plan, strides), a, b, c, None)
        assert_product(c, a, b, message=str(plan.choice))
        ran += 1
    assert ran
