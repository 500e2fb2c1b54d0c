"""Operators that move elements of images: between channels and space, to the centre, out of
columns."""

from __future__ import annotations

from typing import Literal

from ftuner.core.dim import Dim, maximum, minimum, product, quotient
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import Dims, Integers, Positive, onnx
from ftuner.frontends.onnx.windows import pads_of, positive_integers
from ftuner.graph.algebra import apply, scalar
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions.transposed import Blocks, summed_blocks
from ftuner.graph.compositions.windows import channels_first, channels_last
from ftuner.graph.ir import Value


def _image(x: Value, edge: int) -> Value:
    """An image, channels last. `edge`: of its blocks."""
    if x.rank != 4:
        raise malformed(f"blocks of {edge} by {edge} of {x.type}")
    return channels_last(x)


@onnx("DepthToSpace")
def _depth_to_space(x: Value, blocksize: Positive, mode: Literal["DCR", "CRD"] = "DCR") -> Value:
    """`mode`: the order in which channels are numbered, the place in the block first (DCR) or last
    (CRD)."""
    edge, image = blocksize, _image(x, blocksize)
    batch, height, width, channels = image.shape
    depth = quotient(channels, edge * edge)
    require(depth * edge * edge, channels, f"{channels} channels as blocks")
    split = (edge, edge, depth) if mode == "DCR" else (depth, edge, edge)
    order = (0, 1, 3, 2, 4, 5) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    moved = image.reshape((batch, height, width, *split)).transpose(order)
    return channels_first(moved.reshape((batch, height * edge, width * edge, depth)))


@onnx("SpaceToDepth")
def _space_to_depth(x: Value, blocksize: Positive, mode: Literal["DCR", "CRD"] = "DCR") -> Value:
    edge, image = blocksize, _image(x, blocksize)
    batch, height, width, channels = image.shape
    rows, columns = quotient(height, edge), quotient(width, edge)
    for count, extent in ((rows, height), (columns, width)):
        require(count * edge, extent, f"blocks of {edge} along {extent}")
    last = (5, 2, 4) if mode == "CRD" else (2, 4, 5)
    apart = image.reshape((batch, rows, edge, columns, edge, channels))
    moved = apart.transpose((0, 1, 3, *last))
    return channels_first(moved.reshape((batch, rows, columns, channels * edge * edge)))


@onnx("CenterCropPad")
def _centre(context: Context, node: NodeView, x: Value, shape: Dims) -> Value:
    axes = context.axes(node.integers("axes", tuple(range(x.rank))), x.rank, ordered=False)
    if len(shape) != len(axes):
        raise malformed(f"{len(shape)} sizes for {len(axes)} axes of {x.type}")
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise malformed(f"sizes {list(shape)}; expected 0 or more each")
    before: list[Dim] = [0] * x.rank
    after: list[Dim] = [0] * x.rank
    for axis, size in zip(axes, shape, strict=True):
        extent = x.shape[axis]
        x = x.slice(axis, quotient(maximum(extent - size, 0), 2), minimum(extent, size))
        lacking = maximum(size - extent, 0)
        before[axis] = quotient(lacking, 2)
        after[axis] = lacking - before[axis]
    if all(n == 0 for n in (*before, *after)):
        return x
    zero = scalar(0, x.dtype)
    widths = {"before": tuple(before), "after": tuple(after)}
    return apply("pad", x, zero, mode="constant", **widths)


@onnx("Col2Im")
def _from_columns(node: NodeView, x: Value, image_shape: Dims, block_shape: Integers) -> Value:
    """Col2Im: each element of the image is the sum of the blocks that have it.

    Tap k of block b is the element `b * stride + k * dilation - begin` along an axis.
    """
    rank = len(image_shape)
    if x.rank != 3 or rank < 1 or len(block_shape) != rank or min(block_shape, default=1) < 1:
        raise malformed(f"blocks {list(block_shape)} of an image {list(image_shape)} from {x.type}")
    strides = positive_integers(node, "strides", rank)
    dilations = positive_integers(node, "dilations", rank)
    begin, end = pads_of(node, rank)
    counts: list[Dim] = []
    for axis, size in enumerate(image_shape):
        padded = size + begin[axis] + end[axis]
        reach = (block_shape[axis] - 1) * dilations[axis] + 1
        what = f"a block of {reach} along spatial axis {axis} of an image padded to {padded}"
        require(minimum(reach, padded), reach, what)
        counts.append(quotient(padded - reach, strides[axis]) + 1)
    batch, columns, blocks = x.shape
    channels = quotient(columns, product(block_shape))
    what = f"{x.type} as blocks {list(block_shape)}"
    require(channels * product(block_shape), columns, what)
    require(product(counts), blocks, what)
    apart = x.reshape((batch, channels, *block_shape, *counts))
    pairs = [axis for i in range(rank) for axis in (2 + i, 2 + rank + i)]
    moved = apart.transpose((0, 1, *pairs))
    split = Blocks(block_shape, tuple(counts), strides, dilations, begin)
    return summed_blocks(moved, 2, split, image_shape)
