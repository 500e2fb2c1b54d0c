"""onnxruntime's operators that take and give quantised integers: each is an operator on floats
between a dequantization and a quantization."""

from __future__ import annotations

from dataclasses import replace

from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.quantised import levels_of, quantised
from ftuner.frontends.onnx.quantised_products import scalar_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import REGISTERED, onnx
from ftuner.graph.algebra import apply, concat, where
from ftuner.graph.checks import malformed
from ftuner.graph.compositions import windows
from ftuner.graph.compositions.windows import channels_first
from ftuner.graph.ir import Value

_OPSET = 13
"""Version of ONNX's operators whose attributes the float operators below are written by:
`ReduceMean` has `axes` as an attribute until 17."""


def _floats(node: NodeView, number: int) -> Value:
    """The tensor that three inputs of a node are: levels, their scale and their zero point."""
    x, zero = node.input(number), node.optional(number + 2)
    scale = scalar_of(node.input(number + 1), "a scale")
    zero = zero and scalar_of(zero, "a zero point")
    return levels_of(x, zero, scale.dtype) * scale


def _levels(node: NodeView, y: Value, number: int) -> Value:
    """Floats as levels, by the scale and the zero point that are inputs of a node from `number`
    on. They have the dtype of the zero point, or else of the first levels."""
    scale, zero = scalar_of(node.input(number), "a scale"), node.optional(number + 1)
    zero = zero and scalar_of(zero, "a zero point")
    to = zero.dtype if zero is not None else node.input(0).dtype
    return quantised(y, scale, zero, to)


@onnx("QLinearAveragePool", domain=MICROSOFT, op="AveragePool")
@onnx("QLinearGlobalAveragePool", domain=MICROSOFT, op="GlobalAveragePool")
@onnx("QLinearLeakyRelu", domain=MICROSOFT, op="LeakyRelu")
@onnx("QLinearReduceMean", domain=MICROSOFT, op="ReduceMean")
@onnx("QLinearSigmoid", domain=MICROSOFT, op="Sigmoid")
@onnx("QLinearSoftmax", domain=MICROSOFT, op="Softmax")
def _of_one(context: Context, node: NodeView, channels_last: bool = False, *, op: str) -> Value:
    """A function of one tensor, by ONNX's operator on floats."""
    x = _floats(node, 0)
    x = channels_first(x) if channels_last and x.rank > 2 else x
    # Of a softmax, an attribute says the version.
    opset = node.integer("opset") if op == "Softmax" else _OPSET
    (y,) = REGISTERED["", op](context, replace(node, inputs=(x,), opset=opset))
    assert isinstance(y, Value)
    return _levels(node, windows.channels_last(y) if channels_last else y, 3)


@onnx("QLinearAdd", domain=MICROSOFT, op="add")
@onnx("QLinearMul", domain=MICROSOFT, op="multiply")
def _of_two(node: NodeView, *, op: str) -> Value:
    return _levels(node, apply(op, _floats(node, 0), _floats(node, 3)), 6)


@onnx("QLinearConcat", domain=MICROSOFT)
def _concat(context: Context, node: NodeView, axis: int) -> Value:
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise malformed(f"{len(node.inputs)} inputs; expected two, and three for each part")
    parts = [_floats(node, number) for number in range(2, len(node.inputs), 3)]
    axis = context.axis(axis, parts[0].rank)
    return _levels(node, concat(parts, axis), 0)


@onnx("QLinearWhere", domain=MICROSOFT)
def _where(node: NodeView, condition: Value) -> Value:
    x, y = (_floats(node, number) for number in (1, 4))
    return _levels(node, where(condition, x, y), 7)
