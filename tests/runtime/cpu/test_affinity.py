"""Where threads may run is for the user to say: workers keep what they are given, at any time."""

import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from tests.reference import uniform

from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.matmul import Matmul

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
        reason="needs two CPUs of Linux",
    ),
]


class Pool:
    """The pool of a back end, with the threads of its workers."""

    def __init__(self, backend: CpuBackend, threads: int) -> None:
        backend.threads = threads
        self._pool = backend.kernels.runtime.pool
        self._pool.shut_down()
        self._matmul = Matmul(backend)
        self._operands = uniform(1, (300, 200), "float32"), uniform(2, (200, 300), "float32")
        before = set(threading.enumerate())
        self._matmul(*self._operands)
        new = set(threading.enumerate()) - before
        self.workers = [thread.native_id for thread in new if thread.native_id is not None]
        assert len(self.workers) == threads - 1

    def wake(self) -> None:
        """A call that finds the workers asleep."""
        time.sleep(0.005)
        self._matmul(*self._operands)
        self._matmul(*self._operands)

    def allowed(self) -> list[set[int]]:
        return [os.sched_getaffinity(worker) for worker in self.workers]

    def allow(self, cpus: set[int]) -> None:
        for worker in self.workers:
            os.sched_setaffinity(worker, cpus)

    def settles(self, cpus: set[int]) -> bool:
        """Whether all workers may run on some CPUs in the end: one that came late to a call is
        barred from the caller's CPU until it has come to another."""
        for _ in range(50):
            if self.allowed() == [cpus] * len(self.workers):
                return True
            self.wake()
        return False


@pytest.fixture
def own() -> Iterator[set[int]]:
    """The CPUs of this thread, which are put back."""
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


@pytest.fixture
def pool(widest: CpuBackend) -> Iterator[Pool]:
    found = Pool(widest, 2)
    yield found
    widest.kernels.runtime.pool.shut_down()


def test_workers_may_run_anywhere_again(pool: Pool, own: set[int]) -> None:
    for _ in range(20):
        pool.wake()
        assert all(cpus <= own for cpus in pool.allowed())
    assert pool.settles(own)


def test_what_is_set_after_the_start_stays(pool: Pool, own: set[int]) -> None:
    first, second, *_ = sorted(own)
    for cpus in ({first}, {second}, own, {second}, {first}, {first, second}):
        pool.allow(cpus)
        for _ in range(10):
            pool.wake()
            # Narrower for a moment, never wider.
            assert all(now <= cpus for now in pool.allowed())
        assert pool.settles(cpus)


def test_callers_that_are_bound(pool: Pool, own: set[int]) -> None:
    """Wherever the caller runs, workers get back what they had."""
    for cpu in sorted(own)[:2] * 3:
        os.sched_setaffinity(0, {cpu})
        for _ in range(5):
            pool.wake()
    os.sched_setaffinity(0, own)
    assert pool.settles(own)


def test_more_workers_than_cpus(widest: CpuBackend, own: set[int]) -> None:
    pool = Pool(widest, len(own) + 3)
    cpus = {min(own)}
    for given in (own, cpus, own):
        pool.allow(given)
        for _ in range(10):
            pool.wake()
            assert all(now <= given for now in pool.allowed())
        assert pool.settles(given)
    widest.kernels.runtime.pool.shut_down()
    widest.threads = 1
