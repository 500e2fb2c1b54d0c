"""Expressions: their text is canonical, their reference is NumPy, and misuse is named."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftuner.core.expr import (
    ACCUMULATOR,
    ACTIVATIONS,
    Apply,
    Constant,
    Expr,
    Operand,
    applied,
    as_expr,
    clip,
    composition,
    flatten,
    key,
    operands,
    relu,
)
from ftuner.core.expr_values import evaluate
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.errors import ExpressionError

BIAS = Operand("bias", "column")
SCALE = Operand("scale", "row")
RESIDUAL = Operand("residual", "matrix")

leaves = st.sampled_from([ACCUMULATOR, BIAS, SCALE, RESIDUAL]) | st.builds(
    Constant, st.sampled_from([0.0, 1.0, -2.5, 1e30, math.inf])
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(applied, st.sampled_from(["negative", "exp", "sigmoid"]), inner),
        st.builds(applied, st.sampled_from(["add", "subtract", "maximum"]), inner, inner),
    ),
    max_leaves=8,
)


def at(expr: Expr, x: np.ndarray) -> np.ndarray:
    return evaluate(expr, {"acc": x})


def elementwise(function, x):
    return np.array([function(v) for v in x.ravel()]).reshape(x.shape)


X = np.linspace(-6.0, 6.0, 60).reshape(5, 12)
FORMULAS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: 0.5 * x * elementwise(math.erfc, -x / math.sqrt(2.0)),
    "gelu_tanh": lambda x: (
        0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "hard_swish": lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_their_formulas(name):
    got = at(ACTIVATIONS[name](ACCUMULATOR), X)
    np.testing.assert_allclose(got, FORMULAS[name](X), rtol=1e-12, atol=1e-14)


def test_every_activation_has_a_formula():
    assert set(ACTIVATIONS) == set(FORMULAS)


@pytest.mark.parametrize(
    ("op", "formula"),
    [
        ("negative", np.negative),
        ("absolute", np.abs),
        ("exp", np.exp),
        ("log", np.log),
        ("sqrt", np.sqrt),
        ("tanh", np.tanh),
        ("erf", lambda x: elementwise(math.erf, x)),
        ("erfc", lambda x: elementwise(math.erfc, x)),
    ],
)
def test_unary_operations(op, formula):
    x = np.array([[0.25, 1.0, 7.0]])
    np.testing.assert_allclose(at(applied(op, ACCUMULATOR), x), formula(x), rtol=1e-15)


def test_operators_build_what_they_say():
    x, b = ACCUMULATOR, BIAS
    assert -x == applied("negative", x)
    assert x + b == applied("add", x, b)
    assert x - 1 == applied("subtract", x, Constant(1.0))
    assert 1 - x == applied("subtract", Constant(1.0), x)
    assert 2.0 * x == applied("multiply", Constant(2.0), x)
    assert x / b == applied("divide", x, b)
    assert 1.0 / x == applied("divide", Constant(1.0), x)
    assert 1.0 + x == applied("add", Constant(1.0), x)
    assert x * np.float32(0.5) == applied("multiply", x, Constant(0.5))


def test_operands_spread_by_kind():
    rng = np.random.default_rng(0)
    acc, residual = rng.normal(size=(2, 3, 4, 5))
    bias, scale = rng.normal(size=5), rng.normal(size=4)
    expr = relu(ACCUMULATOR * SCALE + BIAS) + RESIDUAL
    got = evaluate(expr, {"acc": acc, "bias": bias, "scale": scale, "residual": residual})
    np.testing.assert_array_equal(got, np.maximum(acc * scale[:, None] + bias, 0.0) + residual)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_evaluation_keeps_the_dtype(name, dtype):
    assert at(ACTIVATIONS[name](ACCUMULATOR), X.astype(dtype)).dtype == dtype
    folded = ACCUMULATOR * applied("erf", applied("sigmoid", Constant(0.5)))
    assert at(folded, X.astype(dtype)).dtype == dtype


def test_where_chooses_by_a_condition():
    chosen = applied("where", applied("less", ACCUMULATOR, 0.0), -ACCUMULATOR, BIAS)
    x = np.array([[-2.0, 3.0]])
    np.testing.assert_array_equal(evaluate(chosen, {"acc": x, "bias": np.ones(2)}), [[2.0, 1.0]])
    assert key(chosen) == "acc:tile|0x0.0p+0|less(0,1)|negative(0)|bias:column|where(2,3,4)"


@pytest.mark.parametrize("name", [n for n, f in SCALAR_FUNCTIONS.items() if f.composition])
def test_compositions_are_their_references(name):
    x = np.linspace(-6.0, 6.0, 241)[None]
    with np.errstate(invalid="ignore"):
        expected = SCALAR_FUNCTIONS[name].meaning(x)
    got = evaluate(composition(name), {"x": x})
    np.testing.assert_allclose(got, expected, rtol=1e-15, atol=0)


def test_extrema_propagate_nan():
    x = np.array([[math.nan, -1.0, 1.0]])
    np.testing.assert_array_equal(at(relu(ACCUMULATOR), x), [[math.nan, 0.0, 1.0]])
    np.testing.assert_array_equal(at(clip(ACCUMULATOR, -0.5, 0.5), x), [[math.nan, -0.5, 0.5]])


def test_sigmoid_neither_overflows_nor_flushes():
    got = at(applied("sigmoid", ACCUMULATOR), np.array([[-800.0, -740.0, 800.0]]))
    np.testing.assert_array_equal(got, [[0.0, math.exp(-740.0), 1.0]])


def test_operands_come_in_first_use_order_without_the_tile():
    assert operands(RESIDUAL + relu(ACCUMULATOR * SCALE + BIAS) * SCALE) == (RESIDUAL, SCALE, BIAS)
    assert operands(applied("gelu", ACCUMULATOR)) == ()


def test_key_is_this_text():
    assert key(relu(ACCUMULATOR)) == "acc:tile|0x0.0p+0|maximum(0,1)"
    assert key(applied("silu", ACCUMULATOR + BIAS)) == "acc:tile|bias:column|add(0,1)|silu(2)"
    assert key(Constant(0.0)) != key(Constant(-0.0))
    # Libraries are kept by expression: those of one are none of the other.
    assert Constant(0.0) != Constant(-0.0)
    assert 1.0 / (ACCUMULATOR * 0.0) != 1.0 / (ACCUMULATOR * -0.0)
    assert len({Constant(0.0), Constant(-0.0), Constant(0), Constant(1.0), Constant(1)}) == 3
    assert key(ACCUMULATOR - BIAS) != key(BIAS - ACCUMULATOR)


@given(expressions, expressions)
def test_keys_are_equal_exactly_for_equal_expressions(a, b):
    assert (key(a) == key(b)) == (a == b)


@given(expressions)
def test_flatten_is_in_order_and_without_repetition(expr):
    steps = flatten(expr)
    assert all(i < at for at, step in enumerate(steps) for i in step.arguments)
    assert steps[-1].node == expr
    assert len({key(step.node) for step in steps}) == len(steps)


def test_shared_subexpressions_cost_one_step():
    x: Expr = ACCUMULATOR
    for _ in range(200):  # a tree of 2**200 nodes
        x = x + x
    assert len(flatten(x)) == 201
    assert at(x, np.array([[1.0]])) == 2.0**200


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Operand("x", "diagonal"), "operand kind is 'diagonal'"),
        (lambda: Operand("not a name", "row"), "expected an identifier"),
        (lambda: applied("pow", ACCUMULATOR, BIAS), "function is 'pow'"),
        (lambda: applied("logical_not", ACCUMULATOR), "function is 'logical_not'"),
        (lambda: applied("exp", ACCUMULATOR, BIAS), "exp of 2 arguments; expected 1"),
        (lambda: applied("hard_swish", ACCUMULATOR, BIAS), "hard_swish of 2 arguments; expected 1"),
        (lambda: Apply("exp", (1.0,)), "argument is a float"),
        (lambda: applied("where", ACCUMULATOR, BIAS, BIAS), "argument 0 of where is a number"),
        (lambda: applied("isnan", ACCUMULATOR) + 1.0, "argument 0 of add is a condition"),
        (lambda: Constant(math.nan), "constant is NaN"),
        (lambda: clip(ACCUMULATOR, 1.0, 0.0), "expected lo <= hi"),
        (lambda: as_expr("acc"), "str in an expression"),
        (lambda: ACCUMULATOR + "bias", "str in an expression"),
        (lambda: operands(BIAS + Operand("bias", "row")), "'bias' is used as column and as row"),
        (lambda: operands(ACCUMULATOR + Operand("acc", "row")), "'acc' is used as tile and as row"),
        (lambda: evaluate(ACCUMULATOR + BIAS, {"acc": X}), "'bias' .column. was not given"),
    ],
)
def test_misuse_is_named(make, message):
    with pytest.raises(ExpressionError, match=message):
        make()
