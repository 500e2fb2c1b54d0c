"""Reads the bytes of model files and of the tensor files beside them.

Neither is trusted: only regular files in the model's folder, and in the folder of the file that its
path links to, are opened, and a tensor cannot be larger than its file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedIOBase, BufferedReader, BytesIO, FileIO
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ftuner.core.files import FileState, state_of, within
from ftuner.errors import GraphError, MissingFileError, ParseError
from ftuner.frontends.onnx import weight_stream
from ftuner.frontends.onnx.ort_format import is_ort_format
from ftuner.graph.ir import Array
from ftuner.graph.sources import note_bytes
from ftuner.runtime.cpu.memory import not_allocated, passing

NO_FILES: Mapping[str, Array] = MappingProxyType({})
MAX_MODEL_BYTES = 1 << 31
"""The largest protocol buffer. Larger models keep their weights in files beside the model."""
MAX_SHARED = 2
"""Most bytes that different tensors may read from a file, as a multiple of its size. Tensors that
are the same bytes are read once."""


def content(path: Path) -> weight_stream.Apart:
    """The contents of a model file.

    Raises:
        MissingFileError: the file does not exist.
        ParseError: it is a folder, a pipe or a device.
        GraphError: it cannot be read, or is too large for a model.
    """
    what = str(path)
    with _opened(path, what) as (file, size):
        if size > MAX_MODEL_BYTES:
            raise GraphError(f"{path} has {size} bytes; a model has at most {MAX_MODEL_BYTES}")
        if size > weight_stream.LEAST_BYTES:
            buffered = BufferedReader(file)
            try:
                if is_ort_format(buffered.peek(8)):
                    raise weight_stream.NotApartError
                return _apart(buffered, size, what)
            except weight_stream.NotApartError:
                buffered.seek(0)
            finally:
                buffered.detach()
        return weight_stream.Apart(b"".join(_pieces(file, size, what)))


def parted(data: bytes) -> weight_stream.Apart:
    """The contents of a model in memory, as `content` has those of a file."""
    if len(data) > weight_stream.LEAST_BYTES and not is_ort_format(data):
        with suppress(weight_stream.NotApartError):
            return _apart(BytesIO(data), len(data), f"{len(data)} bytes")
    return weight_stream.Apart(data)


def _apart(file: BufferedIOBase, size: int, what: str) -> weight_stream.Apart:
    found = weight_stream.read_apart(file, size, lambda count: _read(file, count, what))
    for (offset, _), weight in found.weights.items():
        note_bytes(weight, weight_stream.OWN_FILE, offset)
    return found


class ExternalData:
    """Tensors that the message of a model refers to: in files beside it, and in its own file."""

    def __init__(
        self, *folders: Path, own: Mapping[weight_stream.Place, Array] = weight_stream.NO_WEIGHTS,
        held: Mapping[str, Array] = NO_FILES, advice: str = "",
    ) -> None:  # fmt: skip
        """`folders`: where files are looked for, in this order, and where links to them may lead.
        `own`: the bytes of those in the file of the model. `held`: the bytes of files, by location,
        which are not looked for. `advice`: what to do about a missing file."""
        self._folders = [folder.resolve() for folder in folders]
        self._own, self._held, self._advice = own, held, advice
        self.locations: dict[str, FileState] = {}
        """The locations outside the model's file that were read, with the state of each file before
        that; none for bytes that were given."""
        self._states: dict[Path, FileState] = {}
        self._known: dict[tuple[Path, int, int], Array] = {}
        self._taken: dict[Path, int] = {}
        """Bytes that different tensors have read from each file."""

    def read(self, location: str, offset: int, size: int, what: str) -> Array:
        """The bytes of a tensor, read-only. `what` names it in messages.

        Raises:
            GraphError: the file is missing or outside the folders, or has too few bytes.
            AllocationError: the system does not have the memory for them.
        """
        if location == weight_stream.OWN_FILE and (offset, size) in self._own:
            return self._own[offset, size]
        if location in self._held:
            self.locations[location] = ()
            held = self._held[location]
            _expect_within(location, offset, size, len(held), what)
            return held[offset : offset + size]
        path = within(self._folders, location)
        if path is None:
            where = " or ".join(map(str, dict.fromkeys(self._folders)))
            raise GraphError(f"{what}: no file {location!r} within {where}{self._advice}")
        found = self._known.get((path, offset, size))
        if found is not None:
            self.locations.setdefault(location, self._states[path])
            return found
        with _opened(path, what) as (file, length):
            state = self._states.setdefault(path, state_of(file.fileno()))
            self.locations.setdefault(location, state)
            _expect_within(location, offset, size, length, what)
            taken = self._taken[path] = self._taken.get(path, 0) + size
            if taken > MAX_SHARED * length:
                raise GraphError(
                    f"{what}: tensors that overlap in {location!r} take {taken} bytes of its "
                    f"{length}; expected at most {MAX_SHARED} times as many"
                )
            file.seek(offset)
            found = _read(file, size, what)
            note_bytes(found, location, offset)
        self._known[path, offset, size] = found
        return found


def _expect_within(location: str, offset: int, size: int, length: int, what: str) -> None:
    if offset < 0 or offset + size > length:
        raise GraphError(
            f"{what}: {size} bytes wanted from byte {offset} of {location!r}, which has {length}"
        )


@contextmanager
def _opened(path: Path, what: str) -> Iterator[tuple[FileIO, int]]:
    """A file and its size.

    Raises:
        MissingFileError: it does not exist.
        ParseError: it is a pipe, a device or a folder.
        GraphError: it cannot be read.
    """

    def opener(name: str, flags: int) -> int:
        # O_NONBLOCK: opening a pipe does not wait for a writer.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    try:
        with open(path, "rb", buffering=0, opener=opener) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ParseError(f"{what}: {path} is not a regular file")
            yield file, status.st_size
    except GraphError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError(
            f"cannot read {path}: there is no such file; the working folder is {os.getcwd()}"
        ) from error
    except IsADirectoryError as error:
        raise ParseError(f"cannot read {path}: it is a folder; expected a file") from error
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        raise GraphError(f"cannot read {path}: {text or error}") from error


def _pieces(file: FileIO, size: int, what: str) -> Iterator[bytes]:
    """The next bytes of a file, as the system gives them: mostly one piece, not copied."""
    left = size
    while left:
        try:
            piece = file.read(left)
        except MemoryError as error:
            raise not_allocated((left,), np.uint8.__name__, error) from error
        if not piece:
            raise _ended_early(what, left)
        yield piece
        left -= len(piece)


def _read(file: FileIO | BufferedIOBase, size: int, what: str) -> Array:
    """The next bytes of a file, read-only."""
    found = passing(size)
    left = memoryview(found.data)
    while left:
        count = file.readinto(left)
        if not count:
            raise _ended_early(what, len(left))
        left = left[count:]
    found.flags.writeable = False
    return found


def _ended_early(what: str, left: int) -> GraphError:
    return GraphError(f"{what}: the file ended {left} bytes early")
