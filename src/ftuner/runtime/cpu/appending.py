"""Arrays that outputs append to in place: what an input holds is not copied for each run.

Such an output is a view of `SharedRows`, which have room for more. If an input is the newest view,
a run takes their memory over and writes its new rows after those of the input; earlier views do not
change. Where a window slides, the view begins at a later row of the memory with each run. Any other
array is copied to new memory: one of the caller's own, one whose memory another run has appended
to, or one whose memory has no room left.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.forks import fork_safe_lock
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.memory import NO_MEMORY, not_allocated

_LOCK = fork_safe_lock()


class Growth(NamedTuple):
    """The extents of an output that a run appends to an input."""

    axis: int
    kept: int
    """Rows of the input that are kept, the last ones."""
    whole: tuple[int, ...]
    """The shape of these together with the new rows."""
    shape: tuple[int, ...]
    """The shape of the output: the last rows of all these."""
    room: tuple[int, ...]
    """The shape of the memory."""


class SharedRows(np.ndarray[Any, Any]):
    """Memory with room for rows, of which several arrays are views. They are read-only, so that
    none is changed through another."""

    newest: weakref.ref[Array] | None = None
    """The view that ends with the last row that is written; None while a run writes more."""
    begin = 0
    """The row at which that view begins."""

    def taken(self, past: Array, growth: Growth) -> int | None:
        """The row at which what `past` grows to begins; None if `past` is not the newest view, or
        if there is no room. Otherwise the memory is the caller's until it sets `newest`."""
        axis = growth.axis
        with _LOCK:
            if self.newest is None or self.newest() is not past:
                return None
            begin: int = self.begin + past.shape[axis] - growth.kept
            if begin + growth.whole[axis] > self.shape[axis]:
                return None
            self.newest = None
        return begin

    def view_of(self, shape: Sequence[int], axis: int = 0, begin: int = 0) -> Array:
        """The rows from one on, as an array whose `base` is this memory."""
        offset = begin * self.strides[axis]
        view: Array = np.ndarray(shape, self.dtype, self, offset, self.strides)
        return view


class Extension(NamedTuple):
    """An output that a run appends to an input."""

    array: Array
    """The output."""
    whole: Array
    """What the program computes, of which the output is the end; it begins with elements of the
    input."""
    memory: SharedRows
    begin: int
    """The row of the memory at which the output begins."""
    past: Array | None
    """The input, if the memory was taken over from it."""

    def keep(self) -> None:
        """Have later runs append to the output."""
        self.memory.begin = self.begin
        self.memory.newest = weakref.ref(self.array)

    def undo(self) -> None:
        """Have later runs append to the input: this run has failed."""
        if self.past is not None:
            self.memory.newest = weakref.ref(self.past)


def extended(past: Array, growth: Growth) -> Extension:
    """An output that begins with rows of `past`; the rows that follow are not set. `past` may have
    any strides.

    Raises:
        AllocationError: the system does not have the memory.
    """
    axis, kept, _, _, room = growth
    memory = past.base
    if type(memory) is SharedRows and memory.shape == room:
        begin = memory.taken(past, growth)
        if begin is not None:
            return _extension(memory, growth, begin, past)
    try:
        memory = SharedRows(room, past.dtype)
    except NO_MEMORY as error:
        raise not_allocated(room, past.dtype, error) from error
    last = past[(slice(None),) * axis + (slice(past.shape[axis] - kept, None),)]
    memory.view_of(last.shape)[...] = last
    memory.flags.writeable = False
    return _extension(memory, growth, 0, None)


def _extension(memory: SharedRows, growth: Growth, first: int, past: Array | None) -> Extension:
    axis, _, whole, shape, _ = growth
    begin = first + whole[axis] - shape[axis]
    all_ = memory.view_of(whole, axis, first)
    output = all_ if begin == first else memory.view_of(shape, axis, begin)
    return Extension(output, all_, memory, begin, past)
