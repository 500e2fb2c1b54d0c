"""Random definitions of operators: expressions over reads of all kinds, functions, selects and
reductions, nested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

import ftuner
from ftuner import define
from ftuner.define import cast

SIGNATURE = (
    "(..., m, k), (k, n), (..., m, n), (n), int(m), bool(n), uint8(k)"
    " -> (..., m, n), (..., m), int(..., m), bool(..., n)"
)
EXTENTS = (1, 2, 3, 5, 7, 8, 13, 17, 31)
MOST_POSITIONS = 700
"""Product of the extents m, n and k. Assumed: the reference has memory for five axes."""
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16")
Scope = list[tuple[Any, str]]
"""Indices and the names of their extents."""


class Writer:
    """Writes a random element over the indices in scope."""

    def __init__(self, random: Random, operands: tuple[Any, ...]) -> None:
        self.random = random
        self.a, self.b, self.c, self.d, self.ids, self.flags, self.bytes = operands
        (self.m, self.k), (_, self.n) = self.a.shape, self.b.shape
        self.extents = {"m": self.m, "n": self.n, "k": self.k}

    def index(self, scope: Scope, extent: str) -> Any:
        """An index below an extent: one in scope, or what is made of one."""
        fitting = [i for i, name in scope if name == extent]
        others = [i for i, _ in scope]
        length, choice = self.extents[extent], self.random.randrange(9)
        if fitting and choice < 5:
            return self.random.choice(fitting)
        one = self.random.choice(fitting or others)
        if fitting and choice == 5:
            return length - 1 - one
        if fitting and choice == 6:
            return one // self.random.choice((2, 3))
        if choice == 7:
            return define.min(one + self.random.choice(others), length - 1)
        return (one * self.random.choice((1, 2)) + self.random.choice(others)) % length

    def read(self, scope: Scope) -> Any:
        random, m = self.random, [i for i, name in scope if name == "m"]
        match random.randrange(11):
            case 0 | 1:
                return self.a[self.index(scope, "m"), self.index(scope, "k")]
            case 2 | 3:
                return self.b[self.index(scope, "k"), self.index(scope, "n")]
            case 4:
                return self.c[self.index(scope, "m"), self.index(scope, "n")]
            case 5 if m:
                return self.d[self.ids[random.choice(m)]]
            case 6:
                return self.padded(scope)
            case 7:
                chosen = cast(self.bytes[self.index(scope, "k")], "int64") % self.n
                return self.b[self.index(scope, "k"), chosen]
            case 8:
                kind, row = random.choice((define.argmax, define.argmin)), self.index(scope, "k")
                return self.d[kind(self.b[row, t] for t in define.axis)]
        return self.d[self.index(scope, "n")]

    def padded(self, scope: Scope) -> Any:
        """A read that a condition keeps inside."""
        random = self.random
        name, axis = random.choice((("m", 0), ("k", 1), ("n", 2)))
        length, (one, _), (other, _) = self.extents[name], *(random.choice(scope) for _ in "ab")
        at = random.choice((1, 1, 2)) * one + random.choice((0, 0, 1, -1)) * other
        at = at - random.choice((-2, -1, 1, 2))
        read = (
            lambda: self.c[at, self.index(scope, "n")], lambda: self.a[self.index(scope, "m"), at],
            lambda: random.choice((self.d[at], self.b[self.index(scope, "k"), at])),
        )[axis]()  # fmt: skip
        below, above = at < 0, at >= length
        inside = random.choice((
            ~below & ~above, ~(below | above), (at >= 0) & (at < length) & self.condition(scope),
            ~(below | above | self.condition(scope)), (at >= 1) & ~above,
        ))  # fmt: skip
        return define.where(inside, read, random.choice((0, 0, 1)))

    def condition(self, scope: Scope) -> Any:
        """Of indices, and of elements that have the same bits everywhere."""
        random = self.random
        (i, _), (j, _) = random.choice(scope), random.choice(scope)
        atoms = (
            lambda: i <= j, lambda: self.plain(scope) < 0.25, lambda: (i + j) % 2 == 0,
            lambda: i != j, lambda: abs(i - j) <= 2, lambda: self.flags[self.index(scope, "n")],
            lambda: self.integer(scope, 1) > 1, lambda: self.plain(scope) >= self.plain(scope),
            lambda: random.choice((define.any, define.all))(
                self.plain([*scope, (t, "k")]) < random.choice((-0.9, 0.0, 0.9))
                for t in define.axis(self.k)
            ),
        )  # fmt: skip
        one, other = random.choice(atoms)(), random.choice(atoms)()
        return random.choice((one, one, one, one & other, one | other, ~one, one ^ other))

    def plain(self, scope: Scope) -> Any:
        """An element of an operand."""
        return self.random.choice((
            lambda: self.b[self.index(scope, "k"), self.index(scope, "n")],
            lambda: self.c[self.index(scope, "m"), self.index(scope, "n")],
            lambda: self.d[self.index(scope, "n")],
        ))()  # fmt: skip

    def integer(self, scope: Scope, depth: int) -> Any:
        """An element of the type `int`, which wraps around."""
        random = self.random
        if depth == 0:
            return random.choice((
                lambda: self.ids[self.index(scope, "m")],
                lambda: cast(self.bytes[self.index(scope, "k")], "int"),
                lambda: cast(random.choice(scope)[0] % 7, "int"),
            ))()  # fmt: skip
        x, y = self.integer(scope, depth - 1), self.integer(scope, depth - 1)
        return random.choice((
            lambda: x + y, lambda: x * y, lambda: x - y, lambda: define.max(x, y), lambda: x // 3,
            lambda: define.min(x, y), lambda: x % 5, lambda: (x >> 1) & 7, lambda: x ^ y,
            lambda: (x | y) << 2, lambda: ~x, lambda: define.where(self.condition(scope), x, y),
            lambda: cast(self.condition(scope), "int") + x,
            lambda: cast(define.floor(abs(self.plain(scope)) * 4), "int"),
            lambda: random.choice((define.sum, define.max, define.min, define.prod))(
                self.integer([*scope, (t, "m")], 0) for t in define.axis(self.m)
            ),
            lambda: cast(random.choice((define.argmax, define.argmin))(
                self.plain([*scope, (t, "n")]) for t in define.axis(self.n)
            ), "int"),
        ))()  # fmt: skip

    def element(self, scope: Scope, depth: int) -> Any:
        random = self.random
        if depth == 0:
            return self.read(scope) if random.random() < 0.85 else random.choice((0.5, 2, -1))
        match random.randrange(11):
            case 0 | 1:
                x, y = self.element(scope, depth - 1), self.element(scope, depth - 1)
                return define.tanh(x * y) if random.random() < 0.3 else x * y
            case 2:
                return self.element(scope, depth - 1) + self.element(scope, depth - 1)
            case 3:
                x, y = self.element(scope, depth - 1), self.element(scope, depth - 1)
                return x / (2 + abs(y + self.read(scope) * 0))
            case 4:
                return self.function(self.element(scope, depth - 1) + self.read(scope))
            case 5:
                extreme = random.choice((define.max, define.min))
                return extreme(self.element(scope, depth - 1), self.read(scope))
            case 6:
                x, y = self.element(scope, depth - 1), self.element(scope, depth - 1)
                return define.where(self.condition(scope), x, y + self.read(scope))
            case 7:
                return cast(self.integer(scope, depth - 1) % 8, "float") / 8
            case 8:
                return random.choice((self.window, self.attended, self.norm))(scope)
        return self.reduction(scope, depth)

    def function(self, x: Any) -> Any:
        bounded = define.tanh(x)
        return self.random.choice((
            lambda: define.tanh(x), lambda: define.sigmoid(x), lambda: define.sin(bounded * 3),
            lambda: define.exp(bounded), lambda: define.log(1 + abs(x)), lambda: define.erf(x),
            lambda: define.gelu(bounded), lambda: define.silu(bounded), lambda: define.cos(bounded),
            lambda: define.sqrt(abs(x) + 0.1), lambda: define.atan(x), lambda: abs(bounded) ** 1.5,
            lambda: define.softplus(bounded), lambda: define.sinh(bounded), lambda: bounded**3,
            lambda: define.expm1(bounded), lambda: define.asin(0.5 * bounded), lambda: -x,
            lambda: define.mish(bounded), lambda: define.erfc(x), lambda: define.hard_swish(x),
        ))()  # fmt: skip

    def reduction(self, scope: Scope, depth: int) -> Any:
        random = self.random
        name, other = random.choice("mnk"), random.choice("mnk")
        kinds = (define.sum, define.sum, define.mean, define.max, define.min)
        kind, length = random.choice(kinds), self.extents[name]
        over = define.axis(random.choice((length, length, (length + 1) // 2)))

        def body(*indices: Any) -> Any:
            inner = [*scope, *zip(indices, (name, other), strict=False)]
            return self.element(inner, depth - 1) + self.read(inner)

        match random.randrange(7):
            case 0:
                before, _ = random.choice(scope)
                reduced = define.sum(
                    define.where(i <= before, self.read([*scope, (i, name)]), 0) for i in over
                )
            case 1:
                both = define.axis(self.extents[other])
                reduced = kind(define.tanh(body(i, j)) for i in over for j in both)
            case 2:
                reduced = define.sum(
                    self.read([*scope, (i, name)]) * (r + 1) for i in over for r in range(2)
                )
            case 3:
                reduced = define.prod(1 + 0.05 * self.read([*scope, (i, name)]) for i in over)
            case _:
                reduced = kind(body(i) for i in over)
        return define.tanh(reduced) if random.random() < 0.4 else reduced

    def window(self, scope: Scope) -> Any:
        """A sum of weights times elements around a position."""
        random = self.random
        (i, _), (j, _) = random.choice(scope), random.choice(scope)
        stride, dilation, begin = (random.choice(x) for x in ((1, 1, 2), (1, 1, 2, 3), (0, 1, 2)))
        channels = define.axis(random.choice((self.k, (self.k + 1) // 2)))

        def tap(t: Any, column: Any, x: Any) -> Any:
            at = stride * i + dilation * t - begin
            return define.where((at >= 0) & (at < self.m), x[at, column], 0)

        match random.randrange(4):
            case 0:
                taps = define.axis(self.n)
                return define.sum(tap(t, e, self.a) * self.b[e, t] for t in taps for e in channels)
            case 1:
                row = self.index(scope, "k")
                return define.sum(tap(t, row, self.a) * self.d[t] for t in define.axis(self.n))
            case 2:
                column = j % self.n
                return define.sum(
                    tap(t, column, self.c) * self.b[t, column] for t in define.axis(self.k)
                )
        column = self.index(scope, "n")
        return define.sum(tap(t, column, self.c) * self.a[0, t] for t in define.axis(self.k))

    def attended(self, scope: Scope) -> Any:
        """A weighted mean, by a softmax of scores."""
        random, row = self.random, self.index(scope, "m")
        masked, dense, summed = (random.random() < 0.5 for _ in "abc")
        other, column = self.index(scope, "m"), self.index(scope, "n")

        def score(t: Any) -> Any:
            found = self.c[row, t]
            if dense:
                found = define.sum(self.a[row, e] * self.b[e, t] for e in define.axis) * 0.5
            return define.where(t <= row, found, float("-inf")) if masked else found

        over = define.axis(self.n)
        largest = define.max(score(t) for t in over)
        total = define.sum(define.exp(score(t) - largest) for t in over)
        if summed:
            weights = (define.exp(score(t) - largest) / total * self.c[other, t] for t in over)
            return define.sum(weights)
        return define.exp(score(column) - largest) / total

    def norm(self, scope: Scope) -> Any:
        row, column = self.index(scope, "m"), self.index(scope, "n")
        centre = define.mean(self.c[row, t] for t in define.axis)
        variance = define.mean((self.c[row, t] - centre) ** 2 for t in define.axis)
        return (self.c[row, column] - centre) / define.sqrt(variance + 1e-3) * self.d[column]


def random_operator(seed: int, depth: int = 3) -> ftuner.Operator:
    """An operator of `SIGNATURE`: the same for each seed."""

    def defined(a: Any, b: Any, c: Any, d: Any, ids: Any, flags: Any, levels: Any) -> Any:
        writer = Writer(Random(seed), (a, b, c, d, ids, flags, levels))
        return (
            lambda i, j: writer.element([(i, "m"), (j, "n")], depth) + c[i, j],
            lambda i: writer.element([(i, "m")], depth) + a[i, 0],
            lambda i: writer.integer([(i, "m")], 2),
            lambda j: writer.condition([(j, "n")]),
        )

    return ftuner.operator(SIGNATURE)(defined)


def random_arrays(seed: int) -> list[np.ndarray]:
    """Operands of any strides."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.choice(EXTENTS, 3))
    while m * n * k > MOST_POSITIONS:
        m, n, k = (int(x) for x in rng.choice(EXTENTS, 3))
    leads = ((), ()), ((2,), (2,)), ((2, 1), (3,)), ((), (2,)), ((1,), ())
    first, second = leads[int(rng.integers(len(leads)))]
    dtype = ("float32", "float32", "float32", "float64")[seed % 4]
    shapes = ((*first, m, k), (k, n), (*second, m, n), (n,))
    floats = [_strided(rng, rng.uniform(-1, 1, shape).astype(dtype)) for shape in shapes]
    integer = INTEGERS[int(rng.integers(len(INTEGERS)))]
    ids = rng.integers(0 if integer[0] == "u" else -n, n, m).astype(integer)
    flags, levels = rng.integers(0, 2, n).astype(bool), rng.integers(0, 256, k).astype(np.uint8)
    return [*floats, *(_strided(rng, x) for x in (ids, flags, levels))]


def _strided(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The same elements in memory of another order."""
    match int(rng.integers(5)):
        case 0:
            return np.asfortranarray(x)
        case 1:
            return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        case 2:
            return np.repeat(x, 2, axis=-1)[..., ::2]
    return x


def agree(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Integers and bools are equal; floats are near by the scale of all elements."""
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want)
            assert got.dtype == want.dtype
            continue
        rtol, atol = (1e-9, 1e-10) if got.dtype == np.float64 else (2e-3, 2e-4)
        scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
        np.testing.assert_allclose(got / scale, want / scale, rtol=rtol, atol=atol)


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
