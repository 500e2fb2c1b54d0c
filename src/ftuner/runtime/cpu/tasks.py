"""Tasks: what a step does at bound extents, how workers share it, and the layout of its records.

All programs of a graph have the same layout. When the graph is compiled, its steps reserve slots
and define what each slot holds: a constant, an address, the value of a dim, or a value that a task
determines when extents are bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.native.records import SLOT_BYTES, Patch, Program, Step
from ftuner.core.dim import Dim
from ftuner.graph.buffers import Buffer
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.shapes.evaluation import Dims, DimValues, Layouts


class Field(NamedTuple):
    """A value of a task that its plan leaves open: a dim times a factor."""

    place: int
    """Among `BoundTask.values`; -1 is the number of tasks."""
    dim: int
    """The number of the dim."""
    factor: int


class BoundTask(NamedTuple):
    """A step at bound extents."""

    workers: int
    """Number of workers that take part."""
    chunks: int
    """Chunks for work stealing; 0 if there is nothing to do."""
    tasks: int
    """Tasks that the chunks divide; 0 for a product, whose plan has its chunks."""
    together: bool
    """Whether the workers wait for each other within the step."""
    values: Sequence[int]
    """Values for the slots that the step has reserved for its task; those of `Task.fields` are
    written over."""
    workspace_bytes: int
    worker_bytes: int
    """The part of the workspace that each worker of an attention has."""
    plan: Ready | None
    """The plan that the records point to."""
    variant: int = 0
    """Which `Task.fields` the plan leaves open."""


class PlanKey(NamedTuple):
    """What a task depends on. Tasks of one form are planned once where their dims have the same
    values: layers that are alike may have symbols of their own."""

    form: object
    """The task without the numbers of its dims and layouts; hashable. Of a condition, nothing."""
    exact: tuple[int, ...] = ()
    """The numbers of all dims that decide the plan, in an order that the form determines."""
    fine: tuple[int, ...] = ()
    """Of dims that decide by their fine ranges: binding reads `DimValues.fine` of them."""
    coarse: tuple[int, ...] = ()
    """Of dims that decide by the coarse ranges of the symbols: binding reads `DimValues.coarse` of
    them."""


class Task(ABC):
    """Plans a step when extents are bound. Tasks are frozen dataclasses; steps with equal tasks are
    planned once."""

    @abstractmethod
    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        """The step at values of the dims."""

    @abstractmethod
    def plan_key(self, layouts: Layouts) -> PlanKey:
        """What the task depends on."""

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        """The values that differ from shape to shape though the plan does not, of bound tasks of a
        variant."""
        return ()

    @property
    def plan_rows(self) -> Callable[[int, int], object] | None:
        """A function that makes the plan for a number of rows and of workers before the first run
        that needs it; None if the plan depends on anything else."""
        return None


class Condition(ABC):
    """What decides, when extents are bound, whether another step does the work of a step.
    Conditions are frozen dataclasses."""

    @abstractmethod
    def holds(self, values: DimValues, workers: int, hardware: CpuHardware) -> bool:
        """Whether it does, at values of the dims."""

    @abstractmethod
    def plan_key(self) -> PlanKey:
        """What the condition depends on."""


@dataclass(frozen=True)
class Unless(Task):
    """A task where no other step does its work."""

    task: Task
    condition: Condition
    slots: int
    """Slots that the step has reserved for its task."""

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        if self.condition.holds(values, workers, hardware):
            return nothing_to_do(workers, self.slots)
        return self.task.bind(values, layouts, workers, hardware)

    def plan_key(self, layouts: Layouts) -> PlanKey:
        """Of the task: whether the condition holds decides, too."""
        return self.task.plan_key(layouts)

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        # Where there is nothing to do nothing reads them.
        return self.task.fields(layouts, variant)

    @property
    def plan_rows(self) -> Callable[[int, int], object] | None:
        return self.task.plan_rows


@dataclass(frozen=True)
class EqualTasks(Task):
    """As many tasks of equal duration as a dim says."""

    dim: int
    """The number of the dim."""

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        chunks = min(values.fine[self.dim], most_chunks(workers, hardware))
        return BoundTask(workers, chunks, 0, False, (), 0, 0, None)

    def plan_key(self, layouts: Layouts) -> PlanKey:
        return PlanKey(EqualTasks, fine=(self.dim,))

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        return (Field(-1, self.dim, 1),)


def nothing_to_do(workers: int, slots: int) -> BoundTask:
    """A step without elements, whose task has `slots` slots."""
    return BoundTask(workers, 0, 0, False, (0,) * slots, 0, 0, None)


def most_chunks(workers: int, hardware: CpuHardware) -> int:
    """The largest number of chunks of a step."""
    return hardware.tuning.chunks_per_worker * workers if workers > 1 else 1


NOTHING, RECORDS, WORKSPACE, POOL, FIRST_BUFFER = range(5)
"""Base addresses of fills: none, the records, the workspace, the thread pool, then the buffers of
the arena."""


class _Fill(NamedTuple):
    """A slot that binding writes: `fixed + address of source + value of dim * factor`."""

    slot: int
    fixed: int
    source: int
    dim: int
    """The number of a dim."""
    factor: int


class _Patch(NamedTuple):
    """A slot that native code writes at each run: an address in an array of the caller."""

    slot: int
    array: int
    offset: int
    """The number of the dim that counts elements from the array's first."""
    itemsize: int


class StepTasks(NamedTuple):
    """The number of tasks of a step: the value of a dim, or determined by a `Task`. The other one
    is -1."""

    dim: int
    """The number of the dim."""
    task: int
    """The number of the task."""


class RecordLayout:
    """Collects the layout of a graph's records while its steps reserve slots."""

    def __init__(
        self, steps: int, inputs: int, arena: Sequence[Buffer], equal: Mapping[str, str]
    ) -> None:
        """`steps`, `inputs`: their numbers in the graph; `arena`: the buffers of the arena;
        `equal`: as of `Dims`."""
        self.dims = Dims(equal)
        self.layouts = Layouts(self.dims)
        self.tasks: dict[Task, int] = {}
        """Tasks and their numbers. Equal tasks share a number."""
        self.task_lengths: list[int] = []
        """For each task, how many values it has."""
        self.step_tasks: list[StepTasks] = []
        """For each step."""
        self.task_slots: list[int] = []
        """The slots that receive what tasks determine, step by step: the number of tasks, and the
        values of the slots that the step has reserved for them."""
        self.checked: list[tuple[int, tuple[str, ...]]] = []
        """Slots of statuses, and the texts of status 1, 2 and so on."""
        self._inputs = inputs
        self._arena: Mapping[Buffer, int] = {buffer: i for i, buffer in enumerate(arena)}
        self._none = self.dims.number(0)
        self._unless: Condition | None = None
        self._fills: list[_Fill] = []
        self._patches: list[_Patch] = []
        self._image = [0] * (Program.SIZE + steps * Step.SIZE)
        self._image[Program.STEP_COUNT] = steps
        self.point(Program.STEPS, Program.SIZE)
        self.pool(Program.POOL)

    def reserve(self, slots: int) -> int:
        """Reserve `count` slots, which hold 0; returns the first."""
        first = len(self._image)
        self._image += [0] * slots
        return first

    def kernel(
        self, at: int, function: int, arrays: Sequence[tuple[Buffer, Dim]], slots: int
    ) -> int:
        """Let the step whose slots begin at `at` call a kernel with the addresses of elements of
        buffers, and with `slots` parameters, which hold 0; returns the slot of the first."""
        self.constant(at + Step.FUNCTION, function)
        argument = self.reserve(len(arrays))
        self.point(at + Step.ARGUMENT, argument)
        for slot, (buffer, offset) in enumerate(arrays, argument):
            self.address(slot, buffer, offset)
        parameters = self.reserve(slots)
        self.point(at + Step.DIMS, parameters)
        return parameters

    def constant(self, slot: int, value: int) -> None:
        self._image[slot] = value

    def dim(self, slot: int, number: int) -> None:
        """Let binding write the value of a dim, given by number, to a slot."""
        self._fills.append(_Fill(slot, 0, NOTHING, number, 1))

    def point(self, slot: int, to: int) -> None:
        """Let binding write the address of the slot `to` to a slot."""
        self._fills.append(_Fill(slot, to * SLOT_BYTES, RECORDS, self._none, 0))

    def workspace(self, slot: int) -> None:
        """Let binding write the address of the workspace to a slot."""
        self._fills.append(_Fill(slot, 0, WORKSPACE, self._none, 0))

    def pool(self, slot: int) -> None:
        """Let binding write the address of the thread pool to a slot."""
        self._fills.append(_Fill(slot, 0, POOL, self._none, 0))

    def address(self, slot: int, buffer: Buffer, offset: Dim = 0) -> None:
        """Let binding write the address of an element of a buffer to a slot."""
        size, number = buffer.dtype.itemsize, self.dims.number(offset)
        if buffer.kind in ("input", "output"):
            array = buffer.number + (self._inputs if buffer.kind == "output" else 0)
            self._patches.append(_Patch(slot, array, number, size))
            return
        place = self._arena.get(buffer)
        source = NOTHING if place is None else FIRST_BUFFER + place
        fixed = 0 if buffer.array is None or buffer.packed else int(buffer.array.ctypes.data)
        self._fills.append(_Fill(slot, fixed, source, number, size))

    def check(self, slot: int, texts: tuple[str, ...]) -> None:
        """Let a run that leaves n > 0 in a slot raise an error with `texts[n - 1]`."""
        self.checked.append((slot, texts))

    @contextmanager
    def unless(self, condition: Condition) -> Iterator[None]:
        """Steps that are laid out meanwhile have nothing to do where a condition holds."""
        self._unless = condition
        try:
            yield
        finally:
            self._unless = None

    def equal_tasks(self, count: Dim) -> None:
        """The next step has as many tasks as the dim says, of equal duration."""
        number = self.dims.number(count)
        if self._unless is not None:
            self.planned_tasks(EqualTasks(number), ())
        else:
            self.dim(self._count_slot(), number)
            self.step_tasks.append(StepTasks(number, -1))

    def planned_tasks(self, task: Task, slots: Sequence[int]) -> None:
        """The next step has the tasks that `task` determines; their number is written to the step,
        and its `BoundTask.values` to `slots`."""
        if self._unless is not None:
            task = Unless(task, self._unless, len(slots))
        if task not in self.tasks:
            self.tasks[task] = len(self.tasks)
            self.task_lengths.append(len(slots))
        self.task_slots += (self._count_slot(), *slots)
        self.step_tasks.append(StepTasks(-1, self.tasks[task]))

    def _count_slot(self) -> int:
        """The slot of the next step that holds the number of its tasks."""
        return Program.SIZE + len(self.step_tasks) * Step.SIZE + Step.TASKS

    def slots_of_tasks(self) -> list[tuple[int, list[int]]]:
        """For each step with a task, the task's number and the step's part of `task_slots`."""
        found, at = [], 0
        for _, task in self.step_tasks:
            if task >= 0:
                end = at + 1 + self.task_lengths[task]
                found.append((task, self.task_slots[at:end]))
                at = end
        return found

    def finished(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The image, and its fills as an array with a row for each field of `_Fill`."""
        self.point(Program.PATCHES, len(self._image))
        self._image[Program.PATCH_COUNT] = len(self._patches)
        for patch in self._patches:
            at = self.reserve(Patch.SIZE)
            self.point(at + Patch.SLOT, patch.slot)
            self._image[at + Patch.ARRAY] = patch.array
            self._fills.append(_Fill(at + Patch.OFFSET, 0, NOTHING, patch.offset, patch.itemsize))
        columns = np.array(self._fills, np.int64).T.copy()
        return np.array(self._image, np.int64), columns
