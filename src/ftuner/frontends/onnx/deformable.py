"""Operators that read an image at positions that are data: GridSample, AffineGrid, and deformable
convolution, which convolves an image of the samples of all taps."""

from __future__ import annotations

import math
from typing import Literal

from ftuner.core.dim import Shape, product, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import Dims, Positive, onnx
from ftuner.frontends.onnx.windows import groups_of, kernel_of, window_of
from ftuner.graph.algebra import counted, floor, iota
from ftuner.graph.checks import expect_shape, malformed, require
from ftuner.graph.compositions import sampling
from ftuner.graph.compositions.interpolation import linear_weight
from ftuner.graph.compositions.windows import (
    Window,
    channels_first,
    channels_last,
    convolved,
    with_bias,
)
from ftuner.graph.ir import Value


@onnx("DeformConv")
def _deform_conv(
    context: Context, node: NodeView, x: Value, w: Value, offset: Value, bias: Value | None,
    mask: Value | None, offset_group: Positive = 1,
) -> Value:  # fmt: skip
    """Samples of all taps as an image of its own, and a convolution of that."""
    rank = x.rank - 2
    if not 1 <= rank <= sampling.MAX_AXES or w.rank != x.rank or offset.rank != x.rank:
        raise malformed(f"a convolution of {x.type} by {w.type} with {offset.type}")
    groups = groups_of(node, x, w, w.shape[0])
    batch, channels = x.shape[:2]
    kernel = context.known(kernel_of(node, w), "the window of a deformable convolution")
    window = window_of(node, x, kernel)
    taps, samples = math.prod(kernel), product(window.extents)
    depth = quotient(channels, offset_group)
    what = f"{offset_group} groups of offsets {offset.type} for {x.type}"
    require(depth * offset_group, channels, what)
    wanted = (batch, offset_group * taps * rank, *window.extents)
    expect_shape(offset, wanted, what)
    moves = offset.reshape((batch * offset_group, taps, rank, samples))
    lines = []
    for axis, extent in enumerate(x.shape[2:]):
        # Where the taps would be without offsets: (1, taps, samples).
        first = _along(window.extents, axis, window.strides[axis])
        reach = _along(kernel, axis, window.dilations[axis])
        first = (first - counted([window.begin[axis]], INT64)).reshape((1, 1, samples))
        fixed = first + reach.reshape((1, taps, 1))
        position = fixed.cast(x.dtype) + moves.slice(2, axis, 1).squeeze([2])
        position = position.reshape((batch * offset_group, 1, taps * samples))
        at = floor(position) + iota(2, 1, 3).cast(x.dtype)
        distance = abs(at - position)
        found, inside = sampling.within(at, extent)
        lines.append(sampling.Taps(found, linear_weight(distance), inside))
    table = sampling.apart(sampling.across(lines, x.shape[2:]), x.shape[2:])
    last = channels_last(x).reshape((batch, product(x.shape[2:]), offset_group, depth))
    found = sampling.sampled(sampling.rows_of(last.transpose((0, 2, 1, 3))), table)
    if mask is not None:
        wanted = (batch, offset_group * taps, *window.extents)
        expect_shape(mask, wanted, f"the mask {mask.type}")
        factor = mask.reshape((batch * offset_group, taps * samples, 1))
        found = found * factor
    image = found.reshape((batch, offset_group, taps, samples, depth))
    image = image.transpose((0, 3, 2, 1, 4)).reshape((batch, samples, taps, channels))
    turned = w.transpose((*range(2, w.rank), 1, 0))
    weight = turned.reshape((1, taps, *turned.shape[-2:]))
    columns = Window((1, taps), (1, taps), (1, 1), (0, 0), (0, 0), (samples, 1))
    result = convolved(image, weight, columns, groups)
    result = result.reshape((batch, *window.extents, w.shape[0]))
    return channels_first(with_bias(result, bias))


def _along(shape: Shape, axis: int, step: int) -> Value:
    """The index along an axis of all elements of a shape, times a step."""
    return (iota(shape[axis], axis, len(shape)) * step).broadcast(shape)


# GridSample.


@onnx("GridSample")
def _grid_sample(
    x: Value, grid: Value, padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = False,
    mode: Literal["linear", "nearest", "cubic", "bilinear", "bicubic"] = "linear",
) -> Value:  # fmt: skip
    """`bilinear` and `bicubic` are the names of modes before opset 20."""
    return sampling.grid_samples(x, grid, mode.removeprefix("bi"), padding_mode, align_corners)


@onnx("AffineGrid")
def _affine_grid(theta: Value, size: Dims, align_corners: bool = False) -> Value:
    rank = len(size) - 2
    if theta.rank != 3 or rank not in (2, 3):
        raise malformed(f"a grid of {list(size)} by {theta.type}")
    expect_shape(theta, (size[0], rank, rank + 1), f"a grid of {list(size)} by {theta.type}")
    turned = theta.swapped()

    def column(number: int) -> Value:
        """Returns what one coordinate adds to each coordinate of the result."""
        return turned.slice(1, number, 1).reshape((theta.shape[0], *[1] * rank, rank))

    total = column(rank)
    for axis, extent in enumerate(size[2:]):
        numbers = iota(extent, axis, rank + 1).cast(theta.dtype)
        count = counted([extent], theta.dtype)
        last = (count + -1).at_least(1)
        along = numbers * 2 / last if align_corners else (numbers * 2 + 1) / count
        total = total + column(rank - 1 - axis) * (along + -1)
    return total.broadcast((theta.shape[0], *size[2:], rank))
