"""Operators of signals: Fourier transforms, whole or of windows, and mel weights.

A transform is a product with a matrix of cosines and sines, for any length. Their angles are exact
multiples of a full turn modulo one, computed in float64.
"""

from __future__ import annotations

import math

from ftuner.core.dim import Dim, quotient
from ftuner.core.dtype import FLOAT32, FLOAT64, INT64, DType
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import Axis, Integer, Number, onnx
from ftuner.graph.algebra import (
    concat,
    cos,
    counted,
    equal,
    expm1,
    floor,
    gather,
    iota,
    log,
    sin,
    where,
    zero_padded,
)
from ftuner.graph.checks import malformed, require
from ftuner.graph.ir import Value


def _waves(
    context: Context, length: Dim, rows: Dim, columns: Dim, dtype: DType
) -> tuple[Value, Value]:
    """The cosines and sines, (rows, columns), of the angles 2 pi row column / length."""
    turn = context.builder.dims([length], ())
    part = (iota(rows, 0, 2) * iota(columns, 1, 2) % turn).cast(FLOAT64)
    angle = part / turn.cast(FLOAT64) * (2 * math.pi)
    return cos(angle).cast(dtype), sin(angle).cast(dtype)


def _parts(context: Context, x: Value) -> tuple[Value, Value | None]:
    """The real part, and the imaginary part if there is one: the elements of the last axis."""
    what = f"a signal {x.type}; expected floats and a last axis of 1 or 2"
    if x.rank < 2 or x.dtype.kind != "float":
        raise malformed(what)
    last = x.rank - 1
    (count,) = context.known(x.shape[-1:], f"whether {x.type} has complex numbers")
    if count not in (1, 2):
        raise malformed(what)
    x = x.reshape((*x.shape[:-1], count))
    found = [part.squeeze([last]) for part in x.pieces(last, (1,) * count)]
    return found[0], found[1] if len(found) > 1 else None


def _transformed(
    context: Context, real: Value, imaginary: Value | None, length: Dim, bins: Dim,
    inverse: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """The first bins of the transform along the last axis, which has at most `length` elements."""
    cosine, sine = _waves(context, length, real.shape[-1], bins, real.dtype)
    # exp(-i angle) has the imaginary part -sin, that of the inverse sin.
    if not inverse:
        sine = -sine
    first, second = real @ cosine, real @ sine
    if imaginary is not None:
        first = first - imaginary @ sine
        second = second + imaginary @ cosine
    if inverse:
        count = counted([length], real.dtype)
        first, second = (part / count for part in (first, second))
    return first, second


def _joined(real: Value, imaginary: Value) -> Value:
    return concat([part.unsqueeze([part.rank]) for part in (real, imaginary)], real.rank)


def _fitted(x: Value, length: Dim) -> Value:
    """The last axis cut to a length, or filled with zeros."""
    extent, axis = x.shape[-1], x.rank - 1
    if extent == length:
        return x
    if isinstance(extent, int) and isinstance(length, int) and length < extent:
        return x.slice(axis, 0, length)
    before = (0,) * x.rank
    return zero_padded(x, before, (*before[1:], length - extent))


def _mirrored(x: Value, length: Dim, sign: int) -> Value:
    """All elements of a spectrum of a real signal: those left out are conjugates."""
    half = x.shape[-1]
    rest = x.slice(x.rank - 1, length - half, length - half, -1)
    return concat([x, rest if sign > 0 else -rest], x.rank - 1)


@onnx("DFT", since=20)
def _dft(
    context: Context, x: Value, length: Number | None, axis: Integer | None,
    inverse: bool = False, onesided: bool = False,
) -> Value:  # fmt: skip
    along = context.axis(-2 if axis is None else axis, x.rank)
    return _dft_by_attribute(context, x, length, along, inverse, onesided)


@onnx("DFT")
def _dft_by_attribute(
    context: Context, x: Value, given: Number | None, axis: Axis = 1, inverse: bool = False,
    onesided: bool = False,
) -> Value:  # fmt: skip
    if axis == x.rank - 1:
        raise malformed(f"axis {axis} of {x.type} has the parts of complex numbers")
    real, imaginary = _parts(context, x)
    order = (*(i for i in range(real.rank) if i != axis), axis)
    back = tuple(order.index(i) for i in range(real.rank))
    if onesided and not inverse and imaginary is not None:
        raise malformed(f"half of the transform of the complex signal {x.type}")
    real = real.transpose(order)
    length: Dim = real.shape[-1]
    if inverse and onesided:
        length = 2 * (length - 1)
    length = length if given is None else given
    if isinstance(length, int) and length < 1:
        raise malformed(f"a transform of the length {length}")
    half = quotient(length, 2) + 1
    stored = half if inverse and onesided else length
    real = _fitted(real, stored)
    if imaginary is not None:
        imaginary = _fitted(imaginary.transpose(order), stored)
    if inverse and onesided:
        real = _mirrored(real, length, 1)
        if imaginary is not None:
            imaginary = _mirrored(imaginary, length, -1)
    bins = half if onesided and not inverse else length
    first, second = _transformed(context, real, imaginary, length, bins, inverse)
    if inverse and onesided:
        return first.transpose(back).unsqueeze([real.rank])
    return _joined(first.transpose(back), second.transpose(back))


@onnx("STFT")
def _stft(
    context: Context, x: Value, step: Integer, window: Value | None, given: Value | None,
    onesided: bool = True,
) -> Value:  # fmt: skip
    """The transforms of windows that begin `step` elements apart."""
    if x.rank == 2:
        x = x.unsqueeze([2])
    real, imaginary = _parts(context, x)
    if real.rank != 2 or step < 1:
        raise malformed(f"windows every {step} elements of a signal {x.type}")
    if given is not None:
        length = context.dim_of(given, "the length of a frame")
    elif window is not None and window.rank == 1:
        length = window.shape[0]
    else:
        raise malformed("neither a window nor the length of a frame")
    if window is not None:
        what = f"a window {window.type} for frames of {length}"
        if window.rank != 1 or window.dtype != real.dtype:
            raise malformed(what)
        require(window.shape[0], length, what)
    if onesided and imaginary is not None:
        raise malformed(f"half of the transform of the complex signal {x.type}")
    first = iota(quotient(real.shape[1] - length, step) + 1, 0, 2) * step
    places = first + iota(length, 1, 2)

    def framed(part: Value) -> Value:
        taken = gather(part, places, 1)
        return taken if window is None else taken * window

    bins = quotient(length, 2) + 1 if onesided else length
    parts = framed(real), None if imaginary is None else framed(imaginary)
    return _joined(*_transformed(context, *parts, length, bins))


@onnx("MelWeightMatrix")
def _mel_weights(context: Context, node: NodeView, output_datatype: DType = FLOAT32) -> Value:
    """Triangles that overlap by half, evenly apart on the mel scale: (spectrum bins, mel bins)."""
    for number in range(5):
        if node.input(number).rank != 0:
            raise malformed(f"input {number} is {node.input(number).type}; expected a number")
    bins, length = (
        context.dim_of(node.input(i), name)
        for i, name in ((0, "the number of mel bins"), (1, "the length of the transform"))
    )
    rate, low, high = (node.input(i).reshape(()).cast(FLOAT64) for i in (2, 3, 4))

    def mel(hertz: Value) -> Value:
        return log(hertz * (1 / 700) + 1) * (2595 / math.log(10))

    low, high = mel(low), mel(high)
    edges = iota(bins + 2).cast(FLOAT64) * ((high - low) / (bins + 2)) + low
    hertz = expm1(edges * (math.log(10) / 2595))
    places = floor(hertz * 700 * (length + 1) / rate).cast(INT64)
    lower, centre, upper = (places.slice(0, i, bins).unsqueeze([0]) for i in range(3))
    row = iota(quotient(length, 2) + 1, 0, 2)

    def ramp(begin: Value, end: Value, at: Value, other: Value) -> Value:
        return (at - other).cast(FLOAT64) / (end - begin).at_least(1).cast(FLOAT64)

    # Where two edges are the same, the peak is one.
    rising = where(equal(lower, centre) & equal(row, centre), 1, ramp(lower, centre, row, lower))
    falling = ramp(centre, upper, upper, row)
    left = where((lower <= row) & (row <= centre), rising, 0)
    found = where((centre <= row) & (row < upper), falling, left)
    return found.cast(output_datatype)
