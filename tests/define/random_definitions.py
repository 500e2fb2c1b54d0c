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


SCANNED = "(..., t, c), (..., t, n), (c, n), (c), (n), int(t) -> (..., t, c)"
"""Of operators with recurrences along t."""


class Scanner:
    """Writes random recurrences: stable ones, because each element is at most half of those before
    it and a bounded element."""

    def __init__(self, random: Random, operands: tuple[Any, ...]) -> None:
        self.random = random
        self.x, self.b, self.a, self.d, self.k, self.ids = operands
        (self.t, self.c), (_, self.n) = self.x.shape, self.b.shape
        self.rows = random.random() < 0.5
        """Whether the arrays have the axis n."""

    def given(self, i: Any, j: Any, s: Any) -> Any:
        """An element of operands."""
        x, back = self.x, self.random.choice((1, 2, 5))
        shifted = define.where(i >= back, x[i - back, j], self.random.choice((0, 1)))
        plain = [
            lambda: x[i, j], lambda: x[self.t - 1 - i, j], lambda: shifted, lambda: self.d[j],
            lambda: self.d[j] * x[i, j], lambda: define.cast(i % 3, "float"), lambda: 0.5,
            lambda: define.where(self.ids[i] > 0, x[i, j], 0.25),
            lambda: define.sum(self.a[j, r] * self.k[r] for r in define.axis(self.n)),
            lambda: define.max(x[i, e] for e in define.axis(self.c)),
        ]  # fmt: skip
        rows = [
            lambda: self.b[i, s], lambda: self.a[j, s], lambda: self.k[s], lambda: self.k[s] - 1,
            lambda: define.exp(-abs(self.a[j, s]) * abs(x[i, j])), lambda: self.b[i, s] * x[i, j],
        ]  # fmt: skip
        return self.random.choice([*plain, *(rows * 2 if self.rows else ())])()

    def arrays(self) -> list[Any]:
        """Arrays that read each other and themselves."""
        count = self.random.choice((1, 1, 2, 3))
        extents = (self.t, self.c, self.n) if self.rows else (self.t, self.c)
        found: list[Any] = []
        for number in range(count):

            def element(i: Any, j: Any, s: Any = None, number: int = number) -> Any:
                rest = (j, s) if self.rows else (j,)
                before = self.before(found, number, i, rest)
                return self.combined(before, self.given(i, j, s), self.given(i, j, s), i, j)

            found.append(define.recurrence(*extents)(element))
        return found

    def before(self, found: list[Any], number: int, i: Any, rest: Any) -> Any:
        """Earlier elements, and those of arrays before this one at the same step."""
        random, terms = self.random, []
        for _ in range(random.choice((1, 2))):
            back = random.choice((1, 1, 1, 2, 3, 11))
            earlier = random.choice(found)[(i - back, *rest)]
            terms.append(define.where(i >= back, earlier, random.choice((0, 1))))
        if number and random.random() < 0.5:
            terms.append(found[random.randrange(number)][(i, *rest)])
        return sum(terms[1:], terms[0]) / len(terms)

    def combined(self, before: Any, x: Any, y: Any, i: Any, j: Any) -> Any:
        match self.random.randrange(6):
            case 0:
                return 0.5 * before + x
            case 1:
                return define.tanh(before * x + y)
            case 2:
                return define.sigmoid(x) * before * 0.5 + y
            case 3:
                return define.max(before, x) * 0.5
            case 4:
                return define.where(before < x, 0.5 * before, y)
        return define.where((i + j) % 3 == 0, x, 0.25 * before - y)

    def result(self, found: list[Any]) -> Callable[..., Any]:
        """An element of the result at `i, j`."""
        random, h = self.random, self.random.choice(found)
        kind = random.choice((define.sum, define.max, define.mean))
        choice = random.randrange(5)

        def element(i: Any, j: Any) -> Any:
            if self.rows and choice < 4:
                over = define.axis if choice else define.axis(self.n)
                y = kind(h[i, j, s] * self.given(i, j, s) + self.b[i, s] for s in over)
                return y + found[-1][i, j, 0] if choice == 3 else y
            last = (h[i, j, 0] if self.rows else h[i, j]) + self.given(i, j, 0)
            return last + define.where(i > 1, found[0][(i - 2, j, *([0] * self.rows))], 0)

        return element


def random_recurrence(seed: int) -> ftuner.Operator:
    """An operator of `SCANNED`: the same for each seed."""

    def defined(x: Any, b: Any, a: Any, d: Any, k: Any, ids: Any) -> Any:
        scanner = Scanner(Random(seed), (x, b, a, d, k, ids))
        return scanner.result(scanner.arrays())

    return ftuner.operator(SCANNED)(defined)


def scanned_arrays(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    t, c, n, m = (int(x) for x in rng.choice(EXTENTS, 4))
    lead = ((), (), (m,), (2, 1))[int(rng.integers(4))]
    shapes = ((*lead, t, c), (*lead[1:], t, n), (c, n), (c,), (n,))
    floats = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    return [*floats, rng.integers(0, 2, t)]
