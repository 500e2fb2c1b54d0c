"""Claims on a program: each is proved, is an error, or is a condition that each call decides."""

from __future__ import annotations

from dataclasses import replace

from ftuner.core.dim import Dim, least_value, symbol, symbols_of
from ftuner.core.frozen import dataclass
from ftuner.errors import ScheduleError
from ftuner.tasks.bounds import Variable, conjuncts
from ftuner.tasks.program import WORKERS, Expr, Program, Store, Test, replaced


@dataclass(frozen=True)
class Check:
    """A condition on extents that each call decides: `dim` is zero or more, unless one of `some` is
    zero or less, so that nothing is executed."""

    dim: Dim
    some: tuple[Dim, ...]
    message: str


@dataclass(frozen=True)
class Place:
    """Where a statement is: loops around it, conditions that hold, and its number in the order of
    execution."""

    variables: tuple[Variable, ...]
    facts: tuple[Test, ...]
    number: int
    by_data: bool = False
    """Whether it is under a condition that is more than tests of indices."""

    def under(self, condition: Expr) -> Place:
        parts = (*conjuncts(condition),)
        tests = tuple(part for part in parts if isinstance(part, Test))
        by_data = self.by_data or len(tests) < len(parts)
        return replace(self, facts=(*self.facts, *tests), by_data=by_data)


class Claims:
    """Claims on extents, of which those that are not proved are kept as checks."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._checks: dict[Check, None] = {}
        self._stores: list[tuple[Store, Place]] = []

    def error(self, kind: type[ScheduleError], line: int, message: str) -> ScheduleError:
        program = self._program
        return kind(f"{program.file}:{line}: schedule {program.name!r}: {message}")

    def _decide(
        self, dim: Dim, some: tuple[Dim, ...], kind: type[ScheduleError], line: int, what: str
    ) -> None:
        """Prove that a dim of extents is zero or more, or leave it to each call."""
        # There is a worker at least.
        low = least_value(replaced(dim, {WORKERS: symbol(WORKERS) + 1}))
        if low is not None and low >= 0:
            return
        # What is wrong for all positive extents is an error, though it may hold for empty arrays.
        positive = replaced(dim, {name: symbol(name) + 1 for name in symbols_of((dim,))})
        high = least_value(-positive)
        if high is not None and high > 0:
            raise self.error(kind, line, what)
        left = tuple(s for s in some if not isinstance(s, int))
        self._checks.setdefault(Check(dim, left, str(self.error(kind, line, what))))
