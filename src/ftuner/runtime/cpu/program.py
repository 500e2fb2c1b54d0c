"""Programs: a lowered graph bound to extents, as records that native code walks.

`ProgramWriter` holds what does not depend on extents: compiled functions, packed weights, the order
of steps, the lifetimes of buffers. Binding evaluates dims, asks each task for its plan, places the
buffers of the arena, and fills in the records. Nothing is compiled or measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.native.records import SLOT_BYTES, Living, Program
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.core.ranges import after_fine
from ftuner.core.recently_used import RecentlyUsed
from ftuner.graph.buffers import Buffer
from ftuner.graph.invariants import invariants
from ftuner.graph.steps import Lowered, Step
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.appending import Growth
from ftuner.runtime.cpu.arrays import Array, address_of
from ftuner.runtime.cpu.dealing import StepDealing
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.cpu.memory import ALIGNMENT_BYTES, NO_MEMORY, allocated
from ftuner.runtime.cpu.output_forms import Make, OutputForms
from ftuner.runtime.cpu.plan_records import SLACK_BYTES, aligned
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.cpu.record_layout import FIRST_BUFFER, NOTHING, RecordLayout
from ftuner.runtime.cpu.steps.contract import CompiledStep
from ftuner.runtime.cpu.steps.kinds import kind_of
from ftuner.runtime.cpu.task_groups import BoundGroup, TaskGroups
from ftuner.runtime.cpu.tasks import Unless, most_chunks
from ftuner.runtime.shapes.arena import Lifetime, Place
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shapes.evaluation import (
    DimValues,
    Outputs,
    addressable,
    check_arena,
    evaluated,
    loops_of,
    picked,
)
from ftuner.runtime.shapes.growing import GrowingPlaces, Places

MAX_INVARIANT_BYTES = 4 << 20
"""Most bytes of results that a bound program keeps, so that a graph keeps many shapes. Less where
the last cache is small: half of it. Beyond that, they would come from DRAM in each run, and evict
weights."""

MAX_DRAFT_BYTES = 4 << 20
"""Drafts that a graph keeps. Derived: one is some 5 KiB for each layer of a decoder with the plans
that it points to, so that a graph of twelve layers has 70."""
OBJECTS_BYTES = 600
"""What Python's objects of a program take beside its records. Measured with CPython 3.11."""
MAX_FILLS = 8
"""Combinations of fields that a graph keeps. Derived: it has two, one for single positions, if its
attentions are alike. One is some 6 KiB for each layer."""


@dataclass
class KeptResults:
    """What a bound program computes in its first run and keeps for later ones."""

    memory: Array
    slots: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    """What `slots` of the records hold in runs that find the results computed."""
    computed: bool = False


class BoundProgram(NamedTuple):
    """Records ready to run, with everything that they point to."""

    records: npt.NDArray[np.int64]
    address: int
    outputs: Outputs
    makes: tuple[Make, ...]
    """What makes each output: an empty array for one of `Lowered.appended`."""
    plain: bool
    """Whether `np.empty` makes all outputs."""
    rooms: Outputs
    """The memory of each output: with room for more rows, if it is one of `Lowered.appended`."""
    growths: tuple[Growth, ...]
    """The extents of `Lowered.appended`."""
    checked: tuple[tuple[int, tuple[str, ...]], ...]
    """The slot of each status, and the texts of status 1, 2 and so on."""
    arena: int
    """The address of the arena when the records were written."""
    kept: tuple[Ready, ...]
    """The plans that the records point to."""
    arena_bytes: int
    """Bytes of intermediate results; the workspace follows them."""
    workspace_bytes: int
    attention_worker_bytes: int
    """The part of the workspace that each worker has in the largest attention."""
    results: KeptResults | None
    """Results that depend on extents alone; None if there are none to keep."""

    @property
    def kept_bytes(self) -> int:
        """The bytes that the shape takes while it is not run."""
        results = 0 if self.results is None else int(self.results.memory.nbytes)
        return self.records_bytes + results + OBJECTS_BYTES

    def fresh_outputs(self) -> list[Array]:
        """New arrays for the outputs; an empty one for each that is appended to an input.

        Raises:
            AllocationError: the system does not have the memory.
        """
        try:
            if self.plain:
                return list(starmap(np.empty, self.outputs))
            return [make(*x) for make, x in zip(self.makes, self.outputs, strict=True)]
        except NO_MEMORY:
            # Names the output.
            pairs = zip(self.makes, self.outputs, strict=True)
            return [allocated(*output, make) for make, output in pairs]

    def finished(self) -> None:
        """Note that a run has ended without an error: later ones find results computed."""
        results = self.results
        if results is not None and not results.computed:
            self.records[results.slots] = results.values
            results.computed = True

    @property
    def outputs_bytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.rooms)

    @property
    def records_bytes(self) -> int:
        return int(self.records.nbytes) + SLOT_BYTES * _words_of(self.kept)


class Draft(NamedTuple):
    """What programs have in common whose extents lead to the same decisions: plans, shares of
    workers, places. A text that grows by a token mostly keeps its draft."""

    decided: npt.NDArray[np.int64]
    """What the slots hold that no extents or addresses are written to."""
    later: npt.NDArray[np.int64]
    """As in `Dealt`."""
    fills: npt.NDArray[np.int64]
    """The slots that extents and addresses are written to, as `RecordLayout.finished` has them.
    Most drafts share them."""
    places: Places
    plans: tuple[Ready, ...]
    workspace_bytes: int
    worker_bytes: int

    @property
    def kept_bytes(self) -> int:
        """The bytes that it takes, without what it shares with other drafts."""
        words = _words_of(self.plans) + 3 * len(self.places.offsets)
        return int(self.decided.nbytes + self.later.nbytes) + SLOT_BYTES * words


class ProgramWriter:
    """Writes the programs of one lowered graph.

    The records of all its programs have one layout: their image is written once, and a program
    fills in what depends on extents.
    """

    def __init__(
        self,
        lowered: Lowered,
        compiled: Sequence[CompiledStep],
        binding: Binding,
        hardware: CpuHardware,
        runtime: NativeRuntime,
        make_large: Make,
    ) -> None:
        """`compiled`: the steps of `lowered`; `binding`: of the symbols; `make_large`: makes large
        outputs."""
        self._hardware, self._runtime = hardware, runtime
        self._kept = (lowered, compiled)
        """Constants and packed weights, whose addresses are in records."""
        numbered = stages(lowered.steps)
        arena = arena_buffers(lowered, numbered)
        buffers = [b for b, _, _ in arena]
        records = RecordLayout(len(compiled), len(lowered.inputs), buffers, binding.equal)
        dims = records.dims
        sizes = [(dims.number(b.elements), b.dtype.itemsize) for b, _, _ in arena]
        self._sizes = list(dict.fromkeys(sizes))
        """The sizes of the arena's buffers: the number of the dim that counts elements, and the
        bytes of one."""
        self._size_of = [self._sizes.index(size) for size in sizes]
        """The number of each buffer's size."""
        place = placer([Lifetime(first, last) for _, first, last in arena], runtime)
        firsts = Program.SIZE + np.arange(len(compiled)) * StepSlot.SIZE
        for step, at in zip(compiled, firsts.tolist(), strict=True):
            step.lay_out(records, at)
        self._image, self._fills = records.finished()
        self._tasks = list(records.tasks)
        # Laying out has numbered all dims but those of the outputs and of loops.
        self._groups = TaskGroups(records, hardware, lambda symbols: self._evaluate(symbols))
        self._deal = StepDealing(records, numbered, self._groups.rows)
        self._sometimes = self._written_sometimes(lowered, [b for b, _, _ in arena], records)
        """Places of the arena that no step may write, with the numbers of their writers' tasks."""
        numbers = {buffer: place for place, (buffer, _, _) in enumerate(arena)}
        self._invariants = [
            (found.steps, [(place, self._size_of[place]) for place in results])
            for found in invariants(lowered.steps)
            for results in [[numbers[buffer] for buffer in found.results]]
        ]
        """Steps that depend on extents alone, and of what other steps read of them the places and
        the numbers of the sizes."""
        self._most_kept = min(MAX_INVARIANT_BYTES, hardware.levels[-2].capacity_bytes // 2)
        self._checked = tuple(records.checked)
        self._slots_of = records.slots_of_tasks()
        task_slots = np.array(records.task_slots, np.int64)
        self._decided_slots = np.concatenate([[Program.WORKERS], self._deal.slots, task_slots])
        self._drafts: RecentlyUsed[object, Draft] = RecentlyUsed(
            MAX_DRAFT_BYTES, size=lambda draft: draft.kept_bytes
        )
        self._known_fills: RecentlyUsed[object, npt.NDArray[np.int64]] = RecentlyUsed(MAX_FILLS)
        large_bytes = hardware.tuning.large_output_bytes
        self._forms = OutputForms(lowered, dims, make_large, large_bytes)
        self._extents = picked({*self._forms.extents, *(number for number, _ in self._sizes)})
        self._loops = loops_of((kind_of(s).loops(s) for s in lowered.steps), dims)
        self._evaluate = dims.compiled(binding.names)
        self._places = GrowingPlaces(
            place, self._size_of, lambda symbols: self._bytes(self._evaluate(symbols))
        )

    def _written_sometimes(
        self, lowered: Lowered, arena: Sequence[Buffer], records: RecordLayout
    ) -> list[tuple[int, tuple[int, ...]]]:
        writers: dict[Buffer, list[int]] = {}
        for step, (_, task) in zip(lowered.steps, records.step_tasks, strict=True):
            for buffer in step.writes:
                writers.setdefault(buffer, []).append(task)

        def idle(task: int) -> bool:
            return task >= 0 and isinstance(self._tasks[task], Unless)

        known = [(place, tuple(writers.get(buffer, ()))) for place, buffer in enumerate(arena)]
        return [(place, tasks) for place, tasks in known if tasks and all(map(idle, tasks))]

    @property
    def drafts_bytes(self) -> int:
        return self._drafts.size

    def forget(self) -> None:
        """Forget what was decided for extents before."""
        self._drafts.clear()
        self._groups.forget()

    def plan_few_rows(self, workers: int) -> None:
        """Plan products with weights for the shortest inputs, before their first runs."""
        plans = [plan for task in self._tasks if (plan := task.plan_rows) is not None]
        rows = 1
        for _ in range(self._hardware.tuning.plans_ahead // max(len(plans), 1)):
            for plan in plans:
                plan(rows, workers)
            rows = after_fine(rows)

    def bind(
        self, symbols: Sequence[int], workers: int, pool: int, arena: Callable[[int], int]
    ) -> BoundProgram:
        """The program for values of the symbols.

        `pool` is the address of the thread pool; `arena(size)` returns the address of `size` bytes.

        Raises:
            ShapeError: negative extents, extents divided by zero, or loops that would not end.
            AllocationError: arrays larger than the address space.
        """
        values = evaluated(self._evaluate, symbols, self._extents)
        forms = self._forms.at(values)
        outputs, rooms, growths = self._forms.outputs(values, forms)
        sizes = self._bytes(values)
        # Checked before anything is planned: plans are made only for extents that a run can have.
        check_arena(max(sizes, default=0))
        bound = addressable(values, forms, self._loops)
        once, kept_places = self._kept_invariants(sizes)
        rounded = self._groups.rounded(symbols, values, bound)
        draft = self._draft(rounded, symbols, sizes, workers, once, kept_places)
        arena_bytes = draft.places.total
        base = arena(arena_bytes + draft.workspace_bytes)

        records = self._image.copy()
        here = address_of(records)
        # In the order of `record_layout`'s sources.
        addresses = np.empty(FIRST_BUFFER + len(self._size_of), np.int64)
        addresses[:FIRST_BUFFER] = 0, here, base + arena_bytes, pool
        buffers = addresses[FIRST_BUFFER:]
        buffers[:] = draft.places.addresses(base)
        results = None
        if once:
            memory = self._place_kept(kept_places, buffers)
            results = KeptResults(memory, self._deal.slots, draft.later)
        records[self._decided_slots] = draft.decided
        fills = draft.fills
        self._runtime.fill(
            here, address_of(fills), fills.shape[1], address_of(addresses), address_of(bound)
        )
        makes = self._forms.makes(forms)
        return BoundProgram(
            records, here, outputs, makes, all(make is np.empty for make in makes), rooms, growths,
            self._checked, base, draft.plans, arena_bytes, draft.workspace_bytes,
            draft.worker_bytes, results,
        )  # fmt: skip

    def _draft(
        self, values: DimValues, symbols: Sequence[int], sizes: list[int], workers: int,
        once: frozenset[int], elsewhere: Collection[int],
    ) -> Draft:  # fmt: skip
        """The draft of a program, made if there is none for what decides it. `once`: steps whose
        results are kept, `elsewhere`: the places of these."""
        upper = self._places.upper_end(symbols)
        most = most_chunks(workers, self._hardware)
        chunks = tuple([most if count > most else count for count in self._deal.counts(values)])
        keys = self._groups.keys(values, workers)
        key = keys, chunks, workers, once, upper
        found = self._drafts.get(key) if self._groups.all_keyed else None
        if found is None or not found.places.hold(sizes):
            groups = self._groups(keys, values, workers)
            found = self._drafted(groups, sizes, workers, chunks, once, elsewhere, upper)
            if self._groups.all_keyed:
                self._drafts.add(key, found)
        return found

    def _drafted(
        self, groups: Sequence[BoundGroup], sizes: list[int], workers: int,
        chunks: tuple[int, ...], once: frozenset[int], elsewhere: Collection[int],
        upper: tuple[int, ...],
    ) -> Draft:  # fmt: skip
        places = self._arena_places(sizes, upper, groups, elsewhere)
        check_arena(places.total)
        dealt = self._deal(chunks, tuple([group.shares for group in groups]), workers, once)
        return Draft(
            np.concatenate([[workers], dealt.first, self._groups.values(groups)]),
            dealt.later,
            self._fills_with(tuple(chain.from_iterable([group.variants for group in groups]))),
            places,
            tuple(chain.from_iterable([group.plans for group in groups])),
            max([group.workspace_bytes for group in groups], default=0),
            max([group.worker_bytes for group in groups], default=0),
        )

    def _fills_with(self, variants: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """The slots that extents and addresses decide, together with the fields of tasks of some
        variants."""
        found = self._known_fills.get(variants)
        if found is None:
            fields = self._groups.fields(variants)
            rows = [
                (slots[1 + field.place], 0, NOTHING, field.dim, field.factor)
                for task, slots in self._slots_of
                for field in fields[task]
            ]
            own = np.array(rows, np.int64).reshape(-1, 5).T
            found = np.concatenate([self._fills, own], axis=1)
            self._known_fills.add(variants, found)
        return found

    def _kept_invariants(self, sizes: Sequence[int]) -> tuple[frozenset[int], dict[int, int]]:
        """The steps whose results are kept, and the bytes of each of these, by its place in the
        arena. `sizes`: the bytes of `_sizes`."""
        left = self._most_kept
        once: list[int] = []
        kept: dict[int, int] = {}
        for steps, results in self._invariants:
            taken = sum([sizes[number] for _, number in results])
            if taken <= left:
                left -= taken
                once += steps
                for place, number in results:
                    kept[place] = sizes[number]
        return frozenset(once), kept

    def _place_kept(self, sizes: Mapping[int, int], buffers: npt.NDArray[np.int64]) -> Array:
        """Memory for results that are kept. Writes their addresses to those of the buffers."""
        memory = allocated((sum(sizes.values()) + ALIGNMENT_BYTES,), np.uint8)
        begin = aligned(address_of(memory))
        for place, size in sizes.items():
            buffers[place] = begin
            begin += size
        return memory

    def _arena_places(
        self, sizes: list[int], upper: tuple[int, ...], groups: Sequence[BoundGroup],
        elsewhere: Collection[int],
    ) -> Places:  # fmt: skip
        """The places of the arena's buffers. What no step writes has no bytes, nor has what is kept
        elsewhere. `sizes`: the bytes of `_sizes`; `upper`: the end of the range of the symbols."""
        absent = [*elsewhere]
        if self._sometimes:
            found = [task for group in groups for task in group.tasks]
            absent += [
                place for place, tasks in self._sometimes
                if not any(found[self._groups.rows[task]].chunks for task in tasks)
            ]  # fmt: skip
        return self._places(sizes, upper, absent)

    def _bytes(self, values: Sequence[int]) -> list[int]:
        """The bytes of each of `_sizes`."""
        return [aligned(values[number] * size + SLACK_BYTES) for number, size in self._sizes]


def placer(lifetimes: Sequence[Lifetime], runtime: NativeRuntime) -> Place:
    """What places buffers of some lifetimes."""
    lives = np.array(lifetimes, np.int64).reshape(-1, 2)

    def place(sizes: Sequence[int]) -> tuple[npt.NDArray[np.int64], int]:
        given = np.array(sizes, np.int64)
        offsets, living = np.empty_like(given), np.empty(Living.SIZE * len(given), np.int64)
        arrays = map(address_of, (lives, given, offsets, living))
        return offsets, int(runtime.place(len(given), *arrays))

    return place


def _words_of(plans: Sequence[Ready]) -> int:
    """Words of the records of some plans."""
    return sum({id(r.encoded): len(r.encoded.records) for r in plans}.values())


def stages(steps: Sequence[Step]) -> list[int]:
    """The stage of each step, numbered by its first step. Steps of one stage do not depend on each
    other and run concurrently; the next stage begins when all of them have ended."""
    found: list[int] = []
    first, works = 0, False
    read: set[Buffer] = set()
    written: set[Buffer] = set()
    shared: set[Buffer] = set()
    for i, step in enumerate(steps):
        reads, writes = set(step.reads), set(step.writes)
        # There is one workspace, so that steps that use it are not concurrent.
        has_workspace = kind_of(step).has_workspace
        apart = writes if kind_of(step).writes_apart else set()
        clash = writes & read or reads & written or writes & (written - (shared & apart))
        if clash or (works and has_workspace):
            first, works = i, False
            read, written, shared = set(), set(), set()
        read |= reads
        written |= writes
        shared |= apart
        works = works or has_workspace
        found.append(first)
    return found


def arena_buffers(lowered: Lowered, stages: Sequence[int]) -> list[tuple[Buffer, int, int]]:
    """The first and the last stage that access each arena buffer."""
    return [(b, stages[first], stages[last]) for b, (first, last) in lowered.lifetimes().items()]
