"""Products: matrix products of one library, planned, written and launched."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ftuner.core.caching import RecentlyUsed
from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.dtype import moved_as
from ftuner.core.ranges import after_fine
from ftuner.errors import ConfigurationError
from ftuner.planner.cpu.candidates import Candidate
from ftuner.planner.cpu.cover import CoverTable
from ftuner.planner.cpu.plan import Plan, Problem
from ftuner.planner.cpu.planner import planner_for
from ftuner.runtime.cpu.arrays import DATA_WORD, Array
from ftuner.runtime.cpu.kernels import CompiledLibrary, Kernels
from ftuner.runtime.cpu.plan_records import Encoded, PlanWriter, RowRange, Strides, encoded_covers
from ftuner.ukernels.cpu.library import Family, LibraryName

MAX_PLANS = 8192
"""Plans of each kind kept by one library. Derived: a plan is some 2 KiB for two workers and 10 KiB
for 64, so at most 16 to 80 MiB."""


class CoverKey(NamedTuple):
    """What decides the covers of rows by panels that stay in L2."""

    vectors: int
    tail: bool
    magnitude: int
    """Bits of the length of k."""
    layout: str
    """Of A."""


class Words(NamedTuple):
    """The table in which native code finds the arrays of an epilogue."""

    memory: Array | None
    """For each array, the address of the word that holds the address of its elements."""
    address: int | None


def words(arrays: Mapping[int, Array]) -> Words:
    """The words of arrays, by the places of the operands; the arrays must outlive them."""
    if not arrays:
        return Words(None, None)
    memory = np.zeros(MAX_OPERANDS, dtype=np.uint64)
    for place, operand in arrays.items():
        memory[place] = id(operand) + DATA_WORD
    return Words(memory, memory.ctypes.data)


class Ready(NamedTuple):
    """A shape and layout with its written plan."""

    problem: Problem
    strides: Strides
    encoded: Encoded


class PlannedRanges(NamedTuple):
    """The plans of one product for ranges of rows."""

    products: Products
    problem: Problem
    """The problem of one row."""
    strides: Strides
    firsts: tuple[int, ...]
    """The first rows of the ranges."""
    plans: tuple[Encoded, ...]


class Products:
    """Matrix products with the same dtypes and epilogue. Safe to use from several threads."""

    def __init__(self, kernels: Kernels, compiled: CompiledLibrary) -> None:
        self.kernels = kernels
        self.compiled = compiled
        self.name = LibraryName(compiled.library.types, compiled.library.epilogue)
        self.planner = planner_for(compiled.library)
        self._entry = kernels.runtime.entries[moved_as(compiled.library.types.a)]
        self._pool = kernels.runtime.pool
        self._ready: RecentlyUsed[tuple[Problem, Strides], Ready] = RecentlyUsed(MAX_PLANS)
        self._ranges: RecentlyUsed[tuple[Problem, Strides], Ready] = RecentlyUsed(MAX_PLANS)
        self._alike: RecentlyUsed[tuple[object, ...], Ready] = RecentlyUsed(MAX_PLANS)
        """Plans of ranges by what their records depend on, which many ranges have in common."""
        self.kept: RecentlyUsed[tuple[Problem, Strides], Callable[[int], Encoded | None]]
        self.kept = RecentlyUsed(MAX_PLANS)
        """What finds the plans of a saved model for ranges, by the problem of one row and the first
        row."""
        self._writers: RecentlyUsed[tuple[object, ...], PlanWriter] = RecentlyUsed(MAX_PLANS)
        self._workspaces = kernels.runtime.workspaces
        self._covers: dict[tuple[str, CoverTable], array[int]] = {}
        self.range_covers: dict[int, tuple[str, array[int]]] = {}
        """The family and the `AllCovers` at each address that plans for ranges have."""
        self.of_panels: dict[CoverKey, array[int]] = {}
        """An `AllCovers` for each kind of panels."""

    def ready(self, problem: Problem, strides: Strides) -> Ready:
        """The written plans of a problem, made if it is new."""
        key = (problem, strides)
        found = self._ready.get(key)
        if found is None:
            found = Ready(problem, strides, self.encode(self.planner.plan(problem), strides))
            self._ready.add(key, found)
        return found

    def ready_for_range(self, problem: Problem, strides: Strides) -> Ready:
        """The written plans for all rows of the fine range that begins with those of a problem,
        which has a packed weight. A call has the number of rows."""
        key = (problem, strides)
        found = self._known_range(key)
        if found is None:
            found = self._ready_as(problem, strides, *self.planner.decided(problem))
            self._ranges.add(key, found)
        return found

    def plan_ranges(
        self, problem: Problem, strides: Strides, firsts: tuple[int, ...]
    ) -> PlannedRanges:
        """The plans of `ready_for_range` for the ranges that begin with some rows. `problem`: of
        one row."""
        each = {m: (problem._replace(m=m), strides) for m in firsts}
        new = tuple([m for m, key in each.items() if self._known_range(key) is None])
        decided = self.planner.decided_at(problem, new) if new else []
        for m, (candidate, chunks) in zip(new, decided, strict=True):
            self._ranges.add(each[m], self._ready_as(*each[m], candidate, chunks))
        plans = tuple([self.ready_for_range(*key).encoded for key in each.values()])
        return PlannedRanges(self, problem, strides, firsts, plans)

    def _known_range(self, key: tuple[Problem, Strides]) -> Ready | None:
        found = self._ranges.get(key)
        if found is None:
            problem, strides = key
            kept = self.kept.get((problem._replace(m=1), strides))
            encoded = None if kept is None else kept(problem.m)
            if encoded is not None:
                found = Ready(problem, strides, encoded)
                self._ranges.add(key, found)
        return found

    def _ready_as(
        self, problem: Problem, strides: Strides, candidate: Candidate, chunks: int
    ) -> Ready:
        alike = (candidate, chunks, strides, *candidate.alike(problem.m))
        found = self._alike.get(alike)
        if found is None:
            plan = self.planner.lay_out(problem, candidate, chunks)
            found = Ready(problem, strides, self.encode_range(plan, candidate, strides))
            self._alike.add(alike, found)
        return found

    def encode_range(self, plan: Plan, candidate: Candidate, strides: Strides) -> Encoded:
        """Write a plan of a candidate for the fine range that its rows begin."""
        bands = {band.family.name: band.family for band in plan.bands()}
        tables = {True: candidate.tail_table, False: candidate.table}
        covers = {
            name: self.add_range_covers(name, self.all_covers(family, tables[family.tail]))
            for name, family in bands.items()
        }
        last = after_fine(plan.problem.m) - 1
        return self.encode(plan, strides, RowRange(last, candidate.table.main, covers))

    def add_range_covers(self, family: str, covers: array[int]) -> int:
        """Keep an `AllCovers` of a family as long as plans may have its address, which it
        returns."""
        address = covers.buffer_info()[0]
        self.range_covers[address] = family, covers
        return address

    def all_covers(self, family: Family, table: CoverTable | None) -> array[int]:
        """An `AllCovers` of a table with the uKernels of a family."""
        assert table is not None
        found = self._covers.get((family.name, table))
        if found is None:
            addresses = self.compiled.kernels[family.name]
            made = encoded_covers(table, addresses)
            # Plans have its address alone: that of another thread must not replace it.
            found = self._covers.setdefault((family.name, table), made)
        return found

    def encode(self, plan: Plan, strides: Strides, rows: RowRange | None = None) -> Encoded:
        """Write a plan for arrays with given strides; `rows`: as of `PlanWriter.write`."""
        bands = [len(s.bands) for s in plan.shares]
        key = (plan.problem[1:], plan.choice, strides, plan.chunks > 0, *bands)
        writer = self._writers.get(key)
        if writer is None:
            writer = self.writer(plan, strides, self.compiled.kernels)
            self._writers.add(key, writer)
        return writer.write(plan, rows)

    def writer(
        self, plan: Plan, strides: Strides, kernels: Mapping[str, Mapping[int, int]]
    ) -> PlanWriter:
        """What writes plans like one. `kernels`: addresses of uKernels, by family and height."""
        library, functions = self.compiled.library, self.compiled.functions
        fetched_bytes = library.hardware.tuning.fetched_element_bytes
        return PlanWriter(plan, strides, library.types, kernels, functions, fetched_bytes)

    def run(self, ready: Ready, a: Array, b: Array, c: Array, operands: int | None = None) -> None:
        """Run one product. The arrays must have the strides that the plan was written for;
        `operands` is the address of the epilogue's `Words`.

        If another thread has the workers, or the system refuses them, the caller runs the same plan
        alone, with the same bits."""
        encoded = ready.encoded
        if encoded.workers > 1:
            pool = self._pool
            try:
                if pool.lock.acquire(blocking=False) and self._together(encoded, a, b, c, operands):
                    return
            finally:
                try:  # noqa: SIM105, an interrupt within `suppress` would leave it locked
                    pool.lock.release()
                except RuntimeError:
                    # Another thread has the lock.
                    pass
        self.alone(encoded, a, b, c, operands)

    def alone(self, encoded: Encoded, a: Array, b: Array, c: Array, operands: int | None) -> None:
        """Run a plan on the calling thread, whatever number of workers it was made for."""
        self._enter(encoded, None, a, b, c, operands)

    def launch(self, encoded: Encoded, a: Array, b: Array, c: Array, operands: int | None) -> None:
        """Run a plan as it is, waiting for the workers if another thread has them."""
        with self._pool.lock:
            if not self._together(encoded, a, b, c, operands):
                raise ConfigurationError(f"cannot start {encoded.workers - 1} threads")

    def _enter(
        self, encoded: Encoded, pool: int | None, a: Array, b: Array, c: Array, operands: int | None
    ) -> None:
        arrays = id(a) + DATA_WORD, id(b) + DATA_WORD, id(c) + DATA_WORD
        if not encoded.workspace_bytes:
            self._entry(encoded.address, pool, None, *arrays, operands)
            return
        workspaces = self._workspaces
        workspace = workspaces.take(encoded.workspace_bytes)
        try:
            self._entry(encoded.address, pool, workspace, *arrays, operands)
        finally:
            workspaces.give_back(workspace)

    def _together(
        self, encoded: Encoded, a: Array, b: Array, c: Array, operands: int | None
    ) -> bool:
        """Run a plan on the pool; False if it lacks the workers."""
        if self._pool.threads < encoded.workers and not self._pool.grow(encoded.workers):
            return False
        pool = self._pool.address if encoded.workers > 1 else None
        self._enter(encoded, pool, a, b, c, operands)
        return True
