"""What is proved of a program before it is compiled, for all extents.

- Each load, store and element of a tile is inside. Where extents decide that, the condition becomes
  a `Check` of each call.
- The tasks of an output store each element exactly once: along each axis, the index is a number in
  mixed radix whose digits are the loop variables.
- No two workers write the same element, and an output is read only where the same iteration has
  written it.

Conditions on indices that are linear in a loop variable are decided at its ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftuner.core.dim import Dim, symbols_of
from ftuner.errors import BoundsError, CoverageError, MappingError
from ftuner.tasks import program as tir
from ftuner.tasks.bounds import Variable, holds, least_at, variables_of
from ftuner.tasks.coverage import Check, Coverage, Place


def prove(program: tir.Program) -> tuple[Check, ...]:
    """The conditions that each call has to decide.

    Raises:
        BoundsError, CoverageError, RaceError, MappingError: what is wrong for all extents, or
            cannot be decided; the message has the file and line.
    """
    return _Prover(program).prove()


class _Prover(Coverage):
    def __init__(self, program: tir.Program) -> None:
        super().__init__(program)
        self._loads: list[tuple[tir.Load, Place]] = []
        self._tiles: dict[str, tuple[int, ...]] = {}
        self._number = 0

    def prove(self) -> tuple[Check, ...]:
        self._visit(self._program.body, Place((), (), 0))
        for array in self._program.outputs:
            stores = [(s, p) for s, p in self._stores if s.array == array.name]
            if not stores:
                what = f"nothing stores the output {array.name!r}"
                raise self.error(CoverageError, array.line, what)
            self._covered(stores)
        for load, place in self._loads:
            self._written_before(load, place)
        return tuple(self._checks)

    def _visit(self, body: Sequence[tir.Statement], around: Place) -> None:
        for statement in body:
            self._number += 1
            place = replace(around, number=self._number, line=statement.line)
            for name in ("value", "condition", "target"):
                part = getattr(statement, name, None)
                if isinstance(part, tir.Expr):
                    self._expression(part, place)
            match statement:
                case tir.MakeTile(name, shape):
                    self._tiles[name] = shape
                case tir.Store(array, index):
                    self._inside(index, self._program.array(array).shape, array, place)
                    self._stores.append((statement, place))
                case tir.If(condition, inner):
                    self._visit(inner, place.under(condition))
                case tir.Loop():
                    variables = (*place.variables, *self._variables(statement))
                    self._visit(statement.body, replace(place, variables=variables))

    def _variables(self, loop: tir.Loop) -> list[Variable]:
        for factor in loop.factors:
            for extent in factor.extents:
                what = f"a mapping with the extent {extent}"
                self._decide(extent, (), MappingError, loop.line, what)
            for parts in factor.parts:
                self._decide(parts - 1, (), MappingError, loop.line, f"{parts} parts")
        return variables_of(loop)

    def _expression(self, expr: tir.Expr, place: Place) -> None:
        match expr:
            case tir.Load(name, index):
                array = self._program.array(name)
                self._inside(index, array.shape, name, replace(place, line=expr.line))
                if array.is_output:
                    self._loads.append((expr, place))
            case tir.Element(name, index):
                self._inside(index, self._tiles[name], name, place)
            case tir.Apply(_, arguments):
                for argument in arguments:
                    self._expression(argument, place)
            case tir.Choose(condition, x, y):
                self._expression(condition, place)
                self._expression(x, place.under(condition))
                self._expression(y, place)

    def _inside(self, index: Sequence[Dim], shape: Sequence[Dim], name: str, place: Place) -> None:
        for axis, (position, extent) in enumerate(zip(index, shape, strict=True)):
            which = f"index {position} of {name!r}, axis {axis} of extent {extent}"
            for goal, wanted in (position, "0 or more"), (extent - 1 - position, f"below {extent}"):
                if holds(goal, place.variables, place.facts):
                    continue
                least, what = least_at(goal, place.variables), f"{which}; expected {wanted}"
                if least is None:
                    why = "which cannot be decided; put it under an `if`"
                    raise self.error(BoundsError, place.line, f"{what}, {why}")
                nonempty = tuple(v.end - v.begin for v in self._outermost(place.variables))
                self._decide(least, nonempty, BoundsError, place.line, what)

    def _outermost(self, variables: tuple[Variable, ...]) -> list[Variable]:
        """Variables whose extents do not depend on others: if one has none, nothing happens."""
        names = {v.name for v in variables}
        return [v for v in variables if names.isdisjoint(symbols_of((v.begin, v.end)))]
