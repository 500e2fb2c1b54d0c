"""Activation functions, composed of arithmetic where the graph has no operator of that name.

Each is as accurate as the functions that it is composed of: within 4 ulp for every argument.
Attributes are of float32, and so are their defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.core.functions import MAX_SLOPE, MIN_SLOPE
from ftuner.frontends.onnx.context import Context, Importer, NodeView, Table
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.algebra import (
    apply,
    expm1,
    isinf,
    malformed,
    require,
    scalar,
    sigmoid,
    sign,
    where,
)
from ftuner.graph.ir import Value


def _of_input(function: Callable[[Context, NodeView, Value], Value]) -> Importer:
    """A function of one tensor."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        return [function(context, node, node.input(0))]

    return convert


def _where_negative(context: Context, x: Value, negative: Value, other: Value) -> Value:
    """`negative` where x is, otherwise `other`."""
    return where(x < 0, negative, other)


def _less_one(context: Context, x: Value) -> Value:
    """e to the x, less one, where x is negative; zero elsewhere."""
    return expm1(x.at_most(0))


def _relu(context: Context, node: NodeView, x: Value) -> Value:
    return x.at_least(0)


def _leaky_relu(context: Context, node: NodeView, x: Value) -> Value:
    return _where_negative(context, x, x * node.number("alpha", 0.00999999977648258209228515625), x)


def _prelu(context: Context, node: NodeView, x: Value) -> Value:
    return _where_negative(context, x, x * node.input(1), x)


def _elu(context: Context, node: NodeView, x: Value) -> Value:
    below = _less_one(context, x) * node.number("alpha", 1.0)
    return _where_negative(context, x, below, x)


def _selu(context: Context, node: NodeView, x: Value) -> Value:
    alpha = node.number("alpha", 1.67326319217681884765625)
    gamma = node.number("gamma", 1.05070102214813232421875)
    below = _less_one(context, x) * alpha
    return _where_negative(context, x, below, x) * gamma


def _celu(context: Context, node: NodeView, x: Value) -> Value:
    alpha = node.number("alpha", 1.0)
    if alpha == 0:
        raise malformed("alpha is 0")
    argument = x if alpha == 1 else x / alpha
    below = _less_one(context, argument) * alpha
    return _where_negative(context, x, below, x)


def _thresholded_relu(context: Context, node: NodeView, x: Value) -> Value:
    above = node.number("alpha", 1.0) < x
    return where(above, x, 0)


def _shrink(context: Context, node: NodeView, x: Value) -> Value:
    """x drawn towards zero by the bias, and zero within lambd of it. Integers are shrunk in
    float64."""
    wide = x if x.dtype.kind == "float" else x.cast(FLOAT64)
    limit, bias = node.number("lambd", 0.5), node.number("bias", 0.0)
    below = wide < -limit
    above = limit < wide
    zero = scalar(0, wide.dtype)
    shrunk = where(above, wide + -bias, zero)
    shrunk = where(below, wide + bias, shrunk)
    return shrunk.cast(x.dtype)


def _hard_sigmoid(context: Context, x: Value, alpha: float, beta: float) -> Value:
    return _line(context, x, alpha, beta).at_least(0).at_most(1)


def _line(context: Context, x: Value, alpha: float, beta: float) -> Value:
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


_FUSED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("HardSwish", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    "Clip": ("min", "max"), "HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma"),
}  # fmt: skip
"""The activations of fused operators, and the parameters of each, all of which onnxruntime writes.
"""


def fused_activation(
    context: Context, node: NodeView, x: Value, parameters: Mapping[str, float]
) -> Value:
    """The activation that a fused operator of onnxruntime names, if it does."""
    name = node.text("activation", "")
    if not name:
        return x
    needed = _FUSED.get(name)
    if needed is None or not parameters.keys() >= set(needed):
        raise malformed(
            f"activation {name!r} with {len(parameters)} parameters; there are "
            + ", ".join(f"{known} with {len(names)}" for known, names in _FUSED.items())
        )
    if name == "Clip":
        return x.at_least(parameters["min"]).at_most(parameters["max"])
    if ("", name) not in ACTIVATIONS:
        return apply("hard_swish" if name == "HardSwish" else name.lower(), x)
    record = replace(node.record, attributes={key: parameters[key] for key in needed})
    (result,) = ACTIVATIONS["", name](context, replace(node, record=record, inputs=(x,)))
    assert isinstance(result, Value)
    return result


def _softsign(context: Context, node: NodeView, x: Value) -> Value:
    quotient = x / (abs(x) + 1)
    # Infinity over infinity is NaN.
    return where(isinf(x), sign(x), quotient)


def _swish(context: Context, x: Value, alpha: float) -> Value:
    """x sigmoid(alpha x)."""
    if alpha == 1:
        return apply("silu", x)
    if MIN_SLOPE <= abs(alpha) <= MAX_SLOPE:
        return apply("swish", x, scalar(alpha, x.dtype))
    return x * sigmoid(x * alpha)


def _reciprocal(context: Context, node: NodeView, x: Value) -> Value:
    return 1 / x


def _gelu(context: Context, node: NodeView, x: Value) -> Value:
    kind = node.text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise malformed(f"approximate is {kind!r}; expected 'none' or 'tanh'")
    return apply("gelu" if kind == "none" else "gelu_tanh", x)


def _biased(op: str, required: bool = False) -> Importer:
    """A function of the sum of a tensor and, if there is one, its bias: one for each column."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x, bias = node.input(0), node.input(1) if required else node.optional(1)
        if bias is None:
            return [apply(op, x)]
        what = f"a bias {bias.type} for {x.type}"
        if bias.rank != 1 or not x.rank:
            raise malformed(what)
        require(bias.shape[0], x.shape[-1], what)
        return [apply(op, x + bias)]

    return convert


ACTIVATIONS: Table = {
    ("", "Celu"): _of_input(_celu),
    ("", "Elu"): _of_input(_elu),
    ("", "Gelu"): _of_input(_gelu),
    ("", "HardSigmoid"): _of_input(
        lambda context, node, x: _hard_sigmoid(
            context, x, node.number("alpha", 0.20000000298023223876953125), node.number("beta", 0.5)
        )
    ),
    ("", "LeakyRelu"): _of_input(_leaky_relu),
    ("", "PRelu"): _of_input(_prelu),
    ("", "Reciprocal"): _of_input(_reciprocal),
    ("", "Relu"): _of_input(_relu),
    ("", "Selu"): _of_input(_selu),
    ("", "Shrink"): _of_input(_shrink),
    ("", "Softsign"): _of_input(_softsign),
    ("", "Swish"): _of_input(
        lambda context, node, x: _swish(context, x, node.number("alpha", 1.0))
    ),
    ("", "ThresholdedRelu"): _of_input(_thresholded_relu),
    (MICROSOFT, "BiasGelu"): _biased("gelu", required=True),
    (MICROSOFT, "FastGelu"): _biased("gelu_tanh"),
    (MICROSOFT, "Gelu"): _biased("gelu"),
    (MICROSOFT, "QuickGelu"): _of_input(
        lambda context, node, x: _swish(context, x, node.number("alpha", 1.7020000219345092773437))
    ),
}
