"""Values that show themselves: a short `repr`, a readable text, and HTML in a notebook.

Texts and pages are drawn in a room above those of the values. `draw_in` gives its name to this
module, which imports it when something is first shown.
"""

from __future__ import annotations

from abc import abstractmethod
from importlib import import_module
from os import PathLike
from typing import Any

MAX_REPR = 400
"""Characters of a `repr`."""
MAX_LINES = 40
"""Lines of a text."""

_rooms: list[str] = []


class Shown:
    """A value that shows itself in a terminal and in a notebook."""

    __slots__ = ()

    @abstractmethod
    def summary(self) -> str:
        """What it is, in a line."""

    def __repr__(self) -> str:
        return short_repr(self, self.summary())

    def __str__(self) -> str:
        """A text of at most `MAX_LINES` lines; the `repr` in a process that draws nothing, such as
        one that compiles."""
        if not _rooms:
            return repr(self)
        lines: list[str] = _room().text(self).splitlines()
        if len(lines) > MAX_LINES:
            lines[MAX_LINES - 1 :] = [f"... {len(lines) - MAX_LINES + 1} more lines"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        found: str = _room().html(self)
        return found


class Saved(Shown):
    """A value that shows itself, and that can be saved as a picture or page."""

    __slots__ = ()

    def save(self, path: str | PathLike[str]) -> None:
        """Draw to a file. The suffix chooses the format: `.html`, a page that needs nothing beside
        it; for the plan of a product also `.svg` and `.png`.

        Raises:
            ConfigurationError: another suffix; `.svg` or `.png` and matplotlib is not installed
                (extra `plot`); or the file cannot be written.
        """
        _room().save(self, path)


def draw_in(room: str) -> None:
    """Have a module draw values: its functions `text` and `html` take a value, and `save` a value
    and a path."""
    _rooms[:] = [room]


def short_repr(value: object, summary: str) -> str:
    """A `repr` of at most `MAX_REPR` characters: the type, and what the value is."""
    name = type(value).__name__
    most = MAX_REPR - len(name) - 2
    if len(summary) > most:
        summary = f"{summary[: most - 4]} ..."
    return f"{name}({summary})"


def _room() -> Any:
    return import_module(_rooms[0])
