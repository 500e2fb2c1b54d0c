"""Joint programs: the steps of several bound programs in one table, which one launch walks.

A *template* is a program that was bound at address 0. Its records are copied for each request: with
an arena and arrays of its own, so that requests of one shape run concurrently. `JointProgram` then
orders the steps of all: a step that works within a request follows itself for the next request,
without a wait in between, so that workers share the requests by work stealing. Products with a
large weight take turns instead (`shared_panels`). Native code copies and orders.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.binding_records import Copies, Copy
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Program, Status
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.graph.ragged import Turn
from ftuner.runtime.cpu.arrays import address_of
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.cpu.memory import Arena
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.program import BoundProgram, ProgramWriter
from ftuner.runtime.cpu.record_layout import RECORDS
from ftuner.runtime.cpu.shared_panels import SharedPanels
from ftuner.runtime.shapes.layout import Words


def arena_bytes(template: BoundProgram) -> int:
    """The bytes of the arena that the copy of a template has, with its workspace."""
    return aligned(template.arena_bytes + template.workspace_bytes)


def copied(template: BoundProgram, arena: int, *arrays: int) -> tuple[int, ...]:
    """The `Copy` of a template with an arena and the caller's arrays at their addresses."""
    sources = template.sources.buffer_info()[0]
    return (template.address, sources, template.arena_bytes, arena, *arrays)


class Joined(NamedTuple):
    """The steps of the programs of a batch."""

    table: Words
    """A row for each step."""
    header: array[int]
    """The header of the program that walks them."""
    calls: Words | None
    """The arguments of shared products, which the table points to; None if there are none."""


class _Layout:
    """The programs of one writer."""

    def __init__(self, writer: ProgramWriter, arrays: int) -> None:
        """`arrays`: the number of the caller's arrays."""
        slots, sources = writer.addresses
        inside = sources == RECORDS
        stages = np.array(writer.stages, np.int64)
        pointers, places = slots[inside], (slots[~inside], sources[~inside])
        self.words, self.steps = writer.words, len(stages)
        held = [*map(np.ascontiguousarray, (stages, pointers, *places, *writer.patches))]
        at = [*map(address_of, held)]
        # In the order of `Copies`, from `ROW_WORDS` on.
        self.record = (
            Copy.ARRAYS + arrays, self.words, at[0], len(pointers), at[1], len(places[0]), *at[2:4],
            writer.patches.shape[1], *at[4:],
        )  # fmt: skip
        self._held = held


class JointProgram:
    """Joins the programs of batches of one graph."""

    def __init__(
        self, runtime: NativeRuntime, turns: Sequence[Turn], wise: Sequence[ProgramWriter],
        own: ProgramWriter, arrays: Sequence[int], panels: SharedPanels,
    ) -> None:  # fmt: skip
        """`wise`, `own`: of the programs of rows, and of those of requests; `arrays`: the number of
        the caller's arrays of each of them; `panels`: what the steps of requests share."""
        self._runtime, self._panels = runtime, panels
        pairs = zip((*wise, own), arrays, strict=True)
        self._layouts = [_Layout(writer, count) for writer, count in pairs]
        self._turns = [(len(wise) if kind is None else kind, *run) for kind, *run in turns]
        self._words = array("q", [word for turn in self._turns for word in turn])

    def steps(self, requests: int) -> int:
        """The steps of a batch."""
        *wise, own = [layout.steps for layout in self._layouts]
        return sum(wise) + requests * own

    def record_bytes(self, requests: int) -> int:
        """The bytes of memory that the records of a batch take."""
        *wise, own = [layout.words for layout in self._layouts]
        words = sum(wise) + requests * own + self.steps(requests) * StepSlot.SIZE
        return words * SLOT_BYTES

    def __call__(
        self, copies: Sequence[Sequence[int]], workers: int, able: Sequence[Words], arena: Arena,
        begin: int,
    ) -> Joined:  # fmt: skip
        """The joint program of the programs of rows and then those of requests, whose records are
        written to an arena, from the offset `begin` on. `copies`: the `copied` of each of them, one
        after the other; `able`: as of `SharedPanels.share`."""
        requests = len(copies[-1]) // self._layouts[-1].record[0]
        words: list[int] = []
        at = arena.address + begin
        rows = [array("q", own) for own in copies]
        for layout, own in zip(self._layouts, rows, strict=True):
            count = len(own) // layout.record[0]
            words += (count, at, own.buffer_info()[0], *layout.record)
            at += count * layout.words * SLOT_BYTES
        programs = array("q", words)
        here = programs.buffer_info()[0]
        for number in range(len(rows)):
            self._runtime.copy(here + number * Copies.SIZE * SLOT_BYTES)
        calls = None
        if self._panels:
            shape = requests, self._layouts[-1].words
            first = at - arena.address - requests * shape[1] * SLOT_BYTES
            records: Words = np.ndarray(shape, np.int64, arena.memory, first)
            calls = self._panels.share(records, np.stack(able), workers)
        self._runtime.join(self._words.buffer_info()[0], len(self._turns), here, at)
        steps = self.steps(requests)
        table: Words = np.ndarray(
            (steps, StepSlot.SIZE), np.int64, arena.memory, at - arena.address
        )
        header = array("q", bytes(Program.SIZE * SLOT_BYTES))
        header[Program.WORKERS], header[Program.POOL] = workers, self._runtime.pool.address
        header[Program.STEPS], header[Program.STEP_COUNT] = at, steps
        return Joined(table, header, calls)

    def note(self, table: Words, templates: Sequence[BoundProgram]) -> None:
        """Let `ended` of a template find the first failed check of all, if its copy has that."""
        status = table[:, StepSlot.STATUS]
        if status.any():
            at = int(np.flatnonzero(status)[0])
            which, step = next(islice(self._order(len(templates)), at, None))
            slot = Program.SIZE + step * StepSlot.SIZE + StepSlot.STATUS
            found = table[at, StepSlot.STATUS : StepSlot.STATUS + Status.SIZE]
            templates[which].records[slot : slot + Status.SIZE] = found

    def _order(self, programs: int) -> Iterator[tuple[int, int]]:
        """The numbers of the program and of its step, for each step of the table."""
        own = len(self._layouts) - 1
        for kind, first, steps in self._turns:
            for step in range(first, first + steps):
                for which in range(kind, programs if kind == own else kind + 1):
                    yield which, step
