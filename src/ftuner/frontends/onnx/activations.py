"""Activation functions, composed of arithmetic where the graph has no operator of that name.

Each is as accurate as the functions that it is composed of: within 4 ulp for every argument.
Attributes are of float32, and so are their defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Literal

import numpy as np

from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.core.functions import MAX_SLOPE, MIN_SLOPE
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, expm1, isinf, scalar, sigmoid, sign, where
from ftuner.graph.checks import malformed
from ftuner.graph.compositions.windows import with_bias
from ftuner.graph.ir import Value


@onnx("Relu")
def _relu(x: Value) -> Value:
    return x.at_least(0)


@onnx("LeakyRelu")
def leaky_relu(x: Value, alpha: float = 0.00999999977648258209228515625) -> Value:
    return where(x < 0, x * alpha, x)


@onnx("PRelu")
def _prelu(x: Value, slope: Value) -> Value:
    return where(x < 0, x * slope, x)


@onnx("Elu")
def _elu(x: Value, alpha: float = 1.0) -> Value:
    return where(x < 0, expm1(x.at_most(0)) * alpha, x)


@onnx("Selu")
def _selu(
    x: Value, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Value:
    return _elu(x, alpha) * gamma


@onnx("Celu")
def _celu(x: Value, alpha: float = 1.0) -> Value:
    if alpha == 0:
        raise malformed("alpha is 0")
    argument = x if alpha == 1 else x / alpha
    return where(x < 0, expm1(argument.at_most(0)) * alpha, x)


@onnx("ThresholdedRelu")
def _thresholded_relu(x: Value, alpha: float = 1.0) -> Value:
    return where(x > alpha, x, 0)


@onnx("Shrink")
def _shrink(x: Value, lambd: float = 0.5, bias: float = 0.0) -> Value:
    """x drawn towards zero by the bias, and zero within lambd of it. Integers are shrunk in
    float64."""
    wide = x.computed()
    return where(wide < -lambd, wide + bias, where(wide > lambd, wide + -bias, 0)).cast(x.dtype)


@onnx("HardSigmoid")
def _hard_sigmoid(
    x: Value, alpha: float = 0.20000000298023223876953125, beta: float = 0.5
) -> Value:
    return _line(x, alpha, beta).at_least(0).at_most(1)


def _line(x: Value, alpha: float, beta: float) -> Value:
    """alpha x + beta. Where that is close to zero a rounded product is too coarse: it is alpha
    (x + beta / alpha) with the quotient as a sum of two numbers, the first of which is exact."""
    if alpha and x.dtype in (FLOAT32, FLOAT64):
        exact = Fraction(beta) / Fraction(alpha)
        with np.errstate(over="ignore"):
            first = float(np.dtype(x.dtype.name).type(float(exact)))
        if math.isfinite(first):
            rest = float(exact - Fraction(first))
            shifted = x + first
            return (shifted + rest if rest else shifted) * alpha
    return x * alpha + beta


@onnx("Softsign")
def _softsign(x: Value) -> Value:
    # Infinity over infinity is NaN.
    return where(isinf(x), sign(x), x / (abs(x) + 1))


@onnx("Swish")
def _swish(x: Value, alpha: float = 1.0) -> Value:
    """x sigmoid(alpha x)."""
    if alpha == 1:
        return apply("silu", x)
    if MIN_SLOPE <= abs(alpha) <= MAX_SLOPE:
        return apply("swish", x, scalar(alpha, x.dtype))
    return x * sigmoid(x * alpha)


@onnx("QuickGelu", domain=MICROSOFT)
def _quick_gelu(x: Value, alpha: float = 1.7020000219345092773437) -> Value:
    return _swish(x, alpha)


@onnx("Reciprocal")
def _reciprocal(x: Value) -> Value:
    return 1 / x


@onnx("Gelu")
def _gelu(x: Value, approximate: Literal["none", "tanh"] = "none") -> Value:
    return apply("gelu" if approximate == "none" else "gelu_tanh", x)


@onnx("BiasGelu", domain=MICROSOFT)
def _bias_gelu(x: Value, bias: Value) -> Value:
    return apply("gelu", with_bias(x, bias))


@onnx("FastGelu", domain=MICROSOFT)
def _fast_gelu(x: Value, bias: Value | None) -> Value:
    return apply("gelu_tanh", with_bias(x, bias))


_FUSED: Mapping[str, tuple[Callable[..., Value], tuple[str, ...]]] = {
    "Relu": (_relu, ()), "Softsign": (_softsign, ()),
    "HardSwish": (partial(apply, "hard_swish"), ()),
    **{name: (partial(apply, name.lower()), ()) for name in ("Sigmoid", "Softplus", "Tanh")},
    "Elu": (_elu, ("alpha",)), "LeakyRelu": (leaky_relu, ("alpha",)),
    "ThresholdedRelu": (_thresholded_relu, ("alpha",)), "Selu": (_selu, ("alpha", "gamma")),
    "HardSigmoid": (_hard_sigmoid, ("alpha", "beta")),
    "Clip": (lambda x, low, high: x.at_least(low).at_most(high), ("min", "max")),
}  # fmt: skip
"""The activations of fused operators, and the parameters of each, all of which onnxruntime writes.
"""


def fused_activation(name: str, x: Value, parameters: Mapping[str, float]) -> Value:
    """The activation that a fused operator of onnxruntime names, if it does."""
    if not name:
        return x
    function, needed = _FUSED.get(name, (None, ()))
    if function is None or not parameters.keys() >= set(needed):
        raise malformed(
            f"activation {name!r} with {len(parameters)} parameters; there are "
            + ", ".join(f"{known} with {len(names)}" for known, (_, names) in _FUSED.items())
        )
    return function(x, *(parameters[key] for key in needed))
