"""The tasks of a graph in groups, so that a new shape plans only what depends on what is new.

Tasks that read the same dims form a group. Groups of equal forms are bound once for equal values of
their dims: layers that are alike, and the products of a decoder for one more token, whose number of
rows does not change while the text grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.core.recently_used import RecentlyUsed
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.tasks import BoundTask, Field, Task
from ftuner.runtime.shapes.evaluation import Layouts, Picked, picked

MAX_GROUPS = 256
"""Bound groups that a graph keeps apart from those of its programs. Derived: one is some 4 KiB, so
at most 1 MiB."""


class BoundGroup(NamedTuple):
    """The tasks of a group at values of the dims that they read."""

    tasks: tuple[BoundTask, ...]
    shares: tuple[int, ...]
    """Of each task the workers, the chunks, and whether the workers wait for each other: what
    decides how the steps of a program follow each other."""
    values: npt.NDArray[np.int64]
    """Of each task the number of tasks, and its values."""
    plans: tuple[Ready, ...]
    workspace_bytes: int
    worker_bytes: int


class _Group(NamedTuple):
    """Tasks that read the same dims."""

    form: int
    """The number of its form. Groups of one form have equal tasks but for the numbers of dims."""
    dims: tuple[int, ...]
    values_of: Picked | None
    """Takes the values of the dims; None for a task that is bound anew for each shape."""
    tasks: tuple[Task, ...]
    """One of each form."""


class TaskGroups:
    """Binds the tasks of a graph to extents. Safe to use from several threads."""

    def __init__(self, records: RecordLayout, hardware: CpuHardware) -> None:
        self._layouts, self._hardware = records.layouts, hardware
        self._tasks = list(records.tasks)
        self._groups, members = _grouped(self._tasks, records.layouts)
        self.deciding: Picked | None = None
        """Takes the values of all dims that decide the plans of the graph's tasks; None if those of
        some tasks may depend on others."""
        if None not in [group.values_of for group in self._groups]:
            self.deciding = picked({*chain.from_iterable(group.dims for group in self._groups)})
        self._known: RecentlyUsed[tuple[object, ...], BoundGroup] = RecentlyUsed(MAX_GROUPS)
        numbers = {member: number for number, member in enumerate(sorted(set(members)))}
        self.rows = [numbers[member] for member in members]
        """For each task, the number of its three `shares`."""
        lengths = [0] * len(numbers)
        for row, length in zip(self.rows, records.task_lengths, strict=True):
            lengths[row] = length + 1
        firsts = np.cumsum([0, *lengths])
        ranges = [
            np.arange(firsts[self.rows[task]], firsts[self.rows[task] + 1])
            for _, task in records.step_tasks if task >= 0
        ]  # fmt: skip
        self._values = np.concatenate([np.arange(0), *ranges])
        """Where the values of all steps' slots are among those of the groups."""

    def __call__(self, values: Sequence[int], workers: int) -> list[BoundGroup]:
        """All groups at values of the dims."""
        found = []
        for group in self._groups:
            if group.values_of is None:
                found.append(self._bound(group, values, workers))
                continue
            key = (group.form, workers, group.values_of(values))
            known = self._known.get(key)
            if known is None:
                known = self._bound(group, values, workers)
                self._known.add(key, known)
            found.append(known)
        return found

    def fields(self, values: Sequence[int]) -> tuple[tuple[Field, ...], ...]:
        """Of each task the values that are no part of its plan."""
        return tuple([task.fields(values, self._layouts) for task in self._tasks])

    def values(self, found: Sequence[BoundGroup]) -> npt.NDArray[np.int64]:
        """What the slots of `RecordLayout.task_slots` hold."""
        if not found:
            return self._values
        together = np.concatenate([group.values for group in found])
        values: npt.NDArray[np.int64] = together[self._values]
        return values

    def _bound(self, group: _Group, values: Sequence[int], workers: int) -> BoundGroup:
        bound = [task.bind(values, self._layouts, workers, self._hardware) for task in group.tasks]
        written = chain.from_iterable([(task.tasks, *task.values) for task in bound])
        return BoundGroup(
            tuple(bound),
            tuple(chain.from_iterable([(t.workers, t.chunks, int(t.together)) for t in bound])),
            np.array([*written], np.int64),
            tuple([task.plan for task in bound if task.plan is not None]),
            max([task.workspace_bytes for task in bound]),
            max([task.worker_bytes for task in bound]),
        )


def _grouped(tasks: Sequence[Task], layouts: Layouts) -> tuple[list[_Group], list[tuple[int, int]]]:
    """The groups of some tasks, and for each task the number of its group and its place in it."""
    together: dict[object, dict[object, Task]] = {}
    read: dict[object, tuple[int, ...]] = {}
    places: list[tuple[object, object]] = []
    for task in tasks:
        key: object = task
        form: object = task
        alike = task.likeness(layouts)
        if alike is not None:
            key, form = alike.dims, alike.form
            read[key] = alike.dims
        together.setdefault(key, {}).setdefault(form, task)
        places.append((key, form))
    forms: dict[tuple[object, ...], int] = {}
    groups = []
    for key, members in together.items():
        number = forms.setdefault(tuple(members), len(forms))
        dims = read.get(key, ())
        values_of = picked(dims) if key in read else None
        groups.append(_Group(number, dims, values_of, tuple(members.values())))
    numbers = {
        (key, form): (group, place)
        for group, (key, members) in enumerate(together.items())
        for place, form in enumerate(members)
    }
    return groups, [numbers[place] for place in places]
