"""Symbolic dims: arithmetic on symbols that are bound at run time.

A `Symbolic` is a sum of products of *atoms* (symbols, quotients, remainders, maxima, minima) in a
canonical order, so that two dims are equal if their sums are. It has Python's operators; other
modules take it, and the functions that take integers too, from `core.dim`.

Model files contain any arithmetic. So a dim has a bounded size of its own (`MAX_TERMS`,
`MAX_DEGREE`, `MAX_BITS`, `MAX_TEXT`): what would be larger is written as a sum or product of
*whole* values, which are atoms. Dims share their operands, and may be nested thousands deep:
nothing here recurses, each distinct operation is evaluated once, and equality compares digests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import lru_cache
from hashlib import blake2b
from typing import Union

from ftuner.core.caching import cached_attribute
from ftuner.core.frozen import dataclass
from ftuner.errors import ShapeError

Dim = Union[int, "Symbolic"]

MAX_TERMS = 64
"""Products in one sum. Shapes of exported models have up to eight."""
MAX_DEGREE = 16
"""Atoms in one product."""
MAX_BITS = 2048
"""Of the value of a sum, where symbols have 63."""
MAX_TEXT = 200
"""Characters of a dim's text; a longer one is cut, and ends with the digest."""
KEPT_RESULTS = 1 << 14
"""Results kept of each operation: the layers of a network have the same few extents. Derived: each
is some hundred bytes."""
WORD_BITS = 63
_DIGEST_BYTES = 16


@dataclass(frozen=True, eq=False)
class Symbol:
    """A name for an extent, zero or more, known at run time."""

    name: str
    digest: bytes = field(init=False, repr=False)
    text: str = field(init=False, repr=False)
    bits: int = field(init=False, repr=False, default=WORD_BITS)
    natural: bool = field(init=False, repr=False, default=True)

    def __post_init__(self) -> None:
        digest = _digest("symbol", self.name.encode())
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "text", _shortened(self.name, digest))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True, eq=False)
class Atom:
    """An operation other than a sum or product: `quotient` and `remainder` round towards minus
    infinity as Python's do, `maximum`, `minimum`, `broadcast`: x unless it is one, then y, `whole`:
    x, which must fit 64 bits, and `scaled`: x times the float32 of the bits y, see
    `scaled_value`."""

    kind: str
    x: Dim
    y: Dim
    digest: bytes = field(init=False, repr=False)
    text: str = field(init=False, repr=False)
    bits: int = field(init=False, repr=False)
    natural: bool = field(init=False, repr=False)
    """Whether it is known to be zero or more."""

    def __post_init__(self) -> None:
        digest = _digest(self.kind, _digest_of(self.x), _digest_of(self.y))
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "text", _shortened(self._text(), digest))
        object.__setattr__(self, "bits", self._bits())
        object.__setattr__(self, "natural", self._natural())

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def _text(self) -> str:
        sign = {"quotient": "//", "remainder": "%"}.get(self.kind)
        if sign:
            return f"({_operand_text(self.x)} {sign} {_operand_text(self.y, divides=True)})"
        if self.kind == "whole":
            return f"({self.x})"
        if self.kind == "scaled":
            return f"floor({_operand_text(self.x)} * {_float32_of(self.y):.9g})"
        return f"{WORDS[self.kind]}({self.x}, {self.y})"

    def _bits(self) -> int:
        x, y = _bits_of(self.x), _bits_of(self.y)
        if self.kind in ("whole", "scaled"):
            return WORD_BITS
        if self.kind == "quotient":
            return x + 1
        return y if self.kind == "remainder" else max(x, y)

    def _natural(self) -> bool:
        x, y = (low is not None and low >= 0 for low in map(least_value, (self.x, self.y)))
        if self.kind == "remainder":
            return y
        if self.kind in ("whole", "scaled"):
            return x
        return x or y if self.kind == "maximum" else x and y


WORDS = {
    "maximum": "max",
    "minimum": "min",
    "broadcast": "broadcast",
    "whole": "whole",
    "scaled": "scaled",
}

Monomial = tuple["Symbol | Atom", ...]
"""A product of atoms, in the order of their texts; empty for a constant."""


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A sum of at least one product that is not constant: ((monomial, coefficient), ...)."""

    terms: tuple[tuple[Monomial, int], ...]
    digest: bytes = field(init=False, repr=False)
    bits: int = field(init=False, repr=False)
    """Of the largest value it can have."""
    least: int | None = field(init=False, repr=False)
    """A lower bound of the value; None if none is known."""

    def __post_init__(self) -> None:
        parts = []
        bits = 0
        for monomial, coefficient in self.terms:
            parts.append(b"%d of %d:" % (coefficient, len(monomial)))
            parts += [atom.digest for atom in monomial]
            factors = [atom.bits for atom in monomial]
            bits = max(bits, sum(factors) + coefficient.bit_length())
        least = _least(self.terms)
        if least is None:
            found = [_least(_below(self.terms, by_numbers)) for by_numbers in (False, True)]
            least = max((low for low in found if low is not None), default=None)
        digest = _digest("sum", *parts)
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "bits", bits + len(self.terms).bit_length())
        object.__setattr__(self, "least", least)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Symbolic) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __add__(self, other: Dim) -> Dim:
        return _sum(self, other)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _negative(self)

    def __sub__(self, other: Dim) -> Dim:
        return _sum(self, -other)

    def __rsub__(self, other: Dim) -> Dim:
        return _sum(other, -self)

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return quotient(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return quotient(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return remainder(self, other)

    @cached_attribute
    def text(self) -> str:
        text = " + ".join(_term_text(m, c) for m, c in self.terms).replace("+ -", "- ")
        return _shortened(text, self.digest)

    def __str__(self) -> str:
        return self.text

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
    if exact is not None:
        return exact
    multiples, rest = _divided(x, y)
    if multiples != 0:
        return multiples + quotient(rest, y)
    if isinstance(y, int) and y > 0 and begins_negative(x):
        return -quotient(y - 1 - x, y)
    inner = _one_quotient(x, y)
    return atom_of("quotient", x, y) if inner is None else quotient(*inner)


def _one_quotient(x: Dim, y: Dim) -> tuple[Dim, int] | None:
    """`a + m * c, m * y` if x is `a // m + c` with a number c: both round down to the same."""
    if not isinstance(y, int) or y < 0 or isinstance(x, int):
        return None
    atoms = [(monomial, factor) for monomial, factor in x.terms if monomial]
    if len(atoms) != 1 or len(atoms[0][0]) != 1 or atoms[0][1] != 1:
        return None
    (atom,), _ = atoms[0]
    if not isinstance(atom, Atom) or atom.kind != "quotient" or not isinstance(atom.y, int):
        return None
    if atom.y < 0:
        return None
    offset = x - Symbolic((((atom,), 1),))
    return atom.x + atom.y * offset, atom.y * y


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
    multiples, rest = _divided(x, y)
    if multiples != 0:
        return remainder(rest, y)
    if isinstance(y, int) and y > 0:
        inner = _without_remainders(x, y)
        if inner != x:
            return remainder(inner, y)
        if begins_negative(x):
            # By how much -x falls short of a multiple of y: added to -x, that is one term.
            return x - y * quotient(x, y)
    return atom_of("remainder", x, y)


def scaled(x: Dim, factor: Dim) -> Dim:
    """The dim `scaled_value(x, factor)`; the factor is known."""
    assert isinstance(factor, int)
    return scaled_value(x, factor) if isinstance(x, int) else atom_of("scaled", x, factor)


def scaled_value(x: int, factor: int) -> int:
    """x times the positive float32 of the bits `factor`, as float32 computes it, without its
    fraction.

    Raises:
        ShapeError: no float32 is as large.
    """
    try:
        product = _as_float32(_as_float32(x) * _float32_of(factor))
    except OverflowError:
        raise ShapeError(f"an extent of {x} times {_float32_of(factor)}") from None
    return int(product)


def bits_of_float32(number: float) -> int:
    found: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return found


def _float32_of(bits: Dim) -> float:
    found: float = struct.unpack("<f", struct.pack("<i", bits))[0]
    return found


def _as_float32(number: float) -> float:
    return _float32_of(bits_of_float32(number))


def least_value(x: Dim) -> int | None:
    """A lower bound of a dim whose symbols are zero or more; None if none is known."""
    return x if isinstance(x, int) else x.least


# How dims are made.


def _digest(kind: str, *parts: bytes) -> bytes:
    return blake2b(b"".join((kind.encode(), b":", *parts)), digest_size=_DIGEST_BYTES).digest()


def _digest_of(dim: Dim) -> bytes:
    return _digest("integer", b"%d" % dim) if isinstance(dim, int) else dim.digest


def _bits_of(dim: Dim) -> int:
    return dim.bit_length() if isinstance(dim, int) else dim.bits


def _shortened(text: str, digest: bytes) -> str:
    """A text, or what is left of a long one, with the digest so that it differs from others."""
    if len(text) <= MAX_TEXT:
        return text
    end = f"...#{digest.hex()}"
    return text[: MAX_TEXT - len(end)] + end


def _operand_text(dim: Dim, divides: bool = False) -> str:
    """The text of a dim beside `//` or `%`: a sum, and a product that divides, in parentheses."""
    terms = _terms(dim)
    factors = sum(len(monomial) + (coefficient != 1) for monomial, coefficient in terms)
    grouped = len(terms) > 1 or (divides and factors > 1)
    return f"({dim})" if grouped else str(dim)


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


@lru_cache(maxsize=KEPT_RESULTS)
def _negative(x: Symbolic) -> Dim:
    return _from_terms((m, -c) for m, c in x.terms)


@lru_cache(maxsize=KEPT_RESULTS)
def _sum(x: Dim, y: Dim) -> Dim:
    terms = (*_terms(x), *_terms(y))
    if len(terms) > MAX_TERMS or max(_bits_of(x), _bits_of(y)) >= MAX_BITS:
        terms = (*_terms(_whole(x)), *_terms(_whole(y)))
    return _from_terms(terms)


@lru_cache(maxsize=KEPT_RESULTS)
def _product(x: Dim, y: Dim) -> Dim:
    if isinstance(x, int):
        x, y = y, x
    assert isinstance(x, Symbolic)
    if y in (0, 1):
        return x if y == 1 else 0
    wide = x.bits + _bits_of(y) > MAX_BITS
    if isinstance(y, int) and not wide:
        return Symbolic(tuple((monomial, c * y) for monomial, c in x.terms))
    degree = max(len(m) for m, _ in x.terms) + max(len(m) for m, _ in _terms(y))
    if wide or degree > MAX_DEGREE or len(x.terms) * len(_terms(y)) > MAX_TERMS:
        x, y = _whole(x), _whole(y)
    return _from_terms(
        (tuple(sorted(m1 + m2, key=lambda a: a.text)), c1 * c2)
        for m1, c1 in _terms(x)
        for m2, c2 in _terms(y)
    )


def _whole(dim: Dim) -> Dim:
    """The value as one atom; an atom stays as it is."""
    if isinstance(dim, int) or (len(dim.terms) == 1 and dim.bits <= WORD_BITS + 2):
        return dim
    return atom_of("whole", dim, 0)


def atom_of(kind: str, x: Dim, y: Dim) -> Dim:
    """The dim that is one operation."""
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


def _divided(x: Dim, y: Dim) -> tuple[Dim, Dim]:
    """`m, r` with `x = m * y + r`: what a positive integer y divides goes to m, so that quotients
    that are equal are written alike, and those of no less than zero are known as such."""
    if isinstance(x, int) or not isinstance(y, int) or y < 1:
        return 0, x
    taken = {m: c // y for m, c in x.terms if not m or c % y == 0}
    rest = _from_terms((m, c - taken.get(m, 0) * y) for m, c in x.terms)
    return _from_terms(taken.items()), rest


def begins_negative(x: Dim) -> bool:
    """Whether the first product of a sum is subtracted."""
    return isinstance(x, Symbolic) and x.terms[0][1] < 0


def _without_remainders(x: Dim, y: int) -> Dim:
    """A dim with the same remainder: terms that are remainders by y stand for what was divided."""
    total: Dim = 0
    for monomial, c in _terms(x):
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, Atom) and (atom.kind, atom.y) == ("remainder", y):
            total = total + atom.x * c
        else:
            total = total + _from_terms([(monomial, c)])
    return total


def _least(terms: Iterable[tuple[Monomial, int]]) -> int | None:
    """A lower bound of a sum whose terms are bounded alone."""
    least = 0
    for monomial, coefficient in terms:
        if not monomial:
            least += coefficient
        elif coefficient < 0 or not all(atom.natural for atom in monomial):
            return None
    return least


def _below(terms: Sequence[tuple[Monomial, int]], by_numbers: bool) -> list[tuple[Monomial, int]]:
    """The terms of a lower bound of a sum. A multiple of a quotient is replaced by a bound in terms
    of its dividend; a minimum that is subtracted, by one of its operands: a number if there is one
    and `by_numbers`, else the symbolic one."""
    total: dict[Monomial, int] = {}

    def add(dim: Dim, factor: int) -> None:
        for monomial, c in _terms(dim):
            total[monomial] = total.get(monomial, 0) + c * factor

    for monomial, c in terms:
        atom = monomial[0] if len(monomial) == 1 else None
        divisor = atom.y if isinstance(atom, Atom) and atom.kind == "quotient" else 0
        if isinstance(atom, Symbol | None):
            total[monomial] = total.get(monomial, 0) + c
        elif isinstance(divisor, int) and divisor > 0 and c % divisor == 0:
            # x - (y - 1) <= y * (x // y) <= x
            add(atom.x, c // divisor)
            add(1 - divisor, max(c // divisor, 0))
        elif atom.kind == "minimum" and c < 0:
            add(atom.y if isinstance(atom.x, int) != by_numbers else atom.x, c)
        else:
            total[monomial] = total.get(monomial, 0) + c
    return [(m, c) for m, c in total.items() if c]
