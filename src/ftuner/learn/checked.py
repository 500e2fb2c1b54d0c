"""Checks of documents from other machines: each returns the value that was expected, or raises a
DatasetError that names the place and what is there."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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


class Entry(NamedTuple):
    """A value of a document, and where it is: checks return what was expected of it."""

    value: Any
    file: str
    place: str = ""
    """Within the file, as `plan.segments[1]`; empty for all of it."""

    def __str__(self) -> str:
        return f"{self.file}: {self.place}" if self.place else self.file

    @property
    def shown(self) -> str:
        try:
            return f"{self.value!r:.60}"
        except RecursionError:
            return "a deeply nested value"

    def refuse(self, expected: str) -> NoReturn:
        raise DatasetError(f"{self} is {self.shown}; expected {expected}")

    def table(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.refuse("an object")
        return self.value

    def at(self, name: str, default: Any = None) -> Entry:
        """The entry of an object; `default`: the value of one that is not there."""
        place = f"{self.place}.{name}" if self.place else name
        return Entry(self.table().get(name, default), self.file, place)

    def having(self, names: Iterable[str]) -> Entry:
        """An object with exactly these names."""
        found, expected = self.table().keys(), set(names)
        if found != expected:
            both = f"{sorted(found)}; expected {sorted(expected)}"
            raise DatasetError(f"{self} has the entries {both}")
        return self

    def each(self) -> list[Entry]:
        """The items of a list."""
        if not isinstance(self.value, list):
            self.refuse("a list")
        return [Entry(x, self.file, f"{self.place}[{i}]") for i, x in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.refuse("a string")
        return self.value

    def one_of(self, known: Sequence[str]) -> str:
        if not isinstance(self.value, str) or self.value not in known:
            self.refuse(f"one of {', '.join(known)}")
        return self.value

    def integer(self, least: int = 1, most: int = MAX_EXTENT) -> int:
        # In Python a boolean is an integer; in a document it is a mistake.
        if type(self.value) is not int or not least <= self.value <= most:
            self.refuse(f"an integer of {least} to {most}")
        return self.value

    def integers(self, count: int) -> list[int]:
        if not isinstance(self.value, list) or len(self.value) != count:
            self.refuse(f"{count} integers")
        return [x.integer() for x in self.each()]

    def number(self, zero: bool = False) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.refuse("a number")
        found = to_float(self.value)
        expected = expected_range(found, zero)
        if expected is not None:
            raise DatasetError(f"{self} is {found}; expected it {expected}")
        return found


def parsed(line: bytes, where: str) -> Entry:
    """The document of a text in JSON."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a finite number")

    try:
        return Entry(json.loads(line, parse_constant=refuse), where)
    # Deeply nested lists end in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where} is not JSON: {error}") from error


def document(path: Path, most_bytes: int) -> Entry:
    """The document in a JSON file.

    Raises:
        DatasetError: the file cannot be read, is larger than `most_bytes`, or is not JSON.
    """
    try:
        content = read_regular(path, most_bytes)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise DatasetError(f"cannot read {path}: {said or error}") from error
    return parsed(content, str(path))
