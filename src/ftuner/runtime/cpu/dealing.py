"""How the steps of a program are shared by workers, once their tasks are known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.native.records import Program
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.core.recently_used import RecentlyUsed
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.shapes.evaluation import picked

MAX_DEALT = 256
"""Ways to share steps that a graph keeps. Derived: one takes 64 bytes for each step, so that all of
a model of 500 steps have at most 8 MiB; a text that grows needs a few."""
Words = npt.NDArray[np.int64]


class Dealt(NamedTuple):
    """What `StepDealing.slots` hold."""

    first: Words
    later: Words
    """In runs that find the results of some steps computed."""


class StepDealing:
    """How workers share the steps of a graph. It is found again for shapes for which every step has
    as many chunks as before."""

    def __init__(self, records: RecordLayout, stages: Sequence[int], rows: Sequence[int]) -> None:
        """`stages`: of each step; `rows`: of each task, the number of its shares among those of the
        groups."""
        dims, tasks = np.array(records.step_tasks, np.int64).reshape(-1, 2).T
        (self._equal,) = np.nonzero(tasks < 0)
        counts, self._count_of = np.unique(dims[self._equal], return_inverse=True)
        self.counts = picked(counts.tolist())
        """Takes the values of the dims that count the tasks of steps."""
        (self._planned,) = np.nonzero(tasks >= 0)
        self._rows = np.array(rows, np.int64)[tasks[self._planned]]
        self._stages = np.array(stages, np.int64)
        firsts = Program.SIZE + np.arange(len(stages)) * StepSlot.SIZE
        slots = StepSlot.WORKERS, StepSlot.CHUNKS, StepSlot.TOGETHER, StepSlot.BEFORE
        self.slots = np.concatenate([firsts + slot for slot in slots])
        """The slots of all steps that say how they are shared."""
        self._known: RecentlyUsed[object, Dealt] = RecentlyUsed(MAX_DEALT)

    def __call__(
        self, chunks: tuple[int, ...], shares: tuple[tuple[int, ...], ...], workers: int,
        computed: frozenset[int],
    ) -> Dealt:  # fmt: skip
        """`chunks`: of steps whose tasks the dims `counts` count; `shares`: of all groups of tasks;
        `computed`: the numbers of steps that later runs need not do."""
        key = (chunks, shares, workers, computed)
        found = self._known.get(key)
        if found is None:
            first = self._dealt(chunks, shares, workers, ())
            found = Dealt(first, self._dealt(chunks, shares, workers, computed))
            self._known.add(key, found)
        return found

    def _dealt(
        self, chunks: Sequence[int], shares: Sequence[Sequence[int]], workers: int,
        idle: Collection[int],
    ) -> Words:  # fmt: skip
        """The workers of all steps, then chunks, whether workers wait for each other, and the
        chunks before each step's stage."""
        dealt = np.zeros((4, len(self._stages)), np.int64)
        dealt[0, self._equal] = workers
        dealt[1, self._equal] = np.array(chunks, np.int64)[self._count_of]
        fields = np.array([x for group in shares for x in group], np.int64).reshape(-1, 3)
        dealt[:3, self._planned] = fields[self._rows].T
        dealt[1:3, [*idle]] = 0
        done = np.concatenate([[0], np.cumsum(dealt[1])])
        dealt[3] = done[self._stages]
        return dealt.reshape(-1)
