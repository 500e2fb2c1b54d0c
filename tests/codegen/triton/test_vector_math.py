"""Elementary functions against NumPy's float64 and mpmath, in ulp."""

import math
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from tests.codegen.llvm.exact import EXACT, INF, NAN, SPECIALS, SPECIALS_OF_SWISH, gated

from ftuner.codegen.triton.functions import FLOATS, Functions
from ftuner.codegen.triton.source import HEADER, Source, load
from ftuner.codegen.triton.vector_math import FUNCTIONS, call, prelude

BLOCK = 4096
TWO_ARGUMENTS = ("divide", "maximum", "minimum", "power", "swish")
DTYPES = ("float32", "float64")
COMPOSED = ("tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "log1p")
# What the interpreter's exact exp2 and division leave; a GPU adds 2 ulp for each of the two.
MOST_ULP = {
    "exp": 1.5, "expm1": 2.0, "atan": 2.5, "sigmoid": 3.0, "tanh": 2.0, "erfc": 4.0, "power": 2.5,
    "gelu": 4.0, "gelu_tanh": 4.0, "silu": 4.0, "softplus": 4.0, "mish": 4.0, "swish": 4.0,
} | dict.fromkeys(COMPOSED, 4.0)  # fmt: skip
RANGES = {
    "exp": ((-87.3, 88.7), (-1.0, 1.0)),
    "sigmoid": ((-87.3, 20.0), (-1.0, 1.0)),
    "tanh": ((-10.0, 10.0), (-1.0, 1.0), (-1e-20, 1e-20)),
    "erfc": ((-4.0, 9.19), (-1.0, 1.0)),
    "expm1": ((-20.0, 88.7), (-1.0, 1.0), (-1e-20, 1e-20)),
    "gelu": ((-12.9, 6.0), (-1.0, 1.0), (-1e-20, 1e-20)),
    "gelu_tanh": ((-9.9, 6.0), (-1.0, 1.0), (-1e-20, 1e-20)),
    "silu": ((-87.0, 20.0), (-1.0, 1.0), (-1e-20, 1e-20)),
    "softplus": ((-87.0, 20.0), (-1.0, 1.0)),
    "mish": ((-87.0, 20.0), (-1.0, 1.0), (-1e-20, 1e-20)),
    "tan": ((-1e3, 1e3), (-1e-20, 1e-20)),
    "atan": ((-1e3, 1e3), (-3.0, 3.0), (-1e-20, 1e-20)),
    "asin": ((-1.0, 1.0), (0.999, 1.0), (-1e-20, 1e-20)),
    "acos": ((-1.0, 1.0), (0.999, 1.0), (-1.0, -0.999)),
    "sinh": ((-89.4, 89.4), (-1.0, 1.0), (-1e-20, 1e-20)),
    "cosh": ((-89.4, 89.4), (-1.0, 1.0)),
    "asinh": ((-1e30, 1e30), (-3.0, 3.0), (-1e-20, 1e-20)),
    "acosh": ((1.0, 1e30), (1.0, 3.0), (1.0, 1.001)),
    "atanh": ((-0.9999, 0.9999), (-1e-3, 1e-3), (-1e-20, 1e-20)),
    "log1p": ((-0.9999, 3.0), (3.0, 1e30), (-1e-3, 1e-3), (-1e-20, 1e-20)),
}


def source_of(name: str, dtype: str) -> Source:
    arguments = ("x", "y") if name in TWO_ARGUMENTS else ("x",)
    functions = Functions()
    value = functions.apply(name, arguments, FLOATS[dtype])
    text = f"""{HEADER}{functions.prelude()}

@triton.jit
def apply(first, second, result, count):
    place = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})
    x = tl.load(first + place, mask=place < count, other=1.0)
    y = tl.load(second + place, mask=place < count, other=1.0)
    tl.store(result + place, {value}, mask=place < count)
"""
    return Source("apply", text, (), 4, 1)


def applied(name: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    first, second = torch.from_numpy(x), torch.from_numpy(x if y is None else y)
    result = torch.empty_like(first)
    kernel = load(source_of(name, str(x.dtype)))
    with np.errstate(all="ignore"):
        kernel[(-(-x.size // BLOCK),)](first, second, result, x.size)
    return result.numpy()


def exact(name: str, *arguments: float) -> mpmath.mpf:
    x, *rest = map(mpmath.mpf, arguments)
    if name == "swish":
        return gated(x, x * rest[0])
    return mpmath.power(x, *rest) if rest else EXACT[name](x)


@cache
def arguments(name: str, dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    count = 3000 if dtype == "float32" else 300
    if name == "swish":
        slopes = np.exp2(rng.uniform(-10.0, 10.0, count))
        return (rng.uniform(-79.0, 20.0, count) / slopes).astype(dtype), slopes.astype(dtype)
    if name == "power":
        wide = np.exp(rng.uniform(-80.0, 80.0, count)), rng.uniform(-1.08, 1.08, count)
        near = rng.uniform(0.5, 2.0, count), rng.uniform(-120.0, 120.0, count)
        return tuple(np.concatenate(pair).astype(dtype) for pair in zip(wide, near, strict=True))
    return (np.concatenate([rng.uniform(*r, count) for r in RANGES[name]]).astype(dtype),)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MOST_ULP)
def test_error_is_within_its_bound(name: str, dtype: str) -> None:
    given = arguments(name, dtype)
    got = applied(name, *given)
    with mpmath.workprec(120):
        for value, *at in zip(got.tolist(), *(a.tolist() for a in given), strict=True):
            expected = exact(name, *at)
            ulp = float(np.spacing(np.abs(np.dtype(dtype).type(float(expected)))))
            assert abs(value - expected) <= MOST_ULP[name] * ulp, (name, at)


SPECIAL = SPECIALS | {"sqrt": [(NAN, NAN), (INF, INF), (-1.0, NAN), (0.0, 0.0), (4.0, 2.0)]}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_are_exact_in_value_and_sign(name: str, dtype: str) -> None:
    x, expected = np.array(SPECIAL[name], dtype).T.copy()
    got = applied(name, np.ascontiguousarray(x))
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_swish_of_special_values(dtype: str) -> None:
    x, slope, expected = np.array(SPECIALS_OF_SWISH, dtype)
    got = applied("swish", x, slope)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[2:]), np.signbit(expected[2:]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_of_special_values_are_those_of_c(dtype: str) -> None:
    info = np.finfo(dtype)
    values = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e30, -1e30]
    values += [info.smallest_subnormal, info.tiny / 3, 2.0**24 + 2, 2.0**23 - 1]
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid(values, values))
    got = applied("power", x, y)
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    np.testing.assert_allclose(got, expected, rtol=4 * info.eps, atol=info.smallest_subnormal)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_of_exp_that_are_not_normal_are_rounded_not_flushed(dtype: str) -> None:
    info = np.finfo(dtype)
    x = np.linspace(np.log(float(info.smallest_subnormal)), np.log(float(info.tiny)), 500)
    got = applied("exp", x.astype(dtype)).astype(np.float64)
    expected = np.exp(x.astype(dtype).astype(np.float64))
    assert np.abs(got - expected).max() <= 1.5 * float(info.smallest_subnormal)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tanh_keeps_the_last_bit_of_small_arguments(dtype: str) -> None:
    smallest = np.finfo(dtype).smallest_subnormal
    x = np.array([smallest, -smallest, 5 * smallest, 1e-9, -1e-9], dtype)
    np.testing.assert_array_equal(applied("tanh", x), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_to_even_and_leaves_whole_numbers_alone(dtype: str) -> None:
    rng = np.random.default_rng(1)
    powers = 2.0 ** np.arange(0, 60)
    x = np.concatenate([
        np.arange(-8.0, 8.0, 0.25), rng.uniform(-1e6, 1e6, 2000),
        powers, powers - 0.5, -powers - 1.0,
        [INF, -INF, NAN, 2.0**22 + 0.5, 2.0**51 + 0.5],
    ]).astype(dtype)  # fmt: skip
    for name, reference in (("rint", np.rint), ("floor", np.floor), ("ceil", np.ceil)):
        np.testing.assert_array_equal(applied(name, x), reference(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_extrema_propagate_nan_from_either_side(dtype: str) -> None:
    x = np.array([NAN, 1.0, NAN, 1.0, 2.0, -INF], dtype)
    y = np.array([1.0, NAN, NAN, 2.0, 1.0, INF], dtype)
    np.testing.assert_array_equal(applied("maximum", x, y), np.maximum(x, y))
    np.testing.assert_array_equal(applied("minimum", x, y), np.minimum(x, y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "reference"),
    [("divide", np.divide), ("sqrt", np.sqrt),
     ("absolute", np.abs), ("negative", np.negative)],
)  # fmt: skip
def test_what_is_exact(name: str, reference, dtype: str) -> None:  # type: ignore[no-untyped-def]
    x, y = np.random.default_rng(2).uniform(0.1, 10.0, (2, 1000)).astype(dtype)
    given = (x, y) if name in TWO_ARGUMENTS else (x,)
    np.testing.assert_array_equal(applied(name, *given), reference(*given))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "reference"),
    [("log", np.log), ("sin", np.sin), ("cos", np.cos), ("erf", np.vectorize(math.erf))],
)
def test_functions_of_the_vendor(name: str, reference, dtype: str) -> None:  # type: ignore[no-untyped-def]
    """That the text calls the right one; how exact it is on a GPU is the vendor's."""
    x = np.random.default_rng(3).uniform(0.1, 10.0, 1000).astype(dtype)
    got, expected = applied(name, x), reference(x.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=8 * np.finfo(dtype).eps, atol=1e-7)


def test_a_prelude_holds_what_is_called_and_no_more() -> None:
    assert prelude(["log", "sqrt", "maximum"]) == ""
    assert prelude(["tanh"]).count("@triton.jit") == 1
    erfc = prelude(["erfc"])
    assert erfc.index("def exp_sum_float32") < erfc.index("def erfc_float32")
    assert prelude(["erfc", "sigmoid", "erfc"]).count("def exp_sum_float32") == 1
    assert "float64" in prelude(["erfc"], "float64")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_needs_nothing_but_its_prelude(name: str) -> None:
    count = 2 if name in TWO_ARGUMENTS else 1
    text = prelude([name]) + call(name, *("x", "y")[:count])
    defined = {line.split("(")[0][4:] for line in text.splitlines() if line.startswith("def ")}
    called = {word.split("(")[0] for word in text.split() if "_float32(" in word}
    assert {c.split("-")[-1] for c in called if not c.startswith("def")} <= defined
