"""Images as sums of blocks, which may overlap: Col2Im and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context
from ftuner.graph.ir import Value


@dataclass(frozen=True)
class Blocks:
    """How blocks lie in an image: tap k of block b is element `b * stride + k * dilation - begin`
    along an axis. One entry for each spatial axis."""

    kernel: Sequence[int]
    counts: Shape
    """Numbers of blocks."""
    strides: Sequence[int]
    dilations: Sequence[int]
    begin: Sequence[int]


def summed_blocks(
    context: Context, x: Value, axis: int, blocks: Blocks, sizes: Sequence[Dim]
) -> Value:
    """The image of spatial extents `sizes` whose elements are the sums of what blocks have there.

    From `axis` on, x has two axes for each spatial one, the taps and the blocks; the result has
    that one in their place.
    """
    rank = len(sizes)
    lines = [k * n for k, n in zip(blocks.kernel, blocks.counts, strict=True)]
    shape = (*x.shape[:axis], *lines, *x.shape[axis + 2 * rank :])
    # After the last element, a zero for what no block has.
    edge = tuple(int(axis <= i < axis + rank) for i in range(len(shape)))
    padded = context.add(
        "pad", context.reshape(x, shape), context.scalar(0, x.dtype), before=(0,) * len(shape),
        after=edge, mode="constant",
    )  # fmt: skip
    tables = [_readers(context, blocks, i, size) for i, size in enumerate(sizes)]
    return context.add("resample", padded, *tables, axes=tuple(range(axis, axis + rank)))


def _readers(context: Context, blocks: Blocks, axis: int, size: Dim) -> Value:
    """For each tap and each element of an axis, where the tap of its block is; `kernel * count` if
    there is no such block."""

    kernel, count = blocks.kernel[axis], blocks.counts[axis]
    stride, dilation, begin = blocks.strides[axis], blocks.dilations[axis], blocks.begin[axis]

    def number(value: Dim) -> Value:
        return context.count([value], INT64)

    taps = context.iota(kernel, 0, 2)
    reached = context.add("multiply", taps, number(dilation))
    shifted = context.add("add", context.iota(size), number(begin))
    distance = context.add("subtract", shifted, reached)
    block = context.add("divide", distance, number(stride))
    even = context.add("equal", context.add("multiply", block, number(stride)), distance)
    low = context.add("less_equal", number(0), distance)
    high = context.add("less", block, number(count))
    found = context.add("logical_and", even, context.add("logical_and", low, high))
    at = context.add("add", context.add("multiply", taps, number(count)), block)
    return context.add("where", found, at, number(kernel * count))
