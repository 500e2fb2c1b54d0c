"""Elementary functions in mpmath, at whatever precision it is set to, of every finite argument of a
floating format; and of those that are special."""

import math
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

INF, NAN = math.inf, math.nan
SPECIALS = {
    "exp": [(NAN, NAN), (INF, INF), (-INF, 0.0), (0.0, 1.0), (-0.0, 1.0), (1e30, INF), (-1e30, 0)],
    "log": [(NAN, NAN), (INF, INF), (-INF, NAN), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (1.0, 0)],
    "log1p": [(NAN, NAN), (INF, INF), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0), (-1.0, -INF)],
    "tanh": [(NAN, NAN), (INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (1e30, 1.0)],
    "sigmoid": [(NAN, NAN), (INF, 1.0), (-INF, 0.0), (0.0, 0.5), (-0.0, 0.5), (-1e30, 0.0)],
    "erf": [(NAN, NAN), (INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0)],
    "erfc": [(NAN, NAN), (INF, 0.0), (-INF, 2.0), (0.0, 1.0), (-0.0, 1.0), (1e30, 0.0)],
    "expm1": [(NAN, NAN), (INF, INF), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (1e30, INF)],
    "softplus": [(NAN, NAN), (INF, INF), (-INF, 0.0), (1e30, 1e30), (-1e30, 0.0)],
}
GATED = [(NAN, NAN), (INF, INF), (-INF, -0.0), (0.0, 0.0), (-0.0, -0.0), (9e9, 9e9), (-9e9, -0.0)]
ODD = [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0)]
SPECIALS |= {
    "sin": [*ODD, (INF, NAN), (-INF, NAN)],
    "cos": [(NAN, NAN), (INF, NAN), (-INF, NAN), (0.0, 1.0), (-0.0, 1.0)],
    "tan": [*ODD, (INF, NAN), (-INF, NAN)],
    "atan": [*ODD, (INF, math.pi / 2), (-INF, -math.pi / 2)],
    "asin": [*ODD, (1.0, math.pi / 2), (-1.0, -math.pi / 2), (2.0, NAN), (-INF, NAN)],
    "acos": [(NAN, NAN), (1.0, 0.0), (-1.0, math.pi), (2.0, NAN), (-2.0, NAN), (INF, NAN)],
    "sinh": [*ODD, (INF, INF), (-INF, -INF), (1e30, INF), (-1e30, -INF)],
    "cosh": [(NAN, NAN), (0.0, 1.0), (INF, INF), (-INF, INF), (1e30, INF)],
    "asinh": [*ODD, (INF, INF), (-INF, -INF)],
    "acosh": [(NAN, NAN), (INF, INF), (1.0, 0.0), (0.5, NAN), (-2.0, NAN), (-1e30, NAN),
              (-INF, NAN)],
    "atanh": [*ODD, (1.0, INF), (-1.0, -INF), (2.0, NAN), (-1e30, NAN), (INF, NAN)],
    "gelu": GATED, "gelu_tanh": GATED, "silu": GATED, "mish": GATED, "hard_swish": GATED,
}  # fmt: skip
"""Arguments and results, those of C's Annex F."""
SPECIALS_OF_SWISH = (
    (NAN, 1.0, INF, -INF, INF, -INF, 0.0, -0.0, -1e30),
    (1.0, NAN, 2.0, 2.0, -2.0, -2.0, 2.0, 2.0, 2.0),
    (NAN, NAN, INF, -0.0, 0.0, -INF, 0.0, -0.0, -0.0),
)
"""Arguments, slopes and results."""
