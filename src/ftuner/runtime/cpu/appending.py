"""Arrays that outputs append to in place: what an input holds is not copied for each run.

Such an output is a view of `SharedRows`, which have room for more. If an input is the newest view,
a run takes their memory over and writes its new rows after those of the input; earlier views do not
change. Any other array is copied to new memory: one of the caller's own, one whose memory another
run has appended to, or one whose memory has no room left.
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


class SharedRows(np.ndarray[Any, Any]):
    """Memory with room for rows, of which several arrays are views. They are read-only, so that
    none is changed through another."""

    newest: weakref.ref[Array] | None = None
    """The view of all rows that are written; None while a run writes more."""

    def taken(self, past: Array) -> bool:
        """Whether `past` is the newest view. If so, the memory is the caller's until it sets
        `newest`."""
        with _LOCK:
            found = self.newest is not None and self.newest() is past
            if found:
                self.newest = None
        return found

    def view_of(self, shape: Sequence[int]) -> Array:
        """The first rows, as an array whose `base` is this memory."""
        view: Array = np.ndarray(shape, self.dtype, self, 0, self.strides)
        return view


class Extension(NamedTuple):
    """An output that a run appends to an input."""

    array: Array
    """The output, which begins with the elements of the input."""
    memory: SharedRows
    past: Array | None
    """The input, if the memory was taken over from it."""

    def keep(self) -> None:
        """Have later runs append to the output."""
        self.memory.newest = weakref.ref(self.array)

    def undo(self) -> None:
        """Have later runs append to the input: this run has failed."""
        if self.past is not None:
            self.memory.newest = weakref.ref(self.past)


def extended(past: Array, shape: Sequence[int], room: Sequence[int]) -> Extension:
    """An output of a shape that begins with `past`, in memory of the shape `room`; the rows that
    follow are not set. `past` may have any strides.

    Raises:
        AllocationError: the system does not have the memory.
    """
    memory = past.base
    if type(memory) is SharedRows and memory.shape == room and memory.taken(past):
        return Extension(memory.view_of(shape), memory, past)
    try:
        memory = SharedRows(room, past.dtype)
    except NO_MEMORY as error:
        raise not_allocated(room, past.dtype, error) from error
    memory.view_of(past.shape)[...] = past
    memory.flags.writeable = False
    return Extension(memory.view_of(shape), memory, None)
