"""The words of the language of schedules, as Python finds them.

A schedule is read, never executed, so none of them does anything. They are here for linters,
editors and type checkers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.errors import ScheduleError

DTYPES: dict[str, DType] = {"f32": FLOAT32, "f64": FLOAT64}
"""By the word that annotates an array."""


class Word:
    """A word that stands in schedules alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Raises ScheduleError."""
        raise ScheduleError(f"`{self.name}` was called outside of a schedule")

    def __iter__(self) -> Iterator[Any]:
        """Raises ScheduleError."""
        return iter(self())

    __mul__ = __getitem__ = __setitem__ = __call__


class _Typed(Word):
    def __class_getitem__(cls, shape: Any) -> Any:
        return cls


class f32(_Typed):  # noqa: N801, the word of the language
    """An array of float32, with an extent for each axis: `f32["m", 3, "2 * k"]`."""


class f64(_Typed):  # noqa: N801
    """An array of float64."""


class Out(_Typed):
    """An array that a schedule stores: `Out[f32["m", "n"]]`."""


class Tile(_Typed):
    """A parameter of which the compiler chooses the value among `candidates`."""


def candidates(*values: int) -> Any:
    """The values that a tile parameter may have, positive integers."""
    return values


MAPPINGS = ("repeat", "spatial", "split", "grid")
repeat, spatial, split, grid = (Word(name) for name in MAPPINGS)
lanes = Word("lanes")
tile = Word("tile")
pack = Word("pack")
ceil_div = Word("ceil_div")
worker: Any = Word("worker")
workers: Any = Word("workers")
