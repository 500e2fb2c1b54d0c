"""Files that users name: written as a whole, read with a bound on what they hold, found within
folders; and what tells whether one has changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FileState = tuple[int, ...]
"""The size of a file, and what changes with its content."""


def write_whole(path: Path, text: str) -> None:
    """Write a text, so that a reader of the file sees the old content or the new one. Characters
    that UTF-8 does not have become question marks.

    Raises:
        OSError: something other than a file is there, or the file cannot be written. The old one
            is as it was.
    """
    if path.exists() and not path.is_file():
        what = "a directory" if path.is_dir() else "not a regular file"
        raise OSError(f"it is {what}; give the name of a file")
    # A random name that does not exist: no other user can have put a link there.
    partial = path.with_name(f".{os.urandom(8).hex()}.partial")
    try:
        with partial.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, or has more bytes.
    """
    # Without a writer, opening a FIFO would block.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return data


def state_of(file: str | Path | int) -> FileState:
    """The state of a file, given its path or its descriptor. Raises OSError."""
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino


def within(folders: Sequence[Path], location: str) -> Path | None:
    """The file of a location, which leaves no folder by its text; None if there is none. Links may
    lead from one of the folders to another, as they do in the cache of the Hugging Face hub.
    `folders`: without links."""
    for folder in folders:
        try:
            path = (folder / location).resolve()
            inside = Path(os.path.normpath(folder / location)).is_relative_to(folder)
            linked = any(path.is_relative_to(known) for known in folders)
            if inside and linked and path.is_file() and not Path(location).is_absolute():
                return path
        except (OSError, ValueError, RuntimeError):
            # RuntimeError: a cycle of links, before Python 3.13.
            continue
    return None
