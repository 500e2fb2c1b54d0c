"""Dims: arithmetic on symbols is integer arithmetic, whatever the symbols are bound to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product as every

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ftuner.core import symbolic
from ftuner.core.dim import (
    Dim,
    Symbolic,
    broadcast,
    ceil_quotient,
    least_value,
    maximum,
    minimum,
    product,
    quotient,
    remainder,
    resized,
    row_major_strides,
    symbol,
    symbols_of,
)
from ftuner.core.evaluation import Renaming, compiled, evaluate
from ftuner.errors import ShapeError

NAMES = ("A", "B", "C")
A, B, C = (symbol(name) for name in NAMES)
Bindings = Mapping[str, int]
BINDINGS = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})


@dataclass(frozen=True)
class Tree:
    """An expression as it was written: what a dim must be equal to."""

    op: str
    children: tuple[Tree, ...] = ()
    leaf: int | str = 0

    def value(self, bindings: Bindings) -> int:
        if self.op == "leaf":
            return bindings[self.leaf] if isinstance(self.leaf, str) else self.leaf
        return INTEGERS[self.op](*(child.value(bindings) for child in self.children))

    def dim(self) -> Dim:
        if self.op == "leaf":
            return symbol(self.leaf) if isinstance(self.leaf, str) else self.leaf
        return DIMS[self.op](*(child.dim() for child in self.children))


DIMS: Mapping[str, Callable[..., Dim]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "negative": lambda x: -x,
    "quotient": quotient,
    "remainder": remainder,
    "ceil_quotient": ceil_quotient,
    "maximum": maximum,
    "minimum": minimum,
}
INTEGERS: Mapping[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "negative": lambda x: -x,
    "quotient": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "ceil_quotient": lambda x, y: -(-x // y),
    "maximum": max,
    "minimum": min,
}
RING = ("add", "subtract", "multiply", "negative")


def trees(ops: tuple[str, ...] = tuple(DIMS), leaves: int = 6) -> st.SearchStrategy[Tree]:
    leaf = st.builds(
        lambda leaf: Tree("leaf", (), leaf), st.one_of(st.integers(-4, 4), st.sampled_from(NAMES))
    )

    def larger(smaller: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.sampled_from(ops).flatmap(
            lambda op: st.builds(
                lambda *children: Tree(op, children), *[smaller] * (1 if op == "negative" else 2)
            )
        )

    return st.recursive(leaf, larger, max_leaves=leaves)


def dim_of(tree: Tree) -> Dim:
    """The dim of a tree that does not divide by what is known to be zero."""
    try:
        return tree.dim()
    except ShapeError:
        assume(False)
        raise


def value_of(tree: Tree, bindings: Bindings) -> int:
    """The value of a tree that does not divide by zero."""
    try:
        return tree.value(bindings)
    except ZeroDivisionError:
        assume(False)
        raise


@given(trees(), BINDINGS)
def test_dims_are_integers_that_are_not_known_yet(tree: Tree, bindings: Bindings) -> None:
    dim = dim_of(tree)
    expected = value_of(tree, bindings)
    assert evaluate(dim, bindings) == expected
    assert compiled([dim, dim], NAMES)([bindings[n] for n in NAMES]) == [expected, expected]


@given(trees(leaves=4), BINDINGS)
def test_the_text_has_the_value(tree: Tree, bindings: Bindings) -> None:
    dim = dim_of(tree)
    expected = value_of(tree, bindings)
    assert eval(str(dim), {"max": max, "min": min}, dict(bindings)) == expected


@contextmanager
def bounds(terms: int, degree: int, bits: int) -> Iterator[None]:
    """Within it dims have these bounds. Results kept from before, or from within, are forgotten."""

    def forget() -> None:
        for function in (symbolic._negative, symbolic._sum, symbolic._product, maximum, minimum):
            function.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MAX_TERMS", terms), ("MAX_DEGREE", degree), ("MAX_BITS", bits)):
            patch.setattr(symbolic, name, value)
        forget()
        try:
            yield
        finally:
            forget()


@given(trees(leaves=12), BINDINGS, st.integers(1, 3), st.integers(1, 3), st.integers(70, 90))
def test_dims_of_bounded_size_have_the_same_values(
    tree: Tree, bindings: Bindings, terms: int, degree: int, bits: int
) -> None:
    """However small the bounds are."""
    with bounds(terms, degree, bits):
        dim = dim_of(tree)
        expected = value_of(tree, bindings)
        assert evaluate(dim, bindings) == expected
        assert compiled([dim], NAMES)([bindings[n] for n in NAMES]) == [expected]
        low = least_value(dim)
        assert low is None or low <= expected


def test_quotients_have_one_form_whose_bound_is_known() -> None:
    """The extent of a layer with a stride is known to be zero or more, and equals that of another
    which pads otherwise."""
    assert quotient(A - 4, 4) + 1 == quotient(A, 4)
    assert least_value(quotient(A - 4, 4) + 1) == 0
    assert quotient(6 * A + 5, 3) == 2 * A + 1
    assert quotient(A + 4 * B, 4) == quotient(A, 4) + B
    assert remainder(A + 13, 4) == remainder(A + 1, 4) == remainder(A - 3, 4)
    assert ceil_quotient(4 * A, 4) == A


def test_a_quotient_of_a_quotient_is_one() -> None:
    """As torch writes the extents of two convolutions with strides."""
    x = symbol("x")
    found = quotient(quotient(x + 1, 2) + 1, 2)
    assert found == quotient(x + 3, 4)
    assert quotient(found - 5, 3) == quotient(x - 17, 12)
    for value in range(40):
        assert (
            evaluate(quotient(found - 5, 3), {"x": value}) == (((value + 1) // 2 + 1) // 2 - 5) // 3
        )


def test_what_an_extent_falls_short_by_adds_up() -> None:
    """Extents that are padded to a multiple, as windows of pictures are."""
    short = remainder(7 - remainder(A, 7), 7)
    assert short == remainder(-A, 7)
    assert A + short == 7 * ceil_quotient(A, 7)
    assert quotient(A + short, 7) == ceil_quotient(A, 7) == quotient(A + 6, 7)
    assert least_value(short) == 0
    assert least_value(A - 4 * quotient(A, 4)) == 0


def test_the_parts_of_an_axis_add_up() -> None:
    assert minimum(0, A - 3) == minimum(3, A) - 3
    late, early = A - minimum(3, A), A - 3 - minimum(0, A - 3)
    assert late == early
    assert least_value(late) == 0


@given(trees(), BINDINGS)
def test_what_is_constant_is_an_integer(tree: Tree, bindings: Bindings) -> None:
    dim = dim_of(tree)
    value_of(tree, bindings)
    if isinstance(dim, Symbolic):
        assert symbols_of((dim,))
        assert set(symbols_of((dim,))) <= set(NAMES)
        assert all(coefficient for _, coefficient in dim.terms)
        assert len({monomial for monomial, _ in dim.terms}) == len(dim.terms)
    else:
        assert isinstance(dim, int)


@given(trees(RING, leaves=5), trees(RING, leaves=5))
def test_sums_of_products_are_equal_exactly_if_they_are_the_same_polynomial(
    first: Tree, second: Tree
) -> None:
    """Of degree five at most in each symbol: six values of each decide."""
    grid = [dict(zip(NAMES, values, strict=True)) for values in every(range(6), repeat=3)]
    same = all(first.value(bindings) == second.value(bindings) for bindings in grid)
    x, y = first.dim(), second.dim()
    assert (x == y) == same
    assert (x - y == 0) == same
    if same:
        assert hash(x) == hash(y)
        assert str(x) == str(y)


@given(trees(), trees(), trees())
def test_equality_is_canonical(first: Tree, second: Tree, third: Tree) -> None:
    x, y, z = map(dim_of, (first, second, third))
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x - y == -(y - x)
    assert x - x == 0
    assert maximum(x, y) == maximum(y, x)
    assert minimum(x, y) == minimum(y, x)


@given(trees(), BINDINGS)
def test_the_least_value_is_a_bound(tree: Tree, bindings: Bindings) -> None:
    low = least_value(dim_of(tree))
    value = value_of(tree, bindings)
    assert low is None or low <= value


@given(trees(), trees(), BINDINGS)
def test_a_product_divided_by_a_factor(first: Tree, second: Tree, bindings: Bindings) -> None:
    x, y = dim_of(first), dim_of(second)
    assume(y != 0)
    divisor = value_of(second, bindings)
    assume(divisor != 0)
    value = value_of(first, bindings)
    assert evaluate(quotient(x * y, y), bindings) == value
    assert evaluate(remainder(x * y, y), bindings) == 0


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (quotient(6 * A * B, 2 * B), 3 * A),
        (quotient(6 * A * B + 4 * A, 2 * A), 3 * B + 2),
        (quotient(A * A, A), A),
        (quotient(-4 * A, -2), 2 * A),
        (quotient(A, 1), A),
        (quotient(0, A), 0),
        (remainder(6 * A * B, 3 * B), 0),
        (remainder(4 * A + 2, 2), 0),
        (ceil_quotient(8 * A, 4), 2 * A),
    ],
    ids=str,
)
def test_exact_division_leaves_no_quotient(found: Dim, expected: Dim) -> None:
    assert found == expected


@pytest.mark.parametrize("x", [quotient(A, 2), quotient(3 * A, 2), quotient(A, B), quotient(5, A)])
def test_other_division_waits(x: Dim) -> None:
    """Its text, read by Python, says the same."""
    assert isinstance(x, Symbolic)
    for a in (1, 4, 7):
        assert evaluate(x, {"A": a, "B": 3}) == eval(str(x), {"A": a, "B": 3})


def test_division_by_zero_is_refused() -> None:
    for divide in (quotient, remainder):
        for x in (A, 3):
            with pytest.raises(ShapeError, match="0"):
                divide(x, 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (minimum(0, A), 0),
        (minimum(A, 0), 0),
        (maximum(0, A), A),
        (maximum(A, A + 1), A + 1),
        (minimum(A + B, A), A),
        (maximum(A * B, 0), A * B),
        (maximum(-A, 0), 0),
        (minimum(A % 4, -1), -1),
        (maximum(quotient(A, 2), -3), quotient(A, 2)),
        (maximum(A, A), A),
        (maximum(3, 5), 5),
    ],
    ids=str,
)
def test_extrema_that_are_certain(found: Dim, expected: Dim) -> None:
    assert found == expected


@given(st.lists(st.integers(0, 5), min_size=2, max_size=2), BINDINGS)
def test_broadcast_is_that_of_numpy(extents: list[int], bindings: Bindings) -> None:
    """Each extent as a number and as a symbol, wherever NumPy does not refuse."""
    x, y = extents
    assume(x == y or 1 in extents)
    (expected,) = np.broadcast_shapes((x,), (y,))
    bound = {"A": x, "B": y}
    for first in (x, A):
        for second in (y, B):
            assert evaluate(broadcast(first, second), bound) == expected
            assert evaluate(broadcast(second, first), bound) == expected
    assert compiled([broadcast(A, B)], ["A", "B"])([x, y]) == [expected]


def test_broadcast_has_no_order() -> None:
    assert broadcast(A, B) == broadcast(B, A)


@given(st.lists(st.integers(1, 4), max_size=4))
def test_strides_are_those_of_numpy(shape: list[int]) -> None:
    array = np.zeros(shape, np.int8)
    assert row_major_strides(shape) == array.strides
    symbols = tuple(symbol(f"N{i}") for i in range(len(shape)))
    bound = {f"N{i}": n for i, n in enumerate(shape)}
    strides = tuple(evaluate(s, bound) for s in row_major_strides(symbols))
    assert strides == array.strides
    assert evaluate(product(symbols), bound) == array.size


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (A + 2 * B - 3, "A + 2*B - 3"),
        (-A, "-A"),
        (A * B, "A*B"),
        (quotient(A + 1, 2), "((A + 1) // 2)"),
        (quotient(3 * A, 2 * B), "(3*A // (2*B))"),
        (remainder(A, B + 1), "(A % (B + 1))"),
        (2 * quotient(A, 2), "2*(A // 2)"),
        (maximum(A, B), "max(A, B)"),
        (broadcast(A, B), "broadcast(A, B)"),
    ],
    ids=str,
)
def test_text(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_names_never_become_code() -> None:
    """A symbol's name may be anything; what is compiled knows only numbers and positions."""
    name = "__import__('os')"
    assert compiled([symbol(name) * 2 + 1], [name])([4]) == [9]


def test_what_is_cut_off_an_end_and_what_is_left_add_up() -> None:
    """As MPT slices its bias: the last S of 2048, and the last one."""
    for length in (1, 2048):
        begin = maximum(length - A, 0)
        assert begin == length - minimum(A, length)
        assert least_value(begin) == 0
        assert length - minimum(begin, length) == minimum(A, length)
        for a in (0, 1, 5, 2048, 3000):
            assert evaluate(begin, {"A": a}) == max(length - a, 0)


@pytest.mark.parametrize("factor", [1.3, 2.1, 1 / 49, 0.75, 2.0, 3.7])
def test_extents_times_a_float32(factor: float) -> None:
    number = float(np.float32(factor))
    extent, dim = symbol("A"), resized(symbol("A"), number)
    assert (least_value(dim) or 0) >= 0
    renamed = Renaming({"A": "B"})(dim)
    assert renamed == resized(symbol("B"), number)
    values = compiled([dim, extent], ["A"])
    for n in (0, 1, 30, 49, 90, 1000, 65000):
        expected = int(np.float32(n) * np.float32(number))
        assert evaluate(dim, {"A": n}) == values([n])[0] == resized(n, number) == expected
    if factor == 1.3:
        assert str(dim) == "floor(A * 1.29999995)"


def test_extents_that_no_float32_holds() -> None:
    for extent in (1 << 62, symbol("A")):
        with pytest.raises(ShapeError, match="an extent of"):
            evaluate(resized(extent, float(np.float32(3e38))), {"A": 1 << 62})
