"""Checks of documents from other machines: each returns the value that was expected, or raises a
DatasetError that names the place and what is there."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ftuner.core.files import read_regular
from ftuner.core.given import expected_range, to_float
from ftuner.errors import DatasetError

MAX_EXTENT = 1 << 40
"""Largest extent of a problem; no larger operand is addressable."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A regular file that is read. Raises DatasetError."""

    def opener(name: str, flags: int) -> int:
        # O_NONBLOCK: opening a pipe does not wait for a writer.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    try:
        with open(path, "rb", opener=opener) as file:
            expect_file(path, file.fileno())
            yield file
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from error


def expect_file(path: Path, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise DatasetError(f"{path} is not a regular file")


def parsed(line: bytes, where: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a finite number")

    try:
        return json.loads(line, parse_constant=refuse)
    # Deeply nested lists end in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where} is not JSON: {error}") from error


def document(path: Path, most_bytes: int) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DatasetError: the file cannot be read, is larger than `most_bytes`, or holds something else.
    """
    try:
        content = read_regular(path, most_bytes)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise DatasetError(f"cannot read {path}: {said or error}") from error
    return table(parsed(content, str(path)), str(path))


def table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DatasetError(f"{where} is {shown(value)}; expected an object")
    return value


def expect_names(entries: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    if entries.keys() != set(names):
        raise DatasetError(f"{where} has the entries {sorted(entries)}; expected {sorted(names)}")


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise DatasetError(f"{where} is {shown(value)}; expected a string")
    return value


def one_of(value: Any, known: Sequence[str], where: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise DatasetError(f"{where} is {shown(value)}; expected one of {', '.join(known)}")
    return value


def items(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DatasetError(f"{where} is {shown(value)}; expected a list")
    return value


def integer(value: Any, where: str) -> int:
    # In Python a boolean is an integer; in a sample it is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_EXTENT:
        raise DatasetError(f"{where} is {shown(value)}; expected an integer of 1 to {MAX_EXTENT}")
    return value


def integers(value: Any, count: int, where: str) -> list[int]:
    if not isinstance(value, list) or len(value) != count:
        raise DatasetError(f"{where} is {shown(value)}; expected {count} integers")
    return [integer(item, where) for item in value]


def number(value: Any, where: str, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DatasetError(f"{where} is {shown(value)}; expected a number")
    found = to_float(value)
    expected = expected_range(found, zero)
    if expected is not None:
        raise DatasetError(f"{where} is {found}; expected it {expected}")
    return found


def shown(value: Any) -> str:
    try:
        return f"{value!r:.60}"
    except RecursionError:
        return "a deeply nested value"
