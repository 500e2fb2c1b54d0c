"""Operators with windows: what a window is, convolution and transposed convolution.

The graph's operators are channels last, ONNX's channels first: each importer transposes its operand
and its result, and the pass `channels_last` removes the transpositions between such operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.core.dim import Dim, Shape, ceil_quotient, maximum, minimum, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.graph.ir import Value


def channels_last(context: Context, x: Value) -> Value:
    """The channels (second axis) last."""
    return context.transpose(x, (0, *range(2, x.rank), 1))


def channels_first(context: Context, x: Value) -> Value:
    """The channels (last axis) second."""
    return context.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


@dataclass(frozen=True)
class Window:
    """A window as a node describes it; one entry for each spatial axis."""

    kernel: Shape
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: Shape
    end: Shape
    extents: Shape
    """Of the result."""

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def pads(self) -> bool:
        return any(n != 0 for n in (*self.begin, *self.end))

    def attributes(self) -> dict[str, tuple[Dim, ...]]:
        return {
            "strides": self.strides,
            "dilations": self.dilations,
            "begin": self.begin,
            "extents": self.extents,
        }


def positive_integers(context: Context, node: NodeView, name: str, rank: int) -> tuple[int, ...]:
    """A list of positive integers, by default ones."""
    found = node.integers(name, (1,) * rank)
    if len(found) != rank or min(found, default=1) < 1:
        raise context.malformed(f"{name} {list(found)}; expected {rank} positive integers")
    return found


def pads_of(context: Context, node: NodeView, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = node.integers("pads", (0,) * (2 * rank))
    if len(found) != 2 * rank or min(found, default=0) < 0:
        raise context.malformed(f"pads {list(found)}; expected {2 * rank} integers of zero or more")
    return found[:rank], found[rank:]


def window_of(context: Context, node: NodeView, x: Value, kernel: Shape) -> Window:
    """The window of a node; `x`: channels first."""
    rank = x.rank - 2
    if rank < 1 or len(kernel) != rank:
        raise context.malformed(f"a window {list(kernel)} on {x.type}")
    strides = positive_integers(context, node, "strides", rank)
    dilations = positive_integers(context, node, "dilations", rank)
    before, after = pads_of(context, node, rank)
    auto, rounds_up = node.text("auto_pad", "NOTSET"), node.flag("ceil_mode")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise context.malformed(f"auto_pad {auto!r}")
    begin, end, extents = [], [], []
    for axis, n in enumerate(x.shape[2:]):
        stride = strides[axis]
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if auto.startswith("SAME"):
            count = ceil_quotient(n, stride)
            total = maximum((count - 1) * stride + reach - n, 0)
            half = quotient(total, 2)
            pair = (half, total - half) if auto == "SAME_UPPER" else (total - half, half)
        else:
            pair = (0, 0) if auto == "VALID" else (before[axis], after[axis])
            padded = n + pair[0] + pair[1]
            what = f"a window of {reach} along spatial axis {axis} of {x.type}, padded to {padded}"
            context.builder.require(minimum(reach, padded), reach, what)
            count = quotient(padded - reach, stride) + 1
            if rounds_up:
                # A window begins within the operand or before it.
                count = ceil_quotient(padded - reach, stride) + 1
                count = minimum(count, ceil_quotient(n + pair[0], stride))
        begin.append(pair[0])
        end.append(pair[1])
        extents.append(count)
    return Window(kernel, strides, dilations, tuple(begin), tuple(end), tuple(extents))


# Convolution.


def groups_of(context: Context, node: NodeView, x: Value, w: Value, channels: Dim) -> int:
    """The number of groups, checked against x and the weight. `channels`: of the result."""
    if x.rank < 3 or w.rank != x.rank:
        raise context.malformed(f"a convolution of {x.type} by {w.type}")
    groups = node.integer("group", 1)
    divides = not isinstance(channels, int) or (groups > 0 and channels % groups == 0)
    if groups < 1 or not divides:
        raise context.malformed(f"{groups} groups of {channels} channels")
    return groups


def kernel_of(context: Context, node: NodeView, w: Value) -> Shape:
    """The extents of the window, which `kernel_shape` may repeat."""
    kernel = w.shape[2:]
    given = node.integers("kernel_shape", ())
    if node.has("kernel_shape") and len(given) != len(kernel):
        raise context.malformed(f"kernel_shape {list(given)} of the weight {w.type}")
    for n, wanted in zip(kernel, given, strict=False):
        context.builder.require(n, wanted, f"kernel_shape {list(given)} of the weight {w.type}")
    if any(isinstance(n, int) and n < 1 for n in kernel):
        raise context.malformed(f"an empty window: the weight is {w.type}")
    return kernel


def with_bias(context: Context, result: Value, bias: Value | None) -> Value:
    if bias is None:
        return result
    if bias.rank != 1:
        raise context.malformed(f"the bias is {bias.type}; expected one axis")
    context.builder.require(bias.shape[0], result.shape[-1], f"the bias {bias.type}")
    return context.add("add", result, bias)


def convolved(context: Context, x: Value, w: Value, window: Window, groups: int) -> Value:
    """The convolution of x, channels last, by w of (K..., C, channels)."""
    steps_alone = window.kernel == window.strides == (1,) * window.rank
    if steps_alone and groups == 1 and not window.pads and window.extents == x.shape[1:-1]:
        # A product of every position by one matrix.
        context.builder.require(x.shape[-1], w.shape[-2], f"convolution of {x.type} by {w.type}")
        return context.add("matmul", x, context.reshape(w, w.shape[-2:]))
    return context.add("convolution", x, w, groups=groups, **window.attributes())


def _conv(context: Context, node: NodeView) -> Sequence[Value]:
    x, w = node.input(0), node.input(1)
    groups = groups_of(context, node, x, w, w.shape[0] if w.rank else 0)
    window = window_of(context, node, x, kernel_of(context, node, w))
    turned = context.transpose(w, (*range(2, w.rank), 1, 0))
    result = convolved(context, channels_last(context, x), turned, window, groups)
    return [channels_first(context, with_bias(context, result, node.optional(2)))]


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
    """A transposed convolution is one convolution for each phase of the output modulo the strides.

    Phases that read the same elements are one convolution with more channels.
    """
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
    last = channels_last(context, x)
    counts = tuple(ceil_quotient(n, s) for n, s in zip(extents, strides, strict=True))
    axes = [
        [_taps(p, kernel[a], strides[a], dilations[a], begin[a]) for p in range(strides[a])]
        for a in range(rank)
    ]

    def phases(axis: int, chosen: tuple[_Taps, ...], weight: Value) -> Value:
        """The outputs of all phases along the axes from `axis` on: (batch, O..., channels), where
        those axes have the extents `counts * strides`."""
        if axis == rank:
            return _phase(context, last, weight, chosen, counts, groups)
        found = []
        for taps in axes[axis]:
            picked = _picked(context, weight, axis, taps.numbers)
            part = phases(axis + 1, (*chosen, taps), picked)
            found.append(context.unsqueeze(part, [2 + axis]))
        joined = context.concat(found, 2 + axis)
        shape = list(joined.shape)
        shape[1 + axis : 3 + axis] = [counts[axis] * strides[axis]]
        return context.reshape(joined, tuple(shape))

    result = phases(0, (), turned)
    for axis, extent in enumerate(extents):
        result = context.slice(result, 1 + axis, 0, extent)
    return [channels_first(context, with_bias(context, result, node.optional(2)))]


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
    if len(extra) != rank or min(extra, default=0) < 0 or len(wanted) not in (0, rank, rank + 2):
        raise context.malformed(f"output_padding {list(extra)}, output_shape {list(wanted)}")
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


WINDOWS: Table = {
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _transposed,
}
