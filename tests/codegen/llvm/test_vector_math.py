"""Emitted elementary functions and expressions, run on this machine's ISAs: every function within
4 ulp of the exact value, special values as in C's Annex F."""

import ctypes
import math
import platform
from functools import cache

import mpmath
import numpy as np
import pytest
from tests.codegen.llvm.exact import EXACT, INF, NAN, SPECIALS, SPECIALS_OF_SWISH, gated
from tests.codegen.llvm.vector_running import FUNCTIONS, PERIODIC, all_cases, run, run_expression

from ftuner.codegen.llvm.ir import vector_math as vecmath
from ftuner.core.expr import ACCUMULATOR, Constant, Operand, applied, clip
from ftuner.core.expr_values import evaluate
from ftuner.core.functions import SCALAR_FUNCTIONS

MAX_ULP = 4.0


def run_function(name, case, x):
    """An elementary function, or an expression of one operand."""
    return run_expression(EXPRESSIONS[name], case, acc=x)


UNDERFLOW = 0x10
"""Of x86's `fenv.h`."""
COMPOSED = tuple(name for name, row in SCALAR_FUNCTIONS.items() if row.composition is not None)
EXPRESSIONS = {name: applied(name, ACCUMULATOR) for name in (*FUNCTIONS, *PERIODIC, *COMPOSED)}
DOMAINS = {
    "log": (0.0, math.inf), "log1p": (-1.0, math.inf), "acosh": (1.0, math.inf),
    "asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "atanh": (-1.0, 1.0),
}  # fmt: skip


# Where each function does something else than saturate.
RANGES = {
    "exp": {"float64": (-745.5, 709.9), "float32": (-104.5, 88.8)},
    "log": {"float64": (0.3, 3.0), "float32": (0.3, 3.0)},
    "log1p": {"float64": (-1.0, 3.0), "float32": (-1.0, 3.0)},
    "tanh": {"float64": (-20.0, 20.0), "float32": (-9.5, 9.5)},
    "sigmoid": {"float64": (-745.5, 40.0), "float32": (-104.5, 20.0)},
    "erf": {"float64": (-6.0, 6.0), "float32": (-4.0, 4.0)},
    "erfc": {"float64": (-6.0, 27.3), "float32": (-4.0, 10.1)},
    "expm1": {"float64": (-40.0, 709.9), "float32": (-20.0, 88.8)},
    "gelu": {"float64": (-38.7, 9.0), "float32": (-14.5, 6.0)},
    "gelu_tanh": {"float64": (-21.7, 9.0), "float32": (-11.0, 6.0)},
    "silu": {"float64": (-753.0, 40.0), "float32": (-110.0, 20.0)},
    "softplus": {"float64": (-746.0, 40.0), "float32": (-105.0, 20.0)},
    "mish": {"float64": (-753.0, 20.0), "float32": (-110.0, 10.0)},
    "hard_swish": {"float64": (-4.0, 4.0), "float32": (-4.0, 4.0)},
    "sin": {"float64": (-1e3, 1e3), "float32": (-1e3, 1e3)},
    "cos": {"float64": (-(2.0**20), 2.0**20), "float32": (-(2.0**17), 2.0**17)},
    "tan": {"float64": (-1e4, 1e4), "float32": (-1e4, 1e4)},
    "atan": {"float64": (-4.0, 4.0), "float32": (-4.0, 4.0)},
    "asin": {"float64": (-1.0, 1.0), "float32": (-1.0, 1.0)},
    "acos": {"float64": (-1.0, 1.0), "float32": (-1.0, 1.0)},
    "sinh": {"float64": (-710.4, 710.4), "float32": (-89.4, 89.4)},
    "cosh": {"float64": (-710.4, 710.4), "float32": (-89.4, 89.4)},
    "asinh": {"float64": (-9.0, 9.0), "float32": (-9.0, 9.0)},
    "acosh": {"float64": (1.0, 9.0), "float32": (1.0, 9.0)},
    "atanh": {"float64": (-1.0, 1.0), "float32": (-1.0, 1.0)},
}
# Where a formula takes over from another, or stops being evaluated.
BOUNDARIES = [
    0.46875, 1.0, math.log(2.0) / 2.0, math.log(2.0) / 4.0, math.sqrt(0.5), math.sqrt(2.0),
    9.25, 19.25, 10.125, 27.3125, -104.5, -746.0, 89.0, 710.0, -87.33654, -708.396,
    -109.0, -752.0, 14.375, 38.59375, -10.875, -21.625, 18.5, 38.5, 2.0**-25, 2.0**-54, 3.0,
    # The least numbers whose results are normal.
    -91.85, -715.2, -13.05, -37.53, -9.98, -21.08,
    # Of inverse and hyperbolic functions.
    math.sqrt(2.0) - 1.0, math.sqrt(2.0) + 1.0, 20.0, 89.4, 710.4, 2.0**60, 2.0**-60,
    # Of periodic functions: where reduction changes, and multiples of pi / 2 and pi / 4.
    2.0**17, 2.0**20, *(n * math.pi / 4 for n in (*range(1, 33), 83_000, 83_443, 1_335_000)),
]  # fmt: skip


@cache
def arguments(name, dtype):
    """Finite arguments: over the range of interest, over all magnitudes, about every boundary."""
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    per_part = 70_000 if dtype == "float32" else 600
    signs = rng.choice([-1.0, 1.0], per_part) if name != "log" else 1.0
    exponents = rng.uniform(np.log2(info.smallest_subnormal), np.log2(info.max), per_part)
    bits = "u4" if dtype == "float32" else "u8"
    patterns = rng.integers(0, 2 ** (8 * np.dtype(bits).itemsize), per_part, bits).view(dtype)
    patterns = patterns[np.isfinite(patterns)]
    about = np.array([b * s for b in BOUNDARIES for s in (1, -1)], dtype)
    about = np.concatenate([about, np.nextafter(about, info.max), np.nextafter(about, -info.max)])
    x = np.concatenate(
        [
            rng.uniform(*RANGES[name][dtype], per_part),
            rng.uniform(0.0 if name == "log" else -2.0, 2.0, per_part),
            signs * np.exp2(exponents),
            patterns[patterns > 0] if name == "log" else patterns,
            about[about > 0] if name == "log" else about,
            [info.smallest_subnormal, info.tiny, info.max, 3 * info.smallest_subnormal],
        ]
    )
    low, high = DOMAINS.get(name, (-math.inf, math.inf))
    x = x.astype(dtype)
    # Poles are among the special values.
    return x[(low <= x) & (x <= high) & ~((name in ("log1p", "atanh")) & np.isin(x, (low, high)))]


@cache
def exact(name, dtype):
    """The exact values at `arguments`, rounded to `dtype`, and what rounding took away.

    float32 is compared with float64 arithmetic, float64 with mpmath at 160 bits.
    """
    x = arguments(name, dtype)
    if dtype == "float32":
        value = evaluate(EXPRESSIONS[name], {"acc": x.astype(np.float64)})
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = value.astype(np.float32)
            return rounded, np.nan_to_num(value - rounded, posinf=0.0, neginf=0.0)
    with mpmath.workprec(160):
        values = [EXACT[name](mpmath.mpf(float(v))) for v in x]
        # Beyond the largest float64 mpmath goes on; conversion gives infinity.
        rounded = np.array([float(v) for v in values])
        rest = [
            float(v - mpmath.mpf(r)) if math.isfinite(r) else 0.0
            for v, r in zip(values, rounded.tolist(), strict=True)
        ]
    return rounded, np.array(rest)


@pytest.mark.each_value
@all_cases
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_error_is_within_four_ulp(name, case):
    got = run_function(name, case, arguments(name, case.dtype))
    rounded, rest = exact(name, case.dtype)
    overflowed = np.isinf(rounded)
    np.testing.assert_array_equal(got[overflowed], rounded[overflowed])
    got, rounded, rest = got[~overflowed], rounded[~overflowed], rest[~overflowed]
    with np.errstate(over="ignore"):
        ulp = np.spacing(np.abs(rounded))
    error = np.abs((got.astype(np.float64) - rounded) - rest) / ulp
    worst = error.argmax()
    where = arguments(name, case.dtype)[~overflowed][worst]
    assert error[worst] <= MAX_ULP, f"{name}({where!r}) is off by {error[worst]} ulp"


@pytest.mark.each_value
@all_cases
@pytest.mark.parametrize("name", SPECIALS)
def test_special_values_are_exact_in_value_and_sign(name, case):
    x, expected = np.array(SPECIALS[name]).T
    got = run_function(name, case, x)
    np.testing.assert_array_equal(got, expected.astype(case.dtype))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@all_cases
def test_subnormal_arguments_keep_their_last_bit(case):
    smallest = np.finfo(case.dtype).smallest_subnormal
    x = np.array([smallest, -smallest, 5 * smallest], case.dtype)
    for name in ("tanh", "expm1", "sin", "tan", "atan"):
        np.testing.assert_array_equal(run_function(name, case, x), x)
    for name in ("exp", "cos"):
        np.testing.assert_array_equal(run_function(name, case, x), np.ones_like(x))
    np.testing.assert_array_equal(run_function("sigmoid", case, x), np.full_like(x, 0.5))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are x86's")
@pytest.mark.each_value
@all_cases
@pytest.mark.parametrize(
    "name", ["exp", "sigmoid", "softplus", "silu", "mish", "gelu", "gelu_tanh", "erf", "erfc"]
)
def test_nothing_underflows_where_results_are_zero(name, case):
    """A product that underflows takes x86 some hundred cycles."""
    beyond = {"float32": 116.0, "float64": 760.0}[case.dtype]
    sign = 1.0 if name == "erfc" else -1.0
    x = sign * np.repeat([beyond, 2 * beyond, 1e30], 16)
    run_function(name, case, x)
    flags = ctypes.CDLL("libm.so.6")
    flags.feclearexcept(UNDERFLOW)
    got = run_function(name, case, x)
    assert flags.fetestexcept(UNDERFLOW) == 0
    np.testing.assert_array_equal(got, -1.0 if name == "erf" else 0.0)


@all_cases
@pytest.mark.parametrize("name", PERIODIC)
def test_a_far_lane_leaves_the_others_alone(name, case):
    x = np.random.default_rng(3).uniform(-2e3, 2e3, 200).astype(case.dtype)
    mixed = x.copy()
    mixed[::7] = np.resize([np.finfo(case.dtype).max, INF, NAN, -1e30, 1e9], mixed[::7].size)
    near, among = run_function(name, case, x), run_function(name, case, mixed)
    np.testing.assert_array_equal(np.delete(among, np.s_[::7]), np.delete(near, np.s_[::7]))


@all_cases
@pytest.mark.parametrize(("name", "power"), [("exp_flushed", np.exp), ("exp2_flushed", np.exp2)])
def test_powers_of_a_softmax(name, power, case):
    """Powers up to one; what is not normal any more is zero."""

    def flushed(x):
        function = getattr(vecmath, name)
        return run(lambda builder, v: function(builder, v, fused=case.fused), case, x)

    info = np.finfo(case.dtype)
    lowest = np.log(info.smallest_normal, dtype=case.dtype) if power is np.exp else info.minexp
    x = np.concatenate([
        np.random.default_rng(0).uniform(lowest, 0.0, 20_000), np.arange(np.ceil(lowest), 1.0),
        [-0.0, -0.5, -1e-30], [lowest - 0.01, 2.0 * lowest, -1e30, -INF, NAN],
    ]).astype(case.dtype)  # fmt: skip
    got = flushed(x)
    expected = power(x.astype(np.longdouble))
    assert np.all(got[-5:-1] == 0.0)
    assert np.isnan(got[-1])
    error = np.abs(got[:-5] - expected[:-5]) / np.spacing(expected[:-5].astype(case.dtype))
    assert error.max() <= 2.0
    if power is np.exp2:
        whole = x[(x == np.rint(x)) & (x >= lowest)]
        assert np.array_equal(flushed(whole), np.exp2(whole))


@cache
def slopes_and_arguments(dtype):
    """Of swish: arguments down to where the result vanishes, slopes that models have and others,
    and exact results."""
    rng = np.random.default_rng(1)
    count = 20_000 if dtype == "float32" else 2_000
    slopes = np.exp2(rng.uniform(-10.0, 10.0, count)) * rng.choice([-1.0, 1.0], count)
    slopes[: count // 4] = rng.choice([1.702, 1.0, 0.5, -1.0], count // 4)
    products = rng.uniform(-116.0 if dtype == "float32" else -760.0, 40.0, count)
    products[::3] = rng.uniform(-4.0, 4.0, products[::3].size)
    slopes = slopes.astype(dtype)
    x = (products / slopes).astype(dtype)
    with mpmath.workprec(160):
        pairs = zip(map(mpmath.mpf, x.tolist()), slopes.tolist(), strict=True)
        exact_ = [gated(a, a * slope) for a, slope in pairs]
    return x, slopes, exact_


@all_cases
def test_swish_is_within_four_ulp_for_the_slopes_of_models(case):
    x, slope, wanted = slopes_and_arguments(case.dtype)
    operands = {"acc": x, "y": slope}
    got = run_expression(applied("swish", ACCUMULATOR, Operand("y", "matrix")), case, **operands)
    ulp = np.spacing(np.abs(np.array(wanted, float).astype(case.dtype))).tolist()
    with mpmath.workprec(160):
        for result, exact_, unit, *at in zip(got.tolist(), wanted, ulp, x, slope, strict=True):
            assert abs(result - exact_) <= MAX_ULP * unit, at


@all_cases
def test_swish_of_infinities(case):
    x, slope, expected = np.array(SPECIALS_OF_SWISH)
    operands = {"acc": x, "y": slope}
    got = run_expression(applied("swish", ACCUMULATOR, Operand("y", "matrix")), case, **operands)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[2:]), np.signbit(expected[2:]))


@all_cases
def test_extrema_propagate_nan_from_either_side(case):
    x, y = np.array([[NAN, 1.0], [1.0, NAN], [NAN, NAN], [1.0, 2.0], [2.0, 1.0], [-INF, INF]]).T
    left, right = Operand("x", "matrix"), Operand("y", "matrix")
    for op, reference in (("maximum", np.maximum), ("minimum", np.minimum)):
        got = run_expression(applied(op, left, right), case, x=x, y=y)
        np.testing.assert_array_equal(got, reference(x, y))
        got = run_expression(applied(op, Constant(1.5), right), case, y=y)
        np.testing.assert_array_equal(got, reference(1.5, y))
    got = run_expression(clip(left, -1.0, 1.5), case, x=x)
    np.testing.assert_array_equal(got, np.clip(x, -1.0, 1.5))


@all_cases
def test_arithmetic_is_rounded_as_numpy_rounds_it(case):
    rng = np.random.default_rng(2)
    x, y = rng.uniform(0.5, 2.0, (2, 1000)).astype(case.dtype)
    acc, bias = ACCUMULATOR, Operand("bias", "column")
    root = applied("sqrt", applied("absolute", acc - 2.5 * bias))
    expr = -(acc * bias + 0.1) / (root + 0.3) - 1.0 / bias
    got = run_expression(expr, case, acc=x, bias=y)
    np.testing.assert_array_equal(got, evaluate(expr, {"acc": x, "bias": y}))
