"""Same inputs, same number of threads, same machine: same bits, whichever thread computes them.

A call may have the workers or go alone, be known or new, meet workers that come late, run in
another process, and find its arrays at other addresses.
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.child import printed
from tests.graph.graphs import S, graph_of, inputs_of, layer
from tests.reference import LAYOUTS, Array, lie, uniform
from tests.runtime.cpu.holding import held_elsewhere
from tests.runtime.cpu.test_products import problem_of, strides_of

from ftuner.codegen.llvm.native.records import PoolSlot
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.graph.passes.pipeline import optimised
from ftuner.planner.cpu.plan import Problem
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.attention import Attention
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.model import Model
from ftuner.runtime.ops.operands import matched

SHAPES = (
    (64, 64, 4096),
    (5, 300, 700),
    (1, 768, 768),
    (24, 768, 1024),
    (130, 70, 260),
    (300, 200, 150),
    (3, 64, 2001),
    (260, 24, 500),
)
"""m, n, k. The plans of some cut m, of others n or k."""
Call = Callable[[], list[Array]]


@pytest.fixture
def several(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    monkeypatch.setattr(backend, "threads", 2)
    return backend


def bits(arrays: list[Array]) -> list[bytes]:
    return [x.tobytes() for x in arrays]


def assert_same(call: Call, backend: CpuBackend, message: str = "") -> None:
    """With the workers and without, new and known, and while short calls avoid them."""
    pool = backend.kernels.runtime.pool
    first = bits(call())
    for _ in range(3):
        assert bits(call()) == first, f"{message}: another call"
        with held_elsewhere(pool.lock):
            assert bits(call()) == first, f"{message}: alone"
        avoided = ctypes.c_int64.from_address(pool.address + 8 * PoolSlot.ALONE_FOR)
        avoided.value = 1
        assert bits(call()) == first, f"{message}: after a worker was held up"
        avoided.value = 0


@contextmanager
def disturbed(backend: CpuBackend) -> Iterator[None]:
    """Other threads take the workers again and again meanwhile."""
    matmul = Matmul(backend)
    a, b = uniform(8, (70, 300), "float32"), uniform(9, (300, 90), "float32")
    going = True

    def work() -> None:
        while going:
            matmul(a, b)

    others = [threading.Thread(target=work) for _ in range(2)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        going = False
        for other in others:
            other.join()


# Plans.


def candidates(backend: CpuBackend, workers: int) -> Iterator[tuple[Problem, Strides, list[Array]]]:
    for m, n, k in ((37, 53, 300), (130, 9, 70), (5, 3, 520), (9, 200, 64)):
        for transposed in (False, True):
            a, b = uniform(1, (m, k), "float32"), uniform(2, (k, n), "float32")
            b = np.asfortranarray(b) if transposed else b
            c = np.empty((m, n), np.float32)
            yield problem_of(a, b, workers), strides_of(a, b, c), [a, b, c]
    batch, m, n, k = 7, 13, 70, 40
    a, b = uniform(1, (batch, m, k), "float32"), uniform(2, (batch, k, n), "float32")
    c = np.empty((batch, m, n), np.float32)
    problem = Problem(m, n, k, batch, "row", False, "rows", 0, n * 4, workers)
    axes = ((batch, a.strides[0], b.strides[0], c.strides[0]),)
    yield problem, Strides(*a.strides[1:], *b.strides[1:], c.strides[1], axes, (), False), [a, b, c]


def test_every_candidate_alone(backend: CpuBackend) -> None:
    """Any plan for several workers gives the same bits where one thread does it."""
    products = backend.products(product_types(FLOAT32))
    kinds: set[tuple[bool, ...]] = set()
    for workers in (2, 3, 4):
        for problem, strides, (a, b, c) in candidates(backend, workers):
            for candidate in products.planner.candidates(problem):
                if not candidate.fits(problem.m):
                    continue
                chunks = {0, candidate.chunks(problem.m, seconds=1.0)}
                for count in chunks:
                    plan = products.planner.lay_out(problem, candidate, count)
                    encoded = products.encode(plan, strides)
                    found = []
                    for pool in (True, False):
                        c[...] = np.nan
                        if pool:
                            products.launch(encoded, a, b, c, None)
                        else:
                            products.alone(encoded, a, b, c, None)
                        found.append(c.tobytes())
                    assert found[0] == found[1], (problem, candidate.choice, count)
                    assert not np.isnan(c).any()
                    grid = plan.choice.grid
                    kinds.add((plan.choice.shared_pack, grid.k > 1, count > 0, plan.workers > 1))
    assert {(True, False, False, True), (False, True, False, True), (False, False, True, True),
            (False, False, False, True)} <= kinds  # fmt: skip


# Products.


@pytest.mark.parametrize("transposed", [False, True])
def test_matmul(several: CpuBackend, transposed: bool) -> None:
    for m, n, k in SHAPES:
        matmul = Matmul(several)
        a, b = uniform(1, (m, k), "float32"), uniform(2, (k, n), "float32")
        b = np.asfortranarray(b) if transposed else b
        assert_same(lambda: [matmul(a, b)], several, f"{m} x {n} x {k}")  # noqa: B023


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dense(several: CpuBackend, dtype: str) -> None:
    for m, n, k in SHAPES:
        bias = uniform(3, (n,), dtype)
        dense = Dense(uniform(2, (n, k), dtype), bias, "relu", session=several)
        x = uniform(1, (m, k), dtype)
        assert_same(lambda: [dense(x)], several, f"{m} x {n} x {k}")  # noqa: B023


def test_grouped_matmul(several: CpuBackend) -> None:
    grouped = several.grouped_matmul
    a = [uniform(i, (m, k), "float32") for i, (m, _, k) in enumerate(SHAPES)]
    b = [uniform(i, (k, n), "float32") for i, (_, n, k) in enumerate(SHAPES)]
    assert_same(lambda: list(grouped(matched(a, b, None))), several)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(several: CpuBackend, causal: bool) -> None:
    attending = Attention(several)
    for heads, rows, keys in ((3, 40, 40), (1, 5, 300), (8, 1, 90)):
        q, k, v = (uniform(i, (heads, n, 16), "float32") for i, n in enumerate((rows, keys, keys)))
        assert_same(lambda: [attending(q, k, v, causal=causal)], several)  # noqa: B023


def test_while_others_come_and_go(several: CpuBackend) -> None:
    matmul = Matmul(several)
    for m, n, k in SHAPES[:4]:
        a, b = uniform(1, (m, k), "float32"), uniform(2, (k, n), "float32")
        expected = matmul(a, b).tobytes()
        with disturbed(several):
            found = {matmul(a, b).tobytes() for _ in range(60)}
        assert found == {expected}, (m, n, k)


def placed(like: Array, offset: int) -> Array:
    """A copy with the same strides that begins `offset` bytes after a cache line."""
    reach = sum((n - 1) * abs(s) for n, s in zip(like.shape, like.strides, strict=True))
    memory = np.zeros(reach + like.itemsize + 128 + offset, np.uint8)
    first = sum(-(n - 1) * s for n, s in zip(like.shape, like.strides, strict=True) if s < 0)
    start = -memory.ctypes.data % 64 + offset + first
    found: Array = np.ndarray(like.shape, like.dtype, memory, start, like.strides)
    found[...] = like
    return found


OFFSETS = (0, 4, 8, 20, 32, 60, 1, 2, 7)
"""Bytes after a cache line; the last ones take elements off their alignment."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_addresses(several: CpuBackend, layout: str) -> None:
    matmul = Matmul(several)
    for m, n, k in ((37, 200, 300), (9, 2100, 130)):
        a, _ = lie(layout, uniform(1, (m, k), "float32"))
        b, _ = lie(layout, uniform(2, (k, n), "float32"))
        out, _ = lie(layout, uniform(3, (m, n), "float32"))
        expected = matmul(a, b, placed(out, 0)).tobytes()
        dense = Dense(uniform(4, (n, k), "float32"), session=several)
        of_layer = dense(a).tobytes()
        for offset in OFFSETS:
            given = placed(a, offset), placed(b, OFFSETS[-1 - OFFSETS.index(offset)])
            assert given[0].strides == a.strides
            assert matmul(*given, placed(out, offset)).tobytes() == expected, offset
            assert dense(given[0]).tobytes() == of_layer, offset


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_that_overlap_operands(several: CpuBackend, layout: str) -> None:
    """What has to be written elsewhere first is planned as if it had not."""
    matmul = Matmul(several)
    n = 150
    a, _ = lie(layout, uniform(1, (n, n), "float32"))
    b = uniform(2, (n, n), "float32")
    out, _ = lie(layout, uniform(3, (n, n), "float32"))
    expected = matmul(a, b, out).tobytes()
    into = placed(a, 0)
    assert several.grouped_matmul(matched([into], [b], [into]))[0].tobytes() == expected
    into = placed(a, 0)
    assert matmul(into, b, into).tobytes() == expected


# Models.


WIDE = 4096
GRAPHS = {
    "encoder": (optimised(layer()), {"B": 2, "S": 37}),
    "weight": (
        graph_of(lambda g: g.add("matmul", g.given("x", S, WIDE), g.weight(WIDE, 64))), {"S": 5},
    ),
    "inputs": (
        graph_of(lambda g: g.add("matmul", g.given("x", S, WIDE), g.given("y", WIDE, 64))),
        {"S": 64},
    ),
}  # fmt: skip
"""Graphs with extents; sums over many steps of k are cut."""


@pytest.mark.each_value
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("threads", [2, 3])
def test_models(several: CpuBackend, name: str, threads: int) -> None:
    graph, extents = GRAPHS[name]
    model = Model(graph, several, Options(threads=threads))
    feeds = inputs_of(graph, extents)
    assert_same(lambda: model.run(feeds), several, name)
    other = Model(graph, several, Options(threads=threads))
    assert bits(other.run(feeds)) == bits(model.run(feeds))


def test_a_model_while_others_come_and_go(several: CpuBackend) -> None:
    """Workers come late or not at all, and runs go alone."""
    graph = optimised(layer())
    model = Model(graph, several, Options(threads=3))
    feeds = inputs_of(graph, {"B": 2, "S": 37})
    expected = bits(model.run(feeds))
    with disturbed(several):
        for _ in range(60):
            assert bits(model.run(feeds)) == expected


# Threads and processes.


@pytest.mark.skipif(sys.platform != "linux", reason="another C library")
def test_rounding_modes_of_threads(several: CpuBackend) -> None:
    """A thread's own mode changes nothing, and is put back: neither that of the caller nor the one
    that workers were made in."""
    library = ctypes.CDLL("libm.so.6")
    upward = 0x800 if platform.machine() == "x86_64" else 0x400000
    matmul = Matmul(several)
    model = Model(optimised(layer()), several, Options(threads=2))
    a, b = uniform(1, (64, 700), "float32"), uniform(2, (700, 300), "float32")
    feeds = inputs_of(optimised(layer()), {"B": 2, "S": 37})
    pool = several.kernels.runtime.pool

    def call() -> list[Array]:
        return [matmul(a, b), *model.run(feeds)]

    expected = bits(call())
    pool.shut_down()
    try:
        assert library.fesetround(upward) == 0
        found = [call() for _ in range(3)]
        with held_elsewhere(pool.lock):
            found.append(call())
        assert library.fegetround() == upward
    finally:
        library.fesetround(0)
    assert [bits(x) for x in found] == [expected] * 4
    assert bits(call()) == expected
    pool.shut_down()


SCRIPT = """
import hashlib, os, sys
import numpy as np
import ftuner
def digest():
    found = hashlib.sha256()
    for m, n, k in ((64, 64, 4096), (5, 300, 700), (130, 70, 260)):
        random = np.random.default_rng(m)
        a = random.random((m, k), dtype=np.float32)
        b = random.random((k, n), dtype=np.float32)
        layer = ftuner.Dense(b.T)
        for _ in range(3):
            found.update(ftuner.matmul(a, b).tobytes())
            found.update(layer(a).tobytes())
    return found.hexdigest()
# Another history, and other addresses.
for i in range(int(sys.argv[1])):
    ftuner.matmul(np.ones((i + 1, 50), np.float32), np.ones((50, 70), np.float32))
print(digest())
if hasattr(os, "fork"):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print(digest())
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_processes(widest: CpuBackend, cache_folder: Path) -> None:
    widest.products(product_types(FLOAT32))
    found: list[str] = []
    for history in ("0", "23"):
        environment = {
            **os.environ, "FTUNER_CACHE_DIR": str(cache_folder), "FTUNER_NUM_THREADS": "2",
            "FTUNER_ISA": "", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        done = printed("-c", SCRIPT, history, env=environment)
        found += done.split()
    assert len(found) >= 2
    assert len(set(found)) == 1
