"""NumPy references of scalar functions: what code generators are held to.

Each elementary function that NumPy lacks takes floating arrays of any shape and dtype, computes in
float64, and gives the dtype of its arguments: float32 correctly rounded but for rare ties, float64
within 4 ulp. A function of an infinity is the limit there. The error of an argument of `exp` is a
relative error of the result, so arguments are carried as sums of two numbers where they are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Function = Callable[..., Any]

_ROOT, _ROOT_LOW = math.sqrt(0.5), -4.833646656726457e-17
"""sqrt(1/2) and what rounding took from it."""
_LINE = 1.5957691216057308, -9.96930880911092e-17
_CUBE = 0.07135481627260025, -6.175149918155315e-19
"""2 sqrt(2 / pi) and 0.044715 times that: the sigmoid form of gelu with tanh, as Hendrycks and
Gimpel (arXiv 1606.08415) approximate it: 1 + tanh u is 2 sigmoid(2u)."""
_SPLITTER = 2.0**27 + 1.0
MANTISSAS = 512
"""Mantissas that NumPy multiplies at once in float64: the product of 1,000 is a normal number."""
MAX_EXPONENT = 1 << 14
"""Exponents of results are clamped to it before `ldexp`, whose argument is a C int. Derived: all
results of float64 and narrower types overflow or underflow by far."""


def round_float16(x: Array) -> Array:
    """Floats rounded to float16, by way of float32; ties to even."""
    x = np.asarray(x)
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(np.float32).astype(np.float16), x.dtype)


def round_bfloat16(x: Array) -> Array:
    """Floats rounded to bfloat16, by way of float32; ties to even."""
    x = np.asarray(x)
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(x, np.float32)
    bits = single.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    # NaN is left out: the carry of rounding could turn it into an infinity or zero.
    kept = (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)
    found = np.where(np.isnan(single), np.float32(np.nan), kept.view(np.float32))
    return np.asarray(found.reshape(x.shape), x.dtype)


def _in_float64(function: Callable[..., Array]) -> Function:
    def apply(*arguments: Any) -> Any:
        given = [np.asarray(x) for x in arguments]
        dtype = np.result_type(*given)
        with np.errstate(all="ignore"):
            return np.asarray(function(*(x.astype(np.float64) for x in given))).astype(dtype)

    apply.__name__, apply.__doc__ = function.__name__, function.__doc__
    return apply


@_in_float64
def hard_swish(x: Array) -> Array:
    """x clip(x + 3, 0, 6) / 6; zero at minus infinity."""
    above = np.maximum(x, -3.0)
    return np.asarray(above * (np.minimum(above + 3.0, 6.0) * (1.0 / 6.0)))


tan, atan, asin, acos = map(_in_float64, (np.tan, np.arctan, np.arcsin, np.arccos))
sinh, cosh = map(_in_float64, (np.sinh, np.cosh))
asinh, acosh, atanh = map(_in_float64, (np.arcsinh, np.arccosh, np.arctanh))
"""NumPy's own, of float32 too rounded once."""

_ERF, _ERFC = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


@_in_float64
def erf(x: Array) -> Array:
    return np.asarray(_ERF(x), np.float64)


@_in_float64
def erfc(x: Array) -> Array:
    """1 - erf(x)."""
    return np.asarray(_ERFC(x), np.float64)


@_in_float64
def sigmoid(x: Array) -> Array:
    """1 / (1 + e**-x)."""
    z = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, z) / (1.0 + z)


@_in_float64
def softplus(x: Array) -> Array:
    """log(1 + e**x)."""
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


@_in_float64
def mish(x: Array) -> Array:
    """x tanh(softplus(x)), which is x w / (w + 2) with w = e**x (e**x + 2)."""
    power = np.exp(np.clip(x, -40.0, 40.0))
    w = power * (power + 2.0)
    # Further down w / (w + 2) is e**x.
    below = _times_power(x, 1.0, np.minimum(x, 0.0))
    return np.where(x < -40.0, below, x * (w / (w + 2.0)))


@_in_float64
def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return _gated(x, x, np.zeros_like(x))


@_in_float64
def swish(x: Array, slope: Array) -> Array:
    """x sigmoid(slope x)."""
    return _gated(x, *_product(x, slope))


@_in_float64
def gelu(x: Array) -> Array:
    """x Phi(x) = x erfc(-x / sqrt 2) / 2, where 1 + erf would cancel for negative x."""
    within = np.clip(x, -40.0, 40.0)
    y, low = _product(within, np.asarray(-_ROOT))
    low -= within * _ROOT_LOW
    # erfc(y + low) by its derivative.
    near = np.minimum(y, 26.0)
    tail = np.asarray(_ERFC(near), np.float64)
    tail -= low * (2.0 / math.sqrt(math.pi)) * np.exp(-(near**2))
    return np.where(y < 26.0, x * (0.5 * tail), _far_gelu(within, np.maximum(y, 26.0), low))


def _far_gelu(x: Array, y: Array, low: Array) -> Array:
    """x erfc(y + low) / 2 for y >= 26 by the asymptotic series, whose sixth term is below 2^-45."""
    z = 0.5 / (y * y)
    series = np.ones_like(y)
    for odd in (11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = 1.0 - odd * z * series
    square, square_low = _product(y, y)
    rest = 1.0 + np.expm1(-(square_low + 2.0 * y * low))
    return _times_power(x, 0.5 * series * rest / (y * math.sqrt(math.pi)), -square)


@_in_float64
def gelu_tanh(x: Array) -> Array:
    """x sigmoid(v) with v = 2 sqrt(2 / pi) (x + 0.044715 x^3)."""
    within = np.clip(x, -40.0, 40.0)
    square, square_low = _product(within, within)
    cube, cube_low = _product(square, np.asarray(_CUBE[0]))
    total = cube + _LINE[0]
    # Knuth's sum: what rounding takes from it, whichever of the two is larger.
    shifted = total - cube
    low = (cube - (total - shifted)) + (_LINE[0] - shifted) + cube_low
    low += _LINE[1] + square * _CUBE[1] + square_low * _CUBE[0]
    v, v_low = _product(within, total)
    return _gated(x, v, v_low + within * low)


def _gated(x: Array, v: Array, low: Array) -> Array:
    """x sigmoid(v + low), `low` being small."""
    low = np.where(np.abs(v) < 800.0, low, 0.0)
    low = np.where(v >= 0, -low, low)
    magnitude = -np.abs(v)
    denominator = 1.0 + np.exp(magnitude + low)
    below = _times_power(x, (1.0 + np.expm1(low)) / denominator, np.maximum(magnitude, -2000.0))
    return np.where(v >= 0, x / denominator, below)


def _times_power(x: Array, factor: Array | float, exponent: Array) -> Array:
    """x times a factor times e**exponent <= 1, a subnormal result rounded once: a zero for an
    infinite x. The factor is not far from one."""
    most = np.finfo(np.float64).max
    halved = np.exp(np.maximum(exponent, -1000.0) * 0.5)
    vanishing = np.where(exponent < -1000.0, 0.0, halved)
    return np.asarray(np.clip(x, -most, most) * halved * factor * vanishing)


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """x y, rounded, and its rounding error (Dekker), zero where that is not finite."""
    high = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    low = ((a * c - high) + a * d + b * c) + b * d
    return np.asarray(high), np.where(np.isfinite(low), low, 0.0)


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * _SPLITTER
    head = scaled - (scaled - x)
    return head, x - head


def truncated_quotient(x: Any, y: Any) -> Any:
    """Returns quotients; those of integers are rounded towards zero, and zero where y is."""
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype.kind == "f":
        return np.divide(x, y)
    safe = np.where(y == 0, 1, y).astype(y.dtype)
    quotient = np.floor_divide(x, safe)
    if x.dtype.kind == "i":
        # NumPy rounds down.
        inexact = quotient * safe != x
        quotient = quotient + (inexact & ((x < 0) != (safe < 0)))
    return np.where(y == 0, 0, quotient).astype(x.dtype)


def remainder(x: Any, y: Any) -> Any:
    """Returns the remainder with the sign of y; zero where an integer y is."""
    return _remainder(np.mod, x, y)


def fmod(x: Any, y: Any) -> Any:
    """Returns the remainder with the sign of x; zero where an integer y is."""
    return _remainder(np.fmod, x, y)


def _remainder(function: Callable[..., Any], x: Any, y: Any) -> Any:
    y = np.asarray(y)
    if y.dtype.kind == "f":
        return function(x, y)
    safe = np.where(y == 0, 1, y).astype(y.dtype)
    return np.where(y == 0, 0, function(x, safe)).astype(y.dtype)


def sign(x: Any) -> Any:
    """Returns signs; zeros keep theirs, which NumPy's lose."""
    return np.where(np.equal(x, 0), x, np.sign(x))


def power(x: Any, y: Any) -> Any:
    """Returns powers; those of integers are rounded towards zero, and zero where x is."""
    x, y = np.asarray(x), np.asarray(y)
    if y.dtype.kind != "i":
        return np.power(x, y)
    negative = y < 0
    power = np.power(x, np.where(negative, y & 1, y))
    return np.where(negative & (x != 1) & (x != -1), 0, power).astype(x.dtype)


def product_of_floats(x: Any, axes: Sequence[int]) -> Any:
    """The product over some axes of a NumPy array of floats, in its dtype: what `np.prod` gives
    where nothing on the way overflows or underflows, rounded less often."""
    x = np.asarray(x)
    dtype = x.dtype
    kept = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    count = math.prod(x.shape[a] for a in axes)
    if not count:
        return np.ones(kept, dtype)
    x = np.moveaxis(x.astype(np.float64), axes, range(-len(axes), 0)).reshape((*kept, count))
    mantissas, exponents = np.frexp(x)
    # The exponent of what is not finite is unspecified.
    total = np.where(np.isfinite(mantissas), exponents, 0).sum(-1, dtype=np.int64)
    while mantissas.shape[-1] > 1:
        parts = -(-mantissas.shape[-1] // MANTISSAS)
        starts = np.arange(parts) * MANTISSAS
        mantissas, exponents = np.frexp(np.multiply.reduceat(mantissas, starts, -1))
        total += np.where(np.isfinite(mantissas), exponents, 0).sum(-1, dtype=np.int64)
    total = np.clip(total, -MAX_EXPONENT, MAX_EXPONENT).astype(np.int32)
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(mantissas[..., 0], total).astype(dtype)


def named(name: str) -> Function:
    """The function of this name, of this module or else of NumPy."""
    found: Function = globals().get(name) or getattr(np, name)
    return found
