"""Reads the large weights of a model file apart from the rest of its protocol buffer.

A protocol buffer is parsed whole: its bytes, the parsed message and each field that is asked for
are copies. Here the bytes of a large initialiser go from the file to their array, and the message
that is parsed has a reference to them in their place, as to data in another file. The wire format
is that of https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from io import BufferedIOBase
from types import MappingProxyType
from typing import NamedTuple

from ftuner.graph.ir import Array

LEAST_BYTES = 1 << 20
"""Smallest weight that is read apart."""
OWN_FILE = ""
"""The location of a weight in the file of the model itself: files have longer names."""
_GRAPH, _INITIALIZER = 7, 5
"""Fields of `ModelProto` and of `GraphProto`."""
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
"""Fields of `TensorProto`."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
"""Wire types."""
_FIXED = {_FIXED_64: 8, _FIXED_32: 4}
_MOST_VARINT_BYTES = 10

Place = tuple[int, int]
"""The offset and the size of a weight."""
NO_WEIGHTS: Mapping[Place, Array] = MappingProxyType({})


class NotApartError(Exception):
    """The file is not what exporters write: it is for the parser of protocol buffers to judge."""


class Apart(NamedTuple):
    """A model file in two parts."""

    message: bytes
    weights: Mapping[Place, Array] = NO_WEIGHTS
    """The bytes of large weights that the message lacks."""


def read_apart(file: BufferedIOBase, size: int, read: Callable[[int], Array]) -> Apart:
    """A model file of `size` bytes; `read` gives the next bytes of `file` as an array.

    Raises:
        NotApartError: see there; the file is then somewhere within its bytes.
    """
    scan = _Scan(file, read)
    message = b"".join(scan.model(size))
    return Apart(message, scan.weights)


class _Scan:
    def __init__(self, file: BufferedIOBase, read: Callable[[int], Array]) -> None:
        self._file, self._read = file, read
        self._at = 0
        self.weights: dict[Place, Array] = {}

    def model(self, size: int) -> Iterator[bytes]:
        for number, tag, length in self._fields(size):
            if number == _GRAPH and length >= LEAST_BYTES:
                yield _field(_GRAPH, b"".join(self._graph(self._at + length)))
            else:
                yield tag + self._next(length)

    def _graph(self, end: int) -> Iterator[bytes]:
        for number, tag, length in self._fields(end):
            if number == _INITIALIZER and length >= LEAST_BYTES:
                yield _field(_INITIALIZER, b"".join(self._tensor(self._at + length)))
            else:
                yield tag + self._next(length)

    def _tensor(self, end: int) -> Iterator[bytes]:
        place: Place | None = None
        for number, tag, length in self._fields(end):
            if number in (_EXTERNAL_DATA, _DATA_LOCATION) or (number == _RAW_DATA and place):
                raise NotApartError
            if number == _RAW_DATA and length >= LEAST_BYTES:
                place = self._at, length
                self.weights[place] = self._read(length)
                self._at += length
            else:
                yield tag + self._next(length)
        if place is not None:
            yield _reference(*place)

    def _fields(self, end: int) -> Iterator[tuple[int, bytes, int]]:
        """The number of each field, what the file has before its content, and the size of that,
        which is to be read before the next field is asked for."""
        while self._at < end:
            tag, bytes_read = self._varint()
            kind = tag & 7
            if kind == _VARINT:
                bytes_read += self._varint()[1]
                length = 0
            elif kind == _BYTES:
                length, more = self._varint()
                bytes_read += more
            elif kind in _FIXED:
                length = _FIXED[kind]
            else:
                raise NotApartError
            if self._at + length > end:
                raise NotApartError
            yield tag >> 3, bytes_read, length
        if self._at != end:
            raise NotApartError

    def _varint(self) -> tuple[int, bytes]:
        found, value = b"", 0
        while len(found) < _MOST_VARINT_BYTES:
            byte = self._next(1)
            value |= (byte[0] & 0x7F) << 7 * len(found)
            found += byte
            if byte[0] < 0x80:
                return value, found
        raise NotApartError

    def _next(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) != count:
            raise NotApartError
        self._at += count
        return found


def _field(number: int, content: bytes) -> bytes:
    """A field that has bytes."""
    return _encoded(number << 3 | _BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _reference(offset: int, size: int) -> bytes:
    """The fields of a tensor whose data is in the file of the model: fields of one message may
    follow one another in several pieces."""
    library = import_module("onnx")
    tensor = library.TensorProto(data_location=library.TensorProto.EXTERNAL)
    for key, value in (("location", OWN_FILE), ("offset", offset), ("length", size)):
        tensor.external_data.add(key=key, value=str(value))
    encoded: bytes = tensor.SerializeToString()
    return encoded
