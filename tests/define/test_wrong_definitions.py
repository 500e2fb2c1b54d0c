"""Definitions that are wrong: each is a named error with the line of the user's source."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ftuner
from ftuner.define import all, any, argmax, axis, cast, exp, mean, prod, recurrence, sum, where
from ftuner.errors import DefinitionError, DTypeError, IndexRangeError, OperandError, ShapeError

MM = "(m, k), (k, n) -> (m, n)"
ONE = "(n) -> (n)"
TABLE = "(v, c), int(n) -> (n, c)"
Case = tuple[str, Callable[..., Any], str]


def statement(x: Any) -> Any:
    total = 0.0
    for k in axis:
        total = total + x[k]
    return lambda i: total


def assigned(x: Any) -> Any:
    x[0] = 1.0
    return lambda i: x[i]


def branches(x: Any) -> Any:
    return lambda i: x[i] if x[i] > 0 else 0.0


def several(*xs: Any) -> Any:
    return lambda i: xs[0][i]


def loops(x: Any) -> Any:
    return lambda i: sum(x[k] for _ in range(2) for k in axis)


def scan(body: Callable[..., Any], *extents: Any, **options: Any) -> Callable[..., Any]:
    """A definition with an array `h` of the shape of `x`, or of some extents."""

    def defined(x: Any) -> Any:
        @recurrence(*(extents or x.shape), **options)
        def h(i: Any, j: Any) -> Any:
            return body(h, x, i, j)

        return h

    return defined


def apart(x: Any) -> Any:
    t, c = x.shape

    @recurrence(t, c)
    def h(i: Any, j: Any) -> Any:
        return where(i > 0, g[i - 1, 0], 0) + x[i, j]

    @recurrence(t, c + 1)
    def g(i: Any, j: Any) -> Any:
        return h[i, 0]

    return h


def captured(x: Any) -> Any:
    def element(i: Any, j: Any) -> Any:
        return recurrence(*x.shape)(lambda k, m: x[k, j])[i, j]

    return element


TC = "(t, c) -> (t, c)"
WRONG: list[Case] = [
    # Recurrences.
    (TC, scan(lambda h, x, i, j: h[i - 1, j]), "axis 0 of h has t elements"),
    (TC, scan(lambda h, x, i, j: h[i, j]), "made of itself at that index"),
    (TC, scan(lambda h, x, i, j: where(i < 5, h[i + 1, j], 0)), "along axis 0 at a later position"),
    (TC, scan(lambda h, x, i, j: where(i > 0, h[i - 1, 0], 0)), "that is not its own"),
    (TC, scan(lambda h, x, i, j: where(i > 0, h[i // 2, j], 0)), "that is not its own"),
    (TC, scan(lambda h, x, i, j: where((i > 0) & (j > 0), h[i - 1, j - 1], 0)), "the axes 0 and 1"),
    (
        TC,
        scan(lambda h, x, i, j: where(i > 0, h[i - 1, j], 0) + where(j > 0, h[i, j - 1], 0)),
        "the axes 0 and 1",
    ),
    (
        TC,
        scan(lambda h, x, i, j: where(i > 0, sum(h[i - 1, k] for k in axis), 0)),
        "within a reduction",
    ),
    (TC, scan(lambda h, x, i, j: where(i > 0, x[cast(h[i - 1, j], "int64"), j], 0)), "as int64"),
    (TC, scan(lambda h, x, i, j: where(i > 0, h[i - 1], 0)), "read at 1 indices"),
    (TC, scan(lambda h, x, i, j: x[i, j] > 0), "an element of h is bool"),
    (TC, scan(lambda h, x, i, j: y), "NameError"),  # type: ignore[name-defined]  # noqa: F821
    (TC, scan(lambda h, x, i, j: x[i, j], 3), "a function of 1 indices"),
    (TC, scan(lambda h, x, i, j: x[i, j], type="int"), "expected a type of floats"),
    (TC, lambda x: recurrence()(lambda: x[0, 0]), "one extent or more"),
    (TC, lambda x: recurrence(x[0, 0])(lambda i: i), "data cannot change it"),
    (TC, apart, "expected one shape and one type"),
    (TC, captured, "an index of another function"),
    # Names and Python.
    (ONE, lambda x: lambda i: y[i], "NameError: name 'y'"),  # type: ignore[name-defined]  # noqa: F821
    (ONE, lambda x: lambda i: x[i].sqrt(), "AttributeError"),
    (ONE, lambda x: lambda i: x.sum(), "x has no sum"),
    (ONE, statement, "outside of a reduction"),
    (ONE, assigned, "cannot be written"),
    (ONE, branches, "the truth of an element"),
    (ONE, several, "name each tensor"),
    (ONE, lambda x: lambda i: where(0 <= i < 2, x[i], 0), "the truth of an element"),
    (ONE, lambda x: lambda i: __builtins__["max"](x[k] for k in axis), "outside of a reduction"),
    (ONE, lambda x: lambda i: sum([x[i], "a"]), "str in a definition"),
    (ONE, lambda x: lambda i: x[i] + x, "x is a tensor"),
    (ONE, lambda x: lambda i: x[i] @ x[i], "TypeError"),
    (ONE, lambda x: lambda i: x[range(3)[i]], "not known while an operator is defined"),
    (ONE, lambda x: lambda i: exp(x[i], 1), "exp of 2 arguments; expected 1"),
    # Axes.
    (ONE, lambda x: lambda i: sum(x[k + 0] for k in axis), "axis has no extent"),
    (ONE, lambda x: lambda i: sum(x[i] for k in axis), "axis has no extent"),
    (ONE, lambda x: lambda i: sum(x[k] for k in axis(x[0])), "data cannot change it"),
    (ONE, lambda x: lambda i: sum(x[i]), "takes a generator expression"),
    (ONE, lambda x: lambda i: sum(x[k] for k in []), "sum of nothing"),
    (ONE, loops, "put loops over `axis` before"),
    (ONE, lambda x: lambda i: argmax(x[k] + x[j] for k in axis for j in axis), "over one axis"),
    (ONE, lambda x: lambda i: mean(x[d] for d in range(2)), "mean takes floats"),
    # Ranks and indices.
    (MM, lambda a, b: lambda i, j: a[i] * b[i, j], "a has 2 axes, and is read at 1 indices"),
    (ONE, lambda x: lambda i: x[i, 0], "x has 1 axes, and is read at 2 indices"),
    (ONE, lambda x: lambda i: x[x[i]], "an index of x is a float"),
    (ONE, lambda x: lambda i: x[i / 2], "an index of x is a number"),
    (ONE, lambda x: lambda i: x[:], "read element by element"),
    # Bounds.
    (ONE, lambda x: lambda i: x[i + 1], "axis 0 of x has n elements"),
    (ONE, lambda x: lambda i: x[i - 1], "axis 0 of x has n elements"),
    (ONE, lambda x: lambda i: x[-1], "axis 0 of x has n elements"),
    (ONE, lambda x: lambda i: where(i >= 1, x[i + 1], 0), "axis 0 of x has n elements"),
    (ONE, lambda x: lambda i: where(i >= 1, x[i - 2], 0), "axis 0 of x has n elements"),
    (ONE, lambda x: lambda i: where(i < 1, x[i], x[i + 1]), "axis 0 of x has n elements"),
    (ONE, lambda x: lambda i: x[i * i], "ftuner cannot tell"),
    ("(3) -> (3)", lambda x: lambda i: x[3], "axis 0 of x has 3 elements"),
    ("(3) -> (4)", lambda x: lambda i: x[i], "axis 0 of x has 3 elements"),
    ("(3), (4) -> ()", lambda x, y: sum(x[k] * y[k] for k in axis), "axes of 3 and 4"),
    # Types.
    (ONE, lambda x: lambda i: x[i] > 0, "the result is bool"),
    (ONE, lambda x: lambda i: where(x[i], x[i], 0), "expected a condition"),
    (ONE, lambda x: lambda i: x[i] & 1, "bitwise_and of float"),
    (ONE, lambda x: lambda i: x[i] + (x[i] > 0), "add of float and bool"),
    (ONE, lambda x: lambda i: sum(x[k] > 0 for k in axis), "use any or all"),
    (ONE, lambda x: lambda i: where(any(x[k] for k in axis), 0.0, 1.0), "expected bools"),
    (ONE, lambda x: lambda i: where(all(x[k] for k in axis), 0.0, 1.0), "expected bools"),
    (ONE, lambda x: lambda i: cast(x[i], "real"), "expected one of float"),
    (TABLE, lambda t, ids: lambda i, c: t[ids[i], c] * ids[i], "multiply of float and int"),
    (TABLE, lambda t, ids: lambda i, c: ids[i] / 2, "write // or convert"),
    (TABLE, lambda t, ids: lambda i, c: t[ids[i] * 0.5, c], "int and a fraction"),
    ("float32(n), float64(n) -> float32(n)", lambda x, y: lambda i: x[i] * y[i], "and float64"),
    ("(n) -> float32(n)", lambda x: lambda i: x[i], "its signature says float32"),
    # Results.
    (ONE, lambda x: None, "returns nothing"),
    (ONE, lambda x: x, "returns Tensor"),
    (ONE, lambda x: lambda i, j: x[i], "a function of 1 indices"),
    (ONE, lambda x: (lambda i: x[i], lambda i: x[i]), "1 results"),
    ("(n) -> (n), (n)", lambda x: lambda i: x[i], "2 results"),
    (ONE, lambda x, y: lambda i: x[i], "2 parameters"),
    ("(..., n) -> (n)", lambda x: lambda i: x[i], "'...'"),
    # Signatures.
    ("(n)", lambda x: x, "signature"),
    ("(n) ->", lambda x: x, "has no result"),
    ("(n) -> (m)", lambda x: x, "no operand has an axis of extent 'm'"),
    ("(2 * n) -> (n)", lambda x: x, "no operand has an axis of extent 'n'"),
    ("(n -> (n)", lambda x: x, "is no tensor"),
    ("(n) (n) -> (n)", lambda x: x, "expected a comma"),
    ("real(n) -> (n)", lambda x: x, "no type is called 'real'"),
    ("(n ** 2) -> (n)", lambda x: x, "expected names"),
    ("(n) -> (..., n)", lambda x: x, "no operand has the axes"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_definition_is_an_error_with_a_line_of_the_user(number: int) -> None:
    signature, function, message = WRONG[number]
    with pytest.raises(DefinitionError) as caught:
        ftuner.operator(signature)(function)
    assert message in str(caught.value)
    assert re.match(rf"{re.escape(__file__)}:\d+: ", str(caught.value)), str(caught.value)


def test_the_line_is_that_of_the_element_and_not_of_the_function() -> None:
    def defined(x: Any) -> Any:
        y = x[0]
        return lambda i: y + x[i + 1]

    line = defined.__code__.co_firstlineno + 2
    with pytest.raises(DefinitionError, match=f":{line}: axis 0 of x has n elements"):
        ftuner.operator(ONE)(defined)


@ftuner.operator("(m, k), (k, n) -> (m, n)")
def product(a: Any, b: Any) -> Any:
    return lambda i, j: sum(a[i, t] * b[t, j] for t in axis)


@ftuner.operator(TABLE)
def embedded(table: Any, ids: Any) -> Any:
    return lambda i, c: table[ids[i], c]


@ftuner.operator("(n), (m) -> (n)")
def shifted(x: Any, y: Any) -> Any:
    return lambda i: x[i] * y[i + 1]


@ftuner.operator("(n) -> ()")
def scaled(x: Any, *, factor: float) -> Any:
    return prod(x[i] * factor for i in axis)


F32 = np.ones((3, 4), np.float32)
IDS = np.array([0, 3])
CALLS: list[tuple[type[Exception], Callable[[], Any], str]] = [
    (ShapeError, lambda: product(F32, F32), "input b: float32[k, n] was given (3, 4)"),
    (ShapeError, lambda: product(F32, F32[0]), "operand b of product has 1 axes; expected 2"),
    (DTypeError, lambda: product(F32, F32.T.astype(np.float64)), "another is float32"),
    (DTypeError, lambda: product(F32.astype(int), F32.T.astype(int)), "the signature says float"),
    (DTypeError, lambda: product(F32.astype(complex), F32.T), "complex"),
    (OperandError, lambda: product(F32), "1 are given"),
    (OperandError, lambda: product(F32, [[1.0]]), "operand b of product is a list"),
    (IndexRangeError, lambda: embedded(F32, IDS), "along an axis of 3 elements"),
    (DTypeError, lambda: embedded(F32, IDS.astype(np.float32)), "the signature says int"),
    (ShapeError, lambda: shifted(F32[0], F32[0]), "axis 0 of y has"),
    (DefinitionError, lambda: scaled(F32[0]), "attribute factor is missing"),
    (DefinitionError, lambda: scaled(F32[0], factor=2.0, other=1), "no attribute other"),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_wrong_call_is_a_named_error(number: int) -> None:
    kind, call, message = CALLS[number]
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_reads_that_extents_allow_are_checked_when_these_are_known() -> None:
    found = shifted(F32[0], np.ones(5, np.float32))
    np.testing.assert_array_equal(found, F32[0])
    with pytest.raises(ShapeError, match=r"test_wrong_definitions.py:\d+"):
        shifted(F32[0], np.ones(4, np.float32))
