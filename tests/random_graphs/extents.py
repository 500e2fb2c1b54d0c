"""Extents of axes, known at every binding of a case's symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.random_graphs.drawing import Draws

BINDINGS = 5
"""Shapes at which a graph is made to be valid."""
SMALL = (1, 2, 3, 4, 5, 7, 8)
VECTORS = (9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)
"""Vector widths and their neighbours."""
PRIMES = (11, 13, 19, 23, 29, 37, 41)
LARGE = (127, 128, 200, 257, 509, 1024, 1031, 2048, 3001, 4096, 4099)
MAX_ELEMENTS = 1 << 16
"""Of a tensor, at any binding."""
MAX_WORK = 1 << 23
"""Multiply-adds or elements touched of a graph, at any binding."""
SMALL_ELEMENTS, SMALL_WORK = 1 << 9, 1 << 14
"""The same of a graph that is interpreted."""


@dataclass(frozen=True)
class Extent:
    """The extent of an axis. Two with the same numbers fit together at every binding."""

    key: str
    """Its digits if it is static, the name of a symbol, or a text of its own."""
    at: tuple[int, ...]
    """Its number at each binding."""

    @property
    def static(self) -> bool:
        return self.key.isdecimal()

    @property
    def most(self) -> int:
        return max(self.at)

    def __str__(self) -> str:
        return self.key


Shape = tuple[Extent, ...]


def static(n: int) -> Extent:
    return Extent(str(n), (n,) * BINDINGS)


ONE = static(1)


def derived(key: str, at: Sequence[int]) -> Extent:
    """An extent that follows from others. Static ones give static ones: say so by the key."""
    return Extent(f"<{key}>", tuple(map(int, at)))


def times(extents: Sequence[Extent], name: str = "") -> Extent:
    """The product of extents."""
    factors = [e for e in extents if e.key != "1"]
    if not factors:
        return ONE
    if len(factors) == 1:
        return factors[0]
    at = np.prod([e.at for e in factors], 0)
    if all(e.static for e in factors):
        return static(int(at[0]))
    return derived("*".join(e.key for e in factors) + name, at)


def number(draws: Draws, zero: float = 0.02, large: float = 0.04) -> int:
    """An extent of a static axis."""
    kinds = ("small", "vectors", "primes", "zero", "large")
    kind = draws.weighted(kinds, (0.62 - zero, 0.26, 0.08, zero, large))
    pools = {"small": SMALL, "vectors": VECTORS, "primes": PRIMES, "zero": (0,), "large": LARGE}
    return draws.pick(pools[kind])


def numbers(draws: Draws) -> tuple[int, ...]:
    """The extents of a symbol at each binding."""
    return tuple(number(draws, 0.04, 0.04) for _ in range(BINDINGS))


def elements(shape: Sequence[Extent]) -> tuple[int, ...]:
    """How many elements a tensor has at each binding."""
    return tuple(int(n) for n in np.prod([e.at for e in shape], 0)) if shape else (1,) * BINDINGS


def shape_at(shape: Sequence[Extent], binding: int) -> tuple[int, ...]:
    return tuple(e.at[binding] for e in shape)


def same(x: Sequence[Extent], y: Sequence[Extent]) -> bool:
    """Whether two shapes have the same numbers at every binding."""
    return [e.at for e in x] == [e.at for e in y]
