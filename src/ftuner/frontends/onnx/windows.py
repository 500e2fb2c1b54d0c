"""Operators with windows: what a window is, convolution and transposed convolution.

The graph's operators are channels last, ONNX's channels first: each importer transposes its operand
and its result, and the pass `channels_last` removes the transpositions between such operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, Shape
from ftuner.frontends.onnx.activations import fused_activation
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.checks import expect_shape, fitting, malformed, require
from ftuner.graph.compositions.transposed import transposed
from ftuner.graph.compositions.windows import (
    FARTHEST,
    Window,
    channels_first,
    channels_last,
    convolved,
    placed,
    with_bias,
)
from ftuner.graph.ir import Value

_PADDINGS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def positive_integers(node: NodeView, name: str, rank: int) -> tuple[int, ...]:
    """A list of positive integers, by default ones."""
    found = node.integers(name, (1,) * rank)
    if len(found) != rank or min(found, default=1) < 1:
        raise malformed(f"{name} {list(found)}; expected {rank} positive integers")
    return found


def pads_of(node: NodeView, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = node.integers("pads", (0,) * (2 * rank))
    if len(found) != 2 * rank or min(found, default=0) < 0:
        raise malformed(f"pads {list(found)}; expected {2 * rank} integers of zero or more")
    return found[:rank], found[rank:]


def window_of(node: NodeView, x: Value, kernel: Shape, cuts: bool = False) -> Window:
    """The window of a node; `x`: channels first. `cuts`: whether windows that are larger than the
    padded x are cut, as those of pools are in onnxruntime: where extents round up, or are known."""
    rank = x.rank - 2
    if rank < 1 or len(kernel) != rank:
        raise malformed(f"a window {list(kernel)} on {x.type}")
    # Beyond `FARTHEST`, a longer stride gives the same: the first window alone.
    strides = tuple(min(n, FARTHEST) for n in positive_integers(node, "strides", rank))
    dilations = positive_integers(node, "dilations", rank)
    before, after = pads_of(node, rank)
    auto = node.one_of("auto_pad", _PADDINGS, "NOTSET")
    return placed(x, kernel, strides, dilations, before, after, auto, node.flag("ceil_mode"), cuts)


# Convolution.


def groups_of(node: NodeView, x: Value, w: Value, channels: Dim) -> int:
    """The number of groups, checked against x and the weight. `channels`: of the result."""
    if x.rank < 3 or w.rank != x.rank:
        raise malformed(f"a convolution of {x.type} by {w.type}")
    groups = node.integer("group", 1)
    divides = not isinstance(channels, int) or (groups > 0 and channels % groups == 0)
    if groups < 1 or not divides:
        raise malformed(f"{groups} groups of {channels} channels")
    return groups


def kernel_of(node: NodeView, w: Value) -> Shape:
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


@onnx("Conv")
def conv(node: NodeView, x: Value, w: Value, bias: Value | None) -> Value:
    groups = groups_of(node, x, w, w.shape[0] if w.rank else 0)
    window = window_of(node, x, kernel_of(node, w))
    turned = w.transpose((*range(2, w.rank), 1, 0))
    return channels_first(with_bias(convolved(channels_last(x), turned, window, groups), bias))


@onnx("FusedConv", domain=MICROSOFT)
def fused_conv(
    node: NodeView, x: Value, w: Value, bias: Value | None, addend: Value | None,
    activation_params: tuple[float, ...] = (), activation: str = "",
) -> Value:  # fmt: skip
    """A convolution, a tensor that is added, and an activation."""
    result = conv(node, x, w, bias)
    if addend is not None:
        result = result + fitting(addend, result, "Z")
    names = ("min", "max") if activation == "Clip" else ("alpha", "beta")
    return fused_activation(activation, result, dict(zip(names, activation_params, strict=False)))


@onnx("ConvTranspose")
def _transposed(
    context: Context, node: NodeView, x: Value, w: Value, bias: Value | None, group: int = 1
) -> Value:
    each = w.shape[1] if w.rank > 1 else 0
    channels = each * group
    groups_of(node, x, w, channels)
    require(x.shape[1], w.shape[0], f"convolution of {x.type} by {w.type}")
    if bias is not None:
        expect_shape(bias, (channels,), f"the bias {bias.type}")
    rank = x.rank - 2
    kernel = context.known(kernel_of(node, w), "the window of a transposed convolution")
    strides = positive_integers(node, "strides", rank)
    dilations = positive_integers(node, "dilations", rank)
    begin, extents = _transposed_extents(context, node, x, kernel, strides, dilations)
    return transposed(x, w, bias, group, kernel, strides, dilations, begin, extents)


def _transposed_extents(
    context: Context, node: NodeView, x: Value, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, ...], Shape]:  # fmt: skip
    """The padding before the first output that is cut away, and the extents of the result."""
    rank = x.rank - 2
    auto = node.one_of("auto_pad", _PADDINGS, "NOTSET")
    before, after = pads_of(node, rank)
    extra = node.integers("output_padding", (0,) * rank)
    wanted = node.integers("output_shape", ())
    if node.has("output_shape") and len(wanted) not in (rank, rank + 2):
        raise malformed(f"output_shape {list(wanted)} of {x.type}")
    limits = [max(pair) for pair in zip(strides, dilations, strict=True)]
    if len(extra) != rank or any(not 0 <= n < m for n, m in zip(extra, limits, strict=True)):
        raise malformed(f"output_padding {list(extra)}; expected {rank} below {limits}")
    begin: list[int] = []
    extents: list[Dim] = []
    for axis, n in enumerate(x.shape[2:]):
        stride = strides[axis]
        whole = (n - 1) * stride + ((kernel[axis] - 1) * dilations[axis] + 1) + extra[axis]
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
