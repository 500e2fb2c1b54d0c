"""Threads: callers that come at once, counts out of range, forks, shut-downs and exits."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.at_once import at_once
from tests.reference import assert_product, uniform
from tests.runtime.cpu.holding import held_elsewhere

import ftuner
from ftuner.errors import ConfigurationError
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.threads import MAX_THREADS, checked_threads, usable_threads

A, B = uniform(1, (300, 150), "float32"), uniform(2, (150, 200), "float32")
SHAPES = [(64, 96, 128), (7, 200, 33), (130, 65, 70), (1, 500, 300)]


@pytest.fixture
def several(widest: CpuBackend) -> Iterator[CpuBackend]:
    """The widest ISA on two threads."""
    widest.threads = 2
    yield widest
    widest.threads = 1


def test_many_callers_at_once(several: CpuBackend) -> None:
    """Each gets its own right answer, whether or not it had the workers."""
    weight = uniform(0, (150, 90), "float32")
    layer = Dense(weight, session=several)
    matmul = Matmul(several)

    def call(caller: int) -> None:
        for turn in range(40):
            rows = 1 + (17 * caller + 7 * turn) % 60
            x = uniform(1000 * caller + turn, (rows, 90), "float32")
            assert_product(layer(x), x, weight.T)
            assert_product(matmul(x, weight.T), x, weight.T)

    at_once(*(partial(call, caller) for caller in range(6)))


def test_a_caller_without_the_workers_goes_on(several: CpuBackend) -> None:
    """While another thread has the workers, a call does its work alone."""
    matmul = Matmul(several)
    a, b = uniform(1, (200, 150), "float32"), uniform(2, (150, 120), "float32")
    matmul(a, b)
    with held_elsewhere(several.kernels.runtime.pool.lock):
        assert_product(matmul(a, b), a, b)


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
def test_more_threads_than_cores(widest: CpuBackend, threads: int) -> None:
    widest.threads = threads
    matmul = Matmul(widest)
    for m, n, k in SHAPES:
        for order in ("C", "F"):
            a, b = (
                uniform(1, (m, k), "float32"),
                np.array(uniform(2, (k, n), "float32"), order=order),
            )
            assert_product(matmul(a, b), a, b)
            assert_product(matmul(a, b), a, b)


def test_pool_is_used_again_after_it_was_shut_down(several: CpuBackend) -> None:
    matmul = Matmul(several)
    pool = several.kernels.runtime.pool
    for _ in range(3):
        assert_product(matmul(A, B), A, B)
        assert pool.threads > 1
        pool.shut_down()
        assert pool.threads == 1
    pool.shut_down()
    assert_product(matmul(A, B), A, B)


def test_threads_that_cannot_be_started(
    several: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller then does the work alone."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    several.kernels.runtime.pool.shut_down()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert_product(Matmul(several)(A, B), A, B)
    assert several.kernels.runtime.pool.threads == 1
    monkeypatch.undo()
    assert_product(Matmul(several)(A, B), A, B)
    assert several.kernels.runtime.pool.threads == 2


def test_workers_end_with_their_session() -> None:
    """A forgotten back end takes its workers along, and their code only after them."""
    before = set(threading.enumerate())
    backend = CpuBackend()
    backend.threads = 3
    assert_product(Matmul(backend)(A, B), A, B)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    del backend
    gc.collect()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("bad", [0, -1, MAX_THREADS + 1, 1.5, True, "2", None])
def test_thread_counts_out_of_range(bad: object) -> None:
    with pytest.raises(ConfigurationError, match="thread count is"):
        checked_threads(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="thread count is"):
        ftuner.set_num_threads(bad)  # type: ignore[arg-type]


def test_thread_counts_in_range() -> None:
    assert [checked_threads(n) for n in (1, 2, MAX_THREADS)] == [1, 2, MAX_THREADS]


@pytest.mark.parametrize("bad", ["0", "-3", "1025", "two", "1.5", "1 2"])
def test_variable_out_of_range(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("FTUNER_NUM_THREADS", bad)
    with pytest.raises(ConfigurationError, match="FTUNER_NUM_THREADS is"):
        usable_threads(4)


def test_variable_in_range(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, threads in (("3", 3), (" 7 ", 7), ("", 4), ("  ", 4)):
        monkeypatch.setenv("FTUNER_NUM_THREADS", text)
        assert usable_threads(4) == threads
    monkeypatch.delenv("FTUNER_NUM_THREADS")
    assert usable_threads(4) == 4


PRELUDE = """
import os, sys
import numpy as np
import ftuner
a = np.random.default_rng(0).random((300, 200), dtype=np.float32)
b = np.random.default_rng(1).random((200, 260), dtype=np.float32)
def right():
    return np.allclose(ftuner.matmul(a, b), a @ b, rtol=1e-4)
def workers():
    from ftuner.runtime.cpu.backend import default_backend
    return default_backend().kernels.runtime.pool.threads
"""


FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
assert right() and workers() == 2
child = os.fork()
if child == 0:
    assert workers() == 1
    good = right() and workers() == 2
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(0 if right() else 1)
    good = good and os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0
    sys.exit(0 if good else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == 0, code
assert right()
print("done")
"""
"""A child has none of its parent's workers: it makes its own. The parent's go on."""
POOL = """
import warnings, multiprocessing
warnings.simplefilter("ignore", DeprecationWarning)
assert right()
with multiprocessing.get_context("fork").Pool(2) as pool:
    answers = pool.starmap(right, [()] * 4)
assert all(answers) and right()
print("done")
"""
"""Data loaders fork after the model has run."""
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.mark.parametrize(
    ("script", "status"),
    [
        pytest.param("assert right(); assert workers() == 2; print('done')", 0, id="alive"),
        pytest.param("assert right(); print('done'); sys.exit(3)", 3, id="error"),
        pytest.param(FORK, 0, id="fork", marks=FORKS),
        pytest.param(POOL, 0, id="pool", marks=FORKS),
    ],
)
def test_exits(widest: CpuBackend, cache_folder: Path, script: str, status: int) -> None:
    """Of programs with a warm cache and two threads."""
    environment = {
        **os.environ, "FTUNER_CACHE_DIR": str(cache_folder), "FTUNER_NUM_THREADS": "2",
        "FTUNER_ISA": "",
    }  # fmt: skip
    command = [sys.executable, "-X", "faulthandler", "-c", PRELUDE + script]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (status, "done", "")
