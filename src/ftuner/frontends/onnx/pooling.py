"""Pooling: reductions of windows, and of all spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import minimum, product
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import MICROSOFT, NCHWC
from ftuner.frontends.onnx.signatures import Positive, onnx
from ftuner.frontends.onnx.windows import pads_of, positive_integers, window_of
from ftuner.graph.algebra import apply, scalar, sqrt
from ftuner.graph.checks import expect_shape, malformed, origin, require
from ftuner.graph.compositions.pooling import apart, averaged, numbers, reduced, together
from ftuner.graph.compositions.windows import Window, channels_first
from ftuner.graph.ir import Value


def _pool_window(node: NodeView, x: Value) -> Window:
    kernel = positive_integers(node, "kernel_shape", max(x.rank - 2, 0))
    if not node.has("kernel_shape"):
        raise malformed("attribute kernel_shape is missing")
    begin, end = pads_of(node, len(kernel))
    if any(max(pair) >= n for *pair, n in zip(begin, end, kernel, strict=True)):
        raise malformed(
            f"pads {[*begin, *end]} around windows {list(kernel)}, some of which would have no "
            "element; expected less than the window"
        )
    return window_of(node, x, kernel, cuts=True)


@onnx("MaxPool")
@onnx("MaxPool", domain=NCHWC)
def _max_pool(node: NodeView, x: Value, storage_order: bool = False) -> Sequence[Value]:
    window = _pool_window(node, x)
    last = apart(x)
    result = together(reduced(last, window, "maximum"), x)
    if not node.gives(1):
        return [result]
    taps = together(reduced(last, window, "argmax"), x)
    return [result, numbers(x, window, taps, storage_order)]


@onnx("NhwcMaxPool", domain=MICROSOFT)
def _nhwc_max_pool(node: NodeView, x: Value) -> Value:
    if x.rank < 3:
        raise malformed(f"a pool of {x.type}, which has no spatial axis")
    return reduced(x, _pool_window(node, channels_first(x)), "maximum")


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
    node: NodeView, x: Value, count_include_pad: bool = False, ceil_mode: bool = False
) -> Value:
    window = _pool_window(node, x)
    # onnxruntime divides by the whole of a window that is larger than x before opset 19.
    rounds_down = count_include_pad and node.opset < 19 and not ceil_mode
    whole = (rounds_down or not window.cut) and (count_include_pad or not window.pads)
    return averaged(x, window, count_include_pad, whole)


@onnx("LpPool")
def _lp_pool(node: NodeView, x: Value, p: Positive = 2) -> Value:
    window = _pool_window(node, x)
    return together(_root(reduced(_power(apart(x), p), window, "sum"), p), x)


def _power(x: Value, p: int) -> Value:
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
def _global_lp(x: Value, p: Positive = 2) -> Value:
    return _root(_power(x, p).reduce("sum", _spatial(x)), p)
