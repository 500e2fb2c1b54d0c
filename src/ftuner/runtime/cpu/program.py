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
from itertools import starmap
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.records import ALIGNMENT_BYTES, SLACK_BYTES, SLOT_BYTES, Program
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.core.caching import RecentlyUsed, cached_attribute
from ftuner.core.dtype import ADDRESSABLE_BYTES
from ftuner.core.ranges import EXACT, after_fine
from ftuner.graph.buffers import Buffer
from ftuner.graph.invariants import invariants
from ftuner.graph.steps import Lowered, Step
from ftuner.runtime.cpu.appending import Growth
from ftuner.runtime.cpu.arrays import Array, address_of
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.memory import NO_MEMORY, allocated
from ftuner.runtime.cpu.output_forms import Make, OutputForms
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.products import PlannedRanges
from ftuner.runtime.cpu.record_layout import (
    FIRST_BUFFER,
    NOTHING,
    POOL,
    RECORDS,
    WORKSPACE,
    Fill,
    Fills,
    RecordLayout,
    fill_rows,
)
from ftuner.runtime.cpu.step_kind import CompiledStep, kind_of
from ftuner.runtime.cpu.task_groups import Plans, TaskGroups
from ftuner.runtime.cpu.tasks import most_chunks
from ftuner.runtime.cpu.work_distribution import WorkDistribution
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shapes.evaluation import (
    MAX_LOOP,
    Outputs,
    addressable,
    check_arena,
    evaluated,
    loops_of,
    picked,
)
from ftuner.runtime.shapes.layout import Words

MAX_INVARIANT_BYTES = 4 << 20
"""Most bytes of results that a bound program keeps, so that a graph keeps many shapes. Less where
the last cache is small: half of it. Beyond that, they would come from DRAM in each run, and evict
weights."""

OBJECTS_BYTES = 600
"""What Python's objects of a program take beside its records. Measured with CPython 3.11."""
MAX_FILLS = 8
"""Combinations of fields that a graph keeps. Derived: it has two, one for single positions, if its
attentions are alike. One is some 6 KiB for each layer."""
MAX_EXTENT = (1 << 63) - 1
"""The largest number of native code."""
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
    plans: Sequence[Plans]
    """Of each group of tasks: the plans that the records point to."""
    arena_bytes: int
    """Bytes of intermediate results; the workspace follows them."""
    workspace_bytes: int
    attention_worker_bytes: int
    """The part of the workspace that each worker has in the largest attention."""
    records_bytes: int
    """Of the records, and what groups of tasks take."""
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
        kernels: Kernels,
        make_large: Make,
        cuts: Collection[int] = (),
        keeps_results: bool = True,
        demands: bool = False,
    ) -> None:
        """`compiled`: the steps of `lowered`; `binding`: of the symbols; `make_large`: makes large
        outputs; `cuts`: as of `stages`; `keeps_results`: whether programs keep results that depend
        on extents alone, which no other program may then access; `demands`: whether `bind` checks
        the constraints of the symbols."""
        hardware, runtime = kernels.hardware, kernels.runtime
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
        image, fills = records.finished()
        self.words = len(image)
        """Words of the records of a program."""
        self.patches = records.patches
        within = fills[(fills[:, 1] != NOTHING) & (fills[:, 1] != POOL)].astype(np.int64)
        self.addresses = within[:, 0], within[:, 1]
        """The slots that hold addresses in the records or the arena, and the source of each."""
        self._tasks = [task for task, _ in records.tasks]
        large_bytes = hardware.tuning.large_output_bytes
        self._forms = OutputForms(lowered, dims, make_large, large_bytes)
        loops = loops_of((kind_of(s).loops(s) for s in lowered.steps), dims)
        elements = {number for number, _ in self._sizes}
        extents = {*self._forms.extents, *elements}
        self._elements, self._extents, self._loops = map(picked, (elements, extents, loops))
        # Laying out has numbered the other dims.
        self._dims, self._names = dims, binding.names
        self._symbols = slice(dims.count, dims.count + len(binding.names))
        self._check = binding.check if demands else None
        instructions = dims.instructions(binding.names)
        instructions.demand(binding.constraints if demands else ())
        instructions.bound((number, MAX_EXTENT) for number in extents)
        instructions.bound((number, ADDRESSABLE_BYTES) for number in elements)
        instructions.bound((number, MAX_LOOP) for number in loops)
        instructions.bound(self._forms.most.items())
        self._groups = groups = TaskGroups(runtime, records, hardware, instructions)
        self._distribute = WorkDistribution(
            runtime,
            [1 + groups.rows[task] if task >= 0 else 0 for _, task in records.step_tasks],
            [max(dim, 0) for dim, _ in records.step_tasks],
            numbered,
            self._sizes,
            [stage for _, first, last in arena for stage in (first, last)],
            self._written_sometimes(lowered, places, records),
            image,
            groups.areas,
            groups.workers,
            groups.shares,
        )
        self._template = groups.template(instructions)
        self._free: list[array[int]] = []
        """The words of shapes that are bound."""
        self._sources = bytes(SLOT_BYTES * (FIRST_BUFFER + len(places)))
        self._invariants = [
            (found.steps, [places[buffer] for buffer in found.results])
            for found in (invariants(lowered.steps) if keeps_results else ())
        ]
        """Steps that depend on extents alone, and the places of what other steps read of them."""
        self._most_kept = min(MAX_INVARIANT_BYTES, hardware.levels[-2].capacity_bytes // 2)
        self._checked = tuple(records.checked)
        # A getter of one item would not give a tuple.
        slots = [slot for slot, _ in self._checked] * (2 if len(self._checked) == 1 else 1)
        self._statuses: Callable[[Any], Iterable[int]] = itemgetter(*slots or (0,))
        self._slots_of = records.slots_of_tasks()
        self._known_fills: RecentlyUsed[bytes, tuple[Fills, int, int]] = RecentlyUsed(MAX_FILLS)
        shared = StepSlot.WORKERS, StepSlot.CHUNKS, StepSlot.TOGETHER, StepSlot.BEFORE
        self._shared_slots = np.concatenate([firsts + slot for slot in shared])
        """The slots of all steps that say how workers share them."""
        first = self._distribute.shared
        decided: list[tuple[Sequence[int] | Words, Sequence[int] | Words]] = [
            ([Program.WORKERS], [groups.workers]),
            (self._shared_slots, range(first, first + len(self._shared_slots))),
            (records.task_slots, groups.places),
        ]
        # Tasks have a value for each of their slots, some of which are addresses.
        self._fills = np.concatenate([*(_copies(*pair) for pair in decided), fills])

    @cached_attribute
    def _evaluate(self) -> Callable[[Sequence[int]], list[int]]:
        """What evaluates dims where native code does not: of any size on the way."""
        return self._dims.compiled(self._names)

    def _values(self, symbols: Sequence[int]) -> array[int]:
        """The values of all dims. Raises as `bind`."""
        if self._check is not None:
            self._check(symbols)
        values = evaluated(self._evaluate, symbols, self._extents)
        check_arena(max(self._elements(values), default=0))
        return addressable(values, self._forms.at(values), self._loops)

    def _written_sometimes(
        self, lowered: Lowered, places: Mapping[Buffer, int], records: RecordLayout
    ) -> dict[int, list[int]]:
        """The places of the arena that no step may write, and the numbers of the steps that may."""
        writers: dict[int, list[int]] = {}
        for number, step in enumerate(lowered.steps):
            for buffer in step.writes:
                if buffer in places:
                    writers.setdefault(places[buffer], []).append(number)

        idle = {number for (_, unless), number in records.tasks.items() if unless is not None}
        return {
            place: steps
            for place, steps in writers.items()
            if all(records.step_tasks[step].task in idle for step in steps)
        }

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
        self, symbols: Sequence[int], workers: int, arena: Callable[[int], int]
    ) -> BoundProgram:
        """The program for values of the symbols. `arena(size)` returns the address of `size` bytes.

        Raises:
            ShapeError: negative extents, extents divided by zero, or loops that would not end.
            AllocationError: arrays larger than the address space.
        """
        try:
            words = self._free.pop()
        except IndexError:
            words = array("q", self._template)
        words[self._symbols] = addressable(symbols, (), lambda values: ())
        words[self._groups.workers] = workers
        # Nothing is planned for extents that no run can have.
        plans = self._groups(words, done=0)
        if plans is None:
            words[: self._dims.count] = self._values(symbols)
            plans = self._groups(words, done=1)
            assert plans is not None
        forms = self._forms.at(words)
        outputs, rooms, growths = self._forms.outputs(words, forms)
        once, kept_places = self._kept_invariants(words)
        sources = array("q", self._sources)
        at = words.buffer_info()[0], sources.buffer_info()[0]
        chunks = most_chunks(workers, self._hardware)
        arena_bytes, later = self._distribute(*at, chunks, once, kept_places)
        check_arena(arena_bytes)
        if workers > 1:
            first = self._distribute.shared
            of_steps = words[first : first + len(self.stages)]
            workers = workers if max(of_steps, default=0) > 1 else 1
        workspace_bytes, worker_bytes, kept_bytes = self._groups.summary(words)
        base = arena(arena_bytes + workspace_bytes)

        records: Any = allocated((self.words,), np.int64)
        here = address_of(records)
        sources[RECORDS], sources[WORKSPACE] = here, base + arena_bytes
        sources[POOL] = self._runtime.pool.address
        results = None
        if later is not None:
            memory = self._place_kept(kept_places, sources, base)
            results = KeptResults(memory, self._shared_slots, later)
        _, fills, count = self._fills_with(self._groups.variants(words))
        self._distribute.fill(base, here, fills, count, *at)
        makes, plain = self._forms.makes(words)
        self._free.append(words)
        return BoundProgram(
            records, here, workers, outputs, makes, plain, rooms, growths, self._checked,
            partial(self._statuses, memoryview(records)) if self._checked else tuple,
            base, sources, plans, arena_bytes, workspace_bytes, worker_bytes,
            SLOT_BYTES * self.words + kept_bytes, results,
        )  # fmt: skip

    def _fills_with(self, variants: array[int]) -> tuple[Fills, int, int]:
        """The slots that extents and addresses decide, together with the fields of tasks of some
        variants; their address and number."""
        key = variants.tobytes()
        found = self._known_fills.get(key)
        if found is None:
            fields = self._groups.fields(variants)
            rows = [
                Fill(slots[1 + field.place], NOTHING, field.dim, field.factor)
                for task, slots in self._slots_of
                for field in fields[task]
            ]
            fills = np.concatenate([self._fills, fill_rows(rows)])
            found = fills, address_of(fills), len(fills)
            self._known_fills.add(key, found)
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

    def _place_kept(self, sizes: Mapping[int, int], sources: array[int], base: int) -> Array:
        """Memory for results that are kept. Writes their addresses to the sources, to which that of
        the arena is still to be added."""
        memory = allocated((sum(sizes.values()) + ALIGNMENT_BYTES,), np.uint8)
        begin = aligned(address_of(memory))
        for place, size in sizes.items():
            sources[FIRST_BUFFER + place] = begin - base
            begin += size
        return memory


def _copies(slots: Sequence[int] | Words, words: Sequence[int] | Words) -> Fills:
    """Fills that write words, by their numbers, to slots."""
    return fill_rows([Fill(slot, NOTHING, n, 1) for slot, n in zip(slots, words, strict=True)])


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
