"""Running matrix products of one library: plan, write, launch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ftuner.core.bounded import forget_oldest
from ftuner.core.ukernel import MAX_OPERANDS
from ftuner.errors import ConfigurationError
from ftuner.planner.plan import Plan, Problem
from ftuner.planner.planner import planner_for
from ftuner.runtime.arrays import DATA_WORD, Array
from ftuner.runtime.cpu import CompiledLibrary, CpuBackend
from ftuner.runtime.encode import Encoded, PlanWriter, Strides

MAX_PLANS = 4096
"""Plans kept by one library. Derived: a plan is some 2 KiB, so at most 8 MiB."""
MAX_KEPT_WORKSPACE_BYTES = 256 << 20
"""A larger workspace is given back after the call that needed it."""


class Words(NamedTuple):
    """Where native code finds the arrays of an epilogue."""

    memory: Array | None
    """For each array, the address of the word that holds the address of its elements."""
    address: int | None


NO_WORDS = Words(None, None)


def words(arrays: Sequence[Array]) -> Words:
    """The words of arrays, which must outlive them."""
    memory = np.zeros(MAX_OPERANDS, dtype=np.uint64)
    memory[: len(arrays)] = [id(x) + DATA_WORD for x in arrays]
    return Words(memory, memory.ctypes.data)


class Ready(NamedTuple):
    """A shape and layout with its written plan."""

    problem: Problem
    strides: Strides
    encoded: Encoded


class Products:
    """Matrix products with one dtype and epilogue. Safe to use from several threads."""

    def __init__(self, backend: CpuBackend, compiled: CompiledLibrary) -> None:
        self.backend = backend
        self.compiled = compiled
        self.planner = planner_for(compiled.library)
        self._entry = backend.runtime.entries[compiled.library.dtype]
        self._pool = backend.runtime.pool
        self._ready: dict[tuple[Problem, Strides], Ready] = {}
        self._writers: dict[tuple[object, ...], PlanWriter] = {}
        self._own = threading.local()

    def ready(self, problem: Problem, strides: Strides) -> Ready:
        """The written plans of a problem; made now if it is new."""
        key = (problem, strides)
        found = self._ready.get(key)
        if found is None:
            found = Ready(problem, strides, self.encode(self.planner.plan(problem), strides))
            forget_oldest(self._ready, MAX_PLANS)
            self._ready[key] = found
        return found

    def seconds(self, ready: Ready) -> float:
        """What a problem's plan takes by the estimate."""
        return self.planner.estimate(self.planner.plan(ready.problem)).seconds

    def alone(self, ready: Ready, make: bool) -> Encoded | None:
        """The plan for one thread, if it has been made, or `make` asks for it."""
        problem = ready.problem._replace(workers=1)
        found = self._ready.get((problem, ready.strides))
        if found is None and make:
            found = self.ready(problem, ready.strides)
        return None if found is None else found.encoded

    def encode(self, plan: Plan, strides: Strides) -> Encoded:
        """Write a plan for arrays that lie as `strides` says."""
        bands = [len(s.bands) for s in plan.shares]
        key = (plan.problem[1:], plan.choice, strides, plan.chunks > 0, *bands)
        writer = self._writers.get(key)
        if writer is None:
            compiled = self.compiled
            itemsize = compiled.library.dtype.itemsize
            writer = PlanWriter(plan, strides, itemsize, compiled.kernels, compiled.reduce_address)
            forget_oldest(self._writers, MAX_PLANS)
            self._writers[key] = writer
        return writer.write(plan)

    def run(self, ready: Ready, a: Array, b: Array, c: Array, operands: int | None = None) -> None:
        """One product. The arrays must lie as the plan was written for; `operands` is the address
        of the epilogue's `Words`."""
        encoded = ready.encoded
        if encoded.workers == 1:
            self._enter(encoded, None, a, b, c, operands)
            return
        if self._pool.lock.acquire(blocking=False):
            try:
                if self._together(encoded, a, b, c, operands):
                    return
            finally:
                self._pool.lock.release()
        # Another thread has the workers, or there are none to be had: do the work alone.
        alone = self.ready(ready.problem._replace(workers=1), ready.strides)
        self._enter(alone.encoded, None, a, b, c, operands)

    def launch(self, encoded: Encoded, a: Array, b: Array, c: Array, operands: int | None) -> None:
        """Run a plan as it is, waiting for the workers if another thread has them."""
        with self._pool.lock:
            if not self._together(encoded, a, b, c, operands):
                raise ConfigurationError(f"cannot start {encoded.workers - 1} threads")

    def _enter(
        self, encoded: Encoded, pool: int | None, a: Array, b: Array, c: Array,
        operands: int | None,
    ) -> None:  # fmt: skip
        size = encoded.workspace_bytes
        self._entry(
            encoded.address,
            pool,
            self._workspace(size) if size else None,
            id(a) + DATA_WORD,
            id(b) + DATA_WORD,
            id(c) + DATA_WORD,
            operands,
        )

    def _together(
        self, encoded: Encoded, a: Array, b: Array, c: Array, operands: int | None
    ) -> bool:
        """Run a plan on the pool; False if it lacks the workers."""
        if self._pool.threads < encoded.workers and not self._pool.grow(encoded.workers):
            return False
        self._enter(encoded, self._pool.address, a, b, c, operands)
        return True

    def _workspace(self, size: int) -> int:
        """The address of this thread's workspace, grown to `size` bytes, on a cache line."""
        own = self._own
        kept = getattr(own, "size", -1)
        if kept < size or kept > MAX_KEPT_WORKSPACE_BYTES >= size:
            own.memory = np.empty(size + 64, dtype=np.uint8)
            own.size = size
            own.address = -(-own.memory.ctypes.data // 64) * 64
        return int(own.address)
