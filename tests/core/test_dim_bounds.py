"""Model files contain any arithmetic: dims stay small, and nothing recurses."""

from collections.abc import Callable

import pytest

from ftuner.core.dim import (
    Dim,
    Symbolic,
    maximum,
    minimum,
    product,
    quotient,
    remainder,
    symbol,
    symbols_of,
)
from ftuner.core.evaluation import all_symbols_in, compiled, evaluate
from ftuner.core.symbolic import MAX_BITS, MAX_DEGREE, MAX_TERMS, MAX_TEXT
from ftuner.errors import ShapeError

A, B = symbol("A"), symbol("B")
DEPTH = 3000


def chain(step: Callable[[Dim], Dim], length: int) -> Dim:
    found: Dim = A
    for _ in range(length):
        found = step(found)
    return found


@pytest.mark.parametrize(
    "step",
    [
        lambda x: quotient(x + 5, 2),
        lambda x: remainder(x * 3, B + 7) + 1,
        lambda x: minimum(maximum(x - 2, B), B + 40),
    ],
    ids=["quotient", "remainder", "extrema"],
)
def test_operations_are_nested_as_deep_as_a_file_says(step: Callable[[Dim], Dim]) -> None:
    dim, again = chain(step, DEPTH), chain(step, DEPTH)
    assert dim == again
    assert hash(dim) == hash(again)
    assert dim != step(dim)
    assert len(str(dim)) <= MAX_TEXT
    assert symbols_of((dim,))[0] in ("A", "B")
    values = {"A": 50, "B": 11}
    expected = 50
    for _ in range(DEPTH):
        expected = evaluate(step(expected), values)
    assert evaluate(dim, values) == expected
    assert compiled([dim], ("A", "B"))([50, 11]) == [expected]


def test_a_term_that_is_repeated_does_not_multiply_out() -> None:
    dim = chain(lambda x: x * x + x, 200)
    assert isinstance(dim, Symbolic)
    assert len(dim.terms) <= MAX_TERMS
    assert all(len(monomial) <= MAX_DEGREE for monomial, _ in dim.terms)
    assert evaluate(dim, {"A": 0}) == 0
    for value in (1, 3, 2**62):
        with pytest.raises(ShapeError, match="bits"):
            evaluate(dim, {"A": value})
        with pytest.raises(ShapeError, match="bits"):
            compiled([dim], ["A"])([value])


def test_a_product_of_many_sums() -> None:
    sums = [symbol(f"P{i}") + symbol(f"Q{i}") for i in range(200)]
    bound = {f"{letter}{i}": i % 2 for i in range(200) for letter in "PQ"} | {"P0": 3}
    bound |= {f"Q{i}": 1 - i % 2 for i in range(1, 200)}
    assert evaluate(product(sums), bound) == 3
    assert evaluate(product(sums), bound | {"Q7": 10**9}) == 3 * (10**9 + 1)


def test_a_sum_of_many_symbols() -> None:
    names = [f"N{i}" for i in range(3000)]
    total: Dim = 0
    for name in names:
        total = total + symbol(name)
    assert isinstance(total, Symbolic)
    assert len(total.terms) <= MAX_TERMS
    assert len(str(total)) <= MAX_TEXT
    assert set(symbols_of((total,))) == set(names)
    assert compiled([total], names)(range(3000)) == [3000 * 2999 // 2]
    known = [name for name in names if name != "N1500"]
    assert all_symbols_in([total, symbol("N3") + 1, 5], known) == [False, True, True]


def test_coefficients_stay_small() -> None:
    dim = chain(lambda x: x * 2**62, 3000)
    assert isinstance(dim, Symbolic)
    assert all(coefficient.bit_length() <= MAX_BITS for _, coefficient in dim.terms)
    assert evaluate(dim, {"A": 0}) == 0
    with pytest.raises(ShapeError, match="bits"):
        evaluate(dim, {"A": 1})


def test_long_texts_differ() -> None:
    first = chain(lambda x: quotient(x + 1, 2), 100)
    second = chain(lambda x: quotient(x + 1, 3), 100)
    deep = chain(lambda x: quotient(x + 1, 2), 101)
    assert len({str(first), str(second), str(deep)}) == 3
