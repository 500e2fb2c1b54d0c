"""Where constants come from: the bytes of files, and what was made of them, by which a constant is
made again instead of being kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ftuner.graph.buffers import is_hollow
from ftuner.graph.ir import Array

MAX_WITHIN_BYTES = 1 << 16
"""Largest array that is part of a source, such as the factors of columns."""
_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "concatenate": lambda *arrays, axis: np.concatenate(arrays, axis=axis),
    "multiply": np.multiply,
    "transpose": lambda x, *, perm: np.ascontiguousarray(x.transpose(perm)),
}
"""What constants are made by, with the same bits each time."""


class FileBytes(NamedTuple):
    """Bytes of a file from an offset on."""

    location: str
    """As the model names it; empty for the model's own file."""
    offset: int


class Made(NamedTuple):
    """What a function makes of constants."""

    function: str
    options: Mapping[str, Any]
    operands: tuple[Any, ...]
    """Each a `Source` or a small array."""


class Source(NamedTuple):
    """An array within a memory."""

    memory: FileBytes | Made
    offset: int
    """Bytes from its begin to the first element."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Bytes: TypeAlias = Callable[[str], memoryview]
"""Returns the bytes of the file of a location."""
_known: dict[int, tuple[weakref.ref[Array], Any]] = {}
"""The memory of living arrays that own theirs, by identity; of hollow ones the source itself."""


def note_bytes(array: Array, location: str, offset: int) -> None:
    """Note that the memory of an array has the bytes of a file, from `offset` on."""
    owner = _owner(array)
    _note(owner, FileBytes(location, offset - (_address(array) - _address(owner))))


def note_made(array: Array, function: str, operands: Sequence[Array], **options: Any) -> None:
    """Note of what an array is made by one of `_FUNCTIONS`, if that is known of all operands."""
    found = [x if x.nbytes <= MAX_WITHIN_BYTES else source_of(x) for x in operands]
    owner = _owner(array)
    if all(x is not None for x in found) and owner.nbytes == array.nbytes:
        _note(owner, Made(function, options, tuple(found)))


def note_hollow(hollow: Array, array: Array) -> None:
    """Note that an array stands for another one, of which it has the source."""
    source = source_of(array)
    if source is not None:
        _note(_owner(hollow), source)


def source_of(array: Array) -> Source | None:
    """The source of an array, or of what a hollow one stands for; None if none was noted."""
    owner = _owner(array)
    known = _known.get(id(owner))
    if known is None or known[0]() is not owner:
        return None
    if is_hollow(array):
        return known[1] if isinstance(known[1], Source) else None
    if not isinstance(known[1], FileBytes | Made):
        return None
    offset = _address(array) - _address(owner)
    return Source(known[1], offset, array.dtype.str, array.shape, array.strides)


def array_of(source: Source, data: Bytes) -> Array:
    """The array of a source. It is a view of `data` where nothing is made of that.

    Raises:
        LookupError, TypeError, ValueError: it does not fit the files.
    """
    memory, offset, dtype, shape, strides = source
    if isinstance(memory, FileBytes):
        held: Any = data(memory.location)
        offset += memory.offset
    else:
        given = [array_of(x, data) if isinstance(x, Source) else x for x in memory.operands]
        # The order of its elements in memory, whatever its axes are.
        held = _FUNCTIONS[memory.function](*given, **memory.options).ravel(order="K")
    found: Array = np.ndarray(shape, dtype, held, offset, strides)
    return found


def _owner(array: Array) -> Array:
    """The array that has the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _note(owner: Array, what: object) -> None:
    key = id(owner)
    _known[key] = weakref.ref(owner, lambda _: _known.pop(key, None)), what
