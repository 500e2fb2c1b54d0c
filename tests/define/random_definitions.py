"""Random definitions of operators: expressions over reads of all kinds, functions, selects and
reductions, nested."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import ftuner
from ftuner import define

SIGNATURE = "(m, k), (k, n), (m, n), (n), int(m) -> (m, n), (m)"
EXTENTS = (1, 2, 3, 5, 7, 8, 13, 17, 31)
Scope = list[tuple[Any, str]]
"""Indices and the names of their extents."""


class Writer:
    """Writes a random element over the indices in scope."""

    def __init__(self, random: Random, operands: tuple[Any, ...]) -> None:
        self.random = random
        self.a, self.b, self.c, self.d, self.ids = operands
        (self.m, self.k), (_, self.n) = self.a.shape, self.b.shape
        self.extents = {"m": self.m, "n": self.n, "k": self.k}

    def index(self, scope: Scope, extent: str) -> Any:
        """An index below an extent: one in scope, or what is made of one."""
        fitting = [i for i, name in scope if name == extent]
        others = [i for i, _ in scope]
        length, choice = self.extents[extent], self.random.randrange(8)
        if fitting and choice < 5:
            return self.random.choice(fitting)
        one = self.random.choice(fitting or others)
        if fitting and choice == 5:
            return length - 1 - one
        if fitting and choice == 6:
            return one // self.random.choice((2, 3))
        return (one * self.random.choice((1, 2)) + self.random.choice(others)) % length

    def read(self, scope: Scope) -> Any:
        random, m = self.random, [i for i, name in scope if name == "m"]
        n = [i for i, name in scope if name == "n"]
        match random.randrange(8):
            case 0 | 1:
                return self.a[self.index(scope, "m"), self.index(scope, "k")]
            case 2 | 3:
                return self.b[self.index(scope, "k"), self.index(scope, "n")]
            case 4:
                return self.c[self.index(scope, "m"), self.index(scope, "n")]
            case 5 if m:
                return self.d[self.ids[random.choice(m)]]
            case 6 if n:
                at = random.choice(n) + random.choice((-2, -1, 1, 2))
                inside = (at >= 0) & (at < self.n)
                return define.where(inside, self.d[at], random.choice((0, 1)))
        return self.d[self.index(scope, "n")]

    def element(self, scope: Scope, depth: int) -> Any:
        random = self.random
        if depth == 0:
            return self.read(scope) if random.random() < 0.85 else random.choice((0.5, 2, -1))
        match random.randrange(9):
            case 0 | 1:
                x, y = self.element(scope, depth - 1), self.element(scope, depth - 1)
                return define.tanh(x * y) if random.random() < 0.3 else x * y
            case 2:
                return self.element(scope, depth - 1) + self.element(scope, depth - 1)
            case 3:
                x, y = self.element(scope, depth - 1), self.element(scope, depth - 1)
                return x / (2 + abs(y + self.read(scope) * 0))
            case 4:
                function = random.choice((define.tanh, define.sigmoid, define.sin))
                return function(self.element(scope, depth - 1) + self.read(scope))
            case 5:
                extreme = random.choice((define.max, define.min))
                return extreme(self.element(scope, depth - 1), self.read(scope))
            case 6:
                (i, _), (j, _) = random.choice(scope), random.choice(scope)
                condition = random.choice((i <= j, self.read(scope) < 0.25, (i + j) % 2 == 0))
                x, y = self.element(scope, depth - 1), self.element(scope, depth - 1)
                return define.where(condition, x, y + self.read(scope))
            case _:
                return self.reduction(scope, depth)

    def reduction(self, scope: Scope, depth: int) -> Any:
        name = self.random.choice("mnk")
        kinds = (define.sum, define.sum, define.mean, define.max, define.min)
        over = define.axis(self.extents[name])
        body: Callable[[Any], Any] = lambda i: self.element([*scope, (i, name)], depth - 1)  # noqa: E731
        reduced = self.random.choice(kinds)(body(i) + self.read([*scope, (i, name)]) for i in over)
        return define.tanh(reduced) if self.random.random() < 0.4 else reduced


def random_operator(seed: int, depth: int = 3) -> ftuner.Operator:
    """An operator of `SIGNATURE`: the same for each seed."""

    def defined(a: Any, b: Any, c: Any, d: Any, ids: Any) -> Any:
        writer = Writer(Random(seed), (a, b, c, d, ids))
        return (
            lambda i, j: writer.element([(i, "m"), (j, "n")], depth) + c[i, j],
            lambda i: writer.element([(i, "m")], depth) + a[i, 0],
        )

    return ftuner.operator(SIGNATURE)(defined)


def random_arrays(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.choice(EXTENTS, 3))
    shapes = ((m, k), (k, n), (m, n), (n,))
    floats = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    return [*floats, rng.integers(0, n, m)]
