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


def _floats(x: Value, scale: Value, zero: Value | None) -> Value:
    """The tensor of levels with a scale and a zero point."""
    scale, zero = scalar_of(scale, "a scale"), zero and scalar_of(zero, "a zero point")
    return levels_of(x, zero, scale.dtype) * scale


def _levels(y: Value, scale: Value, zero: Value | None, x: Value) -> Value:
    """Floats as levels of the dtype of the zero point, or else of other levels x."""
    scale, zero = scalar_of(scale, "a scale"), zero and scalar_of(zero, "a zero point")
    return quantised(y, scale, zero, (x if zero is None else zero).dtype)


@onnx("QLinearAveragePool", domain=MICROSOFT, op="AveragePool")
@onnx("QLinearGlobalAveragePool", domain=MICROSOFT, op="GlobalAveragePool")
@onnx("QLinearLeakyRelu", domain=MICROSOFT, op="LeakyRelu")
@onnx("QLinearReduceMean", domain=MICROSOFT, op="ReduceMean")
@onnx("QLinearSigmoid", domain=MICROSOFT, op="Sigmoid")
@onnx("QLinearSoftmax", domain=MICROSOFT, op="Softmax")
def _of_one(
    context: Context, node: NodeView, x: Value, x_scale: Value, x_zero: Value | None,
    y_scale: Value, y_zero: Value | None, channels_last: bool = False, *, op: str,
) -> Value:  # fmt: skip
    """A function of one tensor, by ONNX's operator on floats."""
    floats = _floats(x, x_scale, x_zero)
    floats = channels_first(floats) if channels_last and x.rank > 2 else floats
    # Of a softmax, an attribute says the version.
    opset = node.integer("opset") if op == "Softmax" else _OPSET
    (y,) = REGISTERED["", op](context, replace(node, inputs=(floats,), opset=opset))
    assert isinstance(y, Value)
    return _levels(windows.channels_last(y) if channels_last else y, y_scale, y_zero, x)


@onnx("QLinearAdd", domain=MICROSOFT, op="add")
@onnx("QLinearMul", domain=MICROSOFT, op="multiply")
def _of_two(
    a: Value, a_scale: Value, a_zero: Value | None, b: Value, b_scale: Value,
    b_zero: Value | None, y_scale: Value, y_zero: Value | None, *, op: str,
) -> Value:  # fmt: skip
    found = apply(op, _floats(a, a_scale, a_zero), _floats(b, b_scale, b_zero))
    return _levels(found, y_scale, y_zero, a)


@onnx("QLinearConcat", domain=MICROSOFT)
def _concat(context: Context, node: NodeView, axis: int) -> Value:
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise malformed(f"{len(node.inputs)} inputs; expected two, and three for each part")
    parts = [
        _floats(node.input(n), node.input(n + 1), node.optional(n + 2))
        for n in range(2, len(node.inputs), 3)
    ]
    axis = context.axis(axis, parts[0].rank)
    return _levels(concat(parts, axis), node.input(0), node.optional(1), node.input(0))


@onnx("QLinearWhere", domain=MICROSOFT)
def _where(
    condition: Value, x: Value, x_scale: Value, x_zero: Value | None, y: Value, y_scale: Value,
    y_zero: Value | None, z_scale: Value, z_zero: Value | None,
) -> Value:  # fmt: skip
    found = where(condition, _floats(x, x_scale, x_zero), _floats(y, y_scale, y_zero))
    return _levels(found, z_scale, z_zero, condition)
