"""Pooling: reductions of windows, and of all spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ftuner.core.dim import Dim, minimum, product, row_major_strides
from ftuner.core.dtype import FLOAT32, HALF_DTYPES, INT64
from ftuner.frontends.onnx.context import Context, Importer, NodeView, Table
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.windows import (
    Window,
    channels_first,
    channels_last,
    pads_of,
    positive_integers,
    window_of,
)
from ftuner.graph.algebra import apply, counted, iota, malformed, origin, require, scalar, sqrt
from ftuner.graph.ir import Value
from ftuner.graph.passes.channels_last import FEW_CHANNELS


def _pool_window(context: Context, node: NodeView, x: Value) -> Window:
    kernel = positive_integers(context, node, "kernel_shape", max(x.rank - 2, 0))
    if not node.has("kernel_shape"):
        raise malformed("attribute kernel_shape is missing")
    begin, end = pads_of(context, node, len(kernel))
    if any(max(pair) >= n for *pair, n in zip(begin, end, kernel, strict=True)):
        raise malformed(
            f"pads {[*begin, *end]} around windows {list(kernel)}, some of which would have no "
            "element; expected less than the window"
        )
    return window_of(context, node, x, kernel, cuts=True)


def _apart(context: Context, x: Value) -> Value:
    """x with channels last; few channels as images of one, whose rows are then along vectors."""
    if not _has_few_channels(x):
        return channels_last(context, x)
    return x.reshape((x.shape[0] * x.shape[1], *x.shape[2:], 1))


def _together(context: Context, result: Value, x: Value) -> Value:
    """What was computed of `_apart` of x, with channels first."""
    if not _has_few_channels(x):
        return channels_first(context, result)
    return result.reshape((*x.shape[:2], *result.shape[1:-1]))


def _has_few_channels(x: Value) -> bool:
    return isinstance(x.shape[1], int) and x.shape[1] <= FEW_CHANNELS


def _reduced(context: Context, x: Value, window: Window, kind: str) -> Value:
    """The reduction of all windows of x, channels last."""
    return apply("window_reduce", x, kind=kind, kernel=window.kernel, **window.attributes())


def _max_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    window = _pool_window(context, node, x)
    last = _apart(context, x)
    result = _together(context, _reduced(context, last, window, "maximum"), x)
    if not node.gives(1):
        return [result]
    taps = _together(context, _reduced(context, last, window, "argmax"), x)
    return [result, _numbers(context, x, window, taps, node.flag("storage_order"))]


def _nhwc_max_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if x.rank < 3:
        raise malformed(f"a pool of {x.type}, which has no spatial axis")
    window = _pool_window(context, node, channels_first(context, x))
    return [_reduced(context, x, window, "maximum")]


def _numbers(context: Context, x: Value, window: Window, taps: Value, columns: bool) -> Value:
    """The number in x of the element that each tap is: of the last axis the fastest, or with
    `columns` of the first spatial one. Padding counts as the element next to it."""
    rank, extents = window.rank, x.shape[2:]

    def number(value: Dim) -> Value:
        return counted([value], INT64)

    strides = row_major_strides(extents)
    if columns:
        strides = tuple(reversed(row_major_strides(tuple(reversed(extents)))))
    image = iota(x.shape[0] * x.shape[1], 0, 1)
    image = image.reshape((*x.shape[:2], *[1] * rank))
    total = image * number(product(extents))
    for axis, stride in enumerate(row_major_strides(window.kernel)):
        tap = taps / number(stride)
        tap = tap % number(window.kernel[axis])
        first = iota(window.extents[axis], axis, rank)
        first = first * number(window.strides[axis])
        first = first - number(window.begin[axis])
        at = first + tap * number(window.dilations[axis])
        at = at.at_most(number(extents[axis] - 1)).at_least(0)
        total = total + at * number(strides[axis])
    return total


def _max_unpool(context: Context, node: NodeView) -> Sequence[Value]:
    """Zeros but for elements of x at given numbers of the result of a pool's operand."""
    x, numbers = node.input(0), node.input(1)
    rank = x.rank - 2
    kernel = node.integers("kernel_shape")
    if rank < 1 or len(kernel) != rank or min(kernel) < 1 or numbers.rank != x.rank:
        raise malformed(f"{x.type} at {numbers.type} by a window {list(kernel)}")
    for have, wanted in zip(numbers.shape, x.shape, strict=True):
        require(have, wanted, f"{x.type} at {numbers.type}")
    strides = positive_integers(context, node, "strides", rank)
    begin, end = pads_of(context, node, rank)
    shape = list(x.shape)
    for axis, n in enumerate(x.shape[2:]):
        shape[2 + axis] = (n - 1) * strides[axis] + kernel[axis] - begin[axis] - end[axis]
    zero = scalar(0, x.dtype)
    flat = zero.broadcast((product(shape),))
    count = (product(x.shape),)
    at, updates = numbers.reshape(count), x.reshape(count)
    found = apply("scatter_elements", flat, at, updates, axis=0, kind="none", node=origin())
    result = found.reshape(tuple(shape))
    given = node.optional(2)
    if given is None:
        return [result]
    sizes = context.dims_of(given, "the shape")
    if len(sizes) != x.rank:
        raise malformed(f"the shape {list(sizes)} for {x.type}")
    # What is found is the beginning of the given shape.
    after = tuple(size - have for size, have in zip(sizes, shape, strict=True))
    return [
        apply("pad", result, zero, before=(0,) * x.rank, after=after, mode="constant")
    ]  # fmt: skip


def _average_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    window = _pool_window(context, node, x)
    # Half precision can hold neither the sum nor the share of an element.
    wide = x.cast(FLOAT32) if x.dtype.name in HALF_DTYPES else x
    total = _reduced(context, _apart(context, wide), window, "sum")
    padding = node.flag("count_include_pad")
    # onnxruntime divides by the whole of a window that is larger than x before opset 19.
    rounds_down = padding and node.opset < 19 and not node.flag("ceil_mode")
    if (rounds_down or not window.cut) and (padding or not window.pads):
        elements = math.prod(context.known(window.kernel, "a window"))
        average = total * (1 / elements)
    else:
        count = _counts(context, wide, window, 0, padding)
        for axis in range(1, window.rank):
            count = count * _counts(context, wide, window, axis, padding)
        # One division for each position, and not for each of its channels.
        share = scalar(1, wide.dtype) / count
        average = total * share
    return [_together(context, average, x).cast(x.dtype)]


def _counts(context: Context, x: Value, window: Window, axis: int, padding: bool) -> Value:
    """The number of elements of each window along an axis, as (O, 1, ..., 1): of those at or after
    its first, the ones before the end less the ones before the beginning."""
    extent, begin = x.shape[2 + axis], window.begin[axis]
    if padding:
        extent, begin = extent + begin + window.end[axis], 0

    def number(value: Dim) -> Value:
        return counted([value], INT64)

    first = iota(window.extents[axis]) * number(window.strides[axis])

    def before(position: Dim) -> Value:
        """How many elements of each window are before a position."""
        distance = (number(position) - first).at_least(0)
        dilation = window.dilations[axis]
        steps = (distance + (dilation - 1)) / number(dilation)
        return steps.at_most(number(window.kernel[axis]))

    count = before(extent + begin) - before(begin)
    return count.cast(x.dtype).reshape((window.extents[axis], *([1] * (window.rank - axis))))


def _lp_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x, p = node.input(0), node.integer("p", 2)
    window = _pool_window(context, node, x)
    powers = _power(context, _apart(context, x), p)
    return [_together(context, _root(context, _reduced(context, powers, window, "sum"), p), x)]


def _power(context: Context, x: Value, p: int) -> Value:
    if p < 1:
        raise malformed(f"p is {p}; expected 1 or more")
    if p == 2:
        return x * x
    absolute = abs(x)
    return absolute if p == 1 else absolute ** scalar(p, x.dtype)


def _root(context: Context, x: Value, p: int) -> Value:
    if p <= 2:
        return x if p == 1 else sqrt(x)
    return x ** (1 / p)


def _global(reduce: Callable[[Context, NodeView, Value, Sequence[int]], Value]) -> Importer:
    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x = node.input(0)
        if x.rank < 3:
            raise malformed(f"a pool of {x.type}, which has no spatial axis")
        return [reduce(context, node, x, range(2, x.rank))]

    return convert


def _global_mean(context: Context, node: NodeView, x: Value, axes: Sequence[int]) -> Value:
    # Axes of extent 1 last, so that the quotient is in the stores of the reduction.
    return x.mean(axes, keep=False).unsqueeze(axes)


def _expect_elements(context: Context, x: Value, axes: Sequence[int]) -> None:
    some = minimum(product(x.shape[axis] for axis in axes), 1)
    require(some, 1, f"a pool of no elements of {x.type}")


def _global_max(context: Context, node: NodeView, x: Value, axes: Sequence[int]) -> Value:
    _expect_elements(context, x, axes)
    return x.reduce("maximum", axes)


def _global_lp(context: Context, node: NodeView, x: Value, axes: Sequence[int]) -> Value:
    p = node.integer("p", 2)
    _expect_elements(context, x, axes)
    return _root(context, _power(context, x, p).reduce("sum", axes), p)


POOLING: Table = {
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global(_global_mean),
    ("", "GlobalLpPool"): _global(_global_lp),
    ("", "GlobalMaxPool"): _global(_global_max),
    ("", "LpPool"): _lp_pool,
    ("", "MaxPool"): _max_pool,
    ("", "MaxUnpool"): _max_unpool,
    (MICROSOFT, "NhwcMaxPool"): _nhwc_max_pool,
}
