"""Products and convolutions of quantised integers.

Sums of products of 8-bit levels are computed in floating point, whose products of matrices are
fast. Results that are integers (MatMulInteger, ConvInteger) are computed in a dtype that holds
every sum exactly. Results that are rounded to levels again are computed in float32, as their scales
are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.quantised import dynamic_levels, levels_of, rounded
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.windows import (
    channels_first,
    channels_last,
    convolved,
    groups_of,
    kernel_of,
    window_of,
    with_bias,
)
from ftuner.graph.algebra import fitting, malformed, require
from ftuner.graph.ir import Value

_LARGEST_LEVEL = 255
"""Magnitude of an 8-bit level less its zero point."""


def scalar_of(context: Context, parameter: Value, what: str) -> Value:
    """A scale or zero point of a whole tensor, without axes. It is one element of any rank."""
    for extent in parameter.shape:
        require(extent, 1, f"{what} is {parameter.type}; expected one element")
    return parameter.reshape(())


def _of_matrix(context: Context, parameter: Value, x: Value, axis: int, what: str) -> Value:
    """A scale or zero point of x, broadcastable to it: one, or one for each row (axis -2) or column
    (axis -1) of its matrices."""
    if parameter.shape in ((), (1,)):
        return parameter.reshape(())
    if parameter.rank not in (1, x.rank) or x.rank < 2:
        raise malformed(f"{what} is {parameter.type} for {x.type}")
    if parameter.rank == 1 and axis == -2:
        parameter = parameter.unsqueeze([1])
    return fitting(parameter, x, what)


def _levels(context: Context, x: Value, zero: Value | None, dtype: DType) -> Value:
    if x.dtype not in (INT8, UINT8):
        raise malformed(f"{x.type}; expected integers of 8 bits")
    return levels_of(context, x, zero, dtype)


def _exact(weight: Value, zero: Value | None, axes: tuple[int, ...]) -> DType:
    """A dtype that has all sums of levels times those of a weight. `zero`: the weight's zero point,
    broadcastable to it. `axes`: those of the weight that are summed over."""
    if weight.constant is not None and (zero is None or zero.constant is not None):
        levels = weight.constant.astype(np.int64)
        if zero is not None:
            levels = levels - np.asarray(zero.constant)
        most = _LARGEST_LEVEL * float(np.abs(levels).sum(axes).max(initial=0))
    else:
        extents = [weight.shape[axis] for axis in axes]
        depth = math.prod(n if isinstance(n, int) else math.inf for n in extents)
        most = _LARGEST_LEVEL**2 * depth
    return FLOAT32 if most <= 2**FLOAT32.significand_bits else FLOAT64


def _integers(context: Context, total: Value) -> Value:
    """Exact sums as int32. Those that overflow wrap, as in integer arithmetic."""
    wide = total if total.dtype == FLOAT32 else total.cast(INT64)
    return wide.cast(INT32)


# Matrices.


def _matmul_integer(context: Context, node: NodeView) -> Sequence[Value]:
    return [_integers(context, _exact_product(context, node, node.optional(2), node.optional(3)))]


def _exact_product(
    context: Context, node: NodeView, a_zero: Value | None, b_zero: Value | None
) -> Value:
    """The product of the first two inputs less their zero points, as floats that are exact."""
    a, b = node.input(0), node.input(1)
    if b.rank == 0:
        raise malformed(f"product of {a.type} and {b.type}")
    a_zero = a_zero and _of_matrix(context, a_zero, a, -2, "the zero point of A")
    b_zero = b_zero and _of_matrix(context, b_zero, b, -1, "the zero point of B")
    dtype = _exact(b, b_zero, (max(b.rank - 2, 0),))
    return _levels(context, a, a_zero, dtype) @ _levels(context, b, b_zero, dtype)


def _qlinear_matmul(context: Context, node: NodeView) -> Sequence[Value]:
    scales, levels = [], []
    for number, axis, name in ((0, -2, "A"), (3, -1, "B")):
        x = node.input(number)
        scale = _of_matrix(context, node.input(number + 1), x, axis, f"the scale of {name}")
        zero = _of_matrix(context, node.input(number + 2), x, axis, f"the zero point of {name}")
        scales.append(scale.cast(FLOAT32))
        levels.append(_levels(context, x, zero, FLOAT32))
    (a, b), (scale_a, scale_b) = levels, scales
    return [_requantised(context, node, a @ b, scale_a * scale_b, 6)]


def _requantised(
    context: Context, node: NodeView, total: Value, scale: Value, number: int
) -> Value:
    """Sums times a scale that broadcasts to them, by the scale and zero point that are two inputs
    of the node from `number` on."""
    y_scale = scalar_of(context, node.input(number), "the scale of Y")
    zero = scalar_of(context, node.input(number + 1), "the zero point of Y")
    factor = scale / y_scale.cast(FLOAT32)
    factor = fitting(factor, total, "a scale")
    return rounded(context, total * factor, zero, zero.dtype)


def _qgemm(context: Context, node: NodeView) -> Sequence[Value]:
    a, b, bias = node.input(0), node.input(3), node.optional(6)
    if a.rank != 2 or b.rank != 2:
        raise malformed(f"product of {a.type} and {b.type}; expected two axes each")
    if node.input(4).rank != node.input(5).rank:
        raise malformed(f"scale {node.input(4).type} and zero point {node.input(5).type}")
    if node.optional(7) is None and node.optional(8) is not None:
        raise malformed("a zero point of Y without a scale")
    a = a.swapped() if node.flag("transA") else a
    b = b.swapped() if node.flag("transB") else b
    a_zero = scalar_of(context, node.input(2), "the zero point of A")
    a_scale = scalar_of(context, node.input(1), "the scale of A")
    b_zero = _of_matrix(context, node.input(5), b, -1, "the zero point of B")
    b_scale = _of_matrix(context, node.input(4), b, -1, "the scale of B")
    total = _levels(context, a, a_zero, FLOAT32) @ _levels(context, b, b_zero, FLOAT32)
    if bias is not None:
        total = total + fitting(bias.cast(FLOAT32), total, "C")
    scale = a_scale * b_scale * node.number("alpha", 1.0)
    if node.optional(7) is None:
        return [total * scale]
    return [_requantised(context, node, total, scale, 7)]


def integer_product_as_float(
    context: Context, node: NodeView, scales: tuple[int, int], zeros: tuple[int, int],
    bias: Value | None,
) -> Value:  # fmt: skip
    """The product of the first two inputs, as floats. `scales`, `zeros`: the inputs that are the
    scales and zero points of both."""
    a, b = node.input(0), node.input(1)
    total = _exact_product(context, node, *(node.optional(number) for number in zeros))
    a_scale = _of_matrix(context, node.input(scales[0]), a, -2, "the scale of A")
    b_scale = _of_matrix(context, node.input(scales[1]), b, -1, "the scale of B")
    return _scaled_product(context, total, a_scale, b_scale, bias)


def _matmul_integer_to_float(context: Context, node: NodeView) -> Sequence[Value]:
    return [integer_product_as_float(context, node, (2, 3), (4, 5), node.optional(6))]


def _scaled_product(
    context: Context, total: Value, a_scale: Value, b_scale: Value, bias: Value | None
) -> Value:
    scale = fitting(a_scale * b_scale, total, "a scale")
    result = total.cast(scale.dtype) * scale
    if bias is None:
        return result
    return result + fitting(bias, result, "the bias")


def _dynamic_matmul(context: Context, node: NodeView) -> Sequence[Value]:
    """The product of a tensor, quantised by its range, and a quantised one."""
    x, b = node.input(0), node.input(1)
    b_zero = node.optional(3)
    b_zero = b_zero and _of_matrix(context, b_zero, b, -1, "the zero point of B")
    b_scale = _of_matrix(context, node.input(2), b, -1, "the scale of B")
    levels, scale, zero = dynamic_levels(context, x)
    total = _levels(context, levels, zero, FLOAT32) @ _levels(context, b, b_zero, FLOAT32)
    return [_scaled_product(context, total, scale, b_scale, node.optional(4))]


# Convolution.


def _convolution(
    context: Context, node: NodeView, x: Value, w: Value, dtype: DType,
    zeros: tuple[Value | None, Value | None],
) -> Value:  # fmt: skip
    """The sums of a convolution, channels last, in a dtype. `zeros`: zero points of x and of w,
    which broadcast to them."""
    groups = groups_of(context, node, x, w, w.shape[0] if w.rank else 0)
    window = window_of(context, node, x, kernel_of(context, node, w))
    levels = _levels(context, x, zeros[0], dtype)
    weight = _levels(context, w, zeros[1], dtype).transpose((*range(2, w.rank), 1, 0))
    return convolved(context, channels_last(context, levels), weight, window, groups)


def _weight_zero(context: Context, zero: Value | None, w: Value) -> Value | None:
    """The zero point of a weight, or that of each of its channels, which are its first axis."""
    if zero is None or zero.shape in ((), (1,)):
        return zero and zero.reshape(())
    if zero.rank != 1 or w.rank < 1:
        raise malformed(f"the zero point {zero.type} of the weight {w.type}")
    return fitting(zero.unsqueeze(range(1, w.rank)), w, "a zero point")


def _conv_integer(context: Context, node: NodeView) -> Sequence[Value]:
    x, w, zero = node.input(0), node.input(1), node.optional(2)
    x_zero = zero and scalar_of(context, zero, "the zero point of X")
    w_zero = _weight_zero(context, node.optional(3), w)
    dtype = _exact(w, w_zero, tuple(range(1, w.rank)))
    total = _convolution(context, node, x, w, dtype, (x_zero, w_zero))
    return [channels_first(context, _integers(context, total))]


def _qlinear_conv(context: Context, node: NodeView) -> Sequence[Value]:
    x, w, w_scale, bias = node.input(0), node.input(3), node.input(4), node.optional(8)
    last = node.flag("channels_last")
    if last and x.rank > 2:
        x = channels_first(context, x)
    x_scale = scalar_of(context, node.input(1), "the scale of X")
    x_zero = scalar_of(context, node.input(2), "the zero point of X")
    w_zero = _weight_zero(context, node.input(5), w)
    total = _convolution(context, node, x, w, FLOAT32, (x_zero, w_zero))
    total = with_bias(context, total, bias and bias.cast(FLOAT32))
    # The channels are the last axis of the sums.
    if w_scale.rank > 1:
        raise malformed(f"the scale of W is {w_scale.type} for {w.type}")
    result = _requantised(context, node, total, x_scale * w_scale, 6)
    return [result if last else channels_first(context, result)]


QUANTISED_PRODUCTS: Table = {
    ("", "ConvInteger"): _conv_integer,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
    (MICROSOFT, "QGemm"): _qgemm,
    (MICROSOFT, "QLinearConv"): _qlinear_conv,
}
