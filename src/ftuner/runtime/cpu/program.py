"""Programs: a lowered graph bound to extents, as records that native code walks.

`ProgramWriter` holds what does not depend on extents: compiled functions, packed weights, the order
of steps, the lifetimes of buffers. Binding evaluates dims, asks each task for its plan, places the
buffers of the arena, and fills in the records. Nothing is compiled or measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.native.records import SLOT_BYTES, Program
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.graph.buffers import Buffer
from ftuner.graph.invariants import invariants
from ftuner.graph.steps import Lowered, Step
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.appending import Growth, GrowthDims, bound_growths
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.memory import ALIGNMENT_BYTES, NO_MEMORY, allocated
from ftuner.runtime.cpu.numpy_types import numpy_dtype
from ftuner.runtime.cpu.plan_records import SLACK_BYTES, aligned
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.steps.contract import CompiledStep
from ftuner.runtime.cpu.steps.kinds import kind_of
from ftuner.runtime.cpu.tasks import BoundTask, Task, Unless, most_chunks
from ftuner.runtime.shapes.arena import ArenaPlaces, Lifetime
from ftuner.runtime.shapes.evaluation import (
    Layouts,
    Outputs,
    addressable,
    check_arena,
    evaluated,
    loops_of,
)

MAX_INVARIANT_BYTES = 4 << 20
"""Most bytes of results that a bound program keeps, so that a graph keeps many shapes. Less where
the last cache is small: half of it. Beyond that, they would come from DRAM in each run, and evict
weights."""


_NOTHING: Array = np.empty(0)


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
    fresh: tuple[bool, ...]
    """Whether an output has memory of its own: whether it is none of `Lowered.appended`."""
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
        return self.records_bytes + results

    def fresh_outputs(self) -> list[Array]:
        """New arrays for the outputs; an empty one for each that is appended to an input.

        Raises:
            AllocationError: the system does not have the memory.
        """
        pairs = zip(self.fresh, self.outputs, strict=True)
        try:
            return [np.empty(*output) if fresh else _NOTHING for fresh, output in pairs]
        except NO_MEMORY:
            # Names the output.
            pairs = zip(self.fresh, self.outputs, strict=True)
            return [allocated(*output) if fresh else _NOTHING for fresh, output in pairs]

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
        plans = {id(r.encoded): len(r.encoded.records) for r in self.kept}
        return int(self.records.nbytes) + SLOT_BYTES * sum(plans.values())


class ProgramWriter:
    """Writes the programs of one lowered graph.

    The records of all its programs have one layout: their image is written once, and a program
    fills in what depends on extents.
    """

    def __init__(
        self,
        lowered: Lowered,
        compiled: Sequence[CompiledStep],
        names: Sequence[str],
        hardware: CpuHardware,
    ) -> None:
        """`compiled`: the steps of `lowered`; `names`: the names of the symbols."""
        self._hardware = hardware
        self._kept = (lowered, compiled)
        """Constants and packed weights, whose addresses are in records."""
        numbered = stages(lowered.steps)
        self._stages = np.array(numbered, np.int64)
        arena = arena_buffers(lowered, numbered)
        records = RecordLayout(len(compiled), len(lowered.inputs), [b for b, _, _ in arena])
        dims = records.dims
        sizes = [(dims.number(b.elements), b.dtype.itemsize) for b, _, _ in arena]
        self._sizes = list(dict.fromkeys(sizes))
        """The sizes of the arena's buffers: the number of the dim that counts elements, and the
        bytes of one."""
        self._size_of = [self._sizes.index(size) for size in sizes]
        """The number of each buffer's size."""
        self._places = ArenaPlaces([Lifetime(first, last) for _, first, last in arena])
        firsts = Program.SIZE + np.arange(len(compiled)) * StepSlot.SIZE
        for step, at in zip(compiled, firsts.tolist(), strict=True):
            step.lay_out(records, at)
        self._image, self._fills = records.finished()
        self._layouts = records.layouts
        self._tasks = list(records.tasks)
        self._alike = _alike(self._tasks, records.layouts)
        self._deal = StepDealing(records, self._stages)
        self._sometimes = self._written_sometimes(lowered, [b for b, _, _ in arena], records)
        """Places of the arena that no step may write, with the numbers of their writers' tasks."""
        numbers = {buffer: place for place, (buffer, _, _) in enumerate(arena)}
        self._invariants = [
            (found.steps, [numbers[buffer] for buffer in found.results])
            for found in invariants(lowered.steps)
        ]
        """Steps that depend on extents alone, and the places of what other steps read of them."""
        self._checked = tuple(records.checked)
        self._task_slots = np.array(records.task_slots, np.int64)
        slots = (
            StepSlot.WORKERS, StepSlot.CHUNKS, StepSlot.TASKS, StepSlot.TOGETHER, StepSlot.BEFORE
        )  # fmt: skip
        self._step_slots = np.concatenate([firsts + slot for slot in slots])
        self._outputs = [
            (dims.numbers(v.shape), numpy_dtype(v.layout.dtype)) for v in lowered.outputs
        ]
        appended = {pair.output for pair in lowered.appended}
        self._fresh = tuple([number not in appended for number in range(len(self._outputs))])
        self._rooms = list(self._outputs)
        for pair in lowered.appended:
            self._rooms[pair.output] = (dims.numbers(pair.room), self._outputs[pair.output][1])
        self._appended = [
            GrowthDims(
                pair.axis, dims.number(pair.rows), dims.numbers(pair.whole.shape),
                self._outputs[pair.output][0], self._rooms[pair.output][0], pair.slides,
                pair.writes,
            )
            for pair in lowered.appended
        ]  # fmt: skip
        self._extents = {n for shape, _ in (*self._outputs, *self._rooms) for n in shape}
        self._extents |= {number for number, _ in self._sizes}
        self._loops = loops_of((kind_of(s).loops(s) for s in lowered.steps), dims)
        self._evaluate = dims.compiled(names)

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

    def plan_few_rows(self, workers: int) -> None:
        """Plan products with weights for the shortest inputs, before their first runs."""
        plans = [plan for task in self._tasks if (plan := task.plan_rows) is not None]
        for rows in range(1, self._hardware.tuning.plans_ahead // max(len(plans), 1) + 1):
            for plan in plans:
                plan(rows, workers)

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
        outputs, rooms = (
            tuple([(tuple([values[n] for n in s]), t) for s, t in arrays])
            for arrays in (self._outputs, self._rooms)
        )
        growths = bound_growths(self._appended, values)
        # Checked before anything is planned: plans are made only for extents that a run can have.
        check_arena(max([values[number] * size for number, size in self._sizes], default=0))
        bound = addressable(values, rooms, self._loops)
        found = self._bound_tasks(values, workers)
        once, kept_places = self._kept_invariants(values)
        offsets, arena_bytes = self._arena_places(values, found, kept_places.keys())
        check_arena(arena_bytes)
        most = max([task.workspace_bytes for task in found], default=0)
        base = arena(arena_bytes + most)

        records = self._image.copy()
        here = int(records.ctypes.data)
        records[Program.WORKERS] = workers
        most_of_step = most_chunks(workers, self._hardware)
        dealt = self._deal(found, bound, workers, most_of_step)
        results = None
        if once:
            memory = self._place_kept(kept_places, offsets, base)
            later = self._deal(found, bound, workers, most_of_step, once)
            results = KeptResults(memory, self._step_slots, later)
        records[self._step_slots] = dealt
        records[self._task_slots] = self._deal.values(found)
        slots, fixed, sources, numbers, factors = self._fills
        # In the order of `record_layout`'s sources.
        begins = [0, here, base + arena_bytes, pool, *[base + offset for offset in offsets]]
        addresses = np.array(begins, np.int64)
        records[slots] = fixed + addresses[sources] + bound[numbers] * factors
        kept = tuple([task.plan for task in found if task.plan is not None])
        worker_bytes = max([task.worker_bytes for task in found], default=0)
        return BoundProgram(
            records, here, outputs, self._fresh, rooms, growths, self._checked, base, kept,
            arena_bytes, most, worker_bytes, results,
        )  # fmt: skip

    def _kept_invariants(self, values: Sequence[int]) -> tuple[frozenset[int], dict[int, int]]:
        """The steps whose results are kept, and the bytes of each of these, by its place in the
        arena."""
        left = min(MAX_INVARIANT_BYTES, self._hardware.levels[-2].capacity_bytes // 2)
        once: list[int] = []
        kept: dict[int, int] = {}
        for steps, results in self._invariants:
            sizes = {place: self._place_bytes(place, values) for place in results}
            if sum(sizes.values()) <= left:
                left -= sum(sizes.values())
                once += steps
                kept |= sizes
        return frozenset(once), kept

    def _place_kept(self, sizes: Mapping[int, int], offsets: list[int], base: int) -> Array:
        """Memory for results that are kept. Writes their offsets from the address of the arena."""
        memory = allocated((sum(sizes.values()) + ALIGNMENT_BYTES,), np.uint8)
        begin = aligned(int(memory.ctypes.data))
        for place, size in sizes.items():
            offsets[place] = begin - base
            begin += size
        return memory

    def _place_bytes(self, place: int, values: Sequence[int]) -> int:
        number, size = self._sizes[self._size_of[place]]
        return aligned(values[number] * size + SLACK_BYTES)

    def _bound_tasks(self, values: Sequence[int], workers: int) -> list[BoundTask]:
        """The tasks at values of the dims. Layers that are alike are planned once."""
        layouts, hardware = self._layouts, self._hardware
        found: list[BoundTask] = []
        known: dict[tuple[int, object], BoundTask] = {}
        for task, alike in zip(self._tasks, self._alike, strict=True):
            if alike is None:
                found.append(task.bind(values, layouts, workers, hardware))
                continue
            key = (alike.form, alike.values_of(values))
            if key not in known:
                known[key] = task.bind(values, layouts, workers, hardware)
            found.append(known[key])
        return found

    def _arena_places(
        self, values: Sequence[int], found: Sequence[BoundTask], elsewhere: Collection[int]
    ) -> tuple[list[int], int]:
        """The offset of each arena buffer, and the bytes of all together. What no step writes has
        no bytes, nor has what is kept elsewhere."""
        several = [aligned(values[n] * size + SLACK_BYTES) for n, size in self._sizes]
        sizes = [several[number] for number in self._size_of]
        for place in elsewhere:
            sizes[place] = 0
        for place, tasks in self._sometimes:
            if not any(found[task].chunks for task in tasks):
                sizes[place] = 0
        return self._places(sizes)


class _Alike(NamedTuple):
    """A task that may do at some extents what another one does."""

    form: int
    """The number of its form."""
    values_of: Callable[[Sequence[int]], object]
    """Takes the values of the dims that it reads."""


def _alike(tasks: Sequence[Task], layouts: Layouts) -> list[_Alike | None]:
    """For each task, what it has in common with others; None if no other one has its form."""
    known = [task.likeness(layouts) for task in tasks]
    count = Counter(alike.form for alike in known if alike is not None)
    forms = {form: number for number, form in enumerate(count)}
    return [
        None if alike is None or count[alike.form] == 1
        else _Alike(forms[alike.form], itemgetter(*alike.dims))
        for alike in known
    ]  # fmt: skip


class StepDealing:
    """How the steps of a graph are shared by workers, once their tasks are known: a few array
    operations, whatever the number of steps."""

    def __init__(self, records: RecordLayout, stages: npt.NDArray[np.int64]) -> None:
        """`stages`: as of `stages`, for each step."""
        dims, tasks = np.array(records.step_tasks, np.int64).reshape(-1, 2).T
        (self._equal,) = np.nonzero(tasks < 0)
        self._counts = dims[self._equal]
        """The numbers of the dims that count the tasks of the steps `_equal`."""
        (self._planned,) = np.nonzero(tasks >= 0)
        self._tasks = tasks[self._planned]
        self._stages = stages
        lengths = np.array(records.task_lengths, np.int64)
        firsts = np.cumsum(lengths) - lengths
        ranges = [np.arange(firsts[t], firsts[t] + lengths[t]) for t in self._tasks]
        self._values = np.concatenate([np.arange(0), *ranges])
        """Where the values of the steps `_planned` are among those of all tasks."""

    def __call__(
        self, found: Sequence[BoundTask], values: npt.NDArray[np.int64], workers: int, most: int,
        idle: Collection[int] = (),
    ) -> npt.NDArray[np.int64]:  # fmt: skip
        """The workers of all steps, then chunks, tasks, whether workers wait for each other, and
        the chunks before each step's stage. `values`: of the dims; `most`: chunks of a step;
        `idle`: the numbers of steps that have nothing to do."""
        dealt = np.zeros((5, len(self._stages)), np.int64)
        counts = values[self._counts]
        dealt[0, self._equal] = workers
        dealt[1, self._equal] = np.minimum(counts, most)
        dealt[2, self._equal] = counts
        if found:
            # Workers, chunks, tasks, together: the first fields of a bound task.
            fields = np.array([task[:4] for task in found], np.int64)
            dealt[:4, self._planned] = fields[self._tasks].T
        dealt[1:4, [*idle]] = 0
        done = np.concatenate([[0], np.cumsum(dealt[1])])
        dealt[4] = done[self._stages]
        return dealt.reshape(-1)

    def values(self, found: Sequence[BoundTask]) -> npt.NDArray[np.int64]:
        """The values of the tasks of all steps, step by step."""
        values = np.array([*chain.from_iterable([t.values for t in found])], np.int64)
        written: npt.NDArray[np.int64] = values[self._values]
        return written


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
