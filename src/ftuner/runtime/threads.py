"""The Python half of the thread pool: threads that enter native code once and stay there.

The pool is made on first use and after a fork, grown when more threads are asked for, and shut down
at exit. One caller at a time has the workers; who comes meanwhile, from another thread, runs
alone.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading

import numpy as np

from ftuner.codegen.llvm.abi import SLOT_BYTES, PoolSlot
from ftuner.errors import ConfigurationError

THREADS_VARIABLE = "FTUNER_NUM_THREADS"
MAX_THREADS = 1024


class ThreadPool:
    """Up to `MAX_THREADS` native workers; worker 0 is whoever launches.

    `worker_address` and `run_address`: the native worker loop and launch.
    """

    def __init__(self, worker_address: int, run_address: int) -> None:
        self._worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(worker_address)
        run_type = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self._run = run_type(run_address)
        self.lock = threading.Lock()
        """Held while the workers are in use."""
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.shut_down)

    def _reset(self) -> None:
        """Forget all workers: they do not exist in a forked child."""
        slots = PoolSlot.MAILBOXES + MAX_THREADS * PoolSlot.MAILBOX_SIZE
        self._memory = np.zeros(slots + 16, dtype=np.int64)
        line = 16 * SLOT_BYTES
        self.address = -(-self._memory.ctypes.data // line) * line
        self._threads: list[threading.Thread] = []
        self.threads = 1
        """Workers there are, the caller included."""
        self.lock = threading.Lock()

    def grow(self, threads: int) -> None:
        """Have at least `threads` workers, the caller included. Call it with the lock held."""
        for index in range(len(self._threads) + 1, threads):
            thread = threading.Thread(
                target=self._worker, args=(self.address, index), name=f"ftuner-{index}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self.threads = len(self._threads) + 1

    def shut_down(self) -> None:
        """Let all workers leave native code; the pool grows again on the next use."""
        with self.lock:
            if self._threads:
                self._run(self.address, None, None, len(self._threads) + 1)
                for thread in self._threads:
                    thread.join()
                self._threads = []
                self.threads = 1
                # New workers start counting jobs from zero.
                self._memory[:] = 0


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


def checked_threads(threads: int) -> int:
    """`threads`, if it is a number of threads that a pool can have."""
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise ConfigurationError(f"thread count is {threads!r}; expected an integer")
    if not 1 <= threads <= MAX_THREADS:
        raise ConfigurationError(f"thread count is {threads}; expected 1 to {MAX_THREADS}")
    return threads
