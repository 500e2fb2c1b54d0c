"""Operators with windows: what a window is, and convolution.

The graph's operators are channels last, ONNX's channels first: each importer transposes its operand
and its result, and the pass `channels_last` removes the transpositions between such operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.core.dim import Dim, Shape, ceil_quotient, maximum, minimum, quotient
from ftuner.frontends.onnx.activations import fused_activation
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply
from ftuner.graph.checks import expect_shape, fitting, malformed, require
from ftuner.graph.ir import Value

FARTHEST = 1 << 40
"""Elements that no axis has: they would take terabytes."""


def channels_last(x: Value) -> Value:
    """The channels (second axis) last."""
    return x.transpose((0, *range(2, x.rank), 1))


def channels_first(x: Value) -> Value:
    """The channels (last axis) second."""
    return x.transpose((0, x.rank - 1, *range(1, x.rank - 1)))


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
    cut: bool = False
    """Whether a window may reach beyond the padded operand."""

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


def positive_integers(node: NodeView, name: str, rank: int) -> tuple[int, ...]:
    """A list of positive integers, by default ones."""
    found = node.integers(name, (1,) * rank)
    if len(found) != rank or min(found, default=1) < 1:
        raise malformed(f"{name} {list(found)}; expected {rank} positive integers")
    return found


def strides_of(context: Context, node: NodeView, rank: int) -> tuple[int, ...]:
    """The strides of windows that x is read through. Beyond `FARTHEST`, a longer one gives the
    same: the first window alone."""
    return tuple(min(n, FARTHEST) for n in positive_integers(node, "strides", rank))


def pads_of(node: NodeView, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = node.integers("pads", (0,) * (2 * rank))
    if len(found) != 2 * rank or min(found, default=0) < 0:
        raise malformed(f"pads {list(found)}; expected {2 * rank} integers of zero or more")
    return found[:rank], found[rank:]


def window_of(
    context: Context, node: NodeView, x: Value, kernel: Shape, cuts: bool = False
) -> Window:
    """The window of a node; `x`: channels first. `cuts`: whether windows that are larger than the
    padded x are cut, as those of pools are in onnxruntime: where extents round up, or are known."""
    rank = x.rank - 2
    if rank < 1 or len(kernel) != rank:
        raise malformed(f"a window {list(kernel)} on {x.type}")
    strides = strides_of(context, node, rank)
    dilations = positive_integers(node, "dilations", rank)
    before, after = pads_of(node, rank)
    auto, rounds_up = node.text("auto_pad", "NOTSET"), node.flag("ceil_mode")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise malformed(f"auto_pad {auto!r}")
    begin, end, extents, cut = [], [], [], rounds_up
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
            left = padded - reach
            larger = isinstance(left, int) and left < 0
            if cuts and (rounds_up or larger):
                cut = True
                count = ceil_quotient(left, stride) + 1
                require(minimum(minimum(n, count), 1), 1, what)
            else:
                require(minimum(reach, padded), reach, what)
                count = quotient(left, stride) + 1
            if rounds_up:
                # A window begins within the operand or before it.
                count = minimum(count, ceil_quotient(n + pair[0], stride))
        begin.append(pair[0])
        end.append(pair[1])
        extents.append(count)
    return Window(kernel, strides, dilations, tuple(begin), tuple(end), tuple(extents), cut)


# Convolution.


def groups_of(context: Context, node: NodeView, x: Value, w: Value, channels: Dim) -> int:
    """The number of groups, checked against x and the weight. `channels`: of the result."""
    if x.rank < 3 or w.rank != x.rank:
        raise malformed(f"a convolution of {x.type} by {w.type}")
    groups = node.integer("group", 1)
    divides = not isinstance(channels, int) or (groups > 0 and channels % groups == 0)
    if groups < 1 or not divides:
        raise malformed(f"{groups} groups of {channels} channels")
    return groups


def kernel_of(context: Context, node: NodeView, w: Value) -> Shape:
    """The extents of the window, which `kernel_shape` may repeat."""
    kernel = w.shape[2:]
    given = node.integers("kernel_shape", ())
    if node.has("kernel_shape") and len(given) != len(kernel):
        raise malformed(f"kernel_shape {list(given)} of the weight {w.type}")
    for n, wanted in zip(kernel, given, strict=False):
        require(n, wanted, f"kernel_shape {list(given)} of the weight {w.type}")
    if any(isinstance(n, int) and n < 1 for n in kernel):
        raise malformed(f"an empty window: the weight is {w.type}")
    return kernel


def with_bias(result: Value, bias: Value | None) -> Value:
    if bias is None:
        return result
    expect_shape(bias, (result.shape[-1],), f"the bias {bias.type}")
    return result + bias


def convolved(x: Value, w: Value, window: Window, groups: int) -> Value:
    """The convolution of x, channels last, by w of (K..., C, channels)."""
    steps_alone = window.kernel == window.strides == (1,) * window.rank
    if steps_alone and groups == 1 and not window.pads and window.extents == x.shape[1:-1]:
        # A product of every position by one matrix.
        require(x.shape[-1], w.shape[-2], f"convolution of {x.type} by {w.type}")
        return x @ w.reshape(w.shape[-2:])
    return apply("convolution", x, w, groups=groups, **window.attributes())


@onnx("Conv")
def conv(context: Context, node: NodeView, x: Value, w: Value, bias: Value | None) -> Value:
    groups = groups_of(context, node, x, w, w.shape[0] if w.rank else 0)
    window = window_of(context, node, x, kernel_of(context, node, w))
    turned = w.transpose((*range(2, w.rank), 1, 0))
    return channels_first(with_bias(convolved(channels_last(x), turned, window, groups), bias))


@onnx("FusedConv", domain=MICROSOFT)
def fused_conv(
    context: Context, node: NodeView, x: Value, w: Value, bias: Value | None,
    addend: Value | None, activation_params: tuple[float, ...] = (), activation: str = "",
) -> Value:  # fmt: skip
    """A convolution, a tensor that is added, and an activation."""
    result = conv(context, node, x, w, bias)
    if addend is not None:
        result = result + fitting(addend, result, "Z")
    names = ("min", "max") if activation == "Clip" else ("alpha", "beta")
    return fused_activation(activation, result, dict(zip(names, activation_params, strict=False)))
