"""Record layout of a graph: an image of its records, and the slots that binding fills in.

All programs of a graph have the same layout. When the graph is compiled, its steps reserve slots
and define what each slot holds: a constant, an address, the value of a dim, or a value that a task
determines when extents are bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.native.records import SLOT_BYTES, Patch, Program, Step
from ftuner.core.dim import Dim
from ftuner.graph.buffers import Buffer
from ftuner.runtime.cpu.tasks import Condition, EqualTasks, Task
from ftuner.runtime.shapes.evaluation import Dims, Layouts

NOTHING, RECORDS, WORKSPACE, POOL, FIRST_BUFFER = range(5)
"""Base addresses of fills: none, the records, the workspace, the thread pool, then the buffers of
the arena."""


class Fill(NamedTuple):
    """A slot to which binding adds `address of source + word * factor`."""

    slot: int
    source: int
    word: int
    """The number of a dim, or of a word after all dims."""
    factor: int


Fills = npt.NDArray[np.int32]


def fill_rows(fills: Sequence[Fill]) -> Fills:
    """An array with a `Fill` in each row, as native code reads it."""
    return np.array(fills, np.int32).reshape(-1, len(Fill._fields))


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
        self.tasks: dict[tuple[Task, Condition | None], int] = {}
        """Tasks, each with the condition under which it has nothing to do, and their numbers."""
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
        self._fills: list[Fill] = []
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
        self._fills.append(Fill(slot, NOTHING, number, 1))

    def point(self, slot: int, to: int) -> None:
        """Let binding write the address of the slot `to` to a slot."""
        self._image[slot] = to * SLOT_BYTES
        self._fills.append(Fill(slot, RECORDS, self._none, 0))

    def workspace(self, slot: int) -> None:
        """Let binding write the address of the workspace to a slot."""
        self._fills.append(Fill(slot, WORKSPACE, self._none, 0))

    def pool(self, slot: int) -> None:
        """Let binding write the address of the thread pool to a slot."""
        self._fills.append(Fill(slot, POOL, self._none, 0))

    def address(self, slot: int, buffer: Buffer, offset: Dim = 0) -> None:
        """Let binding write the address of an element of a buffer to a slot."""
        size, number = buffer.dtype.itemsize, self.dims.number(offset)
        if buffer.kind in ("input", "output"):
            array = buffer.number + (self._inputs if buffer.kind == "output" else 0)
            self._patches.append(_Patch(slot, array, number, size))
            return
        place = self._arena.get(buffer)
        source = NOTHING if place is None else FIRST_BUFFER + place
        if buffer.array is not None and not buffer.packed:
            self._image[slot] = int(buffer.array.ctypes.data)
        self._fills.append(Fill(slot, source, number, size))

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

    def planned_tasks(
        self, task: Task, slots: Sequence[int], unless: Condition | None = None
    ) -> None:
        """The next step has the tasks that `task` determines; their number is written to the step,
        and its `BoundTask.values` to `slots`. It has nothing to do where `unless` holds."""
        assert unless is None or self._unless is None
        key = task, unless or self._unless
        if key not in self.tasks:
            self.tasks[key] = len(self.tasks)
            self.task_lengths.append(len(slots))
        self.task_slots += (self._count_slot(), *slots)
        self.step_tasks.append(StepTasks(-1, self.tasks[key]))

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

    @property
    def patches(self) -> npt.NDArray[np.int64]:
        """After `finished`: of each address in an array of the caller, its slot, the number of the
        array, and the slot that holds the offset."""
        first = len(self._image) - len(self._patches) * Patch.SIZE + Patch.OFFSET
        offsets = range(first, len(self._image) + Patch.OFFSET, Patch.SIZE)
        rows = [(p.slot, p.array, at) for p, at in zip(self._patches, offsets, strict=True)]
        return np.array([*zip(*rows, strict=True)] or [()] * 3, np.int64)

    def finished(self) -> tuple[npt.NDArray[np.int64], Fills]:
        """The image, and its fills as an array with a `Fill` in each row."""
        self.point(Program.PATCHES, len(self._image))
        self._image[Program.PATCH_COUNT] = len(self._patches)
        for patch in self._patches:
            at = self.reserve(Patch.SIZE)
            self.point(at + Patch.SLOT, patch.slot)
            self._image[at + Patch.ARRAY] = patch.array
            self._fills.append(Fill(at + Patch.OFFSET, NOTHING, patch.offset, patch.itemsize))
        return np.array(self._image, np.int64), fill_rows(self._fills)
