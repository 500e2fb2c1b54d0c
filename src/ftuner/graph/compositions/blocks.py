"""Images as sums of blocks, which may overlap: Col2Im and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.core.dim import Dim, Shape
from ftuner.graph.algebra import apply, equal, iota, where, zero_padded
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


def summed_blocks(x: Value, axis: int, blocks: Blocks, sizes: Sequence[Dim]) -> Value:
    """The image of spatial extents `sizes` whose elements are the sums of what blocks have there.

    From `axis` on, x has two axes for each spatial one, the taps and the blocks; the result has
    that one in their place.
    """
    rank = len(sizes)
    lines = [k * n for k, n in zip(blocks.kernel, blocks.counts, strict=True)]
    shape = (*x.shape[:axis], *lines, *x.shape[axis + 2 * rank :])
    # After the last element, a zero for what no block has.
    edge = tuple(int(axis <= i < axis + rank) for i in range(len(shape)))
    padded = zero_padded(x.reshape(shape), (0,) * len(shape), edge)
    tables = [_readers(blocks, i, size) for i, size in enumerate(sizes)]
    return apply("resample", padded, *tables, axes=tuple(range(axis, axis + rank)))


def _readers(blocks: Blocks, axis: int, size: Dim) -> Value:
    """For each tap and each element of an axis, where the tap of its block is; `kernel * count` if
    there is no such block."""

    kernel, count = blocks.kernel[axis], blocks.counts[axis]
    stride, dilation, begin = blocks.strides[axis], blocks.dilations[axis], blocks.begin[axis]
    taps = iota(kernel, 0, 2)
    distance = iota(size) + begin - taps * dilation
    block = distance / stride
    found = equal(block * stride, distance) & ((distance >= 0) & (block < count))
    return where(found, taps * count + block, kernel * count)
