"""Arrays that outputs append to in place: what an input holds is not copied for each run.

Such an output is a view of memory that has room for more. If an input is the newest view, a run
takes the memory over and writes its new rows after those of the input; earlier views do not change.
Where a window slides, the view begins at a later row of the memory with each run. Any other array
is copied to new memory: one of the caller's own, one whose memory another run has appended to, or
one whose memory has no room left.

Where data says which rows are written, a run may write over rows of the input, which earlier views
show. So a run uses such a view up, also if it fails: the view is refused from then on, because it
does not hold any more what it did.

Views are read-only, so that none is changed through another. No lock is taken: a view is taken over
by one operation on a dictionary or a list, of which only one thread can have the result.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from ftuner.errors import InputError
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.memory import NO_MEMORY, not_allocated


class Growth(NamedTuple):
    """The extents of an output that a run appends to an input, or writes into it."""

    input: str
    """The name of the input."""
    axis: int
    kept: int
    """Rows of the input that are kept, the last ones."""
    whole: tuple[int, ...]
    """The shape of these together with the new rows."""
    shape: tuple[int, ...]
    """The shape of the output: the last rows of all these."""
    room: tuple[int, ...]
    """The shape of the memory."""
    writes: bool = False
    """Whether the run may write over rows of the input."""

    def rows(self, begin: int, end: int) -> tuple[slice, ...]:
        """The index of rows of the memory."""
        return (slice(None),) * self.axis + (slice(begin, end),)


class _View(weakref.ref[Array]):
    """An array that ends with the last row written to its memory, and that a run may continue."""

    __slots__ = ("begin", "key", "memory", "unused", "writes")

    memory: Array
    begin: int
    """The row of the memory at which the array begins."""
    key: int
    """Where the view is in `_VIEWS`."""
    writes: bool
    """Whether it is continued by runs that may write over its rows."""
    unused: list[None]
    """One element as long as no such run has continued it."""


_VIEWS: dict[int, _View] = {}
"""Views by the identity of the array. A run that appends takes its view out; one that may write
over rows leaves it, with nothing `unused`."""


def _forget(view: _View, views: dict[int, _View] = _VIEWS) -> None:
    """The array is gone."""
    if views.get(view.key) is view:
        del views[view.key]


class Extension(NamedTuple):
    """An output that a run appends to an input."""

    array: Array
    """The output."""
    whole: Array
    """What the program computes, of which the output is the end; it begins with elements of the
    input."""
    memory: Array
    begin: int
    """The row of the memory at which the output begins."""
    growth: Growth
    taken: _View | None
    """The input, if the memory was taken over from it."""

    def keep(self) -> None:
        """Have later runs append to the output."""
        _remember(self.array, self.memory, self.begin, self.growth.writes)

    def undo(self, begun: bool) -> None:
        """Have later runs append to the input: this run has failed. Once it has `begun`, it may
        have written over any rows of an input that it may write over, which stays used up."""
        if self.taken is not None and not (begun and self.growth.writes):
            _give_back(self.taken)


def _remember(array: Array, memory: Array, begin: int, writes: bool) -> None:
    view = _View(array, _forget)
    view.key = key = id(array)
    view.memory, view.begin, view.writes = memory, begin, writes
    if writes:
        view.unused = [None]
    _VIEWS[key] = view


def lent(memory: Array) -> Array:
    """Memory of the caller's as an array that a run which may write over rows takes as it is,
    unless it needs more of them. `memory` is aligned, contiguous and writeable."""
    array = memory[...]
    _remember(array, memory, 0, True)
    return array


def _taken(past: Array, writes: bool, name: str) -> _View | None:
    """The view that an array is, if no other run has continued it; the caller's from now on.

    Raises:
        InputError: a run has written over its rows.
    """
    view = _VIEWS.get(id(past))
    if view is None:
        return None
    if not view.writes:
        return _VIEWS.pop(id(past), None)
    try:
        view.unused.pop()
    except IndexError:
        raise InputError(
            f"input {name} is an output of an earlier run, and another run has written over its "
            "rows, or failed while it did; give the newest output, or a copy from before that run"
        ) from None
    return view


def _give_back(view: _View) -> None:
    if view.writes:
        view.unused.append(None)
    else:
        _VIEWS[view.key] = view


def extended(past: Array, growth: Growth) -> Extension:
    """An output that begins with rows of `past`; the rows that follow are not set, or zero if the
    run may not write them all. `past` may have any strides.

    Raises:
        AllocationError: the system does not have the memory.
        InputError: an earlier run has written over the rows of `past`.
    """
    name, axis, kept, whole, _, room, writes = growth
    view = _taken(past, writes, name)
    if view is None:
        return _extension(_copied(past, growth), growth, 0, None)
    begin = view.begin + past.shape[axis] - kept
    memory = view.memory
    if view.writes == writes and memory.shape == room and begin + whole[axis] <= room[axis]:
        return _extension(memory, growth, begin, view)
    try:
        memory = _copied(past, growth)
    finally:
        _give_back(view)
    return _extension(memory, growth, 0, None)


def _copied(past: Array, growth: Growth) -> Array:
    """New memory that begins with rows of `past`."""
    try:
        memory = np.empty(growth.room, past.dtype)
    except NO_MEMORY as error:
        raise not_allocated(growth.room, past.dtype, error) from error
    rows = past.shape[growth.axis]
    memory[growth.rows(0, growth.kept)] = past[growth.rows(rows - growth.kept, rows)]
    if growth.writes:
        memory[growth.rows(growth.kept, growth.room[growth.axis])] = 0
    memory.flags.writeable = False
    return memory


def _extension(memory: Array, growth: Growth, first: int, taken: _View | None) -> Extension:
    _, axis, _, whole, shape, _, _ = growth
    end = first + whole[axis]
    begin = end - shape[axis]
    all_ = memory[growth.rows(first, end)]
    output = all_ if begin == first else memory[growth.rows(begin, end)]
    return Extension(output, all_, memory, begin, growth, taken)
