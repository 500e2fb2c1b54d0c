"""Plans that the planner may choose compute the product, and so do plans that it would not."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import LAYOUTS, assert_product, lie, product_bound, uniform

from ftuner.core.cpu.tile import ROW
from ftuner.core.dtype import DTYPES, FLOAT32, DType
from ftuner.core.expr import Expr
from ftuner.core.expr_values import evaluate
from ftuner.core.product import ProductTypes, product_types
from ftuner.planner.cpu.plan import Choice, Grid, Problem
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.kernels import CompiledLibrary, Kernels
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.plan_records import Strides, encoded_covers
from ftuner.runtime.cpu.products import Products, words
from ftuner.runtime.cpu.scratch import Workspaces
from ftuner.runtime.ops.layer import layer_epilogue


def problem_of(a: Array, b: Array, workers: int) -> Problem:
    """The product of a C-contiguous a with a b that is contiguous along n or k."""
    source = "rows" if b.flags.c_contiguous else "columns"
    return Problem(
        a.shape[0], b.shape[1], a.shape[1], 1, ROW, False, source, 0, abs(b.strides[0]), workers
    )


def strides_of(
    a: Array, b: Array, c: Array, accumulate: bool = False, operands: tuple[int, ...] = ()
) -> Strides:
    return Strides(*a.strides, *b.strides, c.strides[0], (), operands, accumulate)


class _Watched(Workspaces):
    """Workspaces between bytes that are watched."""

    parts: tuple[Array, ...] = ()

    def take(self, size: int) -> int:
        margin = 4096
        memory = np.full(size + 2 * margin, 0xA5, dtype=np.uint8)
        self.parts = memory[:margin], memory[margin + size :]
        return int(memory.ctypes.data) + margin

    def give_back(self, address: int) -> None:
        pass


class _WatchedProducts(Products):
    """Products whose workspace is watched."""

    def __init__(self, kernels: Kernels, compiled: CompiledLibrary) -> None:
        super().__init__(kernels, compiled)
        self._workspaces: _Watched = _Watched(kernels.runtime.addresses)

    def kept_within(self) -> bool:
        return all(np.all(part == 0xA5) for part in self._workspaces.parts)


@pytest.mark.each_value
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(37, 53, 300), (2, 120, 260), (130, 9, 70), (5, 3, 520), (37, 53, 0)]
)
def test_every_candidate(backend: CpuBackend, m: int, n: int, k: int, transposed: bool) -> None:
    """Right, and in no more workspace than the plan says."""
    real = backend.products(product_types(FLOAT32))
    products = _WatchedProducts(real.kernels, real.compiled)
    a, b = uniform(1, (m, k), "float32"), uniform(2, (k, n), "float32")
    b = np.asfortranarray(b) if transposed else b
    seen = set()
    for workers in (1, 2, 4):
        problem = problem_of(a, b, workers)
        for candidate in products.planner.candidates(problem):
            if not candidate.fits(m) or candidate.choice in seen:
                continue
            seen.add(candidate.choice)
            c = np.full((m, n), np.nan, "float32")
            plan = products.planner.lay_out(problem, candidate)
            encoded = products.encode(plan, strides_of(a, b, c))
            products.launch(encoded, a, b, c, None)
            assert_product(c, a, b, message=str(candidate.choice))
            assert products.kept_within(), candidate.choice
    assert len(seen) > (4 if k else 2)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 8, 50])
@pytest.mark.parametrize("batch", [1, 7])
def test_chunks(backend: CpuBackend, batch: int, chunks: int, transposed: bool) -> None:
    """Whoever takes which chunk of panels or batch elements, all of C is computed once."""
    real = backend.products(product_types(FLOAT32))
    products = _WatchedProducts(real.kernels, real.compiled)
    m, n, k = 13, 203, 70
    a, b = uniform(1, (batch, m, k), "float32"), uniform(2, (batch, k, n), "float32")
    b = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2) if transposed else b
    c = np.full((batch, m, n), np.nan, "float32")
    source = "other" if transposed else "rows"
    axes = ((batch, a.strides[0], b.strides[0], c.strides[0]),) if batch > 1 else ()
    strides = Strides(*a.strides[1:], *b.strides[1:], c.strides[1], axes, (), True)
    seen = 0
    for workers in (2, 3):
        problem = Problem(m, n, k, batch, ROW, False, source, 0, abs(b.strides[1]), workers)
        for candidate in products.planner.candidates(problem):
            if candidate.fits(m) and candidate.chunks(m, seconds=1.0):
                # Accumulating shows a chunk that is computed twice.
                c[:] = 1.0
                plan = products.planner.lay_out(problem, candidate, chunks)
                products.launch(products.encode(plan, strides), a, b, c, None)
                assert_product(c, a, b, np.ones_like(c), str(candidate.choice))
                assert products.kept_within(), candidate.choice
                seen += 1
    assert seen


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 5), (7, 33, 100), (40, 17, 64), (3, 64, 1001)])
def test_reduction_cut(
    backend: CpuBackend, dtype: DType, parts: int, accumulate: bool, m: int, n: int, k: int
) -> None:
    products = backend.products(product_types(dtype))
    a, b = uniform(1, (m, k), dtype.name), uniform(2, (k, n), dtype.name)
    problem = problem_of(a, b, parts)
    choice = Choice(
        Grid(1, 1, 1, parts), products.compiled.library.widths[0], k, False, False, False
    )
    plan = products.planner.lay_out(problem, products.planner.candidate(problem, choice))
    assert [share.part for share in plan.shares] == list(range(parts))
    before = uniform(3, (m, n), dtype.name) if accumulate else np.full((m, n), np.nan, dtype.name)
    c, memory = lie("padded", before, guard=99.0)
    encoded = products.encode(plan, strides_of(a, b, c, accumulate))
    products.launch(encoded, a, b, c, None)
    # Each part is added to the others once more.
    assert_product(c, a, b, added_to=before if accumulate else None)
    assert np.count_nonzero(memory == 99.0) == memory.size - c.size


@pytest.mark.parametrize("parts_m", [1, 2])
def test_reduction_cut_with_an_epilogue(backend: CpuBackend, parts_m: int) -> None:
    """The epilogue is applied once, to the whole sum."""
    m, n, k, parts = 21, 43, 200, 2
    epilogue: Expr = layer_epilogue(True, "relu", True)
    x, weight = uniform(1, (m, k), "float32"), uniform(2, (n, k), "float32")
    bias, residual = uniform(3, (n,), "float32"), uniform(4, (m, n), "float32")
    layer = Dense(weight, bias, "relu", residual=True, session=backend)
    products = layer.products
    problem = layer.problem(m)._replace(workers=parts * parts_m)
    choice = Choice(Grid(1, parts_m, 1, parts), layer.panels.width, 64, False, False, False)
    plan = products.planner.lay_out(problem, products.planner.candidate(problem, choice))
    y = np.full((m, n), np.nan, "float32")
    strides = Strides(*x.strides, 0, 0, y.strides[0], (), (0, residual.strides[0]), False)
    encoded = products.encode(plan, strides)
    given = words({0: bias, 1: residual})
    products.launch(encoded, x, layer.panels.packed, y, given.address)
    sums, bound = product_bound(x, weight.T, extra=4)
    expected = evaluate(epilogue, {"acc": sums, "bias": bias, "residual": residual})
    assert np.all(np.abs(y - expected) <= bound + 1e-6)


class _CrampedSession(CpuBackend):
    """A back end that believes that its machine has next to no cache."""

    def __init__(self, backend: CpuBackend) -> None:
        super().__init__(backend.cache, backend.kernels.isa.name)
        self._session = backend
        self._cramped: dict[ProductTypes, Products] = {}

    def products(self, types: ProductTypes, *named: Any, **others: Any) -> Products:
        found = self._cramped.get(types)
        if found is None:
            real = self._session.products(types)
            library = real.compiled.library
            *caches, dram = library.hardware.levels
            sizes = (1 << 10, 1 << 13, 1 << 14, 1 << 15)
            small = [replace(c, capacity_bytes=s) for c, s in zip(caches, sizes, strict=False)]
            hardware = replace(library.hardware, levels=(*small, dram))
            (loaded, *_) = real.compiled._loaded
            cramped = replace(library, hardware=hardware)
            compiled = CompiledLibrary(cramped, loaded, real.compiled.functions)
            compiled.kernels.update(real.compiled.kernels)
            found = self._cramped[types] = Products(real.kernels, compiled)
        return found


@pytest.fixture(scope="module")
def cramped(backend: CpuBackend) -> Iterator[_CrampedSession]:
    return _CrampedSession(backend)


@settings(max_examples=60)
@given(
    m=st.integers(1, 300), n=st.integers(1, 120), k=st.integers(1, 400),
    dtype=st.sampled_from(sorted(DTYPES)), layout_a=st.sampled_from(LAYOUTS),
    layout_b=st.sampled_from(LAYOUTS), threads=st.integers(1, 3),
)  # fmt: skip
def test_blocks_of_rows_and_k(
    cramped: _CrampedSession, m: int, n: int, k: int, dtype: str, layout_a: str, layout_b: str,
    threads: int,
) -> None:  # fmt: skip
    """Operands that outgrow every cache, without being large."""
    cramped.threads = threads
    a, _ = lie(layout_a, uniform(m, (m, k), dtype))
    b, _ = lie(layout_b, uniform(n, (k, n), dtype))
    assert_product(Matmul(cramped)(a, b), a, b)


def test_blocks_are_used(cramped: _CrampedSession) -> None:
    """What the test above is about does happen."""
    planner = cramped.products(product_types(FLOAT32)).planner
    plan = planner.plan(Problem(300, 100, 400, 1, ROW, False, "rows", 0, 400, 1))
    assert plan.mc < 300
    assert plan.choice.kc < 400


def test_plans_are_forgotten(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of plans stay bounded, and a forgotten plan is made again."""
    monkeypatch.setattr("ftuner.runtime.cpu.products.MAX_PLANS", 8)
    real = backend.products(product_types(FLOAT32))
    products = Products(real.kernels, real.compiled)

    class Own(CpuBackend):
        def products(self, *named: object, **others: object) -> Products:
            return products

    matmul = Matmul(Own(backend.cache, backend.kernels.isa.name))
    for _ in range(2):
        for m in range(1, 30):
            a, b = uniform(m, (m, 9), "float32"), uniform(2, (9, 5), "float32")
            assert_product(matmul(a, b), a, b)
    assert 4 <= len(products._ready) <= 8


def test_covers_that_two_threads_make_at_once_are_one(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans have their address alone."""
    real = backend.products(product_types(FLOAT32))
    products = Products(real.kernels, real.compiled)
    library = products.compiled.library
    family, table = products.planner.cover(library.widths[0], False, 64)
    other: list[object] = []

    def encoded(*given: Any) -> Any:
        if not other:
            other.append(None)
            # Another thread is as far, and faster.
            other[0] = products.all_covers(family, table)
        return encoded_covers(*given)

    monkeypatch.setattr("ftuner.runtime.cpu.products.encoded_covers", encoded)
    assert products.all_covers(family, table) is other[0]
