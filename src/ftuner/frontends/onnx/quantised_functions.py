"""onnxruntime's operators that take and give quantised integers: each is an operator on floats
between a dequantization and a quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftuner.frontends.onnx.activations import ACTIVATIONS
from ftuner.frontends.onnx.context import Context, Importer, NodeView, Table
from ftuner.frontends.onnx.pointwise import POINTWISE
from ftuner.frontends.onnx.pooling import POOLING
from ftuner.frontends.onnx.quantised import levels_of, quantised
from ftuner.frontends.onnx.quantised_products import scalar_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.reductions import REDUCTIONS
from ftuner.frontends.onnx.windows import channels_first, channels_last
from ftuner.graph.algebra import apply, concat, malformed, where
from ftuner.graph.ir import Value

_OPSET = 13
"""Version of ONNX's operators whose attributes the float operators below are written by:
`ReduceMean` has `axes` as an attribute until 17."""


def _floats(context: Context, node: NodeView, number: int) -> Value:
    """The tensor that three inputs of a node are: levels, their scale and their zero point."""
    x, zero = node.input(number), node.optional(number + 2)
    scale = scalar_of(context, node.input(number + 1), "a scale")
    zero = zero and scalar_of(context, zero, "a zero point")
    return levels_of(context, x, zero, scale.dtype) * scale


def _levels(context: Context, node: NodeView, y: Value, number: int) -> Value:
    """Floats as levels, by the scale and the zero point that are inputs of a node from `number`
    on. They have the dtype of the zero point, or else of the first levels."""
    scale, zero = scalar_of(context, node.input(number), "a scale"), node.optional(number + 1)
    zero = zero and scalar_of(context, zero, "a zero point")
    to = zero.dtype if zero is not None else node.input(0).dtype
    return quantised(context, y, scale, zero, to)


def _of_one(importer: Importer, version: int | None = _OPSET) -> Importer:
    """A function of one tensor, by the importer of the operator on floats. `version`: of ONNX, that
    the operator on floats is of; None where an attribute of the node says it."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        last = node.flag("channels_last")
        x = _floats(context, node, 0)
        x = channels_first(context, x) if last and x.rank > 2 else x
        opset = node.integer("opset") if version is None else version
        (y,) = importer(context, replace(node, inputs=(x,), opset=opset))
        assert isinstance(y, Value)
        return [_levels(context, node, channels_last(context, y) if last else y, 3)]

    return convert


def _of_two(op: str) -> Importer:
    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        y = apply(op, _floats(context, node, 0), _floats(context, node, 3))
        return [_levels(context, node, y, 6)]

    return convert


def _concat(context: Context, node: NodeView) -> Sequence[Value]:
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise malformed(f"{len(node.inputs)} inputs; expected two, and three for each part")
    parts = [_floats(context, node, number) for number in range(2, len(node.inputs), 3)]
    axis = context.axis(node.integer("axis"), parts[0].rank)
    return [_levels(context, node, concat(parts, axis), 0)]


def _where(context: Context, node: NodeView) -> Sequence[Value]:
    x, y = (_floats(context, node, number) for number in (1, 4))
    return [_levels(context, node, where(node.input(0), x, y), 7)]


QUANTISED_FUNCTIONS: Table = {
    (MICROSOFT, "QLinearAdd"): _of_two("add"),
    (MICROSOFT, "QLinearAveragePool"): _of_one(POOLING["", "AveragePool"]),
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QLinearGlobalAveragePool"): _of_one(POOLING["", "GlobalAveragePool"]),
    (MICROSOFT, "QLinearLeakyRelu"): _of_one(ACTIVATIONS["", "LeakyRelu"]),
    (MICROSOFT, "QLinearMul"): _of_two("multiply"),
    (MICROSOFT, "QLinearReduceMean"): _of_one(REDUCTIONS["", "ReduceMean"]),
    (MICROSOFT, "QLinearSigmoid"): _of_one(POINTWISE["", "Sigmoid"]),
    (MICROSOFT, "QLinearSoftmax"): _of_one(REDUCTIONS["", "Softmax"], None),
    (MICROSOFT, "QLinearWhere"): _where,
}
