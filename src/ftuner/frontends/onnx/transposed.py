"""Transposed convolution.

The result is written as convolutions of x, one for each phase of the result modulo the strides. If
there are many phases, it is the sum of blocks, one for each element of x. Where blocks do not
overlap, they are one product and one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.core.dim import Dim, Shape, ceil_quotient, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.blocks import Blocks, summed_blocks
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.windows import (
    Window,
    channels_first,
    channels_last,
    convolved,
    groups_of,
    kernel_of,
    pads_of,
    positive_integers,
    with_bias,
)
from ftuner.graph.ir import Value

MAX_PHASES = 16
"""Most convolutions that one transposed convolution becomes: strides of four along two axes."""


@dataclass(frozen=True)
class _Taps:
    """The elements of a transposed window that give the outputs `stride * q + phase` of an axis."""

    numbers: tuple[int, ...]
    """In the order in which x is read: the highest first."""
    dilation: int
    begin: int


def _taps(phase: int, kernel: int, stride: int, dilation: int, begin: int) -> _Taps:
    """Output `o` reads element `(o + begin - k * dilation) / stride` of x for each tap `k` that
    divides evenly. These taps are evenly spaced, and so are the elements."""
    numbers = [k for k in range(kernel) if (phase + begin - k * dilation) % stride == 0]
    apart = math.gcd(dilation, stride)
    first = (phase + begin - numbers[-1] * dilation) // stride if numbers else 0
    return _Taps(tuple(reversed(numbers)), dilation // apart, -first)


def _transposed(context: Context, node: NodeView) -> Sequence[Value]:
    x, w = node.input(0), node.input(1)
    groups = node.integer("group", 1)
    each = w.shape[1] if w.rank > 1 else 0
    groups_of(context, node, x, w, each * groups)
    context.builder.require(x.shape[1], w.shape[0], f"convolution of {x.type} by {w.type}")
    rank = x.rank - 2
    kernel = context.known(kernel_of(context, node, w), "the window of a transposed convolution")
    strides = positive_integers(context, node, "strides", rank)
    dilations = positive_integers(context, node, "dilations", rank)
    begin, extents = _transposed_extents(context, node, x, kernel, strides, dilations)
    # (K..., C, channels)
    depth = quotient(w.shape[0], groups)
    turned = context.reshape(w, (groups, depth, *w.shape[1:]))
    turned = context.transpose(turned, (*range(3, 3 + rank), 1, 0, 2))
    turned = context.reshape(turned, (*kernel, depth, each * groups))
    last, bias = channels_last(context, x), node.optional(2)
    whole = tuple(n * stride for n, stride in zip(x.shape[2:], strides, strict=True))
    if kernel == strides and extents == whole and not any(begin) and set(dilations) == {1}:
        return [channels_first(context, _side_by_side(context, last, turned, groups, bias))]
    if math.prod(strides) <= MAX_PHASES:
        result = _by_phases(context, last, turned, groups, strides, dilations, begin, extents)
    else:
        counts = x.shape[2:]
        blocks = Blocks(kernel, counts, strides, dilations, begin)
        result = summed_blocks(context, _blocks(context, last, turned, groups), 1, blocks, extents)
    return [channels_first(context, with_bias(context, result, bias))]


def _blocks(context: Context, x: Value, weight: Value, groups: int) -> Value:
    """What each element of x adds to the result: (batch, K1, D1, ..., Kr, Dr, channels)."""
    rank = x.rank - 2
    found = _products(context, x, weight, groups, None)
    pairs = [axis for i in range(rank) for axis in (2 + rank + i, 1 + i)]
    moved = context.transpose(found, (0, *pairs, 1 + rank, 2 + 2 * rank))
    return context.reshape(moved, (*moved.shape[:-2], weight.shape[-1]))


def _side_by_side(
    context: Context, x: Value, weight: Value, groups: int, bias: Value | None
) -> Value:
    """The result where what elements of x add to it does not overlap: the window is as large as the
    strides. The bias is added to the product, whose epilogue it is."""
    rank = x.rank - 2
    found = _products(context, x, weight, groups, bias)
    pairs = [axis for i in range(rank) for axis in (1 + i, 2 + rank + i)]
    moved = context.transpose(found, (0, *pairs, 1 + rank, 2 + 2 * rank))
    extents = (n * k for n, k in zip(x.shape[1:-1], weight.shape[:rank], strict=True))
    return context.reshape(moved, (x.shape[0], *extents, weight.shape[-1]))


def _products(context: Context, x: Value, weight: Value, groups: int, bias: Value | None) -> Value:
    """Each element of x by the weights of its group, and a bias for each channel of the result:
    (batch, D..., groups, K..., channels of a group)."""
    rank = x.rank - 2
    *kernel, depth, channels = weight.shape
    each, elements = quotient(channels, groups), math.prod(kernel)
    apart = context.reshape(weight, (elements, depth, groups, each))
    flat = context.transpose(apart, (1, 2, 0, 3))
    point = context.reshape(flat, (*[1] * rank, depth, elements * channels))
    ones, none = (1,) * rank, (0,) * rank
    window = Window(ones, ones, ones, none, none, x.shape[1:-1])
    found = convolved(context, x, point, window, groups)
    if bias is not None:
        if bias.rank != 1:
            raise context.malformed(f"the bias is {bias.type}; expected one axis")
        context.builder.require(bias.shape[0], channels, f"the bias {bias.type}")
        one = context.reshape(bias, (groups, 1, each))
        rows = context.broadcast(one, (groups, elements, each))
        found = with_bias(context, found, context.reshape(rows, (elements * channels,)))
    return context.reshape(found, (*x.shape[:-1], groups, *kernel, each))


def _by_phases(
    context: Context, x: Value, weight: Value, groups: int, strides: Sequence[int],
    dilations: Sequence[int], begin: Sequence[int], extents: Shape,
) -> Value:  # fmt: skip
    """One convolution for each phase of the result modulo the strides; channels last."""
    rank = x.rank - 2
    kernel = context.known(weight.shape[:rank], "the window of a transposed convolution")
    counts = tuple(ceil_quotient(n, s) for n, s in zip(extents, strides, strict=True))
    axes = [
        [_taps(p, kernel[a], strides[a], dilations[a], begin[a]) for p in range(strides[a])]
        for a in range(rank)
    ]

    def phases(axis: int, chosen: tuple[_Taps, ...], weight: Value) -> Value:
        """The outputs of all phases along the axes from `axis` on: (batch, O..., channels), where
        those axes have the extents `counts * strides`."""
        if axis == rank:
            return _phase(context, x, weight, chosen, counts, groups)
        found = []
        for taps in axes[axis]:
            picked = _picked(context, weight, axis, taps.numbers)
            part = phases(axis + 1, (*chosen, taps), picked)
            found.append(context.unsqueeze(part, [2 + axis]))
        joined = context.concat(found, 2 + axis)
        shape = list(joined.shape)
        shape[1 + axis : 3 + axis] = [counts[axis] * strides[axis]]
        return context.reshape(joined, tuple(shape))

    result = phases(0, (), weight)
    for axis, extent in enumerate(extents):
        result = context.slice(result, 1 + axis, 0, extent)
    return result


def _picked(context: Context, weight: Value, axis: int, numbers: Sequence[int]) -> Value:
    """The elements of a weight with these numbers along an axis, in this order."""
    return context.add("gather", weight, context.builder.constant(list(numbers), INT64), axis=axis)


def _phase(
    context: Context, x: Value, weight: Value, taps: Sequence[_Taps], counts: Shape, groups: int
) -> Value:
    if not all(t.numbers for t in taps):
        zero = context.scalar(0, x.dtype)
        return context.broadcast(zero, (x.shape[0], *counts, weight.shape[-1]))
    rank = len(taps)
    window = Window(
        weight.shape[:rank], (1,) * rank, tuple(t.dilation for t in taps),
        tuple(t.begin for t in taps), (0,) * rank, counts,
    )  # fmt: skip
    return convolved(context, x, weight, window, groups)


def _transposed_extents(
    context: Context, node: NodeView, x: Value, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, ...], Shape]:  # fmt: skip
    """The padding before the first output that is cut away, and the extents of the result."""
    rank = x.rank - 2
    auto = node.text("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise context.malformed(f"auto_pad {auto!r}")
    before, after = pads_of(context, node, rank)
    extra = node.integers("output_padding", (0,) * rank)
    wanted = node.integers("output_shape", ())
    if node.has("output_shape") and len(wanted) not in (rank, rank + 2):
        raise context.malformed(f"output_shape {list(wanted)} of {x.type}")
    limits = [max(pair) for pair in zip(strides, dilations, strict=True)]
    if len(extra) != rank or any(not 0 <= n < m for n, m in zip(extra, limits, strict=True)):
        raise context.malformed(f"output_padding {list(extra)}; expected {rank} below {limits}")
    begin: list[int] = []
    extents: list[Dim] = []
    for axis, n in enumerate(x.shape[2:]):
        stride = strides[axis]
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        whole = (n - 1) * stride + reach + extra[axis]
        extent: Dim | None = wanted[len(wanted) - rank + axis] if wanted else None
        if extent is None and auto.startswith("SAME"):
            extent = n * stride
        if extent is None:
            low, high = (0, 0) if auto == "VALID" else (before[axis], after[axis])
            begin.append(low)
            extents.append(whole - low - high)
            continue
        total = context.known([whole - extent], "the padding of a transposed convolution")[0]
        # ONNX gives the larger half to the end with SAME_UPPER, to the beginning otherwise.
        half = total // 2
        begin.append(max(half if auto == "SAME_UPPER" else total - half, 0))
        extents.append(extent)
    return tuple(begin), tuple(extents)


TRANSPOSED: Table = {("", "ConvTranspose"): _transposed}
