"""Elementary functions in mpmath, at whatever precision it is set to, of every finite argument of a
floating format."""

from collections.abc import Callable, Mapping

import mpmath

FAR = 10000
"""Beyond, exponentials are zero or infinite in every format, and mpmath would take long."""


def gated(x: mpmath.mpf, v: mpmath.mpf) -> mpmath.mpf:
    """x sigmoid(v)."""
    return x / (1 + mpmath.exp(-max(v, mpmath.mpf(-FAR)))) if x else x


def _expm1(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.expm1(min(x, mpmath.mpf(FAR)))


def _erfc(x: mpmath.mpf) -> mpmath.mpf:
    """mpmath's own fails on huge arguments; beyond a hundred nothing changes."""
    return mpmath.erfc(max(min(x, mpmath.mpf(100)), mpmath.mpf(-100)))


def _gelu(x: mpmath.mpf) -> mpmath.mpf:
    return x * _erfc(-x / mpmath.sqrt(2)) / 2


def _gelu_tanh(x: mpmath.mpf) -> mpmath.mpf:
    return gated(x, 2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))


def _softplus(x: mpmath.mpf) -> mpmath.mpf:
    return max(x, mpmath.mpf(0)) + mpmath.log1p(mpmath.exp(-abs(x)))


def _mish(x: mpmath.mpf) -> mpmath.mpf:
    power = mpmath.exp(max(min(x, mpmath.mpf(FAR)), mpmath.mpf(-FAR)))
    w = power * (power + 2)
    return x * (w / (w + 2))


def _hard_swish(x: mpmath.mpf) -> mpmath.mpf:
    return x * min(max(x + 3, mpmath.mpf(0)), mpmath.mpf(6)) / 6


_OF_MPMATH = "exp log log1p tanh erf sin cos tan atan asin acos sinh cosh asinh acosh atanh"
EXACT: Mapping[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    **{name: getattr(mpmath, name) for name in _OF_MPMATH.split()},
    "expm1": _expm1,
    "sigmoid": lambda x: gated(mpmath.mpf(1), x),
    "erfc": _erfc,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: gated(x, x),
    "softplus": _softplus,
    "mish": _mish,
    "hard_swish": _hard_swish,
}
