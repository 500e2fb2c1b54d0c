"""Ctrl-C at any place: no lock is held afterwards, nothing half done is believed, all goes on."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import HOST_ISAS
from tests.runtime.interrupting import Interrupter, is_free
from tests.runtime.test_cache import small_bundles

from ftuner.codegen.llvm.objects.jit import host_target
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import product_types
from ftuner.graph.builder import Builder
from ftuner.runtime.cache import Cache
from ftuner.runtime.compile_processes import worthwhile_processes
from ftuner.runtime.cpu import compilation, memory
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.compilation import Compiler
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.model import Model

# An interrupt within a finaliser is reported, and goes no further.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
RANDOM = np.random.default_rng(0)
A, B = (RANDOM.random(shape, np.float32) for shape in ((300, 96), (96, 260)))
PRODUCT = A @ B


@pytest.fixture
def two(cache_folder: Path) -> Iterator[CpuBackend]:
    """A back end of its own with two threads, of which everything is in the cache."""
    backend = CpuBackend(Cache(cache_folder), HOST_ISAS[-1])
    backend.threads = 2
    backend.products(product_types(FLOAT32))
    yield backend
    backend.kernels.runtime.pool.shut_down()


def check(backend: CpuBackend) -> None:
    """Whether locks are free, and new and known calls are right, with the workers."""
    runtime = backend.kernels.runtime
    locks = {
        "backend": backend._lock, "kernels": backend.kernels._lock, "pool": runtime.pool.lock,
        "workspaces": runtime.workspaces._lock, "memory": memory._lock,
    }  # fmt: skip
    assert [name for name, lock in locks.items() if not is_free(lock)] == []
    matmul = Matmul(backend)
    for _ in range(3):
        assert np.allclose(matmul(A, B), PRODUCT, rtol=1e-4)
    assert runtime.pool.threads == backend.threads


def interrupt_everywhere(backend: CpuBackend, work: Callable[[], object], most: int = 100) -> None:
    """Interrupt work at each place, or at `most` of them, and see what is left each time."""
    interrupter = Interrupter()
    work()
    found = interrupter.places(work)
    came = 0
    for number in found[:: -(-len(found) // most)]:
        came += interrupter.interrupted(work, number)
        try:
            work()
            check(backend)
        except BaseException as error:
            raise AssertionError(f"interrupted at {interrupter.place}") from error
    assert came > 0


def test_products(two: CpuBackend) -> None:
    matmul, rows = Matmul(two), [0]

    def work() -> None:
        # Planned anew.
        rows[0] = rows[0] % 290 + 1
        x = A[: rows[0]]
        for _ in range(2):
            assert np.allclose(matmul(x, B), PRODUCT[: rows[0]], rtol=1e-4)

    interrupt_everywhere(two, work)


def test_layers(two: CpuBackend) -> None:
    weight = np.ascontiguousarray(B.T)

    def work() -> None:
        layer = Dense(weight, session=two)
        assert np.allclose(layer(A), PRODUCT, rtol=1e-4)

    interrupt_everywhere(two, work)


def small_model(backend: CpuBackend) -> Model:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("rows"), 96))
    y = builder.add("tanh", builder.add("matmul", x, builder.constant(B)))
    return Model(builder.graph([x], [("y", y)]), backend)


def test_models(two: CpuBackend) -> None:
    expected = np.tanh(PRODUCT)

    def work() -> None:
        (found,) = small_model(two).run({"x": A})
        assert np.allclose(found, expected, rtol=1e-4)

    interrupt_everywhere(two, work, 40)


def test_runs(two: CpuBackend) -> None:
    model, expected, rows = small_model(two), np.tanh(PRODUCT), [0]

    def work() -> None:
        rows[0] = rows[0] % 290 + 1
        for _ in range(2):
            (found,) = model.run({"x": A[: rows[0]]})
            assert np.allclose(found, expected[: rows[0]], rtol=1e-4)

    interrupt_everywhere(two, work)


def test_tuning(two: CpuBackend, cache_folder: Path) -> None:
    """A back end that begins with nothing but the cache, the same one until it is done."""
    backends: list[CpuBackend] = []

    def work() -> None:
        if not backends:
            backends.append(CpuBackend(Cache(cache_folder), HOST_ISAS[-1]))
        backend = backends[0]
        backend.threads = 2
        backend.kernels.tune(product_types(FLOAT32), ACCUMULATOR)
        assert np.allclose(Matmul(backend)(A, B), PRODUCT, rtol=1e-4)
        check(backend)
        backends.pop().kernels.runtime.pool.shut_down()

    interrupt_everywhere(two, work, 40)


def test_compiling(two: CpuBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes."""
    monkeypatch.setattr(compilation, "worthwhile_processes", worthwhile_processes)
    target, folders = host_target(HOST_ISAS[0]), iter(range(10_000))

    def work() -> None:
        compiler = Compiler(target, Cache(tmp_path / str(next(folders))), 3)
        objects = compiler.compile_missing(small_bundles(), None)
        assert compiler.load(small_bundles(), objects).addresses

    interrupt_everywhere(two, work, 30)
    assert not list(tmp_path.rglob(".writing-*"))


def test_ctrl_c_while_tuning(tmp_path: Path) -> None:
    """The signal itself, to all processes of a terminal, while compiling ones are at work."""
    folder = tmp_path / "cache"
    script = """
import os, signal, threading
import numpy as np
import ftuner

# A shell has its background jobs ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt(what, done, total):
    if done == 2:
        os.killpg(0, signal.SIGINT)

ones = np.ones((300, 200), np.float32)
try:
    ftuner.tune("float32", progress=interrupt, calibrate="none")
except KeyboardInterrupt:
    assert threading.active_count() == 1, threading.enumerate()
    for _ in range(3):
        assert np.array_equal(ftuner.matmul(ones, ones.T), np.full((300, 300), 200, np.float32))
    print("done", flush=True)
"""
    environment = {**os.environ, "FTUNER_CACHE_DIR": str(folder), "FTUNER_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, start_new_session=True, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not list(folder.rglob(".writing-*"))
