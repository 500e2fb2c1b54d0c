"""Arrays that outputs append to in place: what an input holds is not copied for each run.

Such an output is a view of memory that has room for more. If an input is the newest view, a run
takes the memory over and writes its new rows after those of the input; earlier views do not change.
Where a window slides, the view begins at a later row of the memory with each run. Any other array
is copied to new memory: one of the caller's own, one whose memory another run has appended to, or
one whose memory has no room left.

Where data says which rows are written, a run may write over rows of the input, which earlier views
show. So a run uses such a view up, also if it fails: the view is refused from then on, because it
does not hold any more what it did.

Views are read-only, so that none is changed through another. A view is taken over by one operation
on a dictionary or a list, of which only one thread can have the result: a lock would cost each
token more.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from ftuner.core.fork_safety import fork_safe_lock
from ftuner.core.frozen import dataclass
from ftuner.errors import InputError
from ftuner.graph.appending import Appended
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.memory import NO_MEMORY, not_allocated


@dataclass(frozen=True)
class Growth:
    """The extents of an output that a run appends to an input, or writes into it."""

    axis: int
    kept: int
    """Rows of the input that are kept, the last ones."""
    whole: tuple[int, ...]
    """The shape of these together with the new rows."""
    shape: tuple[int, ...]
    """The shape of the output: the last rows of all these."""
    room: tuple[int, ...]
    """The shape of the memory."""
    slides: bool = False
    """Whether the output, or the rows that are kept, may be fewer than there are."""
    writes: bool = False
    """Whether the run may write over rows of the input."""

    @cached_property
    def end(self) -> int:
        """The rows of `whole`."""
        return self.whole[self.axis]

    @cached_property
    def first(self) -> tuple[slice, ...]:
        """The index of `whole` where it begins with the first row of the memory."""
        return self.rows(0, self.end)

    def rows(self, begin: int, end: int) -> tuple[slice, ...]:
        """The index of rows of the memory."""
        return (slice(None),) * self.axis + (slice(begin, end),)


class View(weakref.ref[Array]):
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


Extension = tuple[Array, Array, View, View | None]
"""An output that a run appends to an input; what the program computes, of which the output is the
end and which begins with elements of the input; the view that the output is; and the view that the
input was, if the memory was taken over from it. A plain tuple: a named one takes Python half a
microsecond more for each output and token."""

_VIEWS: dict[int, View] = {}
"""Views by the identity of the array. A run that appends takes its view out; one that may write
over rows leaves it, with nothing `unused`."""
_COPIES = fork_safe_lock()
"""Held while a view is copied whose rows no run may write over meanwhile."""


def _forget(view: View, views: dict[int, View] = _VIEWS) -> None:
    """The array is gone."""
    if views.get(view.key) is view:
        del views[view.key]


def keep(extensions: Iterable[Extension]) -> None:
    """Have later runs append to outputs."""
    _VIEWS.update([(view.key, view) for _, _, view, _ in extensions])


def undo(taken: View | None, begun: bool) -> None:
    """Have later runs append to an input: this run has failed. Once it has `begun`, it may have
    written over any rows of an input that it may write over, which stays used up."""
    if taken is not None and not (begun and taken.writes):
        _give_back(taken)


def shown(x: Array, memories: Sequence[Array]) -> bool:
    """Whether an array shows elements of one of some memories."""
    if x.base is None and all(memory is not x and memory.base is not x for memory in memories):
        return False
    return any(np.may_share_memory(x, memory) for memory in memories)


def lent(memory: Array) -> Array:
    """Memory of the caller's as an array that a run which may write over rows takes as it is,
    unless it needs more of them. `memory` is aligned, contiguous and writeable."""
    rows = Growth(0, len(memory), memory.shape, memory.shape, memory.shape, writes=True)
    made = _extension(memory, rows, 0, None)
    keep([made])
    return made[0]


def _use_up(view: View, name: str) -> None:
    """Have no other run continue the view.

    Raises:
        InputError: another run has continued it.
    """
    try:
        view.unused.pop()
    except IndexError:
        raise InputError(
            f"input {name} is an output of an earlier run, and another run has written over its "
            "rows, or failed while it did; give the newest output, or a copy from before that run"
        ) from None


def _taken_over(view: View, name: str) -> View | None:
    """The view, which is the caller's from now on; None if another run has appended to it.

    Raises:
        InputError: another run has written over its rows.
    """
    if not view.writes:
        return _VIEWS.pop(view.key, None)
    try:
        _use_up(view, name)
    except InputError:
        with _COPIES:
            _use_up(view, name)
    return view


def _give_back(view: View) -> None:
    if view.writes:
        view.unused.append(None)
    else:
        _VIEWS[view.key] = view


def extend(
    inputs: Sequence[Array], pairs: Sequence[Appended], growths: Sequence[Growth],
    names: Sequence[str], outputs: list[Array], written: list[Array], found: list[Extension],
) -> None:  # fmt: skip
    """Set those of a run's outputs that append to inputs, and what the program writes for them; add
    the extensions to `found`, also where a later one raises. `names`: of the inputs of `pairs`.

    Raises:
        AllocationError, InputError: as `extended`.
    """
    for pair, growth, name in zip(pairs, growths, names, strict=True):
        extension = extended(inputs[pair.input], growth, name)
        found.append(extension)
        outputs[pair.output], written[pair.output] = extension[:2]


def extended(past: Array, growth: Growth, name: str = "") -> Extension:
    """An output that begins with rows of `past`, the input `name`; the rows that follow are not
    set, or zero if the run may not write them all. `past` may have any strides.

    Raises:
        AllocationError: the system does not have the memory.
        InputError: an earlier run has written over the rows of `past`.
    """
    view = _VIEWS.get(id(past))
    if view is None:
        return _extension(_copied(past, growth), growth, 0, None)
    axis, memory, begin = growth.axis, view.memory, view.begin
    if growth.slides:
        begin += past.shape[axis] - growth.kept
    fits = memory.shape == growth.room and begin + growth.end <= growth.room[axis]
    if fits and view.writes == growth.writes:
        taken = _taken_over(view, name)
        if taken is not None:
            return _extension(memory, growth, begin, taken)
    elif view.writes:
        with _COPIES:
            _use_up(view, name)
            try:
                return _extension(_copied(past, growth), growth, 0, None)
            finally:
                _give_back(view)
    return _extension(_copied(past, growth), growth, 0, None)


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


def _extension(memory: Array, growth: Growth, first: int, taken: View | None) -> Extension:
    if first or growth.slides:
        end = first + growth.end
        begin = end - growth.shape[growth.axis]
        whole, output = (memory[growth.rows(row, end)] for row in (first, begin))
    else:
        begin = 0
        whole = output = memory[growth.first]
    view = View(output, _forget)
    view.memory, view.begin, view.key, view.writes = memory, begin, id(output), growth.writes
    if view.writes:
        view.unused = [None]
    return output, whole, view, taken
