"""The tasks of a graph in groups, so that a new shape plans only what depends on what is new.

Tasks that read the same dims form a group. Groups of equal forms are bound once for equal values of
their dims: layers that are alike, and the products of a decoder for one more token, whose number of
rows does not change while the text grows. Native code looks bound groups up in a hash table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.binding_records import OPERATIONS, Deciding, Entry, Found, Summary
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.arrays import address_of
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.tasks import Condition, Field, PlanKey, Task, nothing_to_do
from ftuner.runtime.shapes.evaluation import DimValues
from ftuner.runtime.shapes.instructions import Instructions
from ftuner.runtime.shapes.layout import Areas

MAX_GROUPS = 4096
"""Bound groups that a graph keeps apart from those of its programs. Derived: those of a network of
60 groups for 70 shapes. One is some 1 KiB, of tasks that are alike 4 KiB."""
KEPT = 256
"""Decisions that are kept where a table is full. Derived: those of four shapes of most networks,
which are copied in less than a millisecond."""
BLOCK_WORDS = 8192
"""Words of a block of entries. They are side by side: each of scattered ones would be on a page of
its own, whose address is translated anew."""

Plans = tuple[Ready, ...]


class _Entries:
    """The entries of a table. What a look-up finds is valid as long as these are kept."""

    def __init__(self, places: int) -> None:
        self.entries: list[memoryview] = []
        self.owners: list[Any] = [()]
        self.places = array("q", bytes(SLOT_BYTES * (1 + places)))
        self.places[0] = places - 1
        self.address = self.places.buffer_info()[0]
        self._left = 0
        """Words of the last block that are left."""

    def add(self, words: array[int] | memoryview, owner: Any) -> None:
        size = len(words)
        if size > self._left:
            block = array("q", bytes(SLOT_BYTES * max(size, BLOCK_WORDS)))
            self._block, self._begin = memoryview(block), block.buffer_info()[0]
            self._left = len(block)
        first = len(self._block) - self._left
        self._left -= size
        entry = self._block[first : first + size]
        entry[:] = words
        # Most tasks have no plans that are to be kept.
        entry[Entry.OWNER] = len(self.owners) if owner else 0
        if owner:
            self.owners.append(owner)
        self.entries.append(entry)
        last = self.places[0]
        at = entry[Entry.DIGEST] & last
        while self.places[1 + at]:
            at = at + 1 & last
        # Last: native code may look it up at once.
        self.places[1 + at] = self._begin + first * SLOT_BYTES


class DecisionTable:
    """Keeps decisions with what owns their plans. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        """`limit`: on the number of decisions. Where it is reached, those that look-ups have found
        again since it was reached before are kept, up to `KEPT` of them."""
        self._limit, self._lock = limit, fork_safe_lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        # At least half of the places are free.
        self.now = self._empty()

    def _empty(self) -> _Entries:
        return _Entries(1 << (2 * self._limit - 1).bit_length())

    def __len__(self) -> int:
        return len(self.now.entries)

    def add(
        self, digest: int, key: array[int], holds: int, summary: Iterable[int],
        words: Iterable[int], owner: Any,
    ) -> None:  # fmt: skip
        """Keep a decision: an `Entry` with its words, and its owner."""
        entry = array("q", (digest, len(key), 0, 0, holds, *summary, *key, *words))
        with self._lock:
            now = self.now
            if len(now.entries) >= self._limit:
                # Copies: another thread may have found the others.
                used = [x for x in now.entries if x[Entry.USES] > 1]
                used = sorted(used, key=itemgetter(Entry.USES))[-KEPT:]
                before, now = now, self._empty()
                for known in used:
                    now.add(known, before.owners[known[Entry.OWNER]])
                    now.entries[-1][Entry.USES] = 0
                self.now = now
            now.add(entry, owner)


class _Group(NamedTuple):
    """Tasks that read the same dims."""

    form: int
    """The number of its form. Groups of one form have equal tasks but for the numbers of dims."""
    plan_key: PlanKey
    """Of one of its tasks."""
    condition: Condition | None
    """Under which its tasks have nothing to do, if there is one."""
    tasks: tuple[tuple[Task, int], ...]
    """One of each form, and how many values it has."""


class TaskGroups:
    """Binds the tasks of a graph to extents. Safe to use from several threads."""

    def __init__(
        self, runtime: NativeRuntime, records: RecordLayout, hardware: CpuHardware,
        dims: Instructions,
    ) -> None:  # fmt: skip
        """`dims`: the instructions of all dims, which are complete."""
        self._layouts, self._hardware, self._find = records.layouts, hardware, runtime.find
        self._tasks = [task for task, _ in records.tasks]
        self._groups, members = _grouped(records)
        found = dict.fromkeys(g.condition for g in self._groups if g.condition is not None)
        self._conditions = tuple(found)
        numbers = {member: number for number, member in enumerate(sorted(set(members)))}
        self.rows = [numbers[member] for member in members]
        """For each task, the number of its shares, less one, and of its variant."""
        self._variant_count, lengths = len(numbers), [0] * len(numbers)
        for row, length in zip(self.rows, records.task_lengths, strict=True):
            lengths[row] = length + 1
        keys = [condition.plan_key() for condition in self._conditions]
        keys += [group.plan_key for group in self._groups]

        # The areas of the words of a shape: the dims, and all of them again in coarse middles.
        self._dims, block = dims.first_symbol, len(dims.words)
        self._symbols = range(self._dims, self._dims + dims.symbols)
        self._coarse = block if any(key.coarse for key in keys) else 0
        self.areas = areas = Areas(block + self._coarse)
        """To which others add areas of their own."""
        self._fine, self._middle = (areas.add(self._dims) for _ in range(2))
        self.workers = areas.add(1)
        """The word that holds the number of workers."""
        self.shares = areas.add(3 * (1 + len(numbers)))
        """The area of the shares of tasks, after those of nothing."""
        begins = [*accumulate(lengths, initial=areas.add(sum(lengths)))]
        self._variants = areas.add(len(numbers))
        steps = [self.rows[task] for _, task in records.step_tasks if task >= 0]
        self.places = [n for row in steps for n in range(begins[row], begins[row + 1])]
        """For each of `RecordLayout.task_slots`, the word that has its value."""

        numbered: dict[Condition | None, int] = {c: n for n, c in enumerate(self._conditions)}
        self._waits = [-1] * len(numbered) + [numbered.get(g.condition, -1) for g in self._groups]
        """For each decision the number of the condition that it waits for; -1 if for none."""
        read = [self._read(key) for key in keys]
        self._decisions = len(keys)
        self._keys = [areas.add(2 + len(words)) for words in read]
        self._found = areas.add(Found.SIZE * len(keys))
        self._owners, self._summary = areas.add(len(keys)), areas.add(Summary.SIZE)
        held: dict[int, Sequence[Any]] = {
            Deciding.DIMS: dims.rows,
            Deciding.ROUNDED: self._rounded(keys),
            Deciding.DECISIONS: self._rows(keys, read, begins),
            Deciding.NUMBERS: [*chain.from_iterable(read)],
        }
        self._held = {number: np.array(x, np.int64) for number, x in held.items()}
        record = {number: address_of(x) for number, x in self._held.items()} | {
            Deciding.DIM_COUNT: len(dims.rows),
            Deciding.ROUNDED_COUNT: len(held[Deciding.ROUNDED]),
            Deciding.COARSE: self._coarse,
            Deciding.COARSE_COUNT: dims.dims,
            Deciding.COUNT: len(keys),
            Deciding.WORKERS: self.workers,
            Deciding.FOUND: self._found,
            Deciding.OWNERS: self._owners,
            Deciding.SUMMARY: self._summary,
        }
        self._record = array("q", [record[number] for number in range(Deciding.SIZE)])
        self._address = self._record.buffer_info()[0]
        self._known = DecisionTable(max(MAX_GROUPS, 4 * len(keys)))

    def _rounded(self, keys: Sequence[PlanKey]) -> list[tuple[int, int, int, int]]:
        """The instructions of what stands for the ranges of dims, those that decide anything."""
        found = [("coarse_middle", n, self._coarse + n) for n in self._symbols if self._coarse]
        found += [("fine_start", n, self._fine + n) for n in {n for key in keys for n in key.fine}]
        found += [("middle", n, self._middle + n) for n in {n for key in keys for n in key.middle}]
        return [(OPERATIONS.index(name), to, n, n) for name, n, to in found]

    def _read(self, key: PlanKey) -> list[int]:
        """The words that a decision depends on."""
        # The symbols stand for all coarse values of one group, and not of another one.
        coarse = self._symbols if key.coarse else ()
        return [
            *key.exact,
            *(self._fine + n for n in key.fine),
            *(self._middle + n for n in key.middle),
            *(self._coarse + n for n in coarse),
        ]

    def _rows(
        self, keys: Sequence[PlanKey], read: Sequence[Sequence[int]], begins: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """The `Decision` of each condition and group, which depend on the words `read`. `begins`:
        the first value of each task, and their end."""
        own = 1 + max([group.form for group in self._groups], default=0)
        groups: list[_Group | None] = [*([None] * len(self._conditions)), *self._groups]
        rows: list[tuple[int, ...]] = []
        first = task = 0
        for number, (group, key) in enumerate(zip(groups, keys, strict=True)):
            form = own + number if group is None or key.coarse else group.form
            count = 0 if group is None else len(group.tasks)
            begin, end = begins[task], begins[task + count]
            rows.append((
                form, self._waits[number], first, len(read[number]), self._keys[number],
                self.shares + 3 * (1 + task), 3 * count, begin, end - begin,
                self._variants + task, count,
            ))  # fmt: skip
            first += len(read[number])
            task += count
        return rows

    def __call__(self, words: array[int], done: int) -> list[Plans] | None:
        """The plans of all groups; None if native code cannot evaluate the dims. `words`: of a
        shape, with its symbols and the number of workers; what is decided is written to them.
        `done`: 1 if they have the values of all dims, else 0."""
        here = words.buffer_info()[0]
        known = self._known.now
        missing = self._find(self._address, here, known.address, done)
        while missing > 0:
            self._add_missing(words)
            known = self._known.now
            missing = self._find(self._address, here, known.address, 2)
        if missing < 0:
            return None
        first = self._owners + len(self._conditions)
        owners = words[first : self._owners + self._decisions]
        return [*map(known.owners.__getitem__, owners)]

    def template(self, dims: Instructions) -> bytes:
        """The words of a shape before its symbols are written to them; `areas` are complete."""
        block = array("q", dims.words).tobytes()
        given = block * (2 if self._coarse else 1)
        return given + bytes(SLOT_BYTES * self.areas.size - len(given))

    def summary(self, words: array[int]) -> array[int]:
        """A `Summary` of what is decided."""
        return words[self._summary : self._summary + Summary.SIZE]

    def variants(self, words: array[int]) -> array[int]:
        """The variant of each task."""
        return words[self._variants : self._variants + self._variant_count]

    def forget(self) -> None:
        """Forget the groups that are bound; programs keep the plans of theirs."""
        self._known.clear()

    def fields(self, variants: Sequence[int]) -> list[tuple[Field, ...]]:
        """For each task, the values that are no part of its plan."""
        return [
            task.fields(self._layouts, variants[row])
            for task, row in zip(self._tasks, self.rows, strict=True)
        ]

    def _add_missing(self, words: array[int]) -> None:
        """Decide what a look-up did not find, but for what waits for a condition."""
        dims, workers = self._dims, words[self.workers]
        values = DimValues(*[
            words[area : area + dims] for area in (0, self._fine, self._middle, self._coarse)
        ])  # fmt: skip
        conditions = len(self._conditions)
        entries = words[self._found : self._found + Found.SIZE * self._decisions : Found.SIZE]
        added: set[bytes] = set()
        for number in [number for number, entry in enumerate(entries) if not entry]:
            waits_for, at = self._waits[number], self._found + Found.SIZE * number
            if waits_for >= 0 and not entries[waits_for]:
                continue
            digest, first = words[at + Found.DIGEST], self._keys[number]
            key = words[first : first + words[at + Found.LENGTH]]
            text = key.tobytes()
            if text in added:
                # As an equal layer.
                continue
            added.add(text)
            if number < conditions:
                holds = self._conditions[number].holds(values, workers, self._hardware)
                self._known.add(digest, key, int(holds), (0,) * Summary.SIZE, (), None)
            else:
                group, idle = self._groups[number - conditions], bool(key[1] & 1)
                self._known.add(digest, key, 0, *self._bound(group, values, workers, idle))

    def _bound(
        self, group: _Group, values: DimValues, workers: int, idle: bool
    ) -> tuple[tuple[int, ...], Iterable[int], Plans]:
        """The `Summary` of a group, the shares, values and variants of its tasks, and the plans
        that these point to. `idle`: whether its condition holds."""
        bound = [
            nothing_to_do(workers, length)
            if idle
            else task.bind(values, self._layouts, workers, self._hardware)
            for task, length in group.tasks
        ]
        plans = tuple([task.plan for task in bound if task.plan is not None])
        words = [word for task in bound for word in (task.workers, task.chunks, task.together)]
        words += chain.from_iterable((task.tasks, *task.values) for task in bound)
        words += [task.variant for task in bound]
        of_plans = sum({id(p): len(p.encoded.records) for p in plans}.values())
        summary = (
            max([task.workspace_bytes for task in bound]),
            max([task.worker_bytes for task in bound]),
            SLOT_BYTES * (len(words) + of_plans),
        )
        return summary, words, plans


def _grouped(records: RecordLayout) -> tuple[list[_Group], list[tuple[int, int]]]:
    """The groups of all tasks, and for each task the number of its group and its place in it."""
    together: dict[tuple[object, Condition | None], dict[object, tuple[Task, int]]] = {}
    read: dict[object, PlanKey] = {}
    places = []
    for (task, condition), length in zip(records.tasks, records.task_lengths, strict=True):
        alike = task.plan_key(records.layouts)
        key: tuple[object, Condition | None] = (alike[1:], condition)
        read[key] = alike
        together.setdefault(key, {}).setdefault(alike.form, (task, length))
        places.append((key, alike.form))
    forms: dict[tuple[object, ...], int] = {}
    groups = []
    for key, members in together.items():
        number = forms.setdefault((*members, key[1] is not None), len(forms))
        groups.append(_Group(number, read[key], key[1], tuple(members.values())))
    numbers = {
        (key, form): (group, place)
        for group, (key, members) in enumerate(together.items())
        for place, form in enumerate(members)
    }
    return groups, [numbers[place] for place in places]
