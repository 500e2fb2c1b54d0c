"""Rows that are added to the tables of scalar functions and of operators."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ftuner.core import functions
from ftuner.core.functions import FLOATS, NUMBERS, SCALAR_FUNCTIONS, ScalarFunction
from ftuner.errors import ConfigurationError, ExpressionError
from ftuner.graph.operators import OPERATORS, register_function, register_operator

ROW = ScalarFunction(1, FLOATS, np.cbrt, composition="sign(x) * exp(log(absolute(x)) / 3)")


pytestmark = pytest.mark.usefixtures("tables_put_back")


def test_a_registered_row_is_a_function_and_an_operator() -> None:
    register_function("cbrt", ROW)
    assert SCALAR_FUNCTIONS["cbrt"] is ROW
    assert OPERATORS["cbrt"].reference is np.cbrt
    register_function("cbrt", replace(ROW))
    other = replace(ROW, composition="x")
    with pytest.raises(ConfigurationError, match="another scalar function is called 'cbrt'"):
        register_function("cbrt", other)


def test_a_registered_operator() -> None:
    operator = replace(OPERATORS["exp"], name="newcomer")
    for _ in range(2):
        register_operator(operator)
    assert OPERATORS["newcomer"] is operator
    with pytest.raises(ConfigurationError, match="another operator is called 'newcomer'"):
        register_operator(replace(operator))


@pytest.mark.parametrize("name", ["exp", "matmul", "where"])
def test_names_are_not_taken_again(name: str) -> None:
    before = OPERATORS[name]
    with pytest.raises(ConfigurationError, match=f"another .* is called '{name}'"):
        register_function(name, ROW)
    assert OPERATORS[name] is before


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("cube root", {}, "expected an identifier"),
        ("cbrt", {"arity": 3}, "one or two floats"),
        ("cbrt", {"kinds": NUMBERS}, "one or two floats"),
        ("cbrt", {"result": "bool"}, "one or two floats"),
        ("cbrt", {"composition": None}, "expected a composition, or emitters"),
        ("cbrt", {"composition": None, "llvm": "mine"}, "expected a composition, or emitters"),
        ("cbrt", {"llvm": "mine", "triton": "mine"}, "expected a composition, or emitters"),
        ("cbrt", {"reference": "cbrt"}, "expected a function as its reference"),
    ],
)
def test_rows_that_cannot_be_compiled(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        register_function(name, replace(ROW, **changes))
    assert name not in SCALAR_FUNCTIONS
    assert name not in OPERATORS


@pytest.mark.parametrize(
    ("composition", "message"),
    [
        ("", "composition ''"),
        ("x +", "invalid syntax"),
        ("cbrt(x)", "function is 'cbrt'"),
        ("y", "'y' is not supported"),
        ("x ** 3", "unsupported operand"),
        ("x // 3", "'x // 3' is not supported"),
        ("x > 3", "'x > 3' is not supported"),
        ("x < 3", "is a condition"),
        ("exp(x, x)", "exp of 2 arguments"),
        ("where(x, x, x)", "argument 0 of where is a number"),
        ("y = x", "expected an expression"),
        ("y += x; y", "not an assignment"),
    ],
)
def test_compositions_that_cannot_be_read(composition: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        register_function("cbrt", replace(ROW, composition=composition))
    assert "cbrt" not in SCALAR_FUNCTIONS


def test_what_a_value_names() -> None:
    assert functions.registered_in("cbrt") == ()
    register_function("cbrt", ROW)
    assert functions.registered_in(("exp", 1)) == ()
    assert functions.registered_in(("exp", ("cbrt", 1))) == (("cbrt", ROW),)
    assert "0x" not in repr(functions.registered_in("cbrt")), "its text is that of any process"
