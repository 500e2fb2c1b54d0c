"""Folders and files that no other user can change: machine code is loaded from nowhere else.

Every folder from the file system's root down to a file decides who may replace what is below it.
Each is checked after those above it, so that no other user can exchange it between its check and
its use; a file is checked by the descriptor that is then read. Systems without POSIX owners and
modes (Windows) are left to their access control lists: a user's own folders are private there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

HAS_OWNERS = hasattr(os, "geteuid")
FOLDER_MODE = 0o700
"""Of folders that we make."""
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40
"""Symbolic links followed on the way to a folder; as many as Linux follows."""
_OPEN_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOCTTY"):
    # A FIFO without a writer would block; a link may lead anywhere.
    _OPEN_FLAGS |= getattr(os, _name, 0)


class DistrustError(Exception):
    """Another user may change a file or folder; the message says what to do."""


class NotAFileError(Exception):
    """Something other than a regular file is in a file's place."""


def resolved(folder: Path, make: bool = False) -> Path:
    """The folder without symbolic links on its way, after a check of all folders above it.

    `make`: folders that are missing are made, for this user only.

    Raises:
        DistrustError: another user may replace a folder or link on the way.
        OSError: a part of the way is missing, cannot be looked at or made, or is not a folder.
    """
    absolute = Path(os.path.abspath(folder))
    if not HAS_OWNERS:
        if make:
            absolute.mkdir(parents=True, exist_ok=True)
        return absolute
    found, links = Path(absolute.anchor), 0
    waiting = list(reversed(absolute.parts[1:]))
    while waiting:
        expect_trusted(found, _folder_status(found), entries_only=True)
        part = waiting.pop()
        if part == os.pardir:
            found = found.parent
            continue
        below = found / part
        if make:
            _make(below)
        status = os.lstat(below)
        if not stat.S_ISLNK(status.st_mode):
            found = below
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        _expect_own(below, status)
        target = Path(os.readlink(below))
        if target.is_absolute():
            found = Path(target.anchor)
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return found


def expect_private(folder: Path, make: bool = False) -> None:
    """Check one folder, whose parents have been checked; `make` it first if it is missing.

    Raises:
        DistrustError: another user owns it or may write to it.
        OSError: it is missing, cannot be made, or is not a folder.
    """
    if make:
        _make(folder)
    expect_trusted(folder, _folder_status(folder))


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A file to be read, and what the system says of the very file that was opened.

    Raises:
        NotAFileError: it is not a regular file.
        OSError: it is missing, a symbolic link, or cannot be read.
    """
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFileError(f"{path} is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            yield file, status
    finally:
        os.close(descriptor)


def expect_trusted(path: Path, status: os.stat_result, entries_only: bool = False) -> None:
    """Check what the system says of a file or folder. `entries_only`: others may add entries to a
    folder, but not replace those of this user.

    Raises:
        DistrustError: another user owns it or may write to it.
    """
    if not HAS_OWNERS:
        return
    _expect_own(path, status)
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS_WRITE and not (entries_only and mode & stat.S_ISVTX):
        raise DistrustError(
            f"other users may write to {path} (mode {mode:o}): remove it, or take that permission "
            "away (chmod go-w) if no other user has used it"
        )


def _make(folder: Path) -> None:
    """Make a folder unless something is in its place."""
    with suppress(FileExistsError):
        os.mkdir(folder, FOLDER_MODE)


def _folder_status(folder: Path) -> os.stat_result:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    return status


def _expect_own(path: Path, status: os.stat_result) -> None:
    """The super-user can change everything anyhow."""
    if status.st_uid not in (os.geteuid(), _ROOT):
        raise DistrustError(
            f"{path} belongs to user {status.st_uid}, this process to user {os.geteuid()}: remove "
            "it, or give it to this user (chown) if its content is to be trusted"
        )
