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
from ftuner.graph.ir import Value


def _of_input(function: Callable[[Context, NodeView, Value], Value]) -> Importer:
    """A function of one tensor."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        return [function(context, node, node.input(0))]

    return convert


def _where_negative(context: Context, x: Value, negative: Value, other: Value) -> Value:
    """`negative` where x is, otherwise `other`."""
    return context.add("where", context.add("less", x, context.scalar(0, x.dtype)), negative, other)


def _less_one(context: Context, x: Value) -> Value:
    """e to the x, less one, where x is negative; zero elsewhere."""
    return context.add("expm1", context.at_most(x, 0))


def _relu(context: Context, node: NodeView, x: Value) -> Value:
    return context.at_least(x, 0)


def _leaky_relu(context: Context, node: NodeView, x: Value) -> Value:
    return _where_negative(
        context, x, context.scaled(x, node.number("alpha", 0.00999999977648258209228515625)), x
    )


def _prelu(context: Context, node: NodeView, x: Value) -> Value:
    return _where_negative(context, x, context.add("multiply", x, node.input(1)), x)


def _elu(context: Context, node: NodeView, x: Value) -> Value:
    below = context.scaled(_less_one(context, x), node.number("alpha", 1.0))
    return _where_negative(context, x, below, x)


def _selu(context: Context, node: NodeView, x: Value) -> Value:
    alpha = node.number("alpha", 1.67326319217681884765625)
    gamma = node.number("gamma", 1.05070102214813232421875)
    below = context.scaled(_less_one(context, x), alpha)
    return context.scaled(_where_negative(context, x, below, x), gamma)


def _celu(context: Context, node: NodeView, x: Value) -> Value:
    alpha = node.number("alpha", 1.0)
    if alpha == 0:
        raise context.malformed("alpha is 0")
    argument = x if alpha == 1 else context.add("divide", x, context.scalar(alpha, x.dtype))
    below = context.scaled(_less_one(context, argument), alpha)
    return _where_negative(context, x, below, x)


def _thresholded_relu(context: Context, node: NodeView, x: Value) -> Value:
    above = context.add("less", context.scalar(node.number("alpha", 1.0), x.dtype), x)
    return context.add("where", above, x, context.scalar(0, x.dtype))


def _shrink(context: Context, node: NodeView, x: Value) -> Value:
    """x drawn towards zero by the bias, and zero within lambd of it. Integers are shrunk in
    float64."""
    wide = x if x.dtype.kind == "float" else context.cast(x, FLOAT64)
    limit, bias = node.number("lambd", 0.5), node.number("bias", 0.0)
    below = context.add("less", wide, context.scalar(-limit, wide.dtype))
    above = context.add("less", context.scalar(limit, wide.dtype), wide)
    zero = context.scalar(0, wide.dtype)
    shrunk = context.add("where", above, context.add_to(wide, -bias), zero)
    shrunk = context.add("where", below, context.add_to(wide, bias), shrunk)
    return context.cast(shrunk, x.dtype)


def _hard_sigmoid(context: Context, x: Value, alpha: float, beta: float) -> Value:
    return context.at_most(context.at_least(_line(context, x, alpha, beta), 0), 1)


def _line(context: Context, x: Value, alpha: float, beta: float) -> Value:
    """alpha x + beta. Where that is close to zero a rounded product is too coarse: it is alpha
    (x + beta / alpha) with the quotient as a sum of two numbers, the first of which is exact."""
    if alpha and x.dtype in (FLOAT32, FLOAT64):
        exact = Fraction(beta) / Fraction(alpha)
        with np.errstate(over="ignore"):
            first = float(np.dtype(x.dtype.name).type(float(exact)))
        if math.isfinite(first):
            rest = float(exact - Fraction(first))
            shifted = context.add_to(x, first)
            return context.scaled(context.add_to(shifted, rest) if rest else shifted, alpha)
    return context.add_to(context.scaled(x, alpha), beta)


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
        raise context.malformed(
            f"activation {name!r} with {len(parameters)} parameters; there are "
            + ", ".join(f"{known} with {len(names)}" for known, names in _FUSED.items())
        )
    if name == "Clip":
        return context.at_most(context.at_least(x, parameters["min"]), parameters["max"])
    if ("", name) not in ACTIVATIONS:
        return context.add("hard_swish" if name == "HardSwish" else name.lower(), x)
    record = replace(node.record, attributes={key: parameters[key] for key in needed})
    (result,) = ACTIVATIONS["", name](context, replace(node, record=record, inputs=(x,)))
    assert isinstance(result, Value)
    return result


def _softsign(context: Context, node: NodeView, x: Value) -> Value:
    quotient = context.add("divide", x, context.add_to(context.add("absolute", x), 1))
    # Infinity over infinity is NaN.
    return context.add("where", context.add("isinf", x), context.add("sign", x), quotient)


def _swish(context: Context, x: Value, alpha: float) -> Value:
    """x sigmoid(alpha x)."""
    if alpha == 1:
        return context.add("silu", x)
    if MIN_SLOPE <= abs(alpha) <= MAX_SLOPE:
        return context.add("swish", x, context.scalar(alpha, x.dtype))
    return context.add("multiply", x, context.add("sigmoid", context.scaled(x, alpha)))


def _reciprocal(context: Context, node: NodeView, x: Value) -> Value:
    return context.add("divide", context.scalar(1, x.dtype), x)


def _gelu(context: Context, node: NodeView, x: Value) -> Value:
    kind = node.text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise context.malformed(f"approximate is {kind!r}; expected 'none' or 'tanh'")
    return context.add("gelu" if kind == "none" else "gelu_tanh", x)


def _biased(op: str, required: bool = False) -> Importer:
    """A function of the sum of a tensor and, if there is one, its bias: one for each column."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x, bias = node.input(0), node.input(1) if required else node.optional(1)
        if bias is None:
            return [context.add(op, x)]
        what = f"a bias {bias.type} for {x.type}"
        if bias.rank != 1 or not x.rank:
            raise context.malformed(what)
        context.builder.require(bias.shape[0], x.shape[-1], what)
        return [context.add(op, context.add("add", x, bias))]

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
