"""The tasks of a graph in groups, so that a new shape plans only what depends on what is new.

Tasks that read the same dims form a group. Groups of equal forms are bound once for equal values of
their dims: layers that are alike, and the products of a decoder for one more token, whose number of
rows does not change while the text grows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.core.caching import RecentlyUsed
from ftuner.core.ranges import coarse_middle, fine_start, middle
from ftuner.errors import ShapeError
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.tasks import Condition, Field, PlanKey, Task, Unless
from ftuner.runtime.shapes.evaluation import DimValues, Layouts

MAX_GROUPS = 4096
"""Bound groups that a graph keeps apart from those of its programs. Derived: those of a network of
60 groups for 70 shapes. One is some 1 KiB, of tasks that are alike 4 KiB."""

MAX_MIDDLES = 64
"""Middles of ranges of which a graph keeps the values of all dims. Derived: those of pictures of
32 to 4096 pixels are in 7 octaves of two ranges along an axis; one is some KiB."""


class BoundGroup(NamedTuple):
    """The tasks of a group at values of the dims that they read. Words are bytes, which many groups
    join faster than arrays."""

    shares: bytes
    """Of each task the workers, the chunks, and whether the workers wait for each other: what
    decides how the steps of a program follow each other."""
    values: bytes
    """Of each task the number of tasks, and its values."""
    variants: tuple[int, ...]
    """Of each task."""
    plans: tuple[Ready, ...]
    kept_bytes: int
    """Of its words and of the records of its plans."""
    workspace_bytes: int
    worker_bytes: int


class _Group(NamedTuple):
    """Tasks that read the same dims."""

    form: int
    """The number of its form. Groups of one form have equal tasks but for the numbers of dims."""
    plan_key: PlanKey
    """Of one of its tasks."""
    condition: Condition | None
    """Under which its tasks have nothing to do, if there is one."""
    tasks: tuple[Task, ...]
    """One of each form."""


Key = tuple[object, ...]
"""What decides a group: its form, the number of workers, and the values that stand for its dims."""


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
        found = dict.fromkeys(g.condition for g in self._groups if g.condition is not None)
        self._conditions = tuple(found)
        numbered: dict[Condition | None, int] = {c: n for n, c in enumerate(self._conditions)}
        of_conditions = [condition.plan_key() for condition in self._conditions]
        rows = [(g.form, g.plan_key, numbered.get(g.condition)) for g in self._groups]
        self._keys = _keys(rows)
        self._condition_keys = _keys([(n, x, None) for n, x in enumerate(of_conditions)])
        self._held: RecentlyUsed[Key, bool] = RecentlyUsed(MAX_GROUPS)
        alike = [group.plan_key for group in self._groups] + of_conditions
        self._fine = list({number for x in alike for number in x.fine})
        self._middle = list({number for x in alike for number in x.middle})
        self._coarse = any(x.coarse for x in alike)
        self._middles: RecentlyUsed[tuple[int, ...], list[int]] = RecentlyUsed(MAX_MIDDLES)
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
        self.places = np.concatenate([np.arange(0), *ranges])
        """For each of `RecordLayout.task_slots`, where its value is among those of the groups."""

    def rounded(self, symbols: Sequence[int], values: Sequence[int]) -> DimValues:
        """The values of the dims with what decisions for ranges are made for."""
        fine = {number: fine_start(values[number]) for number in self._fine}
        own = {number: middle(values[number]) for number in self._middle}
        if not self._coarse:
            return DimValues(values, fine, own, (), ())
        middles = tuple(map(coarse_middle, symbols))
        coarse = self._middles.get(middles)
        if coarse is None:
            try:
                coarse = self._evaluate(middles)
            except (ShapeError, ZeroDivisionError):
                # No extents of the graph: decide for those that are given.
                return DimValues(values, fine, own, values, tuple(symbols))
            self._middles.add(middles, coarse)
        return DimValues(values, fine, own, coarse, middles)

    def _keys_at(self, values: DimValues, workers: int) -> tuple[Key, ...]:
        """The key of each group, at values of the dims, for a number of workers."""
        conditions = self._conditions
        held = self._held.all(
            self._condition_keys(values, workers, ()),
            lambda number: conditions[number].holds(values, workers, self._hardware),
        )
        return self._keys(values, workers, held)

    def __call__(self, values: DimValues, workers: int) -> list[BoundGroup]:
        """All groups at values of the dims."""
        return self._known.all(
            self._keys_at(values, workers),
            lambda number: self._bound(self._groups[number], values, workers),
        )

    def forget(self) -> None:
        """Forget the groups that are bound; programs keep theirs."""
        self._middles.clear()
        self._known.clear()
        self._held.clear()

    def fields(self, variants: Sequence[int]) -> list[tuple[Field, ...]]:
        """Of each task the values that are no part of its plan."""
        return [
            task.fields(self._layouts, variants[row])
            for task, row in zip(self._tasks, self.rows, strict=True)
        ]

    def _bound(self, group: _Group, values: DimValues, workers: int) -> BoundGroup:
        bound = [task.bind(values, self._layouts, workers, self._hardware) for task in group.tasks]
        plans = tuple([task.plan for task in bound if task.plan is not None])
        shares = _bytes((task.workers, task.chunks, task.together) for task in bound)
        written = _bytes((task.tasks, *task.values) for task in bound)
        of_plans = SLOT_BYTES * sum({id(p): len(p.encoded.records) for p in plans}.values())
        return BoundGroup(
            shares,
            written,
            tuple([task.variant for task in bound]),
            plans,
            len(shares) + len(written) + of_plans,
            max([task.workspace_bytes for task in bound]),
            max([task.worker_bytes for task in bound]),
        )


def _bytes(words: Iterable[Iterable[int]]) -> bytes:
    return array("q", chain.from_iterable(words)).tobytes()


def _keys(
    rows: Sequence[tuple[int, PlanKey, int | None]],
) -> Callable[[DimValues, int, Sequence[bool]], tuple[Key, ...]]:
    """A function that gives the keys of groups or conditions for values of dims, a number of
    workers, and whether each condition holds. `rows`: of each the number of its form, what it
    depends on, and the number of its condition, if it has one. In source code a key takes a tenth
    of a microsecond."""
    keys = []
    for number, (form, alike, condition) in enumerate(rows):
        # The symbols stand for all coarse values of one group, and not of another one.
        parts = [f"{~number}, symbols" if alike.coarse else str(form), "workers"]
        parts += [f"v[{dim}]" for dim in alike.exact]
        parts += [f"f[{dim}]" for dim in alike.fine] + [f"m[{dim}]" for dim in alike.middle]
        key = f"({', '.join(parts)})"
        if condition is not None:
            key = f"({form}, workers, None) if held[{condition}] else {key}"
        keys.append(f"{key}, ")
    # The source is made of integers and the fixed words above.
    scope: dict[str, Any] = {}
    lines = ["def made(v, workers, held):", " f, m, symbols = v.fine, v.middle, v.symbols",
             f" return ({''.join(keys)})"]  # fmt: skip
    exec("\n".join(lines), scope)
    made: Callable[[DimValues, int, Sequence[bool]], tuple[Key, ...]] = scope["made"]
    return made


def _grouped(tasks: Sequence[Task], layouts: Layouts) -> tuple[list[_Group], list[tuple[int, int]]]:
    """The groups of some tasks, and for each task the number of its group and its place in it."""
    together: dict[object, dict[object, Task]] = {}
    read: dict[object, PlanKey] = {}
    places: list[tuple[object, object]] = []
    for task in tasks:
        alike = task.plan_key(layouts)
        key: object = (alike[1:], _condition_of(task))
        read[key] = alike
        together.setdefault(key, {}).setdefault(alike.form, task)
        places.append((key, alike.form))
    forms: dict[tuple[object, ...], int] = {}
    groups = []
    for key, members in together.items():
        conditional = _condition_of(next(iter(members.values()))) is not None
        number = forms.setdefault((*members, conditional), len(forms))
        own = tuple(members.values())
        groups.append(_Group(number, read[key], _condition_of(own[0]), own))
    numbers = {
        (key, form): (group, place)
        for group, (key, members) in enumerate(together.items())
        for place, form in enumerate(members)
    }
    return groups, [numbers[place] for place in places]


def _condition_of(task: Task) -> Condition | None:
    return task.condition if isinstance(task, Unless) else None
