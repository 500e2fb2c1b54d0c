"""Activation functions."""

from __future__ import annotations

import math

from ftuner.core.dim import quotient
from ftuner.core.dtype import BOOL, FLOAT32, DType
from ftuner.frontends.torch.pointwise import clamp
from ftuner.frontends.torch.promotion import valued
from ftuner.frontends.torch.registry import aten
from ftuner.frontends.torch.views import axes_of, axis_of
from ftuner.graph.algebra import apply, expm1, sigmoid, where
from ftuner.graph.checks import malformed, unsupported
from ftuner.graph.ir import Value

for _name in ("silu", "mish"):
    aten(_name)(lambda x, op=_name: apply(op, x))
aten("hardswish")(lambda x: apply("hard_swish", x))
aten("relu")(lambda x: x.at_least(0))
aten("relu6")(lambda x: x.at_least(0).at_most(6))
aten("hardsigmoid")(lambda x: ((x + 3) * (1 / 6)).at_least(0).at_most(1))
aten("log_sigmoid")(lambda x: -apply("softplus", -x))
aten("log_sigmoid_forward")(lambda x: [-apply("softplus", -x), None])
aten("threshold")(lambda x, threshold, value: where(x <= threshold, valued(value, x.dtype), x))
aten("gelu")(
    lambda x, approximate="none": apply("gelu_tanh" if approximate == "tanh" else "gelu", x)
)
aten("hardtanh")(
    lambda x, min_val=-1, max_val=1: clamp(x, valued(min_val, x.dtype), valued(max_val, x.dtype))
)
aten("hardshrink")(lambda x, lambd=0.5: where((x >= -lambd) & (x <= lambd), 0, x))
aten("softshrink")(
    lambda x, lambd=0.5: where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0))
)


@aten("leaky_relu")
def _leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    return where(x < 0, x * negative_slope, x)


@aten("prelu", "_prelu_kernel")
def _prelu(x: Value, weight: Value) -> Value:
    if weight.rank == 1 and x.rank != 1:
        weight = weight.reshape((*weight.shape, *[1] * (x.rank - 2)) if x.rank else ())
    return where(x < 0, x * weight, x)


@aten("elu")
def _elu(x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    return where(x < 0, expm1(x.at_most(0) * input_scale) * (alpha * scale), x * scale)


aten("selu")(
    lambda x: _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)
)
aten("celu")(lambda x, alpha=1.0: _elu(x, alpha, 1, 1 / alpha))


@aten("softplus")
def _softplus(x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = x * beta
    return where(scaled > threshold, x, apply("softplus", scaled) * (1 / beta))


@aten("glu")
def _glu(x: Value, dim: int = -1) -> Value:
    axis = axis_of(dim, x.rank)
    half = quotient(x.shape[axis], 2)
    first, second = x.pieces(axis, (half, half))
    return first * sigmoid(second)


@aten("softmax.int", "_softmax", log=False)
@aten("log_softmax.int", "_log_softmax", log=True)
def _softmax(
    x: Value, dim: int, dtype: DType | None = None, half_to_float: bool = False, *, log: bool
) -> Value:
    x = x.cast(FLOAT32 if half_to_float else dtype or x.dtype)
    if x.dtype.kind != "float":
        raise malformed(f"softmax of {x.type}")
    if not x.rank:
        return _softmax(x.reshape((1,)), 0, log=log).reshape(())
    return apply("softmax", x, axis=axis_of(dim, x.rank), log=log)


@aten("_safe_softmax")
def _safe_softmax(x: Value, dim: int, dtype: DType | None = None) -> Value:
    """Zeros where all elements are minus infinity."""
    x = x if dtype is None else x.cast(dtype)
    some = x.reduce("maximum", axes_of(dim, x.rank)) > -math.inf
    return where(some, _softmax(x, dim, log=False), 0)


@aten("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(x: Value, p: float, train: bool) -> Value:
    if train and p:
        raise unsupported("dropout while training; call module.eval()")
    return x


aten("native_dropout")(
    lambda x, p, train: [_dropout(x, p, bool(train)), valued(True, BOOL).broadcast(x.shape)]
)


@aten("rrelu")
def _rrelu(
    x: Value, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False
) -> Value:
    if training:
        raise unsupported("rrelu while training; call module.eval()")
    if lower > upper:
        raise malformed(f"slopes from {lower} to {upper}")
    return _leaky_relu(x, (lower + upper) / 2)
