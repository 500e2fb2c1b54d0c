"""Recurrent layers with quantised weights, as onnxruntime's dynamic quantisation writes them."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dtype import FLOAT32
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.quantised import dynamic_levels, levels_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.recurrent import layer
from ftuner.graph.ir import Value


def _weight(context: Context, node: NodeView, number: int, scale: int) -> Value:
    """W or R as floats, with the axes of ONNX's LSTM: the quantised ones are (directions, k,
    columns). `scale`: the input that is the scale; the zero point follows it. Both are given for
    each direction, or for each of its columns."""
    weight = node.input(number)
    if weight.rank != 3:
        raise context.malformed(f"input {number} is {weight.type}; expected three axes")
    factor, zero = (_of_columns(context, node.input(i), weight) for i in (scale, scale + 1))
    levels = levels_of(context, weight, zero, FLOAT32)
    return context.swapped(context.add("multiply", levels, factor))


def _of_columns(context: Context, parameter: Value, weight: Value) -> Value:
    """A scale or zero point, broadcastable to a weight."""
    directions, _, columns = weight.shape
    what = f"a scale or zero point is {parameter.type} for {weight.type}"
    if parameter.rank not in (1, 2):
        raise context.malformed(what)
    for have, wanted in zip(parameter.shape, (directions, columns), strict=False):
        context.builder.require(have, wanted, what)
    return context.unsqueeze(parameter, [1, 2] if parameter.rank == 1 else [1])


def _dynamic_lstm(context: Context, node: NodeView) -> Sequence[Value]:
    """X is rounded to levels of its range. States are not: onnxruntime rounds them to levels of
    their range in each step, which adds its error to that of the weights."""
    x = node.input(0)
    levels, scale, zero = dynamic_levels(context, x)
    x = context.add("multiply", levels_of(context, levels, zero, FLOAT32), scale)
    weight, recurrent = _weight(context, node, 1, 8), _weight(context, node, 2, 10)
    return layer(context, node, "lstm", (x, weight, recurrent))


QUANTISED_RECURRENT: Table = {(MICROSOFT, "DynamicQuantizeLSTM"): _dynamic_lstm}
