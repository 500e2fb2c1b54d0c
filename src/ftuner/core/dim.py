"""Dims: extents that are integers, or arithmetic on symbols that are bound at run time.

A dim is a Python integer wherever it can be; otherwise it is a `Symbolic`. The functions here take
and give either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeGuard

from ftuner.core.symbolic import (
    KEPT_RESULTS,
    Atom,
    Symbol,
    atom_of,
    begins_negative,
    bits_of_float32,
    scaled,
)
from ftuner.core.symbolic import Dim as Dim
from ftuner.core.symbolic import Symbolic as Symbolic
from ftuner.core.symbolic import least_value as least_value
from ftuner.core.symbolic import quotient as quotient
from ftuner.core.symbolic import remainder as remainder
from ftuner.core.symbolic import symbol as symbol

Shape = tuple[Dim, ...]
_EXACT_FACTOR = 1 << 8
"""Factors whose numerator is at most this are exact: float32 has 24 bits, and an extent up to 16.
"""


def ceil_quotient(x: Dim, y: Dim) -> Dim:
    """`x / y`, rounded up."""
    return -quotient(-x, y)


def resized(extent: Dim, factor: float) -> Dim:
    """An extent times a positive float32, as float32 computes it, without its fraction."""
    above, below = factor.as_integer_ratio()
    if isinstance(extent, Symbolic) and above <= _EXACT_FACTOR:
        return quotient(extent * above, below)
    return scaled(extent, bits_of_float32(factor))


@lru_cache(maxsize=KEPT_RESULTS)
def maximum(x: Dim, y: Dim) -> Dim:
    """The larger of two dims; an operation if neither is known to be larger."""
    least = _difference_bound(x, y)
    if least is not None:
        return x if least >= 0 else y
    for one, other in ((x, y), (y, x)):
        if isinstance(one, int) and begins_negative(other):
            # `max(0, 1 - A)` is `1 - min(1, A)`: what is cut off and what is left have one atom.
            return -minimum(-one, -other)
    return atom_of("maximum", *sorted((x, y), key=str))


@lru_cache(maxsize=KEPT_RESULTS)
def minimum(x: Dim, y: Dim) -> Dim:
    """The smaller of two dims; an operation if neither is known to be smaller."""
    least = _difference_bound(x, y)
    if least is not None:
        return y if least >= 0 else x
    # Beside a number, a sum has no constant of its own: `min(0, A - 3)` is `min(3, A) - 3`.
    shift: Dim = 0
    for one, other in ((x, y), (y, x)):
        if isinstance(one, int) and isinstance(other, Symbolic):
            shift = sum(c for monomial, c in other.terms if not monomial)
    return atom_of("minimum", *sorted((x - shift, y - shift), key=str)) + shift


def broadcast(x: Dim, y: Dim) -> Dim:
    """The extent of two axes together, as NumPy broadcasts them: equal, or one of them one."""
    if x == y or y == 1:
        return x
    if x == 1 or isinstance(y, int):
        return y
    if isinstance(x, int):
        return x
    return atom_of("broadcast", *sorted((x, y), key=str))


def simplest(dims: Sequence[Dim]) -> Dim:
    """The first of the shortest of some dims that are equal whenever they are bound: a number, or
    what has the shortest text."""
    return min(dims, key=lambda dim: 0 if isinstance(dim, int) else len(dim.text))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of all dims; 1 if there are none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def static(shape: Shape) -> tuple[int, ...]:
    """Extents that are all known."""
    assert all(isinstance(n, int) for n in shape), shape
    return tuple(n for n in shape if isinstance(n, int))


def without_ones(shape: Shape) -> Shape:
    """The extents of a shape other than 1."""
    return tuple(n for n in shape if n != 1)


def row_major_strides(shape: Sequence[Dim]) -> Shape:
    """Strides in elements of a contiguous array: the last axis is the fastest."""
    strides: list[Dim] = []
    stride: Dim = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride = stride * extent
    return tuple(reversed(strides))


def never_negative(dim: Dim | None) -> TypeGuard[Dim]:
    """Whether a dim is known, and zero or more for all extents."""
    least = None if dim is None else least_value(dim)
    return least is not None and least >= 0


def _difference_bound(x: Dim, y: Dim) -> int | None:
    """Zero or more if x >= y is certain, less if x <= y is, None if neither is known."""
    low = least_value(x - y)
    if low is not None and low >= 0:
        return low
    low = least_value(y - x)
    if low is not None and low >= 0:
        return -1 - low
    return None


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


class Names:
    """Symbols for the dims of a model, named or not; different texts have different symbols."""

    def __init__(self) -> None:
        self._symbols: dict[str, Symbolic] = {}
        self._used: dict[str, int] = {}
        """How many symbols were requested under each name."""

    def named(self, text: str) -> Symbolic:
        """The symbol of a name, the same each time."""
        found = self._symbols.get(text)
        if found is None:
            found = self._symbols[text] = self.fresh(text)
        return found

    def fresh(self, text: str) -> Symbolic:
        """A new symbol whose name begins with a text."""
        name = wanted = symbol_name(text)
        while name in self._used:
            self._used[wanted] += 1
            name = f"{wanted}_{self._used[wanted]}"
        self._used[name] = 1
        return symbol(name)
