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
from dataclasses import dataclass, replace
from itertools import pairwise

from ftuner.core.dim import Dim, least_value, quotient, symbol, symbols_of
from ftuner.core.symbolic import Atom, Symbolic
from ftuner.errors import BoundsError, CoverageError, MappingError, RaceError, ScheduleError
from ftuner.tasks.program import (
    LANES,
    RANGE,
    REPEAT,
    TASKS,
    WORKERS,
    Apply,
    Choose,
    Element,
    Expr,
    If,
    Load,
    Loop,
    MakeTile,
    Program,
    Statement,
    Store,
    Test,
    expressions,
    linear,
    replaced,
    statements,
    uses,
)


@dataclass(frozen=True)
class Variable:
    """A loop variable, `begin <= name < end`."""

    name: str
    begin: Dim
    end: Dim
    kind: str
    line: int


@dataclass(frozen=True)
class Check:
    """A condition on extents that each call decides: `dim` is zero or more, unless one of `some` is
    zero or less, so that nothing is executed."""

    dim: Dim
    some: tuple[Dim, ...]
    message: str


@dataclass(frozen=True)
class _Place:
    """Where a statement is: loops around it, conditions that hold, and its number in the order of
    execution."""

    variables: tuple[Variable, ...]
    facts: tuple[Test, ...]
    number: int
    by_data: bool = False
    """Whether it is under a condition that is more than tests of indices."""


def prove(program: Program) -> tuple[Check, ...]:
    """The conditions that each call has to decide.

    Raises:
        BoundsError, CoverageError, RaceError, MappingError: what is wrong for all extents, or
            cannot be decided; the message has the file and line.
    """
    return _Prover(program).prove()


class _Prover:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._checks: dict[Check, None] = {}
        self._stores: list[tuple[Store, _Place]] = []
        self._loads: list[tuple[Load, _Place]] = []
        self._tiles: dict[str, tuple[int, ...]] = {}
        self._number = 0

    def error(self, kind: type[ScheduleError], line: int, message: str) -> ScheduleError:
        program = self._program
        return kind(f"{program.file}:{line}: schedule {program.name!r}: {message}")

    def prove(self) -> tuple[Check, ...]:
        self._visit(self._program.body, _Place((), (), 0))
        for array in self._program.outputs:
            stores = [(s, p) for s, p in self._stores if s.array == array.name]
            if not stores:
                raise self.error(
                    CoverageError, array.line, f"nothing stores the output {array.name!r}"
                )
            self._covered(stores)
        for load, place in self._loads:
            self._written_before(load, place)
        return tuple(self._checks)

    def _visit(self, body: Sequence[Statement], around: _Place) -> None:
        for statement in body:
            self._number += 1
            place = replace(around, number=self._number)
            for name in ("value", "condition", "target"):
                part = getattr(statement, name, None)
                if isinstance(part, Expr):
                    self._expression(part, place, statement.line)  # type: ignore[attr-defined]
            match statement:
                case MakeTile(name, shape):
                    self._tiles[name] = shape
                case Store(array, index):
                    self._inside(index, self._program.array(array).shape, array, place,
                                 statement.line)  # fmt: skip
                    self._stores.append((statement, place))
                case If(condition, inner):
                    facts = (*place.facts, *conjunction(condition))
                    by_data = place.by_data or not _is_of_indices(condition)
                    self._visit(inner, replace(place, facts=facts, by_data=by_data))
                case Loop():
                    variables = (*place.variables, *self._variables(statement))
                    self._visit(statement.body, replace(place, variables=variables))

    def _variables(self, loop: Loop) -> list[Variable]:
        for factor in loop.factors:
            for extent, least in (
                *((e, 0) for e in factor.extents),
                *((p, 1) for p in factor.parts),
            ):
                what = f"a mapping with the extent {extent}" if least == 0 else f"{extent} parts"
                self._decide(extent - least, (), MappingError, loop.line, what)
        return variables_of(loop)

    def _expression(self, expr: Expr, place: _Place, line: int) -> None:
        match expr:
            case Load(name, index):
                array = self._program.array(name)
                self._inside(index, array.shape, name, place, expr.line)
                if array.is_output:
                    self._loads.append((expr, place))
            case Element(name, index):
                self._inside(index, self._tiles[name], name, place, line)
            case Apply(_, arguments):
                for argument in arguments:
                    self._expression(argument, place, line)
            case Choose(condition, x, y):
                self._expression(condition, place, line)
                held = replace(place, facts=(*place.facts, *conjunction(condition)))
                self._expression(x, held, line)
                self._expression(y, place, line)

    # Bounds.

    def _inside(
        self, index: Sequence[Dim], shape: Sequence[Dim], name: str, place: _Place, line: int
    ) -> None:
        for axis, (position, extent) in enumerate(zip(index, shape, strict=True)):
            for goal, side in ((position, "below 0"), (extent - 1 - position, f"below {extent}")):
                if holds(goal, place.variables, place.facts):
                    continue
                least = least_at(goal, place.variables)
                expected = "0 or more" if side == "below 0" else side
                what = (
                    f"index {position} of {name!r}, axis {axis} of extent {extent}; expected "
                    f"{expected}"
                )
                if least is None:
                    raise self.error(
                        BoundsError, line, f"{what}, which cannot be decided; put it under an `if`"
                    )
                nonempty = tuple(v.end - v.begin for v in self._outermost(place.variables))
                self._decide(least, nonempty, BoundsError, line, what)

    def _outermost(self, variables: tuple[Variable, ...]) -> list[Variable]:
        """Variables whose extents do not depend on others: if one has none, nothing happens."""
        names = {v.name for v in variables}
        return [v for v in variables if names.isdisjoint(symbols_of((v.begin, v.end)))]

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
        program = self._program
        message = f"{program.file}:{line}: schedule {program.name!r}: {what}"
        self._checks.setdefault(Check(dim, left, message))

    # Coverage.

    def _covered(self, stores: list[tuple[Store, _Place]]) -> None:
        """Each statement covers the output, or all together do that differ by constants."""
        groups: dict[object, list[tuple[Store, _Place]]] = {}
        for store, place in stores:
            found = self._shape(store, place)
            groups.setdefault(found, []).append((store, place))
        for group in groups.values():
            constants = [self._constants(s, p) for s, p in group]
            if len(set(constants)) == 1:
                # Statements that follow each other, and each cover all.
                for store, place in group:
                    self._covers(store, place, [()] * len(store.index))
                continue
            if len(set(constants)) != len(constants):
                store = group[-1][0]
                raise self.error(CoverageError, store.line, f"{store.array!r} is stored here again")
            for store, place in group:
                self._covers(store, place, list(zip(*constants, strict=True)))
        first, place = stores[0]
        for store, other in stores[1:]:
            along = {v.name for v in other.variables if v.kind == LANES} & {
                v.name for v in place.variables
            }
            if along and self._shape(store, other) != self._shape(first, place):
                raise self.error(
                    RaceError, store.line,
                    f"the lanes loop that stores {store.array!r} in line {first.line} stores it "
                    "here in another way; its iterations have no order",
                )  # fmt: skip
            if self._by_task(store, other) != self._by_task(first, place):
                raise self.error(
                    RaceError, store.line,
                    f"another task stores this element of {store.array!r} in line {first.line}",
                )  # fmt: skip

    def _parts(self, store: Store, place: _Place) -> list[tuple[dict[str, Dim], Dim]]:
        """The coefficients of the loop variables, and the constant, along each axis."""
        found = []
        for position in store.index:
            terms: dict[str, Dim] = {}
            rest: Dim = position
            for variable in reversed(place.variables):
                parts = linear(rest, variable.name)
                if parts is None:
                    raise self.error(
                        CoverageError, store.line,
                        f"index {position} of {store.array!r} is not linear in {variable.name}: "
                        "that each element is stored once cannot be decided",
                    )  # fmt: skip
                factor, rest = parts
                if factor != 0:
                    terms[variable.name] = factor
                    rest = rest + factor * variable.begin
            found.append((terms, rest))
        return found

    def _shape(self, store: Store, place: _Place) -> object:
        """What statements that may cover an output together have in common."""
        order = {v.name: number for number, v in enumerate(place.variables)}
        return tuple(
            tuple(sorted((order[name], str(c)) for name, c in terms.items()))
            for terms, _ in self._parts(store, place)
        ), tuple((v.kind, str(v.end - v.begin)) for v in place.variables)

    def _constants(self, store: Store, place: _Place) -> tuple[Dim, ...]:
        return tuple(rest for _, rest in self._parts(store, place))

    def _by_task(self, store: Store, place: _Place) -> object:
        return tuple(
            tuple(sorted((v.name, str(terms[v.name])) for v in place.variables
                         if v.kind == TASKS and v.name in terms))
            for terms, _ in self._parts(store, place)
        )  # fmt: skip

    def _covers(self, store: Store, place: _Place, constants: Sequence[Sequence[Dim]]) -> None:
        """Prove that a store covers an output once, with each of some constants."""
        array, line = self._program.array(store.array), store.line
        if place.by_data:
            raise self.error(
                CoverageError, line,
                f"{array.name!r} is stored under a condition on elements; store "
                "where(condition, x, y)",
            )  # fmt: skip
        parts = self._parts(store, place)
        by_name = {v.name: v for v in place.variables}
        for variable in place.variables:
            used = sum(variable.name in terms for terms, _ in parts)
            extent = variable.end - variable.begin
            if used > 1 or (used and any(uses(extent, name) for name in by_name)):
                raise self.error(
                    CoverageError, line,
                    f"{array.name!r}: {variable.name} moves along several axes, or ends where "
                    "another variable says: that each element is stored once cannot be decided",
                )  # fmt: skip
            if not used and extent != 1:
                if variable.kind == TASKS:
                    raise self.error(
                        RaceError, line,
                        f"the tasks of every {variable.name} store the same elements of "
                        f"{array.name!r}; its index does not depend on {variable.name}",
                    )  # fmt: skip
                raise self.error(
                    CoverageError, line,
                    f"{array.name!r} is stored once for each {variable.name}; keep the value in a "
                    "local and store it after the loop",
                )  # fmt: skip
        cuts = set(place.facts)
        for axis, (terms, rest) in enumerate(parts):
            extent = array.shape[axis]
            digits = [(c, by_name[n].end - by_name[n].begin, n) for n, c in terms.items()]
            several = sorted(set(constants[axis]), key=str) if constants[axis] else [rest]
            if len(several) > 1:
                rest, step = self._steps(several, axis, array.name, line)
                digits.append((step, len(several), "the statements"))
            if rest != 0:
                raise self.error(
                    CoverageError, line,
                    f"{array.name!r}, axis {axis}: the first index is {rest}; expected 0",
                )  # fmt: skip
            covered = self._product_of(digits, axis, array.name, line)
            position = store.index[axis]
            cut = Test(extent - 1 - position)
            cuts -= {cut, Test(position)}
            if covered == extent:
                continue
            beyond = least_value(covered - extent)
            if cut in place.facts and beyond is not None and beyond >= 0:
                continue
            what = (
                f"{array.name!r}, axis {axis}: indices 0 to {covered} - 1; expected to {extent} - 1"
            )
            self._decide(covered - extent, (), CoverageError, line, f"{what}: a gap")
            if cut not in place.facts:
                self._decide(extent - covered, (), CoverageError, line, f"{what}: too many")
        for test in cuts:
            if test.exact or not holds(test.dim, place.variables, ()):
                sign = "==" if test.exact else ">="
                raise self.error(
                    CoverageError, line,
                    f"the condition {test.dim} {sign} 0 leaves out elements of {array.name!r}; "
                    "store where(condition, x, y)",
                )  # fmt: skip

    def _steps(self, several: list[Dim], axis: int, name: str, line: int) -> tuple[Dim, Dim]:
        """The first of constants, and the step between them."""
        ordered = sorted(
            several, key=lambda d: (least_value(d) or 0, not isinstance(d, int), str(d))
        )
        step = ordered[1] - ordered[0]
        if any(b - a != step for a, b in pairwise(ordered)):
            raise self.error(
                CoverageError, line,
                f"{name!r}, axis {axis}: stored from {', '.join(map(str, ordered))} on, which are "
                "not evenly apart",
            )  # fmt: skip
        return ordered[0], step

    def _product_of(
        self, digits: list[tuple[Dim, Dim, str]], axis: int, name: str, line: int
    ) -> Dim:
        """The number of indices that some digits number without a gap, from 0 on."""
        left, covered = [d for d in digits if d[1] != 1], 1
        total: Dim = covered
        while left:
            found = next((d for d in left if d[0] == total), None)
            if found is None:
                factor, _, variable = min(left, key=lambda d: least_value(d[0]) or 0)
                gap = least_value(factor - total)
                kind = "a gap" if gap is not None and gap > 0 else "an overlap"
                raise self.error(
                    CoverageError, line,
                    f"{name!r}, axis {axis}: the index moves by {factor} with {variable}, where "
                    f"{total} elements are stored from one to the next: {kind}",
                )  # fmt: skip
            left.remove(found)
            total = total * found[1]
        return total

    # Outputs that are read.

    def _written_before(self, load: Load, place: _Place) -> None:
        for store, other in self._stores:
            if store.array == load.array and self._same(store, other, load, place):
                return
        raise self.error(
            RaceError, load.line,
            f"{load.array!r} is read at {', '.join(map(str, load.index))}, which the same task did "
            "not store before, by the same loops and conditions",
        )  # fmt: skip

    def _same(self, store: Store, stored: _Place, load: Load, read: _Place) -> bool:
        """Whether an earlier statement stored all that a load reads, in the same task."""
        if stored.number >= read.number or len(stored.variables) != len(read.variables):
            return False
        names: dict[str, Dim] = {}
        for a, b in zip(stored.variables, read.variables, strict=True):
            same_end = replaced(a.end - a.begin, names) == b.end - b.begin
            if a.kind != b.kind or not same_end or (a.kind == TASKS and a.name != b.name):
                return False
            names[a.name] = symbol(b.name) + a.begin - b.begin
        index = tuple(replaced(d, names) for d in store.index)
        facts = {Test(replaced(t.dim, names), t.exact) for t in stored.facts}
        return index == load.index and facts <= set(read.facts)


def conjunction(condition: Expr) -> tuple[Test, ...]:
    """The tests of indices that hold where a condition does."""
    match condition:
        case Test():
            return (condition,)
        case Apply("logical_and", (x, y)):
            return (*conjunction(x), *conjunction(y))
    return ()


def _is_of_indices(condition: Expr) -> bool:
    """Whether a condition is its `conjunction`, and no more."""
    match condition:
        case Apply("logical_and", arguments):
            return all(map(_is_of_indices, arguments))
    return isinstance(condition, Test)


def holds(goal: Dim, variables: Sequence[Variable], facts: Sequence[Test]) -> bool:
    """Whether a goal is known to be zero or more."""
    candidates = [goal, *(goal - f.dim for f in facts), *(goal + f.dim for f in facts if f.exact)]
    for candidate in candidates:
        least = least_at(candidate, variables)
        low = None if least is None else least_value(least)
        if low is not None and low >= 0:
            return True
    return False


def least_at(goal: Dim, variables: Sequence[Variable]) -> Dim | None:
    """A dim of extents that a goal is never below, where all variables have values; the least value
    if the goal has no quotients. None if it is not found."""
    goal, known = _without_atoms(goal, [*variables])
    for variable in reversed(known):
        parts = linear(goal, variable.name)
        if parts is None:
            return None
        factor, rest = parts
        if factor == 0:
            continue
        up, down = least_value(factor), least_value(-factor)
        if up is not None and up >= 0:
            goal = rest + factor * variable.begin
        elif down is not None and down >= 0:
            goal = rest + factor * (variable.end - 1)
        else:
            return None
    return goal


def _without_atoms(goal: Dim, variables: list[Variable]) -> tuple[Dim, list[Variable]]:
    """Quotients and remainders of loop variables by numbers as variables of their own."""
    if isinstance(goal, int):
        return goal, variables
    names = {v.name for v in variables}
    total: Dim = 0
    for monomial, coefficient in goal.terms:
        term: Dim = coefficient
        for atom in monomial:
            part: Dim = Symbolic((((atom,), 1),))
            if isinstance(atom, Atom) and not names.isdisjoint(symbols_of((part,))):
                bounds = _bounds(atom, variables)
                if bounds is not None:
                    name = f"<{atom.text}>"
                    if all(v.name != name for v in variables):
                        variables = [*variables, Variable(name, *bounds, REPEAT, 0)]
                    part = symbol(name)
            term = term * part
        total = total + term
    return total, variables


def _bounds(atom: Atom, variables: Sequence[Variable]) -> tuple[Dim, Dim] | None:
    """The least value of a quotient or a remainder, and one above the largest."""
    if not isinstance(atom.y, int) or atom.y <= 0:
        return None
    if atom.kind == "remainder":
        return 0, atom.y
    if atom.kind != "quotient":
        return None
    low, high = least_at(atom.x, variables), least_at(-atom.x, variables)
    if low is None or high is None:
        return None
    return quotient(low, atom.y), quotient(-high, atom.y) + 1


def decided(
    body: Sequence[Statement], variables: Sequence[Variable], names: Sequence[str]
) -> dict[Test, Dim]:
    """The tests within a body that depend on some names, and the least value of each over
    `variables` and those of loops that are written out, free of other loops of the body."""
    found: dict[Test, Dim] = {}
    known, inner = [*variables], set[str]()
    for loop in (s for s in statements(body) if isinstance(s, Loop)):
        if loop.constant and loop.kind != RANGE:
            known += variables_of(loop)
        else:
            inner |= set(loop.names)
    for statement in statements(body):
        for test in expressions(statement):
            if not isinstance(test, Test) or test.exact:
                continue
            least = least_at(test.dim, known)
            if least is None or not inner.isdisjoint(symbols_of((least,))):
                continue
            if not set(symbols_of((test.dim,))).isdisjoint(names):
                found[test] = least
    return found


def variables_of(loop: Loop) -> list[Variable]:
    bounds = zip(loop.names, loop.begins, loop.ends, strict=True)
    return [Variable(name, begin, end, loop.kind, loop.line) for name, begin, end in bounds]
