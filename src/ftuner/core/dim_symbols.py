"""The symbols and operations that dims are made of, and the names of symbols."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ftuner.core.symbolic import Atom, Dim, Symbol, Symbolic

MAX_NAME = 60
"""Characters of a symbol's name that are taken from a model file."""
_IDENTIFIER = re.compile(r"[^A-Za-z0-9_.]+")


def symbols_of(dims: Iterable[Dim]) -> list[str]:
    """The names of all symbols in dims, in the order of their first use."""
    found = UsedSymbols()
    found.add(dims)
    return list(found.names)


class UsedSymbols:
    """The symbols of dims that are added one after the other; what they share is visited once."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        """In the order of their first use."""
        self._visited: set[Atom] = set()

    def add(self, dims: Iterable[Dim]) -> None:
        left: list[Dim | Atom | Symbol] = [*reversed([*dims])]
        while left:
            node = left.pop()
            if isinstance(node, Symbol):
                self.names.setdefault(node.name)
            elif isinstance(node, Symbolic):
                left += [atom for monomial, _ in node.terms for atom in monomial][::-1]
            elif isinstance(node, Atom) and node not in self._visited:
                self._visited.add(node)
                left += (node.y, node.x)


def atoms_of(roots: Iterable[Dim | Atom]) -> list[Atom]:
    """The operations in dims, each once, after those that it reads."""
    found: dict[Atom, None] = {}
    left: list[tuple[Dim | Atom | Symbol, bool]] = [(root, False) for root in [*roots][::-1]]
    while left:
        node, visited = left.pop()
        if isinstance(node, Symbolic):
            left += [(atom, False) for monomial, _ in node.terms for atom in monomial][::-1]
        elif isinstance(node, Atom) and node not in found:
            if visited:
                found[node] = None
            else:
                left += ((node, True), (node.y, False), (node.x, False))
    return list(found)


def shares_symbols(x: Dim, y: Dim) -> bool:
    return not set(symbols_of((x,))).isdisjoint(symbols_of((y,)))


def symbol_name(text: str) -> str:
    """A name of a symbol from what a model file calls a dim: not one that reads as a number."""
    name = _IDENTIFIER.sub("_", text)[:MAX_NAME] or "dim"
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"
