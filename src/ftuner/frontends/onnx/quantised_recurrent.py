"""Recurrent layers with quantised weights, as onnxruntime's dynamic quantisation writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import FLOAT32, INT8
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.quantised import dynamic_levels, levels_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.recurrent import Layer, Levels
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import constant
from ftuner.graph.checks import malformed, require
from ftuner.graph.ir import Array, Value


def _weight(node: NodeView, number: int, scale: int) -> tuple[Value, Value, Array | None]:
    """W or R as levels less their zero point, with the axes of ONNX's LSTM: the quantised ones are
    (directions, k, columns). Then the scales of the columns, (directions, columns), and the levels
    if these are known, and of 8 bits. `scale`: the input that is the scale; the zero point follows
    it. Both are given for each direction, or for each of its columns."""
    weight = node.input(number)
    if weight.rank != 3:
        raise malformed(f"input {number} is {weight.type}; expected three axes")
    factor, zero = (_of_columns(node.input(i), weight) for i in (scale, scale + 1))
    levels = levels_of(weight, zero, FLOAT32).swapped()
    factor = factor.broadcast((levels.shape[0], 1, levels.shape[1])).squeeze([1])
    if weight.constant is None or zero.constant is None or weight.dtype.itemsize > 1:
        return levels, factor, None
    return levels, factor, (weight.constant.astype(np.int16) - zero.constant).swapaxes(1, 2)


def _of_columns(parameter: Value, weight: Value) -> Value:
    """A scale or zero point, broadcastable to a weight."""
    directions, _, columns = weight.shape
    what = f"a scale or zero point is {parameter.type} for {weight.type}"
    if parameter.rank not in (1, 2):
        raise malformed(what)
    for have, wanted in zip(parameter.shape, (directions, columns), strict=False):
        require(have, wanted, what)
    return parameter.unsqueeze([1, 2] if parameter.rank == 1 else [1])


@onnx("DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic_lstm(node: NodeView, x: Value) -> Sequence[Value]:
    """X is rounded to levels of its range, and the states of a batch to levels of theirs, in each
    step."""
    levels, scale, zero = dynamic_levels(x)
    weight, factor, _ = _weight(node, 1, 8)
    recurrent, scales, known = _weight(node, 2, 10)
    if known is None:
        sums = recurrent.reduce("sum", [2], keep=False)
    else:
        sums = constant(known.sum(2), FLOAT32)
        if (np.abs(known + 0.5) < 128).all():
            recurrent = constant(known, INT8)
    operands = levels_of(levels, zero, FLOAT32), weight, recurrent
    return Layer(node, "lstm", operands, Levels(scale * factor, scales, sums)).imported()
