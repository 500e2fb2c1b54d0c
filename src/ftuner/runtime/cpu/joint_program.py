"""Joint programs: the steps of several bound programs in one table, which one launch walks.

A *template* is a program that was bound at address 0. `placed` copies its records for one request:
with an arena and arrays of its own, so that requests of one shape run concurrently. `JointSteps`
then orders the steps of all: a step that works within a request follows itself for the next
request, without a wait in between, so that workers share the requests by work stealing. Products
with a large weight take turns instead (`shared_panels`).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ftuner.codegen.llvm.native.records import Program, Status
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.core.caching import RecentlyUsed
from ftuner.graph.ragged import Turn
from ftuner.runtime.cpu.arrays import address_of
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.program import BoundProgram, ProgramWriter
from ftuner.runtime.cpu.record_layout import FIRST_BUFFER, RECORDS, WORKSPACE
from ftuner.runtime.cpu.shared_panels import SharedPanels
from ftuner.runtime.shapes.layout import Words

MAX_ORDERS = 512
"""Numbers of requests of which the order of steps is kept. Derived: as many as rows run together,
if each request has one; an order is some 10 KiB."""


def arena_bytes(template: BoundProgram) -> int:
    """The bytes of the arena that the copy of a template has, with its workspace."""
    return aligned(template.arena_bytes + template.workspace_bytes)


def placed(
    writer: ProgramWriter, templates: Sequence[BoundProgram], bases: Words, arrays: Words
) -> Words:
    """The records of copies of templates, a row for each: the arena begins at its address of
    `bases`, and the caller's arrays are at its row of addresses of `arrays`."""
    records = np.stack([template.records for template in templates])
    here = address_of(records) + np.arange(len(records)) * records.strides[0]
    moved = np.zeros((len(records), FIRST_BUFFER + len(writer.places)), np.int64)
    moved[:, RECORDS] = here - [template.address for template in templates]
    moved[:, WORKSPACE] = bases
    # Kept results have memory of their own, at addresses beyond those of an arena at 0.
    buffers = np.stack([template.buffers for template in templates])
    ends = np.array([[template.arena_bytes] for template in templates], np.int64)
    moved[:, FIRST_BUFFER:] = np.where(buffers <= ends, bases[:, None], 0)
    slots, sources = writer.addresses
    records[:, slots] += moved[:, sources]
    slots, numbers, offsets = writer.patches
    records[:, slots] = arrays[:, numbers] + records[:, offsets]
    return records


class JointSteps:
    """Orders the steps of the programs of a batch."""

    def __init__(
        self, turns: Sequence[Turn], wise: Sequence[Sequence[int]], own: Sequence[int],
        panels: SharedPanels,
    ) -> None:  # fmt: skip
        """`wise`, `own`: of each step of the programs of rows, and of those of requests, the first
        step of its stage; `panels`: what the steps of requests share."""
        self._turns, self._wise, self._own, self._panels = turns, wise, own, panels
        ends = [*accumulate(map(len, wise), initial=0)]
        self._firsts, self._end = ends[:-1], ends[-1]
        """The number of the first step of each program of rows, and of those of requests."""
        self._orders: RecentlyUsed[int, tuple[Words, Words, Words]] = RecentlyUsed(MAX_ORDERS)

    def __call__(
        self, wise: Sequence[Words], own: Words, able: Words
    ) -> tuple[Words, Words, Words]:
        """The table of steps, the header of the program that walks it, and what the table points
        to. `wise`, `own`: the records of the programs of all rows and of those of requests; `able`:
        as of `SharedPanels.share`."""
        order, begins, places = self._ordered(len(own))
        parts = [*map(_steps, wise, self._wise), _steps(own, self._own)]
        steps = np.concatenate(parts)[order]
        workers = int(own[0, Program.WORKERS])
        calls = self._panels.share(steps, places, able, workers)
        chunks = steps[:, StepSlot.CHUNKS]
        before = np.cumsum(chunks) - chunks
        # Workers that wait for each other within a step have ended all before it.
        waits = steps[:, StepSlot.TOGETHER] != 0
        steps[:, StepSlot.BEFORE] = before[np.where(waits, np.arange(len(order)), begins)]
        header = np.zeros(Program.SIZE, np.int64)
        header[[Program.WORKERS, Program.POOL]] = own[0, [Program.WORKERS, Program.POOL]]
        header[Program.STEPS], header[Program.STEP_COUNT] = address_of(steps), len(steps)
        return steps, header, calls

    def note(self, steps: Words, templates: Sequence[BoundProgram]) -> None:
        """Let `ended` of a template find the first failed check of all, if its copy has that."""
        order, *_ = self._ordered(len(templates) - len(self._wise))
        for at in np.flatnonzero(steps[:, StepSlot.STATUS])[:1].tolist():
            number = int(order[at])
            if number < self._end:
                which = bisect(self._firsts, number) - 1
                step = number - self._firsts[which]
            else:
                which, step = divmod(number - self._end, len(self._own))
                which += len(self._wise)
            template = templates[which]
            slot = Program.SIZE + step * StepSlot.SIZE + StepSlot.STATUS
            status = slice(StepSlot.STATUS, StepSlot.STATUS + Status.SIZE)
            template.records[slot : slot + Status.SIZE] = steps[at, status]

    def _ordered(self, requests: int) -> tuple[Words, Words, Words]:
        """Of each step of the table: its number among those of the programs of rows and then of
        each request; and where its stage begins. Then the places in the table of the steps of
        requests that share panels."""
        found = self._orders.get(requests)
        if found is None:
            order: list[int] = []
            begins: list[int] = []
            places: dict[tuple[int | None, int], int] = {}
            for kind, first, steps in self._turns:
                stages = self._own if kind is None else self._wise[kind]
                copies = range(requests if kind is None else 1)
                begin = self._end if kind is None else self._firsts[kind]
                offsets = [begin + i * len(stages) for i in copies]
                for step in range(first, first + steps):
                    places[kind, step] = len(order)
                    begins += [places[kind, stages[step]]] * len(offsets)
                    order += [offset + step for offset in offsets]
            shared = [places[None, step] for step in self._panels.numbers.tolist()]
            found = np.array(order), np.array(begins), np.array(shared, np.int64)
            self._orders.add(requests, found)
        return found


def _steps(records: Words, steps: Sequence[int]) -> Words:
    """The steps of programs, one after the other, a row of slots for each."""
    end = Program.SIZE + len(steps) * StepSlot.SIZE
    return records[:, Program.SIZE : end].reshape(-1, StepSlot.SIZE)
