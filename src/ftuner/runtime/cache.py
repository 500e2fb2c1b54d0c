"""The cache on disk: probed hardware, compiled objects and models, under the user's cache folder.

An entry is a file of a header line, a checksum and the payload, written to a temporary name and
renamed, so that readers and other processes see all of it or nothing. The checksum finds damage; it
proves nothing of who wrote the entry. So nothing is read from, or written to, a folder or file that
other users may change (`private`). Whatever is in the way, be it damage, a full disk or another
process, costs a warning and the time to make things again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ftuner.core.frozen import dataclass
from ftuner.errors import AllocationError, CacheWarning, ConfigurationError, FTunerError, ParseError
from ftuner.runtime.private_files import (
    DistrustError,
    NotAFileError,
    expect_private,
    expect_trusted,
    opened,
    resolved,
)

CACHE_VARIABLE = "FTUNER_CACHE_DIR"
MAX_BYTES_VARIABLE = "FTUNER_CACHE_MAX_BYTES"
CORRECTIONS, HARDWARE, MODELS = "corrections", "hardware", "models"
OBJECTS, TARGETS = "objects", "targets"
KINDS = (CORRECTIONS, HARDWARE, MODELS, OBJECTS, TARGETS)
"""Kinds of entries: a folder each."""
MAX_BYTES = 256 << 20
"""Entries beyond this are removed: models first, then by oldest use. One machine's libraries of
both dtypes take half a megabyte: this is room for hundreds of ISAs and versions of ftuner."""
KEPT_AFTER_TRIM = 0.75
"""Part of the bound that is left when entries are removed, so that not every write removes some."""
MAX_ENTRY_BYTES = 8 << 20
"""Of one entry. Objects have at most a few hundred kilobytes."""
MAX_DOCUMENT_BYTES = 1 << 20
"""Of an entry in JSON. Hardware models have a few kilobytes, learned corrections some hundred."""
REFRESHED_S = 86400.0
"""The time of an entry's last use is exact to a day: writing it costs a system call."""
ORPHANED_S = 3600.0
"""A temporary file of this age was left by a process that ended while it wrote."""
MODEL_MAGIC = b"\x89ftuner model\n"
"""The first bytes of a saved model; other entries begin with `_MAGIC`."""
_MAGIC_OF_ALL = b"ftuner-cache-"
_MAGIC = _MAGIC_OF_ALL + b"1\n"
_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
_WRITING = ".writing-"

_T = TypeVar("_T")
_WARNED: set[tuple[Path, str]] = set()
"""What this process has warned of: a folder and what was wrong, each once."""


@dataclass(frozen=True)
class Entry:
    """One file of the cache."""

    kind: str
    key: str
    bytes: int
    used_s: float
    """When it was last used, to a day; seconds since the epoch."""


@dataclass(frozen=True)
class FolderState:
    """What can be done with the folder of a cache."""

    exists: bool
    writeable: bool
    """Whether entries can be kept: the folder can be written to, or be made."""
    problem: str | None
    """Why nothing is read or written; None if nothing is in the way."""


class Cache:
    """Named payloads in one folder, shared safely by threads and processes of one user."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes`: of all entries; 0 keeps nothing."""
        self.folder = Path(os.path.abspath(folder))
        self.max_bytes = max_bytes
        self._resolved: Path | None = None
        """The folder as it is opened, once all folders above it have been checked."""
        self._bytes: int | None = None
        """Of all entries, as far as this process knows: what it found, and has written since."""

    def read(self, kind: str, key: str, limit: int = MAX_ENTRY_BYTES) -> bytes | None:
        """The payload of an entry, or None if there is none that can be trusted."""

        def payload_of(file: BinaryIO) -> bytes:
            data = file.read(_HEADER_BYTES + limit + 1)
            checksum, payload = data[len(_MAGIC) : _HEADER_BYTES], data[_HEADER_BYTES:]
            if len(payload) > limit:
                raise ParseError(f"it has more than {limit} bytes")
            if not data.startswith(_MAGIC) or hashlib.sha256(payload).digest() != checksum:
                raise ParseError("its checksum is wrong")
            return payload

        return self.read_file(kind, key, payload_of)

    def read_file(self, kind: str, key: str, read: Callable[[BinaryIO], _T]) -> _T | None:
        """What `read` makes of the file of an entry, or None if there is none that can be trusted,
        or it is damaged: `read` raises an error of ours."""
        with self._warning("read", kind, key), suppress(FileNotFoundError):
            try:
                path = self._own(kind) / key
                with opened(path) as (file, status):
                    expect_trusted(path, status)
                    found = read(file)
            except (FileNotFoundError, AllocationError):
                raise
            except (FTunerError, NotAFileError) as error:
                self.spoiled(kind, key, str(error))
                return None
            if abs(time.time() - status.st_mtime) > REFRESHED_S:
                # Where this is not allowed, entries cannot be removed either.
                with suppress(OSError):
                    os.utime(path)
            return found
        return None

    def read_document(self, kind: str, key: str, decode: Callable[[Any], _T]) -> _T | None:
        """What `decode` makes of an entry in JSON, or None if there is none, or it makes no sense:
        `decode` raises KeyError, TypeError, ValueError or an error of ours."""
        data = self.read(kind, key, MAX_DOCUMENT_BYTES)
        if data is None:
            return None
        try:
            return decode(json.loads(data))
        # Deeply nested lists end in a RecursionError, integers beyond floats in an OverflowError.
        except (
            FTunerError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
        ) as error:  # fmt: skip
            self.spoiled(kind, key, f"{type(error).__name__}: {error}")
            return None

    def write(self, kind: str, key: str, payload: bytes) -> None:
        """Keep a payload; a folder that cannot be written is a warning, once."""
        data = _MAGIC + hashlib.sha256(payload).digest() + payload
        self.write_file(kind, key, len(data), lambda file: file.write(data))

    def write_file(
        self, kind: str, key: str, size: int, write: Callable[[BinaryIO], object]
    ) -> None:
        """Keep an entry of `size` bytes, which the function `write` writes to a file."""
        if size > self.max_bytes:
            return
        with self._warning("write", kind, key, "; nothing is kept for the next process"):
            path = self._own(kind, make=True) / key
            import tempfile  # Here, because most processes write nothing.

            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
            try:
                with os.fdopen(handle, "w+b") as file:
                    write(file)
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            self._bytes = None if self._bytes is None else self._bytes + size
            # Models of other processes are large.
            if self._bytes is None or self._bytes > self.max_bytes or kind == MODELS:
                self._trim(kind, key)

    def spoiled(self, kind: str, key: str, why: str) -> None:
        """Warn that an entry cannot be used, and forget it."""
        message = f"{self.folder / kind / key} is damaged or not ours: {why}; it is made again"
        warnings.warn(message, CacheWarning, stacklevel=3)
        self.drop(kind, key)

    def drop(self, kind: str, key: str) -> bool:
        """Forget an entry, if that is possible; returns whether it was there and is gone."""
        with self._warning("remove", kind, key), suppress(FileNotFoundError):
            _remove(self._own(kind) / key)
            return True
        return False

    def entries(self) -> list[Entry]:
        """All entries, by kind and key; temporary files that processes left behind are removed."""
        found: list[Entry] = []
        for kind in KINDS:
            with self._warning("list", kind), suppress(FileNotFoundError):
                found += _entries(self._own(kind), kind)
        return found

    def clear(self) -> int:
        """Remove all entries; returns how many."""
        return sum(self.drop(entry.kind, entry.key) for entry in self.entries())

    def prune(self, unused_s: float | None = None, to_bytes: int | None = None) -> list[Entry]:
        """Remove the entries that were not used for `unused_s` seconds, then others by oldest use
        until all together have at most `to_bytes`. Returns what this call removed: an entry that
        another process removes or writes anew meanwhile is not among it."""
        now = time.time()
        entries = sorted(self.entries(), key=lambda entry: entry.used_s)
        total = sum(entry.bytes for entry in entries)
        removed = []
        for entry in entries:
            old = unused_s is not None and now - entry.used_s > unused_s
            if not (old or (to_bytes is not None and total > to_bytes)):
                break
            total -= entry.bytes
            if self._is_as_listed(entry) and self.drop(entry.kind, entry.key):
                removed.append(entry)
        self._bytes = None
        return removed

    def state(self) -> FolderState:
        """What can be done with the folder. Nothing is made or changed."""
        try:
            root = resolved(self.folder)
            expect_private(root)
            for kind in KINDS:
                with suppress(FileNotFoundError):
                    expect_private(root / kind)
        except FileNotFoundError:
            above = next(path for path in self.folder.parents if path.exists())
            return FolderState(False, os.access(above, os.W_OK | os.X_OK), None)
        except (DistrustError, OSError) as error:
            return FolderState(self.folder.exists(), False, str(error))
        return FolderState(True, os.access(root, os.W_OK | os.X_OK), None)

    def _is_as_listed(self, entry: Entry) -> bool:
        """Whether an entry was neither used nor written since it was listed."""
        try:
            return os.lstat(self.folder / entry.kind / entry.key).st_mtime == entry.used_s
        except OSError:
            return False

    def _own(self, kind: str, make: bool = False) -> Path:
        """The folder of a kind, after a check that no other user may change what it holds. `make`
        it if it is missing.

        Raises:
            DistrustError, OSError: as `resolved` and `expect_private`.
        """
        root = self._resolved
        if root is None or make:
            root = self._resolved = resolved(self.folder, make)
        expect_private(root)
        expect_private(root / kind, make)
        return root / kind

    def _trim(self, kind: str, key: str) -> None:
        """Remove entries where they exceed the bound, but not the one just written: models, which
        are made again of the objects, then others, each by oldest use. The bytes of all entries are
        counted at the first write of a process, and again where this process believes that the
        bound is exceeded."""
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        most = self.max_bytes if total <= self.max_bytes else KEPT_AFTER_TRIM * self.max_bytes
        for entry in sorted(entries, key=lambda entry: (entry.kind != MODELS, entry.used_s)):
            if total > most and (entry.kind, entry.key) != (kind, key):
                self.drop(entry.kind, entry.key)
                total -= entry.bytes
        self._bytes = total

    @contextmanager
    def _warning(self, action: str, kind: str, key: str = "", so: str = "") -> Iterator[None]:
        """Within it, what the system refuses and what other users may change is a warning, once.
        `so`: what follows from a refusal."""
        try:
            yield
        except DistrustError as error:
            self._warn(
                "distrust",
                f"{error}; or choose another folder with {CACHE_VARIABLE}. What other users may "
                "change is not loaded: it is made again",
            )
        except OSError as error:
            self._warn("failure", f"cannot {action} {self.folder / kind / key}: {error}{so}")

    def _warn(self, what: str, message: str) -> None:
        topic = (self.folder, what)
        if topic not in _WARNED:
            _WARNED.add(topic)
            warnings.warn(message, CacheWarning, stacklevel=5)


def default_cache() -> Cache:
    """The cache in `FTUNER_CACHE_DIR`, or in the user's cache folder.

    Raises:
        ConfigurationError: `FTUNER_CACHE_MAX_BYTES` is not a number of bytes.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    folder = Path(chosen) if chosen else _users_folder()
    text = os.environ.get(MAX_BYTES_VARIABLE, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigurationError(f"{MAX_BYTES_VARIABLE} is {text!r}; expected a number of bytes")
    return Cache(folder, int(text) if text else MAX_BYTES)


def _users_folder() -> Path:
    try:
        return Path(import_module("platformdirs").user_cache_dir("ftuner"))
    except ModuleNotFoundError:
        # Saved models need NumPy alone, and use no cache.
        return Path(os.path.expanduser("~/.cache/ftuner"))


def _entries(folder: Path, kind: str) -> Iterator[Entry]:
    """The entries in the folder of a kind: files that begin as ours do, whatever else is there.
    Raises OSError."""
    now = time.time()
    for path in sorted(folder.iterdir()):
        # Another process may have removed what was listed.
        with suppress(OSError, NotAFileError):
            if path.name.startswith(_WRITING):
                if now - os.lstat(path).st_mtime > ORPHANED_S:
                    _remove(path)
                continue
            with opened(path) as (file, status):
                if file.read(len(MODEL_MAGIC)).startswith((_MAGIC_OF_ALL, MODEL_MAGIC)):
                    yield Entry(kind, path.name, status.st_size, status.st_mtime)


def _remove(path: Path) -> None:
    """Remove a file, or an empty folder in its place. Raises OSError."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.rmdir(path)
    else:
        os.unlink(path)
