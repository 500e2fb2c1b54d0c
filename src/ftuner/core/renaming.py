"""Dims with symbols replaced by others that are equal to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ftuner.core.dim import Dim, broadcast, maximum, minimum
from ftuner.core.dim_symbols import atoms_of
from ftuner.core.symbolic import Atom, Symbol, atom_of, quotient, remainder, scaled, symbol
from ftuner.errors import ShapeError

_OPERATIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "quotient": quotient,
    "remainder": remainder,
    "maximum": maximum,
    "minimum": minimum,
    "broadcast": broadcast,
    "whole": partial(atom_of, "whole"),
    "scaled": scaled,
}


class Renaming:
    """Writes dims with one name for symbols that are equal. What dims share is rewritten once."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: of symbols, those that replace them."""
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
                    self._known[atom] = _OPERATIONS[atom.kind](x, y)
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
            return symbol(self._names.get(atom.name, atom.name))
        return self._known[atom]
