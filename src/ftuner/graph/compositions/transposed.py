"""Transposed convolution, and images as sums of blocks, which may overlap.

The outputs of one phase modulo the strides are a convolution of x. Phases that read the same
elements of x are computed together, as channels of one convolution: exactly the products that are
needed, and nothing is added up in memory. Where that would take too many convolutions, the result
is the sum of blocks, one for each element of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from ftuner.core.dim import Dim, Shape, ceil_quotient, product, quotient
from ftuner.core.dtype import INT64
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import apply, concat, constant, equal, iota, scalar, where, zero_padded
from ftuner.graph.compositions.windows import (
    Window,
    channels_first,
    channels_last,
    convolved,
    with_bias,
)
from ftuner.graph.ir import Value

MAX_PARTS = 16
"""Most convolutions that one transposed convolution becomes."""


MOST_OF_GROUP = 8
"""Channels of a group up to which few phases stay apart, so that the kernel of single channels
computes them: a product of so small a group would leave most of each vector empty."""


@dataclass(frozen=True)
class _Part:
    """Successive phases of an axis that read the same elements of x. Counted with the padding that
    is cut away, output `stride * u + phase` reads element `u + (phase - tap * dilation) / stride`
    for each tap for which that divides evenly. These taps are evenly spaced, and so are the
    elements."""

    phases: int
    taps: tuple[tuple[int, ...], ...]
    """For each element, in the order in which x is read, the taps of all phases."""
    dilation: int
    first: int
    """The element that output u = 0 reads first."""


def _parts(kernel: int, stride: int, dilation: int, apart: bool) -> list[_Part]:
    """All phases of an axis, in their order; `apart`: each for itself."""

    def taps(phase: int) -> list[int]:
        return [k for k in reversed(range(kernel)) if (phase - k * dilation) % stride == 0]

    def read(phase: int) -> list[int]:
        """The elements from u on; a phase by itself if it is to stay apart."""
        return [apart * phase, *((phase - k * dilation) // stride for k in taps(phase))]

    found = []
    for (_, *elements), run in groupby(range(stride), read):
        phases = list(run)
        of_elements = tuple(zip(*map(taps, phases), strict=True))
        first = elements[0] if elements else 0
        spacing = dilation // math.gcd(dilation, stride)
        found.append(_Part(len(phases), of_elements, spacing, first))
    return found


def transposed(
    x: Value, w: Value, bias: Value | None, group: int, kernel: Sequence[int],
    strides: Sequence[int], dilations: Sequence[int], begin: Sequence[int], extents: Shape,
) -> Value:  # fmt: skip
    """The transposed convolution of x, channels first, by w of (C, channels of a group, K...).

    Args:
        kernel: the extents K..., which must be known.
        begin: the padding before the first output that is cut away.
        extents: the spatial extents of the result.
    """
    rank = x.rank - 2
    # (K..., C, groups, channels of a group)
    depth = quotient(w.shape[0], group)
    weight = w.reshape((group, depth, *w.shape[1:])).transpose((*range(3, 3 + rank), 1, 0, 2))
    last = channels_last(x)
    few = isinstance(depth, int) and depth <= MOST_OF_GROUP and math.prod(strides) <= MAX_PARTS
    apart = group > 1 and few and rank <= 2
    of_axes = list(zip(kernel, strides, dilations, strict=True))
    # Far beyond the kernel, a stride is mostly phases without taps.
    sparse = any(stride > MAX_PARTS * ((k - 1) * d + 1) for k, stride, d in of_axes)
    axes = [] if sparse else [_parts(*axis, apart) for axis in of_axes]
    if sparse or math.prod(map(len, axes)) > MAX_PARTS:
        blocks = Blocks(kernel, x.shape[2:], strides, dilations, begin)
        result = with_bias(summed_blocks(_blocks(last, weight), 1, blocks, extents), bias)
        return channels_first(result)
    result = _joined(last, weight, bias, axes, begin, extents)
    return channels_first(result)


def _blocks(x: Value, weight: Value) -> Value:
    """What each element of x adds to the result: (batch, K1, D1, ..., Kr, Dr, channels)."""
    rank = x.rank - 2
    *kernel, depth, groups, each = weight.shape
    assert isinstance(groups, int)
    elements = product(kernel)
    flat = weight.reshape((elements, depth, groups, each))
    point = flat.transpose((1, 2, 0, 3)).reshape((*[1] * rank, depth, elements * groups * each))
    ones, none = (1,) * rank, (0,) * rank
    window = Window(ones, ones, ones, none, none, x.shape[1:-1])
    found = convolved(x, point, window, groups).reshape((*x.shape[:-1], groups, *kernel, each))
    pairs = [axis for i in range(rank) for axis in (2 + rank + i, 1 + i)]
    moved = found.transpose((0, *pairs, 1 + rank, 2 + 2 * rank))
    return moved.reshape((*moved.shape[:-2], groups * each))


def _joined(
    x: Value, weight: Value, bias: Value | None, axes: Sequence[Sequence[_Part]],
    begin: Sequence[int], extents: Shape,
) -> Value:  # fmt: skip
    """The convolutions of all parts side by side; channels last."""
    rank = len(axes)
    strides = [sum(part.phases for part in parts) for parts in axes]
    before = [b // stride for b, stride in zip(begin, strides, strict=True)]
    counts = tuple(
        ceil_quotient(n + b, stride) - u
        for n, b, stride, u in zip(extents, begin, strides, before, strict=True)
    )

    def outputs(chosen: tuple[_Part, ...]) -> Value:
        """The outputs of all parts of the axes after those of the chosen ones:
        (batch, U1, phases, ..., Ur, phases, channels)."""
        axis = len(chosen)
        if axis == rank:
            return _convolved(x, weight, bias, chosen, before, counts)
        return concat([outputs((*chosen, part)) for part in axes[axis]], 2 + 2 * axis)

    found = outputs(())
    whole = (n * stride for n, stride in zip(counts, strides, strict=True))
    result = found.reshape((x.shape[0], *whole, found.shape[-1]))
    for axis, extent in enumerate(extents):
        result = result.slice(1 + axis, begin[axis] - before[axis] * strides[axis], extent)
    return result


def _convolved(
    x: Value, weight: Value, bias: Value | None, parts: Sequence[_Part], before: Sequence[int],
    counts: Shape,
) -> Value:  # fmt: skip
    """The outputs of one part of each axis, the phases of each axis after it."""
    rank = len(parts)
    *_, depth, groups, each = weight.shape
    assert isinstance(groups, int)
    phases = tuple(part.phases for part in parts)
    kernel = tuple(len(part.taps) for part in parts)
    columns = product((groups, *phases, each))
    if 0 in kernel:
        found = scalar(0, x.dtype).broadcast((x.shape[0], *counts, columns))
    else:
        for axis, part in enumerate(parts):
            numbers = constant([tap for taps in part.taps for tap in taps], INT64)
            weight = apply("gather", weight, numbers, axis=axis)
        pairs = [n for pair in zip(kernel, phases, strict=True) for n in pair]
        apart = weight.reshape((*pairs, depth, groups, each))
        end = 2 * rank
        order = (*range(0, end, 2), end, end + 1, *range(1, end, 2), end + 2)
        own = apart.transpose(order).reshape((*kernel, depth, columns))
        first = tuple(-part.first - u for part, u in zip(parts, before, strict=True))
        dilations = tuple(part.dilation for part in parts)
        window = Window(kernel, (1,) * rank, dilations, first, (0,) * rank, counts)
        found = convolved(x, own, window, groups)
    if bias is not None:
        rows = bias.reshape((groups, 1, each)).broadcast((groups, math.prod(phases), each))
        found = with_bias(found, rows.reshape((columns,)))
    found = found.reshape((x.shape[0], *counts, groups, *phases, each))
    order = (0, *(a for i in range(rank) for a in (1 + i, 2 + rank + i)), 1 + rank, 2 + 2 * rank)
    moved = found.transpose(order)
    return moved.reshape((*moved.shape[:-2], groups * each))


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
