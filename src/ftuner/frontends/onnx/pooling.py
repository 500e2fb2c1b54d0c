"""Pooling: reductions of windows, and of all spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, minimum, product, row_major_strides
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import MICROSOFT, NCHWC
from ftuner.frontends.onnx.signatures import onnx
from ftuner.frontends.onnx.windows import (
    Window,
    channels_first,
    channels_last,
    pads_of,
    positive_integers,
    window_of,
)
from ftuner.graph.algebra import apply, iota, scalar, sqrt
from ftuner.graph.checks import expect_shape, malformed, origin, require
from ftuner.graph.ir import Value
from ftuner.graph.passes.channels_last import FEW_CHANNELS


def _pool_window(context: Context, node: NodeView, x: Value) -> Window:
    kernel = positive_integers(node, "kernel_shape", max(x.rank - 2, 0))
    if not node.has("kernel_shape"):
        raise malformed("attribute kernel_shape is missing")
    begin, end = pads_of(node, len(kernel))
    if any(max(pair) >= n for *pair, n in zip(begin, end, kernel, strict=True)):
        raise malformed(
            f"pads {[*begin, *end]} around windows {list(kernel)}, some of which would have no "
            "element; expected less than the window"
        )
    return window_of(context, node, x, kernel, cuts=True)


def _apart(x: Value) -> Value:
    """x with channels last; few channels as images of one, whose rows are then along vectors."""
    if not _has_few_channels(x):
        return channels_last(x)
    return x.reshape((x.shape[0] * x.shape[1], *x.shape[2:], 1))


def _together(result: Value, x: Value) -> Value:
    """What was computed of `_apart` of x, with channels first."""
    if not _has_few_channels(x):
        return channels_first(result)
    return result.reshape((*x.shape[:2], *result.shape[1:-1]))


def _has_few_channels(x: Value) -> bool:
    return isinstance(x.shape[1], int) and x.shape[1] <= FEW_CHANNELS


def _reduced(x: Value, window: Window, kind: str) -> Value:
    """The reduction of all windows of x, channels last."""
    return apply("window_reduce", x, kind=kind, kernel=window.kernel, **window.attributes())


@onnx("MaxPool")
@onnx("MaxPool", domain=NCHWC)
def _max_pool(
    context: Context, node: NodeView, x: Value, storage_order: bool = False
) -> Sequence[Value]:
    window = _pool_window(context, node, x)
    last = _apart(x)
    result = _together(_reduced(last, window, "maximum"), x)
    if not node.gives(1):
        return [result]
    taps = _together(_reduced(last, window, "argmax"), x)
    return [result, _numbers(x, window, taps, storage_order)]


@onnx("NhwcMaxPool", domain=MICROSOFT)
def _nhwc_max_pool(context: Context, node: NodeView, x: Value) -> Value:
    if x.rank < 3:
        raise malformed(f"a pool of {x.type}, which has no spatial axis")
    return _reduced(x, _pool_window(context, node, channels_first(x)), "maximum")


def _numbers(x: Value, window: Window, taps: Value, columns: bool) -> Value:
    """The number in x of the element that each tap is: of the last axis the fastest, or with
    `columns` of the first spatial one. Padding counts as the element next to it."""
    rank, extents = window.rank, x.shape[2:]
    strides = row_major_strides(extents)
    if columns:
        strides = tuple(reversed(row_major_strides(tuple(reversed(extents)))))
    image = iota(x.shape[0] * x.shape[1]).reshape((*x.shape[:2], *[1] * rank))
    total = image * product(extents)
    for axis, stride in enumerate(row_major_strides(window.kernel)):
        tap = taps / stride % window.kernel[axis]
        first = iota(window.extents[axis], axis, rank) * window.strides[axis] - window.begin[axis]
        at = (first + tap * window.dilations[axis]).at_most(extents[axis] - 1).at_least(0)
        total = total + at * strides[axis]
    return total


@onnx("MaxUnpool")
def _max_unpool(
    context: Context, node: NodeView, x: Value, numbers: Value, given: Value | None,
    kernel_shape: tuple[int, ...],
) -> Value:  # fmt: skip
    """Zeros but for elements of x at given numbers of the result of a pool's operand."""
    rank = x.rank - 2
    if rank < 1 or len(kernel_shape) != rank or min(kernel_shape) < 1 or numbers.rank != x.rank:
        raise malformed(f"{x.type} at {numbers.type} by a window {list(kernel_shape)}")
    expect_shape(numbers, x.shape, f"{x.type} at {numbers.type}")
    strides = positive_integers(node, "strides", rank)
    begin, end = pads_of(node, rank)
    shape = list(x.shape)
    for axis, n in enumerate(x.shape[2:]):
        shape[2 + axis] = (n - 1) * strides[axis] + kernel_shape[axis] - begin[axis] - end[axis]
    zero = scalar(0, x.dtype)
    flat = zero.broadcast((product(shape),))
    count = (product(x.shape),)
    at, updates = numbers.reshape(count), x.reshape(count)
    found = apply("scatter_elements", flat, at, updates, axis=0, kind="none", node=origin())
    result = found.reshape(tuple(shape))
    if given is None:
        return result
    sizes = context.dims_of(given, "the shape")
    if len(sizes) != x.rank:
        raise malformed(f"the shape {list(sizes)} for {x.type}")
    # What is found is the beginning of the given shape.
    after = tuple(size - have for size, have in zip(sizes, shape, strict=True))
    return apply("pad", result, zero, before=(0,) * x.rank, after=after, mode="constant")


@onnx("AveragePool")
@onnx("AveragePool", domain=NCHWC)
def _average_pool(
    context: Context, node: NodeView, x: Value, count_include_pad: bool = False,
    ceil_mode: bool = False,
) -> Value:  # fmt: skip
    window = _pool_window(context, node, x)
    # Half precision can hold neither the sum nor the share of an element.
    wide = x.wide()
    total = _reduced(_apart(wide), window, "sum")
    # onnxruntime divides by the whole of a window that is larger than x before opset 19.
    rounds_down = count_include_pad and node.opset < 19 and not ceil_mode
    if (rounds_down or not window.cut) and (count_include_pad or not window.pads):
        elements = math.prod(context.known(window.kernel, "a window"))
        average = total * (1 / elements)
    else:
        count = _counts(wide, window, 0, count_include_pad)
        for axis in range(1, window.rank):
            count = count * _counts(wide, window, axis, count_include_pad)
        # One division for each position, and not for each of its channels.
        average = total * (1 / count)
    return _together(average, x).cast(x.dtype)


def _counts(x: Value, window: Window, axis: int, padding: bool) -> Value:
    """The number of elements of each window along an axis, as (O, 1, ..., 1): of those at or after
    its first, the ones before the end less the ones before the beginning."""
    extent, begin = x.shape[2 + axis], window.begin[axis]
    if padding:
        extent, begin = extent + begin + window.end[axis], 0

    first = iota(window.extents[axis]) * window.strides[axis]

    def before(position: Dim) -> Value:
        """How many elements of each window are before a position."""
        distance = (first.like(position) - first).at_least(0)
        dilation = window.dilations[axis]
        return ((distance + (dilation - 1)) / dilation).at_most(window.kernel[axis])

    count = before(extent + begin) - before(begin)
    return count.cast(x.dtype).reshape((window.extents[axis], *([1] * (window.rank - axis))))


@onnx("LpPool")
def _lp_pool(context: Context, node: NodeView, x: Value, p: int = 2) -> Value:
    window = _pool_window(context, node, x)
    return _together(_root(_reduced(_power(_apart(x), p), window, "sum"), p), x)


def _power(x: Value, p: int) -> Value:
    if p < 1:
        raise malformed(f"p is {p}; expected 1 or more")
    return x * x if p == 2 else abs(x) if p == 1 else abs(x) ** p


def _root(x: Value, p: int) -> Value:
    return x if p == 1 else sqrt(x) if p == 2 else x ** (1 / p)


def _spatial(x: Value, some: bool = True) -> range:
    """The spatial axes; `some`: which must have an element."""
    if x.rank < 3:
        raise malformed(f"a pool of {x.type}, which has no spatial axis")
    if some:
        require(minimum(product(x.shape[2:]), 1), 1, f"a pool of no elements of {x.type}")
    return range(2, x.rank)


@onnx("GlobalAveragePool")
@onnx("GlobalAveragePool", domain=NCHWC)
def _global_mean(x: Value) -> Value:
    # Axes of extent 1 last, so that the quotient is in the stores of the reduction.
    axes = _spatial(x, some=False)
    return x.mean(axes, keep=False).unsqueeze(axes)


@onnx("GlobalMaxPool")
@onnx("GlobalMaxPool", domain=NCHWC)
def _global_max(x: Value) -> Value:
    return x.reduce("maximum", _spatial(x))


@onnx("GlobalLpPool")
def _global_lp(x: Value, p: int = 2) -> Value:
    return _root(_power(x, p).reduce("sum", _spatial(x)), p)
