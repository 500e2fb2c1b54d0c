"""Deformable convolution: samples of all taps as an image of its own, and a convolution of that."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Shape, product, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.interpolation import linear_weight
from ftuner.frontends.onnx.sampling import MAX_AXES, Taps, across, apart, rows_of, sampled, within
from ftuner.frontends.onnx.windows import (
    Window,
    channels_first,
    channels_last,
    convolved,
    groups_of,
    kernel_of,
    window_of,
    with_bias,
)
from ftuner.graph.algebra import counted, floor, iota, malformed, require
from ftuner.graph.ir import Value


def _deform_conv(context: Context, node: NodeView) -> Sequence[Value]:
    """Samples of all taps as an image of its own, and a convolution of that."""
    x, w, offset = (node.input(i) for i in range(3))
    rank = x.rank - 2
    if not 1 <= rank <= MAX_AXES or w.rank != x.rank or offset.rank != x.rank:
        raise malformed(f"a convolution of {x.type} by {w.type} with {offset.type}")
    groups = groups_of(context, node, x, w, w.shape[0])
    offsets = node.integer("offset_group", 1)
    batch, channels = x.shape[:2]
    kernel = context.known(kernel_of(context, node, w), "the window of a deformable convolution")
    window = window_of(context, node, x, kernel)
    taps, samples = math.prod(kernel), product(window.extents)
    if offsets < 1:
        raise malformed(f"{offsets} groups of offsets")
    depth = quotient(channels, offsets)
    what = f"{offsets} groups of offsets {offset.type} for {x.type}"
    require(depth * offsets, channels, what)
    wanted = (batch, offsets * taps * rank, *window.extents)
    for have, extent in zip(offset.shape, wanted, strict=True):
        require(have, extent, what)
    moves = offset.reshape((batch * offsets, taps, rank, samples))
    lines = []
    for axis, extent in enumerate(x.shape[2:]):
        # Where the taps would be without offsets: (1, taps, samples).
        first = _along(context, window.extents, axis, window.strides[axis])
        reach = _along(context, kernel, axis, window.dilations[axis])
        begin = counted([window.begin[axis]], INT64)
        first = (first - begin).reshape((1, 1, samples))
        fixed = first + reach.reshape((1, taps, 1))
        moved = moves.slice(2, axis, 1).squeeze([2])
        position = fixed.cast(x.dtype) + moved
        position = position.reshape((batch * offsets, 1, taps * samples))
        numbers = iota(2, 1, 3).cast(x.dtype)
        at = floor(position) + numbers
        distance = abs(at - position)
        found, inside = within(context, at, extent)
        lines.append(Taps(found, linear_weight(context, distance), inside))
    table = apart(context, across(context, lines, x.shape[2:]), x.shape[2:])
    last = channels_last(context, x).reshape((batch, product(x.shape[2:]), offsets, depth))
    rows = rows_of(context, last.transpose((0, 2, 1, 3)))
    found = sampled(context, rows, table)
    mask = node.optional(4)
    if mask is not None:
        wanted = (batch, offsets * taps, *window.extents)
        if mask.rank != x.rank:
            raise malformed(f"the mask is {mask.type}")
        for have, extent in zip(mask.shape, wanted, strict=True):
            require(have, extent, f"the mask {mask.type}")
        factor = mask.reshape((batch * offsets, taps * samples, 1))
        found = found * factor
    image = found.reshape((batch, offsets, taps, samples, depth))
    image = image.transpose((0, 3, 2, 1, 4))
    image = image.reshape((batch, samples, taps, channels))
    turned = w.transpose((*range(2, w.rank), 1, 0))
    weight = turned.reshape((1, taps, *turned.shape[-2:]))
    columns = Window((1, taps), (1, taps), (1, 1), (0, 0), (0, 0), (samples, 1))
    result = convolved(context, image, weight, columns, groups)
    result = result.reshape((batch, *window.extents, w.shape[0]))
    return [channels_first(context, with_bias(context, result, node.optional(3)))]


def _along(context: Context, shape: Shape, axis: int, step: int) -> Value:
    """The index along an axis of all elements of a shape, times a step."""
    found = iota(shape[axis], axis, len(shape)) * step
    return found.broadcast(shape)


DEFORMABLE: Table = {("", "DeformConv"): _deform_conv}
