"""The Python half of the thread pool: threads that enter native code once and stay there.

Workers are started on first use and after a fork; more are started when more threads are asked for.
They are stopped at exit. One caller at a time has the workers; callers from other threads meanwhile
run alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ftuner.codegen.llvm.native.records import SLOT_BYTES, PoolSlot
from ftuner.codegen.llvm.native.symbols import POOL_RUN_SYMBOL, POOL_WORKER_SYMBOL
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.fork_safety import Lock, renew_after_fork
from ftuner.core.given import checked_integer
from ftuner.errors import ConfigurationError

THREADS_VARIABLE = "FTUNER_NUM_THREADS"
MAX_THREADS = 1024


class ThreadPool:
    """Up to `MAX_THREADS` native workers; worker 0 is the calling thread.

    `code` holds the native worker loop and launch. It stays loaded while there are workers. They
    stop when the pool is garbage collected, at exit at the latest.
    """

    def __init__(self, code: LoadedObject) -> None:
        self._code = code
        self._forget_workers()
        renew_after_fork(self)

    def _forget_workers(self) -> None:
        slots = PoolSlot.MAILBOXES + MAX_THREADS * PoolSlot.MAILBOX_SIZE
        self._memory = memory = np.zeros(slots + 16, dtype=np.int64)
        line = 16 * SLOT_BYTES
        self.address = -(-memory.ctypes.data // line) * line
        self.lock = threading.RLock()
        """Held while the workers are in use. Reentrant, because such a lock knows its owner: after
        an interrupt right before or after acquiring it, it is released only if it was acquired."""
        self._workers: list[threading.Thread] = []
        self._held = (self._code, memory, self.address, self.lock, self._workers)
        self._finalizer = weakref.finalize(self, _stop, *self._held)

    def renew_in_child(self) -> None:
        """Forget the workers after a fork: they are the parent's."""
        self._finalizer.detach()
        self._forget_workers()

    @property
    def threads(self) -> int:
        """Number of workers, including the caller."""
        return len(self._workers) + 1

    def grow(self, threads: int) -> bool:
        """Have at least `threads` workers, the caller included. Call it with the lock held.

        Returns whether there are as many: the system may refuse to start one, and at exit none is
        started.
        """
        if not self._finalizer.alive:
            return False
        try:
            for index in range(self.threads, threads):
                self._start(index)
        except RuntimeError:
            return False
        finally:
            started = ctypes.c_int64.from_address(self.address + PoolSlot.STARTED * SLOT_BYTES)
            started.value = len(self._workers)
        return True

    def _start(self, index: int) -> None:
        """Start a worker. Raises RuntimeError where the system refuses."""
        permit = [index]
        worker = threading.Thread(
            target=_work, args=(self._code, self._memory, self.address, permit),
            name=f"ftuner-{index}", daemon=True,
        )  # fmt: skip
        try:
            # Listed before it runs, so that no interrupt leaves a worker that is not listed.
            self._workers.append(worker)
            worker.start()
        except BaseException:
            # A worker begins only with its permit, so that none is waited for that never starts.
            with suppress(IndexError):
                permit.pop()
                del self._workers[index - 1 :]
            raise

    def shut_down(self) -> None:
        """Let all workers leave native code; the pool grows again on the next use."""
        _stop(*self._held)


def _work(code: LoadedObject, memory: NDArray[np.int64], address: int, permit: list[int]) -> None:
    """Run one worker until it is stopped. Its code and memory stay alive until then, even if an
    interrupt kept the pool from stopping it."""
    with suppress(IndexError):
        _WORKER_TYPE(code.addresses[POOL_WORKER_SYMBOL])(address, permit.pop())


def _stop(
    code: LoadedObject, memory: NDArray[np.int64], address: int, lock: Lock,
    workers: list[threading.Thread],
) -> None:  # fmt: skip
    with lock:
        if workers:
            run = RUN_TYPE(code.addresses[POOL_RUN_SYMBOL])
            run(address, None, None, len(workers) + 1, 0, 0)
            for worker in workers:
                worker.join()
            workers.clear()
            # New workers start counting jobs from zero.
            memory[:] = 0


_WORKER_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
RUN_TYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)


def usable_threads(cores: int) -> int:
    """Threads to use by default: `FTUNER_NUM_THREADS`, or all cores this process may use.

    Raises:
        ConfigurationError: the variable is not a number from 1 to `MAX_THREADS`.
    """
    text = os.environ.get(THREADS_VARIABLE)
    if text is None or not text.strip():
        return cores
    try:
        return checked_threads(int(text))
    except ValueError:
        raise ConfigurationError(
            f"{THREADS_VARIABLE} is {text!r}; expected a number from 1 to {MAX_THREADS}"
        ) from None


def checked_threads(threads: object) -> int:
    """`threads` if a pool can have as many; ConfigurationError otherwise."""
    expected = f"an integer from 1 to {MAX_THREADS}"
    return checked_integer(
        threads, "thread count", 1, MAX_THREADS + 1, ConfigurationError, expected
    )
