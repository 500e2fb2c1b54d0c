"""The tasks of a graph in groups, so that a new shape plans only what depends on what is new.

Tasks that read the same dims form a group. Groups of equal forms are bound once for equal values of
their dims: layers that are alike, and the products of a decoder for one more token, whose number of
rows does not change while the text grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.core.ranges import coarse_middle, fine_starts
from ftuner.core.recently_used import RecentlyUsed
from ftuner.errors import ShapeError
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.tasks import BoundTask, Condition, Field, Likeness, Task, Unless
from ftuner.runtime.shapes.evaluation import DimValues, Layouts, picked

MAX_GROUPS = 4096
"""Bound groups that a graph keeps apart from those of its programs. Derived: those of a network of
60 groups for 70 shapes. One is some 1 KiB, of tasks that are alike 4 KiB."""


class BoundGroup(NamedTuple):
    """The tasks of a group at values of the dims that they read."""

    tasks: tuple[BoundTask, ...]
    shares: tuple[int, ...]
    """Of each task the workers, the chunks, and whether the workers wait for each other: what
    decides how the steps of a program follow each other."""
    values: npt.NDArray[np.int64]
    """Of each task the number of tasks, and its values."""
    variants: tuple[int, ...]
    """Of each task."""
    plans: tuple[Ready, ...]
    workspace_bytes: int
    worker_bytes: int


class _Group(NamedTuple):
    """Tasks that read the same dims."""

    form: int
    """The number of its form. Groups of one form have equal tasks but for the numbers of dims."""
    likeness: Likeness | None
    """Of one of its tasks; None for a task that is bound anew for each shape."""
    condition: Condition | None
    """Under which its tasks have nothing to do, if there is one."""
    tasks: tuple[Task, ...]
    """One of each form."""


Key = tuple[object, ...] | None
"""What decides a group: its form, the number of workers, and the values that stand for its dims;
None if it is bound anew for each shape."""


class TaskGroups:
    """Binds the tasks of a graph to extents. Safe to use from several threads."""

    def __init__(
        self, records: RecordLayout, hardware: CpuHardware,
        evaluate: Callable[[Sequence[int]], list[int]],
    ) -> None:  # fmt: skip
        """`evaluate`: gives the values of all dims for those of the symbols."""
        self._evaluate = evaluate
        self._layouts, self._hardware = records.layouts, hardware
        self._tasks = list(records.tasks)
        self._groups, members = _grouped(self._tasks, records.layouts)
        conditions = dict.fromkeys(g.condition for g in self._groups if g.condition is not None)
        self._conditions = {condition: number for number, condition in enumerate(conditions)}
        self._keys = _keys(self._groups, self._conditions)
        alike = [group.likeness for group in self._groups if group.likeness is not None]
        self.all_keyed = len(alike) == len(self._groups)
        """Whether values of the dims decide all plans."""
        of_conditions = [condition.likeness() for condition in self._conditions]
        self._exact = picked(n for x in of_conditions for n in x.exact)
        self._ranges = picked(n for x in of_conditions for n in x.fine)
        self._held: RecentlyUsed[object, tuple[bool, ...]] = RecentlyUsed(MAX_GROUPS)
        alike += of_conditions
        self._fine = any(x.fine for x in alike)
        self._coarse = any(x.coarse for x in alike)
        self._known: RecentlyUsed[Key, BoundGroup] = RecentlyUsed(MAX_GROUPS)
        numbers = {member: number for number, member in enumerate(sorted(set(members)))}
        self.rows = [numbers[member] for member in members]
        """For each task, the number of its three `shares`, and of its variant."""
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

    def rounded(
        self, symbols: Sequence[int], values: Sequence[int], bound: npt.NDArray[np.int64]
    ) -> DimValues:
        """The values of the dims with what decisions for ranges are made for; `bound`: the same
        values."""
        fine: Sequence[int] = fine_starts(bound) if self._fine else ()
        coarse: Sequence[int] = ()
        middles: tuple[int, ...] = ()
        if self._coarse:
            middles = tuple(map(coarse_middle, symbols))
            try:
                coarse = self._evaluate(middles)
            except (ShapeError, ZeroDivisionError):
                # No extents of the graph: decide for those that are given.
                middles, coarse = tuple(symbols), values
        return DimValues(values, fine, coarse, middles)

    def keys(self, values: DimValues, workers: int) -> tuple[Key, ...]:
        """The key of each group, at values of the dims, for a number of workers."""
        if not self._conditions:
            return self._keys(values, workers, ())
        key = (workers, values.symbols, self._exact(values), self._ranges(values.fine))
        held = self._held.get(key)
        if held is None:
            hardware = self._hardware
            held = tuple([c.holds(values, workers, hardware) for c in self._conditions])
            self._held.add(key, held)
        return self._keys(values, workers, held)

    def __call__(self, keys: Sequence[Key], values: DimValues, workers: int) -> list[BoundGroup]:
        """All groups at values of the dims. `keys`: theirs."""
        found = []
        for group, key in zip(self._groups, keys, strict=True):
            known = None if key is None else self._known.get(key)
            if known is None:
                known = self._bound(group, values, workers)
                if key is not None:
                    self._known.add(key, known)
            found.append(known)
        return found

    def forget(self) -> None:
        """Forget the groups that are bound; programs keep theirs."""
        self._known.clear()
        self._held.clear()

    def fields(self, variants: Sequence[int]) -> list[tuple[Field, ...]]:
        """Of each task the values that are no part of its plan."""
        return [
            task.fields(self._layouts, variants[row])
            for task, row in zip(self._tasks, self.rows, strict=True)
        ]

    def values(self, found: Sequence[BoundGroup]) -> npt.NDArray[np.int64]:
        """What the slots of `RecordLayout.task_slots` hold."""
        if not found:
            return self._values
        together = np.concatenate([group.values for group in found])
        values: npt.NDArray[np.int64] = together[self._values]
        return values

    def _bound(self, group: _Group, values: DimValues, workers: int) -> BoundGroup:
        bound = [task.bind(values, self._layouts, workers, self._hardware) for task in group.tasks]
        written = chain.from_iterable([(task.tasks, *task.values) for task in bound])
        return BoundGroup(
            tuple(bound),
            tuple(chain.from_iterable([(t.workers, t.chunks, int(t.together)) for t in bound])),
            np.array([*written], np.int64),
            tuple([task.variant for task in bound]),
            tuple([task.plan for task in bound if task.plan is not None]),
            max([task.workspace_bytes for task in bound]),
            max([task.worker_bytes for task in bound]),
        )


def _keys(
    groups: Sequence[_Group], conditions: Mapping[Condition, int]
) -> Callable[[DimValues, int, Sequence[bool]], tuple[Key, ...]]:
    """A function that gives the keys of all groups for values of dims, a number of workers, and
    whether each condition holds. In source code a key takes a tenth of a microsecond."""
    keys = []
    for number, (form, alike, condition, _) in enumerate(groups):
        if alike is None:
            keys.append("None, ")
            continue
        # The symbols stand for all coarse values of one group, and not of another one.
        parts = [f"{~number}, symbols" if alike.coarse else str(form), "workers"]
        parts += [f"v[{dim}]" for dim in alike.exact]
        parts += [f"f[{dim}]" for dim in alike.fine]
        key = f"({', '.join(parts)})"
        if condition is not None:
            key = f"({form}, workers) if held[{conditions[condition]}] else {key}"
        keys.append(f"{key}, ")
    # The source is made of integers and the fixed words above.
    scope: dict[str, Any] = {}
    lines = ["def made(v, workers, held):", " f, symbols = v.fine, v.symbols",
             f" return ({''.join(keys)})"]  # fmt: skip
    exec("\n".join(lines), scope)
    made: Callable[[DimValues, int, Sequence[bool]], tuple[Key, ...]] = scope["made"]
    return made


def _grouped(tasks: Sequence[Task], layouts: Layouts) -> tuple[list[_Group], list[tuple[int, int]]]:
    """The groups of some tasks, and for each task the number of its group and its place in it."""
    together: dict[object, dict[object, Task]] = {}
    read: dict[object, Likeness] = {}
    places: list[tuple[object, object]] = []
    for task in tasks:
        key: object = task
        form: object = task
        alike = task.likeness(layouts)
        if alike is not None:
            key, form = (alike[1:], _condition_of(task)), alike.form
            read[key] = alike
        together.setdefault(key, {}).setdefault(form, task)
        places.append((key, form))
    forms: dict[tuple[object, ...], int] = {}
    groups = []
    for key, members in together.items():
        conditional = _condition_of(next(iter(members.values()))) is not None
        number = forms.setdefault((*members, conditional), len(forms))
        own = tuple(members.values())
        groups.append(_Group(number, read.get(key), _condition_of(own[0]), own))
    numbers = {
        (key, form): (group, place)
        for group, (key, members) in enumerate(together.items())
        for place, form in enumerate(members)
    }
    return groups, [numbers[place] for place in places]


def _condition_of(task: Task) -> Condition | None:
    return task.condition if isinstance(task, Unless) else None
