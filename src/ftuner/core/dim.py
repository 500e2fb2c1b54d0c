"""Dims: extents that are integers, or arithmetic on symbols that are bound at run time.

A dim is a Python integer wherever it can be. Otherwise it is a `Symbolic`: a sum of products of
*atoms* (symbols, quotients, remainders, maxima, minima) in a canonical order, so that two dims are
equal if their sums are. Functions take and give either; `Symbolic` has Python's operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from ftuner.errors import ShapeError

Dim = Union[int, "Symbolic"]
Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Symbol:
    """A name for an extent, zero or more, known at run time."""

    name: str

    @cached_property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True)
class Atom:
    """An operation that is no sum or product: `quotient` and `remainder` round towards minus
    infinity as Python's do, `maximum`, `minimum`, and `broadcast`: x unless it is one, then y."""

    kind: str
    x: Dim
    y: Dim

    @cached_property
    def text(self) -> str:
        sign = {"quotient": "//", "remainder": "%"}.get(self.kind)
        if sign:
            return f"({self.x} {sign} {self.y})"
        return f"{_WORDS[self.kind]}({self.x}, {self.y})"


_WORDS = {"maximum": "max", "minimum": "min", "broadcast": "broadcast"}

Monomial = tuple["Symbol | Atom", ...]
"""A product of atoms, in the order of their texts; empty for a constant."""


@dataclass(frozen=True)
class Symbolic:
    """A sum of at least one product that is not constant: ((monomial, coefficient), ...)."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum((self, other))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _from_terms((m, -c) for m, c in self.terms)

    def __sub__(self, other: Dim) -> Dim:
        return _sum((self, -other))

    def __rsub__(self, other: Dim) -> Dim:
        return _sum((other, -self))

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return quotient(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return quotient(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return remainder(self, other)

    def __str__(self) -> str:
        return " + ".join(_term_text(m, c) for m, c in self.terms).replace("+ -", "- ")

    __repr__ = __str__


def symbol(name: str) -> Symbolic:
    """The dim that is a symbol alone."""
    return Symbolic((((Symbol(name),), 1),))


def quotient(x: Dim, y: Dim) -> Dim:
    """`x // y`.

    Raises:
        ShapeError: y is zero.
    """
    if isinstance(y, int):
        if y == 0:
            raise ShapeError(f"{x} // 0")
        if y == 1:
            return x
    if isinstance(x, int) and isinstance(y, int):
        return x // y
    if x == 0:
        return 0
    if x == y:
        return 1
    exact = _exact_quotient(x, y)
    return exact if exact is not None else _atom("quotient", x, y)


def remainder(x: Dim, y: Dim) -> Dim:
    """`x % y`.

    Raises:
        ShapeError: y is zero.
    """
    if y == 0:
        raise ShapeError(f"{x} % 0")
    if isinstance(x, int) and isinstance(y, int):
        return x % y
    if x == 0 or _exact_quotient(x, y) is not None:
        return 0
    return _atom("remainder", x, y)


def ceil_quotient(x: Dim, y: Dim) -> Dim:
    """`x / y`, rounded up."""
    return -quotient(-x, y)


def maximum(x: Dim, y: Dim) -> Dim:
    least = _difference_bound(x, y)
    if least is not None:
        return x if least >= 0 else y
    return _atom("maximum", *sorted((x, y), key=str))


def minimum(x: Dim, y: Dim) -> Dim:
    least = _difference_bound(x, y)
    if least is not None:
        return y if least >= 0 else x
    return _atom("minimum", *sorted((x, y), key=str))


def shares_symbols(x: Dim, y: Dim) -> bool:
    return not set(symbols_of((x,))).isdisjoint(symbols_of((y,)))


def broadcast(x: Dim, y: Dim) -> Dim:
    """The extent of two axes together, as NumPy broadcasts them: equal, or one of them one.

    Two dims of the same symbols (`S` and `min(S, 512)`) are taken to be equal, which whoever asks
    must demand at run time.
    """
    if x == y or y == 1:
        return x
    if x == 1 or isinstance(y, int):
        return y
    if isinstance(x, int):
        return x
    if shares_symbols(x, y):
        return min(x, y, key=lambda d: (len(str(d)), str(d)))
    return _atom("broadcast", *sorted((x, y), key=str))


def product(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def row_major_strides(shape: Sequence[Dim]) -> Shape:
    """Strides in elements of a contiguous array: the last axis is the fastest."""
    strides: list[Dim] = []
    stride: Dim = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride = stride * extent
    return tuple(reversed(strides))


def least_value(x: Dim) -> int | None:
    """A lower bound of a dim whose symbols are zero or more; None if none is known."""
    if isinstance(x, int):
        return x
    low = 0
    for monomial, coefficient in x.terms:
        if not monomial:
            low += coefficient
        elif coefficient < 0 or not all(_is_natural(atom) for atom in monomial):
            return None
    return low


def symbols_of(dims: Iterable[Dim]) -> list[str]:
    """The names of all symbols in dims, in the order of their first use."""
    found: dict[str, None] = {}

    def visit(dim: Dim) -> None:
        if isinstance(dim, int):
            return
        for monomial, _ in dim.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.setdefault(atom.name)
                else:
                    visit(atom.x)
                    visit(atom.y)

    for dim in dims:
        visit(dim)
    return list(found)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The dim with all symbols bound."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                coefficient *= values[atom.name]
            else:
                x, y = evaluate(atom.x, values), evaluate(atom.y, values)
                coefficient *= _OPERATIONS[atom.kind](x, y)
        total += coefficient
    return total


def compiled(dims: Sequence[Dim], names: Sequence[str]) -> Callable[[Sequence[int]], list[int]]:
    """A function from the values of the symbols `names`, in their order, to those of `dims`: what
    `evaluate` gives, in microseconds for hundreds of dims."""
    known = {name: f"s[{i}]" for i, name in enumerate(names)}
    body = ", ".join(_source(dim, known) for dim in dims)
    # The source is made of integers and the fixed words above, never of names that were given.
    words = {"max": max, "min": min, "broadcast": _broadcast}
    made: Callable[[Sequence[int]], list[int]] = eval(f"lambda s: [{body}]", words)
    return made


def _broadcast(x: int, y: int) -> int:
    return y if x == 1 else x


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "quotient": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "maximum": max,
    "minimum": min,
    "broadcast": _broadcast,
}


def _source(dim: Dim, known: Mapping[str, str]) -> str:
    if isinstance(dim, int):
        return str(dim)
    terms = []
    for monomial, coefficient in dim.terms:
        factors = [] if coefficient == 1 and monomial else [f"({coefficient})"]
        for atom in monomial:
            if isinstance(atom, Symbol):
                factors.append(known[atom.name])
                continue
            x, y = _source(atom.x, known), _source(atom.y, known)
            sign = {"quotient": "//", "remainder": "%"}.get(atom.kind)
            call = f"(({x}) {sign} ({y}))" if sign else f"{_WORDS[atom.kind]}({x}, {y})"
            factors.append(call)
        terms.append("*".join(factors))
    return " + ".join(terms)


def _term_text(monomial: Monomial, coefficient: int) -> str:
    atoms = "*".join(atom.text for atom in monomial)
    if not atoms:
        return str(coefficient)
    if coefficient in (1, -1):
        return atoms if coefficient == 1 else f"-{atoms}"
    return f"{coefficient}*{atoms}"


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    return (((), dim),) if isinstance(dim, int) else dim.terms


def _from_terms(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    left = {m: c for m, c in total.items() if c}
    if not left:
        return 0
    if set(left) == {()}:
        return left[()]
    # Symbols first, constants last.
    order = sorted(left.items(), key=lambda t: (not t[0], [a.text for a in t[0]]))
    return Symbolic(tuple(order))


def _sum(dims: Iterable[Dim]) -> Dim:
    return _from_terms(term for dim in dims for term in _terms(dim))


def _product(x: Dim, y: Dim) -> Dim:
    return _from_terms(
        (tuple(sorted(m1 + m2, key=lambda a: a.text)), c1 * c2)
        for m1, c1 in _terms(x)
        for m2, c2 in _terms(y)
    )


def _atom(kind: str, x: Dim, y: Dim) -> Dim:
    return Symbolic((((Atom(kind, x, y),), 1),))


def _exact_quotient(x: Dim, y: Dim) -> Dim | None:
    """`x / y` where it is a sum of products again: y is one product that divides each of x."""
    divisor = _terms(y)
    if len(divisor) > 1:
        return None
    atoms, coefficient = divisor[0]
    found: list[tuple[Monomial, int]] = []
    for monomial, c in _terms(x):
        left = list(monomial)
        for atom in atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if c % coefficient:
            return None
        found.append((tuple(left), c // coefficient))
    return _from_terms(found)


def _is_natural(atom: Symbol | Atom) -> bool:
    """Whether an atom is known to be zero or more."""
    if isinstance(atom, Symbol):
        return True
    bounds = [least_value(atom.x), least_value(atom.y)]
    known = [b is not None and b >= 0 for b in bounds]
    if atom.kind == "remainder":
        return known[1]
    return any(known) if atom.kind == "maximum" else all(known)


def _difference_bound(x: Dim, y: Dim) -> int | None:
    """Zero or more if x >= y is certain, less if x <= y is, None if neither is known."""
    low = least_value(x - y)
    if low is not None and low >= 0:
        return low
    low = least_value(y - x)
    if low is not None and low >= 0:
        return -1 - low
    return None


_IDENTIFIER = re.compile(r"[^A-Za-z0-9_.]+")


def symbol_name(text: str) -> str:
    """A name of a symbol from what a model file calls a dim."""
    return _IDENTIFIER.sub("_", text) or "dim"
