"""The file of saved models: a header, a document in JSON, and sections of bytes.

```
header   magic, version of the format, bytes of the file, bytes of the document, SHA-256 of all that
document `{"sections": [[offset, bytes], ...], "chunks": [checksum, ...], "content": ...}`
sections each on a cache line, larger ones on a page
```

The chunks are all bytes after the document, `CHUNK_BYTES` each but for the last, so that several
threads check them. Checksums find damage; they prove nothing of who wrote the file. A reader checks
everything before it returns anything. It maps the file for reading: processes share its pages.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from ftuner.errors import ConfigurationError, MissingFileError, ParseError, SavedModelError
from ftuner.runtime.cache import MODEL_MAGIC

D = TypeVar("D")
FORMAT = 1
"""Changes when files of the earlier format cannot be read any more."""
SUFFIX = ".ftuner"
CHUNK_BYTES = 1 << 20
MAX_SECTIONS = 1 << 20
MAX_DOCUMENT_BYTES = 1 << 28
MALFORMED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip
"""What is raised by code that reads values of wrong types."""
SLACK_BYTES = 256
"""After each section: as much as kernels may read beyond what they use."""
_HEADER = struct.Struct("<14sHQQ")
_BEGIN = _HEADER.size + hashlib.sha256().digest_size
_LINE_BYTES = 64
_PAGE_BYTES = 4096
_LARGE = 1 << 16
_ROW_BYTES = 4096
"""Of a chunk, whose words are a matrix of 64-bit numbers."""
_DIGEST_BYTES = 16
"""Of a chunk: 128 bits of a SHA-256."""


class Opened(NamedTuple):
    """A file whose bytes have all been checked."""

    content: Any
    sections: tuple[memoryview, ...]
    """Views of the mapped file, which lives as long as they do."""


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as those of saved models do, or has their suffix."""
    if Path(path).suffix == SUFFIX:
        return True
    with suppress(OSError, ValueError), open(path, "rb") as file:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return regular and file.read(len(MODEL_MAGIC)) == MODEL_MAGIC
    return False


def write(path: Path, content: Any, sections: Sequence[memoryview]) -> None:
    """Write a file, which replaces one of the same name as a whole.

    Raises:
        ConfigurationError: it cannot be written.
    """
    # A random name that does not exist: no other user can have put a link there.
    partial = path.with_name(f".{os.urandom(8).hex()}.partial")
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a regular file")
        with partial.open("x+b") as file:
            fill(file, content, sections)
        os.replace(partial, path)
    except (OSError, ValueError) as error:  # A name with a NUL is a ValueError.
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot write {path}: {why}") from error
    finally:
        with suppress(OSError, ValueError):
            partial.unlink()


def fill(file: BinaryIO, content: Any, sections: Sequence[memoryview]) -> None:
    """Write the bytes of a file, which is empty. Raises OSError."""
    sizes = [section.nbytes for section in sections]
    places, end = [], 0
    for size in sizes:
        unit = _PAGE_BYTES if size >= _LARGE else _LINE_BYTES
        end = -(-end // unit) * unit
        places.append(end)
        end += size + SLACK_BYTES
    table = [[at, size] for at, size in zip(places, sizes, strict=True)]
    document = {"sections": table, "chunks": ["0" * 2 * _DIGEST_BYTES] * -(-end // CHUNK_BYTES),
                "content": content}  # fmt: skip
    # The document has the same length with any digests.
    first = _first(len(_encoded(document)))
    file.seek(first)
    # Gaps are written, too: reading one, on a full file system in memory, would be a bus error.
    for at, section in zip(places, sections, strict=True):
        file.write(bytes(first + at - file.tell()))
        file.write(section)
    file.write(bytes(first + end - file.tell()))
    file.flush()
    document["chunks"] = _digests(file, first, end)
    encoded = _encoded(document)
    header = _HEADER.pack(MODEL_MAGIC, FORMAT, first + end, len(encoded))
    file.seek(0)
    file.write(header + hashlib.sha256(header + encoded).digest() + encoded)


def read(path: Path, threads: int) -> Opened:
    """Map a file and check all of it, by several threads.

    Raises:
        MissingFileError: there is no such file.
        ParseError: it cannot be read, is not one that `write` has written, or is damaged.
        SavedModelError: it is of another version of the format.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ParseError("it is not a regular file")
            return read_open(descriptor, threads)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {path}") from error
    except OSError as error:
        raise ParseError(f"cannot read {path}: {error.strerror or error}") from error
    except SavedModelError as error:
        raise SavedModelError(f"{path} {error}") from error
    except ParseError as error:
        raise ParseError(f"{path} is damaged, or not a saved model: {error}") from error


def read_open(descriptor: int, threads: int) -> Opened:
    """Check and map a regular file that is open. Raises ParseError, SavedModelError or
    OSError."""
    size = os.fstat(descriptor).st_size
    if size < _BEGIN:
        raise ParseError(f"it has {size} bytes")
    return _checked(memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), threads)


def _checked(data: memoryview, threads: int) -> Opened:
    header = data[: _HEADER.size]
    magic, format_, total, size = _HEADER.unpack(header)
    if magic != MODEL_MAGIC:
        raise ParseError("it begins otherwise")
    if format_ != FORMAT:
        raise SavedModelError(
            f"has the format {format_}, and this version of ftuner reads {FORMAT}: save the model "
            "again with this version"
        )
    if total != len(data):
        raise ParseError(f"it has {len(data)} bytes; {total} were written")
    first = _first(size)
    if size > MAX_DOCUMENT_BYTES or first > len(data):
        raise ParseError(f"its document has {size} bytes")
    encoded = data[_BEGIN : _BEGIN + size]
    digest = hashlib.sha256(header)
    digest.update(encoded)
    if digest.digest() != data[_HEADER.size : _BEGIN]:
        raise ParseError("the checksum of its document is wrong")
    if any(data[_BEGIN + size : first]):
        raise ParseError("there are bytes after its document")
    try:
        document = json.loads(bytes(encoded))
        table, chunks, content = document["sections"], document["chunks"], document["content"]
        sections = [(int(at), int(size)) for at, size in table]
    except MALFORMED as error:
        raise ParseError(f"its document is malformed: {error}") from error
    rest = data[first:]
    if len(sections) > MAX_SECTIONS or any(
        at < 0 or size < 0 or at % _LINE_BYTES or at + size + SLACK_BYTES > len(rest)
        for at, size in sections
    ):
        raise ParseError("a section is outside the file")
    if chunks != _chunk_digests(rest, threads):
        raise ParseError("a checksum of its content is wrong")
    return Opened(content, tuple(rest[at : at + size] for at, size in sections))


def _first(document_bytes: int) -> int:
    """Where the sections begin."""
    return -(-(_BEGIN + document_bytes) // _PAGE_BYTES) * _PAGE_BYTES


def _encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _digests(file: BinaryIO, first: int, size: int) -> list[str]:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with memoryview(mapped) as view, view[first : first + size] as rest:
        return _chunk_digests(rest, os.cpu_count() or 1)


def _chunk_digests(data: memoryview, threads: int) -> list[str]:
    def digest(at: int) -> str:
        """A digest of the sums of the chunk's rows and columns: five times as fast as of its
        bytes."""
        chunk = data[at : at + CHUNK_BYTES]
        whole = len(chunk) // _ROW_BYTES * _ROW_BYTES
        words = np.frombuffer(chunk[:whole], np.uint64).reshape(-1, _ROW_BYTES // 8)
        found = hashlib.sha256(chunk[whole:])
        for axis in (0, 1):
            found.update(np.add.reduce(words, axis=axis, dtype=np.uint64))
        return found.hexdigest()[: 2 * _DIGEST_BYTES]

    return by_threads(digest, range(0, len(data), CHUNK_BYTES), threads)


def by_threads(digest: Callable[[int], D], places: range, threads: int) -> list[D]:
    """The digest of each place, computed by several threads if there are several places."""
    workers = min(threads, len(places))
    if workers < 2:
        return [digest(at) for at in places]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(digest, places))
