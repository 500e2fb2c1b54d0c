"""Dims whose symbols are bound to values, or replaced by others that are equal to them."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

from ftuner.core.dim import Dim, atoms_of, broadcast, maximum, minimum
from ftuner.core.symbolic import (
    WORD_BITS,
    WORDS,
    Atom,
    Symbol,
    atom_of,
    quotient,
    remainder,
    scaled,
    scaled_value,
    symbol,
)
from ftuner.errors import ShapeError


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The dim with all symbols bound.

    Raises:
        ZeroDivisionError: something is divided by zero.
        ShapeError: a value does not fit 64 bits.
    """
    known: dict[Atom, int] = {}

    def of(dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        total = 0
        for monomial, coefficient in dim.terms:
            for atom in monomial:
                coefficient *= values[atom.name] if isinstance(atom, Symbol) else known[atom]
            total += coefficient
        return total

    for atom in atoms_of((dim,)):
        known[atom] = _OPERATIONS[atom.kind](of(atom.x), of(atom.y))
    return of(dim)


def compiled(dims: Sequence[Dim], names: Sequence[str]) -> Callable[[Sequence[int]], list[int]]:
    """A function from the values of the symbols `names`, in their order, to those of `dims`: what
    `evaluate` gives, in microseconds for hundreds of dims."""
    symbols = {name: f"s[{i}]" for i, name in enumerate(names)}
    known: dict[Atom, str] = {}
    lines = ["def made(s):"]
    for atom in atoms_of(dims):
        x, y = _source(atom.x, symbols, known), _source(atom.y, symbols, known)
        sign = {"quotient": "//", "remainder": "%"}.get(atom.kind)
        call = f"({x}) {sign} ({y})" if sign else f"{WORDS[atom.kind]}({x}, {y})"
        known[atom] = f"a{len(known)}"
        lines.append(f" {known[atom]} = {call}")
    values = ", ".join(_source(dim, symbols, known) for dim in dims)
    # The source is made of integers and the fixed words above, never of names that were given.
    scope: dict[str, Any] = {word: _OPERATIONS[kind] for kind, word in WORDS.items()}
    exec("\n".join([*lines, f" return [{values}]"]), scope)
    made: Callable[[Sequence[int]], list[int]] = scope["made"]
    return made


def _whole_value(x: int, _: int) -> int:
    if x.bit_length() > WORD_BITS:
        raise ShapeError(
            f"an extent, or a number that extents are computed from, has {x.bit_length()} bits; "
            f"expected at most {WORD_BITS} and a sign"
        )
    return x


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "quotient": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "maximum": max,
    "minimum": min,
    "broadcast": lambda x, y: y if x == 1 else x,
    "whole": _whole_value,
    "scaled": scaled_value,
}


def _source(dim: Dim, symbols: Mapping[str, str], known: Mapping[Atom, str]) -> str:
    if isinstance(dim, int):
        return str(dim)
    terms = []
    for monomial, coefficient in dim.terms:
        factors = [] if coefficient == 1 and monomial else [f"({coefficient})"]
        factors += [symbols[a.name] if isinstance(a, Symbol) else known[a] for a in monomial]
        terms.append("*".join(factors))
    return " + ".join(terms)


def all_symbols_in(dims: Sequence[Dim], names: Container[str]) -> list[bool]:
    """For each dim, whether `names` has all of its symbols."""
    known: dict[Atom, bool] = {}

    def of(dim: Dim) -> bool:
        return isinstance(dim, int) or all(
            atom.name in names if isinstance(atom, Symbol) else known[atom]
            for monomial, _ in dim.terms
            for atom in monomial
        )

    for atom in atoms_of(dims):
        known[atom] = of(atom.x) and of(atom.y)
    return [of(dim) for dim in dims]


_SYMBOLIC: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "quotient": quotient,
    "remainder": remainder,
    "maximum": maximum,
    "minimum": minimum,
    "broadcast": broadcast,
    "whole": partial(atom_of, "whole"),
    "scaled": scaled,
}


class Renaming:
    """Writes dims with one name for symbols that are equal, or with dims for symbols. What dims
    share is rewritten once."""

    def __init__(self, names: Mapping[str, str] | Mapping[str, Dim]) -> None:
        """`names`: of symbols, those that replace them, or dims."""
        self._names = names
        self._known: dict[Atom, Dim] = {}

    def __call__(self, dim: Dim) -> Dim:
        """The dim with the names replaced; as it is if it then divides by zero."""
        if not self._names or isinstance(dim, int):
            return dim
        try:
            for atom in atoms_of((dim,)):
                if atom not in self._known:
                    x, y = self._of(atom.x), self._of(atom.y)
                    self._known[atom] = _SYMBOLIC[atom.kind](x, y)
            return self._of(dim)
        except ShapeError:
            return dim

    def _of(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        total: Dim = 0
        for monomial, coefficient in dim.terms:
            term: Dim = coefficient
            for atom in monomial:
                term = term * self._factor(atom)
            total = total + term
        return total

    def _factor(self, atom: Atom | Symbol) -> Dim:
        if isinstance(atom, Symbol):
            value = self._names.get(atom.name, atom.name)
            return symbol(value) if isinstance(value, str) else value
        return self._known[atom]
