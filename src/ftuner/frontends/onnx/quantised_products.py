"""Products and convolutions of quantised integers.

Sums of products of 8-bit levels are computed in floating point, whose products of matrices are
fast. Results that are integers (MatMulInteger, ConvInteger) are computed in a dtype that holds
every sum exactly. Results that are rounded to levels again are computed in float32, as their scales
are.
"""

from __future__ import annotations

import math

import numpy as np

from ftuner.core.dtype import FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.quantised import dynamic_levels, levels_of, rounded, scalar_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import onnx
from ftuner.frontends.onnx.windows import groups_of, kernel_of, window_of
from ftuner.graph.checks import fitting, malformed
from ftuner.graph.compositions.windows import channels_first, channels_last, convolved, with_bias
from ftuner.graph.ir import Value

_LARGEST_LEVEL = 255
"""Magnitude of an 8-bit level less its zero point."""


def _of_matrix(parameter: Value, x: Value, axis: int, what: str) -> Value:
    """A scale or zero point of x, broadcastable to it: one, or one for each row (axis -2) or column
    (axis -1) of its matrices."""
    if parameter.shape in ((), (1,)):
        return parameter.reshape(())
    if parameter.rank not in (1, x.rank) or x.rank < 2:
        raise malformed(f"{what} is {parameter.type} for {x.type}")
    if parameter.rank == 1 and axis == -2:
        parameter = parameter.unsqueeze([1])
    return fitting(parameter, x, what)


def _levels(x: Value, zero: Value | None, dtype: DType) -> Value:
    if x.dtype not in (INT8, UINT8):
        raise malformed(f"{x.type}; expected integers of 8 bits")
    return levels_of(x, zero, dtype)


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


def _integers(total: Value) -> Value:
    """Exact sums as int32. Those that overflow wrap, as in integer arithmetic."""
    wide = total if total.dtype == FLOAT32 else total.cast(INT64)
    return wide.cast(INT32)


# Matrices.


@onnx("MatMulInteger")
def _matmul_integer(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    return _integers(_exact_product(a, b, a_zero, b_zero))


def _exact_product(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """The product of levels less their zero points, as floats that are exact."""
    if b.rank == 0:
        raise malformed(f"product of {a.type} and {b.type}")
    a_zero = a_zero and _of_matrix(a_zero, a, -2, "the zero point of A")
    b_zero = b_zero and _of_matrix(b_zero, b, -1, "the zero point of B")
    dtype = _exact(b, b_zero, (max(b.rank - 2, 0),))
    return _levels(a, a_zero, dtype) @ _levels(b, b_zero, dtype)


@onnx("QLinearMatMul")
def _qlinear_matmul(
    a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value,
    y_scale: Value, y_zero: Value,
) -> Value:  # fmt: skip
    scale = _of_matrix(a_scale, a, -2, "the scale of A").cast(FLOAT32)
    scale = scale * _of_matrix(b_scale, b, -1, "the scale of B").cast(FLOAT32)
    a = _levels(a, _of_matrix(a_zero, a, -2, "the zero point of A"), FLOAT32)
    b = _levels(b, _of_matrix(b_zero, b, -1, "the zero point of B"), FLOAT32)
    return _requantised(a @ b, scale, y_scale, y_zero)


def _requantised(total: Value, scale: Value, y_scale: Value, y_zero: Value) -> Value:
    """Sums times a scale that broadcasts to them, as levels of a scale and zero point."""
    y_scale, y_zero = scalar_of(y_scale, "the scale of Y"), scalar_of(y_zero, "the zero point of Y")
    factor = fitting(scale / y_scale.cast(FLOAT32), total, "a scale")
    return rounded(total * factor, y_zero, y_zero.dtype)


@onnx("QGemm", domain=MICROSOFT)
def _qgemm(
    a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value,
    c: Value | None, y_scale: Value | None, y_zero: Value | None, transA: bool = False,
    transB: bool = False, alpha: float = 1.0,
) -> Value:  # fmt: skip
    if a.rank != 2 or b.rank != 2:
        raise malformed(f"product of {a.type} and {b.type}; expected two axes each")
    if b_scale.rank != b_zero.rank:
        raise malformed(f"scale {b_scale.type} and zero point {b_zero.type}")
    if y_scale is None and y_zero is not None:
        raise malformed("a zero point of Y without a scale")
    a, b = a.swapped() if transA else a, b.swapped() if transB else b
    b_zero = _of_matrix(b_zero, b, -1, "the zero point of B")
    a_zero = scalar_of(a_zero, "the zero point of A")
    total = _levels(a, a_zero, FLOAT32) @ _levels(b, b_zero, FLOAT32)
    if c is not None:
        total = total + fitting(c.cast(FLOAT32), total, "C")
    scale = scalar_of(a_scale, "the scale of A") * _of_matrix(b_scale, b, -1, "the scale of B")
    if y_scale is None:
        return total * (scale * alpha)
    if y_zero is None:
        raise malformed("a scale of Y without a zero point")
    return _requantised(total, scale * alpha, y_scale, y_zero)


@onnx("MatMulIntegerToFloat", domain=MICROSOFT)
def integer_product_as_float(
    a: Value, b: Value, a_scale: Value, b_scale: Value, a_zero: Value | None,
    b_zero: Value | None, bias: Value | None,
) -> Value:  # fmt: skip
    """The product of levels, as floats."""
    total = _exact_product(a, b, a_zero, b_zero)
    a_scale = _of_matrix(a_scale, a, -2, "the scale of A")
    return _scaled_product(total, a_scale, _of_matrix(b_scale, b, -1, "the scale of B"), bias)


def _scaled_product(total: Value, a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    scale = fitting(a_scale * b_scale, total, "a scale")
    result = total.cast(scale.dtype) * scale
    return result if bias is None else result + fitting(bias, result, "the bias")


@onnx("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_matmul(
    a: Value, b: Value, b_scale: Value, b_zero: Value | None, bias: Value | None
) -> Value:
    """The product of a tensor, quantised by its range, and a quantised one."""
    b_zero = b_zero and _of_matrix(b_zero, b, -1, "the zero point of B")
    b_scale = _of_matrix(b_scale, b, -1, "the scale of B")
    levels, scale, zero = dynamic_levels(a)
    total = _levels(levels, zero, FLOAT32) @ _levels(b, b_zero, FLOAT32)
    return _scaled_product(total, scale, b_scale, bias)


# Convolution.


def _convolution(
    node: NodeView, x: Value, w: Value, dtype: DType, zeros: tuple[Value | None, Value | None]
) -> Value:
    """The sums of a convolution, channels last, in a dtype. `zeros`: zero points of x and of w,
    which broadcast to them."""
    groups = groups_of(node, x, w, w.shape[0] if w.rank else 0)
    window = window_of(node, x, kernel_of(node, w))
    levels = _levels(x, zeros[0], dtype)
    weight = _levels(w, zeros[1], dtype).transpose((*range(2, w.rank), 1, 0))
    return convolved(channels_last(levels), weight, window, groups)


def _weight_zero(zero: Value | None, w: Value) -> Value | None:
    """The zero point of a weight, or that of each of its channels, which are its first axis."""
    if zero is None or zero.shape in ((), (1,)):
        return zero and zero.reshape(())
    if zero.rank != 1 or w.rank < 1:
        raise malformed(f"the zero point {zero.type} of the weight {w.type}")
    return fitting(zero.unsqueeze(range(1, w.rank)), w, "a zero point")


@onnx("ConvInteger")
def _conv_integer(
    node: NodeView, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None
) -> Value:
    x_zero = x_zero and scalar_of(x_zero, "the zero point of X")
    w_zero = _weight_zero(w_zero, w)
    dtype = _exact(w, w_zero, tuple(range(1, w.rank)))
    return channels_first(_integers(_convolution(node, x, w, dtype, (x_zero, w_zero))))


@onnx("QLinearConv")
@onnx("QLinearConv", domain=MICROSOFT)
def _qlinear_conv(
    node: NodeView, x: Value, x_scale: Value, x_zero: Value, w: Value, w_scale: Value,
    w_zero: Value, y_scale: Value, y_zero: Value, bias: Value | None, channels_last: bool = False,
) -> Value:  # fmt: skip
    if channels_last and x.rank > 2:
        x = channels_first(x)
    zeros = scalar_of(x_zero, "the zero point of X"), _weight_zero(w_zero, w)
    total = _convolution(node, x, w, FLOAT32, zeros)
    total = with_bias(total, bias and bias.cast(FLOAT32))
    # The channels are the last axis of the sums.
    if w_scale.rank > 1:
        raise malformed(f"the scale of W is {w_scale.type} for {w.type}")
    scale = scalar_of(x_scale, "the scale of X") * w_scale
    result = _requantised(total, scale, y_scale, y_zero)
    return result if channels_last else channels_first(result)
