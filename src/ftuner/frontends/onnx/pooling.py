"""Pooling: reductions of windows, and of all spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ftuner.frontends.onnx.context import Context, Importer, NodeView, Table
from ftuner.frontends.onnx.windows import (
    Window,
    channels_first,
    channels_last,
    positive_integers,
    window_of,
)
from ftuner.graph.ir import Value


def _pool_window(context: Context, node: NodeView, x: Value) -> Window:
    kernel = positive_integers(context, node, "kernel_shape", max(x.rank - 2, 0))
    if not node.has("kernel_shape"):
        raise context.malformed("attribute kernel_shape is missing")
    return window_of(context, node, x, kernel)


def _reduced(context: Context, x: Value, window: Window, kind: str) -> Value:
    """The reduction of all windows of x, channels last."""
    return context.add("window_reduce", x, kind=kind, kernel=window.kernel, **window.attributes())


def _max_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    window = _pool_window(context, node, x)
    if node.gives(1):
        raise context.unsupported("the positions of the largest elements (second output)")
    return [
        channels_first(context, _reduced(context, channels_last(context, x), window, "maximum"))
    ]


def _average_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    window = _pool_window(context, node, x)
    total = _reduced(context, channels_last(context, x), window, "sum")
    padding = node.flag("count_include_pad")
    rounds_up = node.flag("ceil_mode")
    if not rounds_up and (padding or not window.pads):
        count = context.scalar(math.prod(context.known(window.kernel, "a window")), x.dtype)
        return [channels_first(context, context.add("divide", total, count))]
    for axis in range(window.rank):
        count = _counts(context, x, window, axis, padding)
        total = context.add("divide", total, count)
    return [channels_first(context, total)]


def _counts(context: Context, x: Value, window: Window, axis: int, padding: bool) -> Value:
    """The number of elements of each window along an axis, as (O, 1, ..., 1)."""
    extent, begin = x.shape[2 + axis], window.begin[axis]
    if padding:
        extent, begin = extent + begin + window.end[axis], 0
    ones = context.broadcast(context.scalar(1, x.dtype), (1, extent, 1))
    along = Window(
        (window.kernel[axis],), (window.strides[axis],), (window.dilations[axis],), (begin,), (0,),
        (window.extents[axis],),
    )  # fmt: skip
    count = _reduced(context, ones, along, "sum")
    return context.reshape(count, (window.extents[axis], *([1] * (window.rank - axis))))


def _lp_pool(context: Context, node: NodeView) -> Sequence[Value]:
    x, p = node.input(0), node.integer("p", 2)
    window = _pool_window(context, node, x)
    powers = _power(context, channels_last(context, x), p)
    return [channels_first(context, _root(context, _reduced(context, powers, window, "sum"), p))]


def _power(context: Context, x: Value, p: int) -> Value:
    if p < 1:
        raise context.malformed(f"p is {p}; expected 1 or more")
    if p == 2:
        return context.add("multiply", x, x)
    absolute = context.add("absolute", x)
    return absolute if p == 1 else context.add("power", absolute, context.scalar(p, x.dtype))


def _root(context: Context, x: Value, p: int) -> Value:
    if p <= 2:
        return x if p == 1 else context.add("sqrt", x)
    return context.add("power", x, context.scalar(1 / p, x.dtype))


def _global(reduce: Callable[[Context, NodeView, Value, Sequence[int]], Value]) -> Importer:
    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x = node.input(0)
        if x.rank < 3:
            raise context.malformed(f"a pool of {x.type}, which has no spatial axis")
        return [reduce(context, node, x, range(2, x.rank))]

    return convert


def _global_mean(context: Context, node: NodeView, x: Value, axes: Sequence[int]) -> Value:
    return context.mean(x, axes)


def _global_max(context: Context, node: NodeView, x: Value, axes: Sequence[int]) -> Value:
    return context.reduce(x, "maximum", axes)


def _global_lp(context: Context, node: NodeView, x: Value, axes: Sequence[int]) -> Value:
    p = node.integer("p", 2)
    return _root(context, context.reduce(_power(context, x, p), "sum", axes), p)


POOLING: Table = {
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global(_global_mean),
    ("", "GlobalLpPool"): _global(_global_lp),
    ("", "GlobalMaxPool"): _global(_global_max),
    ("", "LpPool"): _lp_pool,
    ("", "MaxPool"): _max_pool,
}
