"""Programs: a lowered graph bound to extents, as records that native code walks.

`ProgramWriter` holds what does not depend on extents: compiled functions, packed weights, the order
of steps, the lifetimes of buffers. Binding evaluates dims, asks each task for its plan, places the
buffers of the arena, and fills in the records. Nothing is compiled or measured.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, starmap
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.records import ALIGNMENT_BYTES, SLACK_BYTES, SLOT_BYTES, Program
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.core.caching import RecentlyUsed
from ftuner.core.ranges import EXACT, after_fine
from ftuner.graph.buffers import Buffer
from ftuner.graph.invariants import invariants
from ftuner.graph.steps import Lowered, Step
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.appending import Growth
from ftuner.runtime.cpu.arrays import Array, address_of
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.cpu.memory import NO_MEMORY, allocated
from ftuner.runtime.cpu.output_forms import Make, OutputForms
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.products import PlannedRanges
from ftuner.runtime.cpu.record_layout import NOTHING, POOL, RecordLayout
from ftuner.runtime.cpu.step_kind import CompiledStep, kind_of
from ftuner.runtime.cpu.task_groups import BoundGroup, TaskGroups
from ftuner.runtime.cpu.tasks import Unless, most_chunks
from ftuner.runtime.cpu.work_distribution import NO_SHARES, WorkDistribution
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shapes.evaluation import (
    Outputs,
    addressable,
    check_arena,
    evaluated,
    loops_of,
    picked,
)
from ftuner.runtime.shapes.layout import Lifetime, Words

MAX_INVARIANT_BYTES = 4 << 20
"""Most bytes of results that a bound program keeps, so that a graph keeps many shapes. Less where
the last cache is small: half of it. Beyond that, they would come from DRAM in each run, and evict
weights."""

OBJECTS_BYTES = 600
"""What Python's objects of a program take beside its records. Measured with CPython 3.11."""
MAX_FILLS = 8
"""Combinations of fields that a graph keeps. Derived: it has two, one for single positions, if its
attentions are alike. One is some 6 KiB for each layer."""
MANY_ROWS = 1 << 16
"""Of a product that is not planned ahead. Derived: its run takes a thousand times its plan."""


@dataclass
class KeptResults:
    """What a bound program computes in its first run and keeps for later ones."""

    memory: Array
    slots: Words
    values: Words
    """What `slots` of the records hold in runs that find the results computed."""
    computed: bool = False

    @property
    def aligned(self) -> Array:
        """The memory that buffers are in."""
        begin = aligned(address_of(self.memory)) - address_of(self.memory)
        return self.memory[begin : begin + self.memory.nbytes - ALIGNMENT_BYTES]


class BoundProgram(NamedTuple):
    """Records ready to run, with everything that they point to."""

    records: Words
    address: int
    workers: int
    """1 if no step has several."""
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
    statuses: Callable[[], Iterable[int]]
    """Reads all of them, in a fifth of the time that indexing takes."""
    arena: int
    """The address of the arena when the records were written."""
    sources: array[int]
    """The addresses that `record_layout` numbers: of others, then of the buffers of
    `ProgramWriter.places`."""
    groups: Sequence[BoundGroup]
    """With the plans that the records point to."""
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

    def take_results(self, other: BoundProgram) -> None:
        """Take what a program of the same extents has computed and keeps."""
        own, found = self.results, other.results
        if own is not None and found is not None and found.computed:
            own.aligned[:] = found.aligned
            self.finished()

    @property
    def outputs_bytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.rooms)

    @property
    def records_bytes(self) -> int:
        return int(self.records.nbytes) + sum([group.kept_bytes for group in self.groups])


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
        cuts: Collection[int] = (),
        keeps_results: bool = True,
    ) -> None:
        """`compiled`: the steps of `lowered`; `binding`: of the symbols; `make_large`: makes large
        outputs; `cuts`: as of `stages`; `keeps_results`: whether programs keep results that depend
        on extents alone, which no other program may then access."""
        self._hardware, self._runtime = hardware, runtime
        self._kept = (lowered, compiled)
        """Constants and packed weights, whose addresses are in records."""
        self.stages = numbered = stages(lowered.steps, cuts)
        """The first step of the stage of each step."""
        arena = arena_buffers(lowered, numbered)
        self.places = places = {buffer: place for place, (buffer, _, _) in enumerate(arena)}
        """The buffers of the arena, numbered."""
        records = RecordLayout(len(compiled), len(lowered.inputs), [*places], binding.equal)
        dims = records.dims
        self._sizes = [(dims.number(b.elements), b.dtype.itemsize) for b in places]
        """Of each buffer of the arena the number of the dim that counts elements, and the bytes of
        one."""
        firsts = Program.SIZE + np.arange(len(compiled)) * StepSlot.SIZE
        for step, at in zip(compiled, firsts.tolist(), strict=True):
            step.lay_out(records, at)
        self._image, fills = records.finished()
        self.words = len(self._image)
        """Words of the records of a program."""
        self.patches = records.patches
        sources = fills[2]
        within = (sources != NOTHING) & (sources != POOL)
        self.addresses = fills[0][within], sources[within]
        """The slots that hold addresses in the records or the arena, and the source of each."""
        self._tasks = list(records.tasks)
        # Laying out has numbered all dims but those of the outputs and of loops.
        self._groups = TaskGroups(records, hardware, lambda symbols: self._evaluate(symbols))
        self._distribute = WorkDistribution(
            runtime,
            [1 + self._groups.rows[task] if task >= 0 else 0 for _, task in records.step_tasks],
            [max(dim, 0) for dim, _ in records.step_tasks],
            numbered,
            self._sizes,
            [Lifetime(first, last) for _, first, last in arena],
            self._written_sometimes(lowered, places, records),
        )
        self._invariants = [
            (found.steps, [places[buffer] for buffer in found.results])
            for found in (invariants(lowered.steps) if keeps_results else ())
        ]
        """Steps that depend on extents alone, and the places of what other steps read of them."""
        self._most_kept = min(MAX_INVARIANT_BYTES, hardware.levels[-2].capacity_bytes // 2)
        self._checked = tuple(records.checked)
        # A getter of one item would not give a tuple.
        slots = [slot for slot, _ in self._checked] * (2 if len(self._checked) == 1 else 1)
        self._statuses: Callable[[Any], Iterable[int]] = itemgetter(*slots) if slots else tuple
        self._slots_of = records.slots_of_tasks()
        self._known_fills: RecentlyUsed[object, Words] = RecentlyUsed(MAX_FILLS)
        large_bytes = hardware.tuning.large_output_bytes
        self._forms = OutputForms(lowered, dims, make_large, large_bytes)
        self._elements = picked({number for number, _ in self._sizes})
        self._extents = picked({*self._forms.extents, *(number for number, _ in self._sizes)})
        self._loops = loops_of((kind_of(s).loops(s) for s in lowered.steps), dims)
        self._evaluate = dims.compiled(binding.names)
        shared = StepSlot.WORKERS, StepSlot.CHUNKS, StepSlot.TOGETHER, StepSlot.BEFORE
        self._shared_slots = np.concatenate([firsts + slot for slot in shared])
        """The slots of all steps that say how workers share them."""
        # The words that slots are filled from: the values of dims, the number of workers, those of
        # `_shared_slots`, and those of tasks.
        self._first_shared = dims.count + 1
        self._room = bytes(SLOT_BYTES * (1 + len(self._shared_slots)))
        first_task = self._first_shared + len(self._shared_slots)
        decided: list[tuple[Sequence[int] | Words, Sequence[int] | Words]] = [
            ([Program.WORKERS], [dims.count]),
            (self._shared_slots, range(self._first_shared, first_task)),
            (records.task_slots, first_task + self._groups.places),
        ]
        # Tasks have a value for each of their slots, some of which are addresses.
        self._fills = np.concatenate([*(_copies(*pair) for pair in decided), fills], axis=1)

    def _written_sometimes(
        self, lowered: Lowered, places: Mapping[Buffer, int], records: RecordLayout
    ) -> dict[int, list[int]]:
        """The places of the arena that no step may write, and the numbers of the steps that may."""
        writers: dict[int, list[int]] = {}
        for number, step in enumerate(lowered.steps):
            for buffer in step.writes:
                if buffer in places:
                    writers.setdefault(places[buffer], []).append(number)

        def idle(step: int) -> bool:
            task = records.step_tasks[step].task
            return task >= 0 and isinstance(self._tasks[task], Unless)

        return {place: steps for place, steps in writers.items() if all(map(idle, steps))}

    def forget(self) -> None:
        """Forget what was decided for extents before."""
        self._groups.forget()

    def plan_ahead(self, workers: int) -> list[PlannedRanges]:
        """The plans of products with weights before their first runs: for one row, as texts grow
        by, then for ranges of rows, and last for other numbers of few rows, which are those of
        fewer shapes."""
        plans = [plan for task in self._tasks if (plan := task.plan_ranges) is not None]
        firsts, rows = [1], EXACT
        while rows <= MANY_ROWS:
            firsts.append(rows)
            rows = after_fine(rows)
        firsts += range(2, EXACT)
        shares = self._hardware.tuning.plans_ahead
        most = max(shares // (max(len(plans), 1) * workers), 1)
        return [plan(tuple(firsts[:most]), workers) for plan in plans]

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
        # Checked before anything is planned: plans are made only for extents that a run can have.
        check_arena(max(self._elements(values), default=0))
        bound = addressable(values, forms, self._loops)
        once, kept_places = self._kept_invariants(values)
        groups = self._groups(self._groups.rounded(symbols, values), workers)
        of_tasks = [group.values for group in groups]
        words = array("q", b"".join((bound.tobytes(), self._room, *of_tasks)))
        words[len(bound)] = workers
        shares = array("q", NO_SHARES + b"".join([group.shares for group in groups]))
        # NumPy's arrays of few words are made and filled in more time than the native code takes.
        offsets = array("q", bytes(SLOT_BYTES * len(self._sizes)))
        arena_bytes, later = self._distribute(
            words, self._first_shared, shares, workers, most_chunks(workers, self._hardware), once,
            kept_places, offsets,
        )  # fmt: skip
        check_arena(arena_bytes)
        if workers > 1:
            of_steps = words[self._first_shared : self._first_shared + len(self.stages)]
            workers = workers if max(of_steps, default=0) > 1 else 1
        workspace_bytes = max([group.workspace_bytes for group in groups], default=0)
        base = arena(arena_bytes + workspace_bytes)

        records = self._image.copy()
        here = address_of(records)
        buffers = self._placed(offsets, base)
        results = None
        if later is not None:
            memory = self._place_kept(kept_places, buffers)
            results = KeptResults(memory, self._shared_slots, later)
        # In the order of `record_layout`'s sources.
        addresses = array("q", (0, here, base + arena_bytes, pool, *buffers))
        fills = self._fills_with(tuple(chain.from_iterable([group.variants for group in groups])))
        self._runtime.fill(
            here,
            address_of(fills),
            fills.shape[1],
            addresses.buffer_info()[0],
            words.buffer_info()[0],
        )
        makes = self._forms.makes(forms)
        return BoundProgram(
            records, here, workers, outputs, makes, all(make is np.empty for make in makes), rooms,
            growths, self._checked,
            partial(self._statuses, memoryview(records) if self._checked else ()),
            base, addresses, groups, arena_bytes, workspace_bytes,
            max([group.worker_bytes for group in groups], default=0), results,
        )  # fmt: skip

    def _placed(self, offsets: Iterable[int], base: int) -> array[int]:
        """The addresses of buffers in an arena at `base`."""
        return array("q", [base + offset for offset in offsets])

    def _fills_with(self, variants: tuple[int, ...]) -> Words:
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

    def _kept_invariants(self, values: Sequence[int]) -> tuple[list[int], dict[int, int]]:
        """The steps whose results are kept, and the bytes of each of these, by its place in the
        arena."""
        left = self._most_kept
        once: list[int] = []
        kept: dict[int, int] = {}
        for steps, results in self._invariants:
            found = {
                place: aligned(values[number] * size + SLACK_BYTES)
                for place in results for number, size in [self._sizes[place]]
            }  # fmt: skip
            taken = sum(found.values())
            if taken <= left:
                left -= taken
                once += steps
                kept |= found
        return once, kept

    def _place_kept(self, sizes: Mapping[int, int], buffers: array[int]) -> Array:
        """Memory for results that are kept. Writes their addresses to those of the buffers."""
        memory = allocated((sum(sizes.values()) + ALIGNMENT_BYTES,), np.uint8)
        begin = aligned(address_of(memory))
        for place, size in sizes.items():
            buffers[place] = begin
            begin += size
        return memory


def _copies(slots: Sequence[int] | Words, words: Sequence[int] | Words) -> Words:
    """Fills that write words, by their numbers, to slots."""
    fills = np.zeros((5, len(slots)), np.int64)
    fills[0], fills[2], fills[3], fills[4] = slots, NOTHING, words, 1
    return fills


def stages(steps: Sequence[Step], cuts: Collection[int] = ()) -> list[int]:
    """The stage of each step, numbered by its first step. Steps of one stage do not depend on each
    other and run concurrently; the next stage begins when all of them have ended. A stage begins at
    each step of `cuts`, where runs may begin and end."""
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
        if clash or (works and has_workspace) or i in cuts:
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
