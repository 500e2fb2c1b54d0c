"""Least values of dims over loop variables.

A dim that is linear in a loop variable is least at one of its ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ftuner.core.dim import Dim, never_negative, quotient, symbol, symbols_of
from ftuner.core.frozen import dataclass
from ftuner.core.symbolic import Atom, Symbol, Symbolic
from ftuner.tasks import program as tir


@dataclass(frozen=True)
class Variable:
    """A loop variable, `begin <= name < end`."""

    name: str
    begin: Dim
    end: Dim
    kind: str
    line: int


def variables_of(loop: tir.Loop) -> list[Variable]:
    bounds = zip(loop.names, loop.begins, loop.ends, strict=True)
    return [Variable(name, begin, end, loop.kind, loop.line) for name, begin, end in bounds]


def conjuncts(condition: tir.Expr) -> Iterator[tir.Expr]:
    """The conditions that hold together where one does."""
    match condition:
        case tir.Apply("logical_and", (x, y)):
            yield from conjuncts(x)
            yield from conjuncts(y)
        case _:
            yield condition


def holds(goal: Dim, variables: Sequence[Variable], facts: Sequence[tir.Test]) -> bool:
    """Whether a goal is known to be zero or more."""
    candidates = [goal, *(goal - f.dim for f in facts), *(goal + f.dim for f in facts if f.exact)]
    return any(never_negative(least_at(candidate, variables)) for candidate in candidates)


def least_at(goal: Dim, variables: Sequence[Variable]) -> Dim | None:
    """A dim of extents that a goal is never below, where all variables have values; the least value
    if the goal has no quotients. None if it is not found."""
    goal, known = _without_atoms(goal, variables)
    for variable in reversed(known):
        parts = tir.linear(goal, variable.name)
        if parts is None:
            return None
        factor, rest = parts
        if factor == 0:
            continue
        if never_negative(factor):
            goal = rest + factor * variable.begin
        elif never_negative(-factor):
            goal = rest + factor * (variable.end - 1)
        else:
            return None
    return goal


def _without_atoms(goal: Dim, variables: Sequence[Variable]) -> tuple[Dim, list[Variable]]:
    """Quotients and remainders of loop variables by numbers as variables of their own."""
    names, found = {v.name for v in variables}, [*variables]

    def part(atom: Atom | Symbol) -> Dim:
        own = Symbolic((((atom,), 1),))
        if isinstance(atom, Symbol) or names.isdisjoint(symbols_of((own,))):
            return own
        if (bounds := _bounds(atom, found)) is None:
            return own
        name = f"<{atom.text}>"
        if all(v.name != name for v in found):
            found.append(Variable(name, *bounds, tir.REPEAT, 0))
        return symbol(name)

    return tir.mapped(goal, part), found


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
    body: Sequence[tir.Statement], variables: Sequence[Variable], names: Sequence[str]
) -> dict[tir.Test, Dim]:
    """The tests within a body that depend on some names, and the least value of each over
    `variables` and those of loops that are written out, free of other loops of the body."""
    found: dict[tir.Test, Dim] = {}
    known, inner = [*variables], set[str]()
    for loop in (s for s in tir.statements(body) if isinstance(s, tir.Loop)):
        if loop.constant and loop.kind != tir.RANGE:
            known += variables_of(loop)
        else:
            inner |= set(loop.names)
    for statement in tir.statements(body):
        for test in tir.expressions(statement):
            if not isinstance(test, tir.Test) or test.exact:
                continue
            least = least_at(test.dim, known)
            if least is None or not inner.isdisjoint(symbols_of((least,))):
                continue
            if not set(symbols_of((test.dim,))).isdisjoint(names):
                found[test] = least
    return found
