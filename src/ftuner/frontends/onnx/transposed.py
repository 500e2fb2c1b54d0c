"""ConvTranspose: its padding, and the extents of its result."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, Shape
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import onnx
from ftuner.frontends.onnx.windows import groups_of, kernel_of, pads_of, positive_integers
from ftuner.graph.checks import expect_shape, malformed, require
from ftuner.graph.compositions.transposed import transposed
from ftuner.graph.ir import Value


@onnx("ConvTranspose")
def _transposed(
    context: Context, node: NodeView, x: Value, w: Value, bias: Value | None, group: int = 1
) -> Value:
    each = w.shape[1] if w.rank > 1 else 0
    channels = each * group
    groups_of(context, node, x, w, channels)
    require(x.shape[1], w.shape[0], f"convolution of {x.type} by {w.type}")
    if bias is not None:
        expect_shape(bias, (channels,), f"the bias {bias.type}")
    rank = x.rank - 2
    kernel = context.known(kernel_of(context, node, w), "the window of a transposed convolution")
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
    auto = node.text("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise malformed(f"auto_pad {auto!r}")
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
