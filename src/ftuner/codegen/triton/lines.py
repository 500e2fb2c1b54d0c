"""Indented text, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Lines:
    """Lines of a function's body."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Indents what is written within, after `header:`, such as `for i in range(n)`."""
        self.line(header + ":")
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)
