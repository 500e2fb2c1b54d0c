"""Epilogues as Triton text, against their NumPy reference."""

import numpy as np
import pytest
import torch

from ftuner.codegen.triton.expressions import epilogue_prelude, render_epilogue
from ftuner.codegen.triton.source import HEADER, Source, load
from ftuner.core.expr import ACCUMULATOR, ACTIVATIONS, Constant, Expr, Operand
from ftuner.core.expr import applied as function
from ftuner.core.expr_values import evaluate
from ftuner.errors import ExpressionError

ROWS, COLUMNS = 16, 64
BIAS = Operand("bias", "column")


def applied(expr: Expr, acc: np.ndarray, bias: np.ndarray) -> np.ndarray:
    rendered = render_epilogue(expr, {"acc": "acc", "bias": "bias"}, "e")
    lines = "".join(f"    {line}\n" for line in rendered.lines)
    text = f"""{HEADER}{epilogue_prelude(expr)}

@triton.jit
def apply(first, second, result):
    rows, columns = tl.arange(0, {ROWS})[:, None], tl.arange(0, {COLUMNS})[None, :]
    acc = tl.load(first + rows * {COLUMNS} + columns)
    bias = tl.load(second + columns)
{lines}    tl.store(result + rows * {COLUMNS} + columns, {rendered.value})
"""
    result = torch.empty(ROWS, COLUMNS)
    kernel = load(Source("apply", text, (), 4, 1))
    with np.errstate(all="ignore"):
        kernel[(1,)](torch.from_numpy(acc), torch.from_numpy(bias), result)
    return result.numpy()


def inputs(low: float = -8.0, high: float = 8.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    acc = rng.uniform(low, high, (ROWS, COLUMNS)).astype(np.float32)
    return acc, rng.uniform(0.5, 2.0, COLUMNS).astype(np.float32)


# Relative error in unit roundoffs, from the conditioning of the expression, as for a CPU: an
# argument off by d moves erfc(y) by up to (2 y^2 + 2) d and sigmoid(v) by |v| d; elementary
# functions add eight.
ROUNDOFFS = {
    "identity": lambda x: 0.0,
    "relu": lambda x: 0.0,
    "gelu": lambda x: 8.0,
    "gelu_tanh": lambda x: 8.0,
    "silu": lambda x: 8.0,
    "hard_swish": lambda x: 4.0,
    "sigmoid": lambda x: 8.0,
    "tanh": lambda x: 8.0,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_as_accurate_as_their_conditioning_allows(name: str) -> None:
    acc, bias = inputs(-12.0, 12.0)
    expr = ACTIVATIONS[name](ACCUMULATOR)
    expected = evaluate(expr, {"acc": acc.astype(np.float64)})
    allowed = ROUNDOFFS[name](acc.astype(np.float64)) * 2.0**-24 * np.abs(expected)
    assert (np.abs(applied(expr, acc, bias) - expected) <= allowed + 1e-37).all()


def test_swish_takes_a_number_for_its_slope() -> None:
    acc, bias = inputs(-12.0, 12.0)
    for slope in (Constant(1.702), BIAS):
        expr = function("swish", ACCUMULATOR, slope)
        expected = evaluate(
            function("swish", ACCUMULATOR, Constant(float(np.float32(1.702))))
            if isinstance(slope, Constant)
            else expr,
            {"acc": acc.astype(np.float64), "bias": bias.astype(np.float64)},
        )
        np.testing.assert_allclose(applied(expr, acc, bias), expected, 2.0**-21)


def test_arithmetic_is_rounded_as_numpy_rounds_it() -> None:
    acc, bias = inputs(0.5, 2.0)
    root = function("sqrt", function("absolute", ACCUMULATOR - 2.5 * BIAS))
    expr = -(ACCUMULATOR * BIAS + 0.1) / (root + 0.3) - 1.0 / BIAS
    expr = function("minimum", function("maximum", expr, function("negative", BIAS)), ACCUMULATOR)
    expected = evaluate(expr, {"acc": acc, "bias": bias})
    np.testing.assert_array_equal(applied(expr, acc, bias), expected)


def test_nan_and_infinities_pass_as_in_numpy() -> None:
    acc, bias = inputs()
    acc[0, :5] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    expr = function("maximum", ACCUMULATOR, Constant(0.0)) + Constant(-np.inf) * BIAS
    expected = evaluate(expr, {"acc": acc, "bias": bias})
    np.testing.assert_array_equal(applied(expr, acc, bias), expected)
    np.testing.assert_array_equal(
        applied(ACTIVATIONS["relu"](ACCUMULATOR), acc, bias), np.maximum(acc, np.float32(0))
    )


def test_constants_are_rounded_to_float32_and_may_stand_alone() -> None:
    acc, bias = inputs()
    alone = function("exp", Constant(0.3)) * function("add", Constant(0.1), Constant(0.2))
    got = applied(ACCUMULATOR * alone, acc, bias)
    number = np.exp(np.float32(0.3)) * (np.float32(0.1) + np.float32(0.2))
    np.testing.assert_allclose(got, acc * number, rtol=4e-7)
    assert "0.10000000149011612" in render_epilogue(ACCUMULATOR + 0.1, {"acc": "a"}, "e").lines[0]


def test_equal_expressions_are_one_line() -> None:
    lines = render_epilogue(
        function("gelu", ACCUMULATOR + 1.0) + function("gelu", ACCUMULATOR + 1.0), {"acc": "a"}, "e"
    ).lines
    assert sum("gelu" in line for line in lines) == 1
    assert len(set(lines)) == len(lines)


def test_missing_operands_are_named() -> None:
    with pytest.raises(ExpressionError, match="'bias' was not given"):
        render_epilogue(ACCUMULATOR + BIAS, {"acc": "a"}, "e")
    with pytest.raises(ExpressionError, match="constants alone"):
        render_epilogue(Constant(1.0), {"acc": "a"}, "e")
