"""Where constants come from: the bytes of files, and what was made of them, by which a constant is
made again instead of being kept."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ftuner.graph.buffers import hollow, is_hollow
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


class Files:
    """The bytes of files, read when weights are made of them. They are not mapped: a file that
    another process shortens would end this one by a bus error."""

    def __init__(self, paths: Callable[[str], str | Path]) -> None:
        """`paths`: the path of a location."""
        self._paths = paths

    def read(self, location: str, begin: int, size: int) -> Array:
        """Bytes of a file in memory of their own.

        Raises:
            ValueError: no such range.
            OSError: the file cannot be read, or is shorter.
        """
        if begin < 0 or size < 0:
            raise ValueError(f"{size} bytes from {begin} on")
        path = self._paths(location)
        with open(path, "rb", buffering=0) as file:
            # Before memory is taken for them.
            if os.fstat(file.fileno()).st_size < begin + size:
                raise OSError(f"{path} has fewer than {begin + size} bytes")
            file.seek(begin)
            found = np.empty(size, np.uint8)
            left = found.data
            while left and (count := file.readinto(left)):
                left = left[count:]
        if left:
            raise OSError(f"{path} was shortened while it was read")
        return found


class _Hollow(NamedTuple):
    """What a hollow array stands for."""

    source: Source
    files: weakref.ref[Files] | None
    """Of what it can be made."""


_known: dict[int, tuple[weakref.ref[Array], FileBytes | Made | _Hollow]] = {}
"""What is known of living arrays that own their memory, by identity."""


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


def note_hollow(left: Array, array: Array) -> None:
    """Note that an array stands for another one, of which it has the source."""
    source = source_of(array)
    if source is not None:
        _note(_owner(left), _Hollow(source, None))


def hollow_of(source: Source, files: Files) -> Array:
    """An array that stands for one that can be made as long as `files` lives."""
    found = hollow(np.dtype(source.dtype), source.shape)
    _note(_owner(found), _Hollow(source, weakref.ref(files)))
    return found


def made_again(array: Array) -> Array | None:
    """The array, or what a hollow one stands for; None if that cannot be made.

    Raises:
        LookupError, TypeError, ValueError: its source does not fit the files.
        OSError: a file cannot be read.
    """
    if not is_hollow(array):
        return array
    known = _known_of(_owner(array))
    if not isinstance(known, _Hollow) or known.files is None:
        return None
    files = known.files()
    return None if files is None else array_of(known.source, files)


def source_of(array: Array) -> Source | None:
    """The source of an array, or of what a hollow one stands for; None if none was noted."""
    owner = _owner(array)
    known = _known_of(owner)
    if isinstance(known, _Hollow):
        return known.source if is_hollow(array) else None
    if known is None:
        return None
    offset = _address(array) - _address(owner)
    return Source(known, offset, array.dtype.str, array.shape, array.strides)


def array_of(source: Source, files: Files) -> Array:
    """The array of a source.

    Raises:
        LookupError, TypeError, ValueError, OSError: as `made_again`.
    """
    memory, offset, dtype, shape, strides = source
    if isinstance(memory, FileBytes):
        reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
        first = offset + sum(min(x, 0) for x in reach)
        end = offset + sum(max(x, 0) for x in reach) + np.dtype(dtype).itemsize
        held = files.read(memory.location, memory.offset + first, end - first)
        offset -= first
    else:
        given = [array_of(x, files) if isinstance(x, Source) else x for x in memory.operands]
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


def _known_of(owner: Array) -> FileBytes | Made | _Hollow | None:
    known = _known.get(id(owner))
    return known[1] if known is not None and known[0]() is owner else None


def _note(owner: Array, what: FileBytes | Made | _Hollow) -> None:
    # Names of the module are gone when the process ends.
    key, known = id(owner), _known
    known[key] = weakref.ref(owner, lambda _: known.pop(key, None)), what
