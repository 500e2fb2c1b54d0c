"""Activation functions, composed of arithmetic where the graph has no operator of that name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    return context.add_to(context.add("exp", context.at_most(x, 0)), -1)


def _relu(context: Context, node: NodeView, x: Value) -> Value:
    return context.at_least(x, 0)


def _leaky_relu(context: Context, node: NodeView, x: Value) -> Value:
    return _where_negative(context, x, context.scaled(x, node.number("alpha", 0.01)), x)


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
    below = context.scaled(_less_one(context, context.scaled(x, 1 / alpha)), alpha)
    return _where_negative(context, x, below, x)


def _thresholded_relu(context: Context, node: NodeView, x: Value) -> Value:
    above = context.add("less", context.scalar(node.number("alpha", 1.0), x.dtype), x)
    return context.add("where", above, x, context.scalar(0, x.dtype))


def _hard_sigmoid(context: Context, x: Value, alpha: float, beta: float) -> Value:
    return context.at_most(context.at_least(context.add_to(context.scaled(x, alpha), beta), 0), 1)


def _softplus(context: Context, x: Value) -> Value:
    """log(1 + e to the x), which does not overflow for a large x."""
    power = context.add("exp", context.add("negative", context.add("absolute", x)))
    return context.add("add", context.at_least(x, 0), context.add("log", context.add_to(power, 1)))


def _softsign(context: Context, node: NodeView, x: Value) -> Value:
    return context.add("divide", x, context.add_to(context.add("absolute", x), 1))


def _mish(context: Context, node: NodeView, x: Value) -> Value:
    return context.add("multiply", x, context.add("tanh", _softplus(context, x)))


def _swish(context: Context, node: NodeView, x: Value) -> Value:
    gate = context.add("sigmoid", context.scaled(x, node.number("alpha", 1.0)))
    return context.add("multiply", x, gate)


def _quick_gelu(context: Context, node: NodeView, x: Value) -> Value:
    gate = context.add("sigmoid", context.scaled(x, node.number("alpha", 1.702)))
    return context.add("multiply", x, gate)


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
            context, x, node.number("alpha", 0.2), node.number("beta", 0.5)
        )
    ),
    ("", "HardSwish"): _of_input(lambda context, node, x: context.add("hard_swish", x)),
    ("", "LeakyRelu"): _of_input(_leaky_relu),
    ("", "Mish"): _of_input(_mish),
    ("", "PRelu"): _of_input(_prelu),
    ("", "Reciprocal"): _of_input(_reciprocal),
    ("", "Relu"): _of_input(_relu),
    ("", "Selu"): _of_input(_selu),
    ("", "Softplus"): _of_input(lambda context, node, x: _softplus(context, x)),
    ("", "Softsign"): _of_input(_softsign),
    ("", "Swish"): _of_input(_swish),
    ("", "ThresholdedRelu"): _of_input(_thresholded_relu),
    (MICROSOFT, "BiasGelu"): _biased("gelu", required=True),
    (MICROSOFT, "FastGelu"): _biased("gelu_tanh"),
    (MICROSOFT, "Gelu"): _biased("gelu"),
    (MICROSOFT, "QuickGelu"): _of_input(_quick_gelu),
}
