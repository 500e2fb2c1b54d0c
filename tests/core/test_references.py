"""References of elementary functions against mpmath, in ulp."""

import math

import mpmath
import numpy as np
import pytest
from tests.codegen.llvm.exact import EXACT, gated

from ftuner.core import references as activations
from ftuner.core.functions import SCALAR_FUNCTIONS

INF, NAN = math.inf, math.nan
MAX_ULP = {"float32": 0.51, "float64": 4.0}
NAMES = ("erf", "erfc", "sigmoid", "softplus", "mish", "silu", "gelu", "gelu_tanh", "expm1")
# Down to where each is zero, in float64.
LOW = {"erfc": -6.0, "erf": -6.0, "sigmoid": -745.0, "softplus": -745.0, "gelu": -38.5,
       "gelu_tanh": -21.6, "expm1": -40.0, "silu": -751.0, "mish": -751.0}  # fmt: skip


def arguments(name: str, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    low = LOW[name] * (0.14 if dtype == "float32" else 1.0)
    magnitudes = 10.0 ** rng.uniform(-37.0 if dtype == "float32" else -300.0, 1.0, 300)
    parts = (rng.uniform(low, 27.0, 800), rng.uniform(-4.0, 4.0, 800), magnitudes, -magnitudes)
    return np.concatenate(parts).astype(dtype)


def assert_near(value: float, exact: mpmath.mpf, dtype: str, at: object) -> None:
    spacing = float(np.spacing(np.abs(np.dtype(dtype).type(float(exact)))))
    assert abs(value - exact) <= MAX_ULP[dtype] * spacing, at


@pytest.mark.parametrize("dtype", MAX_ULP)
@pytest.mark.parametrize("name", NAMES)
def test_references_are_accurate(name: str, dtype: str) -> None:
    if name == "expm1" and dtype == "float32":
        pytest.skip("NumPy's own")
    x = arguments(name, dtype)
    got = SCALAR_FUNCTIONS[name].meaning(x)
    assert got.dtype == x.dtype
    with mpmath.workprec(160):
        for value, at in zip(got.tolist(), x.tolist(), strict=True):
            assert_near(value, EXACT[name](mpmath.mpf(at)), dtype, at)


@pytest.mark.parametrize("dtype", MAX_ULP)
def test_swish_is_accurate(dtype: str) -> None:
    rng = np.random.default_rng(1)
    slope = np.exp2(rng.uniform(-10.0, 10.0, 1000)).astype(dtype)
    low = -100.0 if dtype == "float32" else -740.0
    x = (rng.uniform(low, 40.0, 1000) / slope).astype(dtype)
    got = activations.swish(x, slope)
    with mpmath.workprec(160):
        for value, *at in zip(got.tolist(), x.tolist(), slope.tolist(), strict=True):
            x_, slope_ = map(mpmath.mpf, at)
            assert_near(value, gated(x_, slope_ * x_), dtype, at)


@pytest.mark.parametrize("dtype", MAX_ULP)
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish", "hard_swish"])
def test_limits(name: str, dtype: str) -> None:
    x = np.array([NAN, INF, -INF, 0.0, -0.0, 1e30, -1e30], dtype)
    expected = np.array([NAN, INF, -0.0, 0.0, -0.0, 1e30, -0.0], dtype)
    got = SCALAR_FUNCTIONS[name].meaning(x)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[1:]), np.signbit(expected[1:]))


def test_limits_of_softplus_and_swish() -> None:
    got = activations.softplus(np.array([NAN, INF, -INF, 1e30]))
    np.testing.assert_array_equal(got, [NAN, INF, 0.0, 1e30])
    got = activations.swish(np.array([INF, -INF, INF, -INF]), np.array([2.0, 2.0, -2.0, -2.0]))
    np.testing.assert_array_equal(got, [INF, 0.0, 0.0, -INF])
