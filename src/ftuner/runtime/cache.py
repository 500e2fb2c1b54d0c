"""The cache on disk: probed hardware and compiled objects, under the user's cache folder.

An entry is a file of a header line, a checksum and the payload, written to a temporary name and
renamed, so that readers and other processes see all of it or nothing. What is damaged is dropped
with a warning; a folder that cannot be written costs a warning and the time to make things again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ftuner.errors import CacheWarning

CACHE_VARIABLE = "FTUNER_CACHE_DIR"
_MAGIC = b"ftuner-cache-1\n"


@dataclass(frozen=True)
class Entry:
    """One file of the cache."""

    kind: str
    key: str
    bytes: int


class Cache:
    """Named payloads in one folder, shared safely by threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned = False

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key

    def read(self, kind: str, key: str) -> bytes | None:
        """The payload of an entry, or None if there is none that can be trusted."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"cannot read {path}: {error}")
            return None
        checksum, payload = data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
        if not data.startswith(_MAGIC) or hashlib.sha256(payload).digest() != checksum:
            warnings.warn(
                f"{path} is damaged or not ours; it is made again", CacheWarning, stacklevel=2
            )
            self.drop(kind, key)
            return None
        return payload

    def write(self, kind: str, key: str, payload: bytes) -> None:
        """Keep a payload; a folder that cannot be written is a warning, once."""
        path = self._path(kind, key)
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            self._warn(f"cannot write {path}: {error}; nothing will be kept for the next process")

    def drop(self, kind: str, key: str) -> None:
        """Forget an entry, if that is possible."""
        try:
            self._path(kind, key).unlink(missing_ok=True)
        except OSError as error:
            self._warn(f"cannot remove {self._path(kind, key)}: {error}")

    def entries(self) -> list[Entry]:
        """All entries, by kind and key."""
        found = []
        for path in sorted(self.folder.glob("*/*")):
            if path.is_file() and not path.name.startswith("."):
                found.append(Entry(path.parent.name, path.name, path.stat().st_size))
        return found

    def clear(self) -> int:
        """Remove all entries; returns how many."""
        entries = self.entries()
        for entry in entries:
            self.drop(entry.kind, entry.key)
        return len(entries)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, CacheWarning, stacklevel=3)


def default_cache() -> Cache:
    """The cache in `FTUNER_CACHE_DIR`, or in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Cache(Path(chosen) if chosen else Path(platformdirs.user_cache_dir("ftuner")))
