"""Recurrent layers with quantised weights, as onnxruntime's dynamic quantisation writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import FLOAT32, INT8
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.quantised import dynamic_levels, levels_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.recurrent import layer
from ftuner.graph.ir import Value


def _weight(context: Context, node: NodeView, number: int, scale: int) -> tuple[Value, Value]:
    """W or R as levels less their zero point, with the axes of ONNX's LSTM, and the scales of the
    columns: the quantised ones are (directions, k, columns). `scale`: the input that is the scale;
    the zero point follows it. Both are given for each direction, or for each of its columns."""
    weight = node.input(number)
    if weight.rank != 3:
        raise context.malformed(f"input {number} is {weight.type}; expected three axes")
    factor, zero = (_of_columns(context, node.input(i), weight) for i in (scale, scale + 1))
    levels = context.swapped(levels_of(context, weight, zero, FLOAT32))
    factor = context.broadcast(factor, (levels.shape[0], 1, levels.shape[1]))
    return levels, context.squeeze(factor, [1])


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
    """X is rounded to levels of its range, and the states of a batch to levels of theirs, in each
    step."""
    x = node.input(0)
    levels, scale, zero = dynamic_levels(context, x)
    x = context.add("multiply", levels_of(context, levels, zero, FLOAT32), scale)
    weight, factor = _weight(context, node, 1, 8)
    weight = context.add("multiply", weight, context.unsqueeze(factor, [2]))
    recurrent, scales = _weight(context, node, 2, 10)
    array = recurrent.constant
    if array is not None and (np.abs(array + 0.5) < 128).all():
        recurrent = context.builder.constant(array, INT8)
    return layer(context, node, "lstm", (x, weight, recurrent), scales)


QUANTISED_RECURRENT: Table = {(MICROSOFT, "DynamicQuantizeLSTM"): _dynamic_lstm}
