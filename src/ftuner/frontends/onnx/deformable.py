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
from ftuner.graph.ir import Value


def _deform_conv(context: Context, node: NodeView) -> Sequence[Value]:
    """Samples of all taps as an image of its own, and a convolution of that."""
    x, w, offset = (node.input(i) for i in range(3))
    rank = x.rank - 2
    if not 1 <= rank <= MAX_AXES or w.rank != x.rank or offset.rank != x.rank:
        raise context.malformed(f"a convolution of {x.type} by {w.type} with {offset.type}")
    groups = groups_of(context, node, x, w, w.shape[0])
    offsets = node.integer("offset_group", 1)
    batch, channels = x.shape[:2]
    kernel = context.known(kernel_of(context, node, w), "the window of a deformable convolution")
    window = window_of(context, node, x, kernel)
    taps, samples = math.prod(kernel), product(window.extents)
    if offsets < 1:
        raise context.malformed(f"{offsets} groups of offsets")
    depth = quotient(channels, offsets)
    what = f"{offsets} groups of offsets {offset.type} for {x.type}"
    context.builder.require(depth * offsets, channels, what)
    wanted = (batch, offsets * taps * rank, *window.extents)
    for have, extent in zip(offset.shape, wanted, strict=True):
        context.builder.require(have, extent, what)
    moves = context.reshape(offset, (batch * offsets, taps, rank, samples))
    lines = []
    for axis, extent in enumerate(x.shape[2:]):
        # Where the taps would be without offsets: (1, taps, samples).
        first = _along(context, window.extents, axis, window.strides[axis])
        reach = _along(context, kernel, axis, window.dilations[axis])
        begin = context.count([window.begin[axis]], INT64)
        first = context.reshape(context.add("subtract", first, begin), (1, 1, samples))
        fixed = context.add("add", first, context.reshape(reach, (1, taps, 1)))
        moved = context.squeeze(context.slice(moves, 2, axis, 1), [2])
        position = context.add("add", context.cast(fixed, x.dtype), moved)
        position = context.reshape(position, (batch * offsets, 1, taps * samples))
        numbers = context.cast(context.iota(2, 1, 3), x.dtype)
        at = context.add("add", context.add("floor", position), numbers)
        distance = context.add("absolute", context.add("subtract", at, position))
        found, inside = within(context, at, extent)
        lines.append(Taps(found, linear_weight(context, distance), inside))
    table = apart(context, across(context, lines, x.shape[2:]), x.shape[2:])
    last = context.reshape(channels_last(context, x), (batch, product(x.shape[2:]), offsets, depth))
    rows = rows_of(context, context.transpose(last, (0, 2, 1, 3)))
    found = sampled(context, rows, table)
    mask = node.optional(4)
    if mask is not None:
        wanted = (batch, offsets * taps, *window.extents)
        if mask.rank != x.rank:
            raise context.malformed(f"the mask is {mask.type}")
        for have, extent in zip(mask.shape, wanted, strict=True):
            context.builder.require(have, extent, f"the mask {mask.type}")
        factor = context.reshape(mask, (batch * offsets, taps * samples, 1))
        found = context.add("multiply", found, factor)
    image = context.reshape(found, (batch, offsets, taps, samples, depth))
    image = context.transpose(image, (0, 3, 2, 1, 4))
    image = context.reshape(image, (batch, samples, taps, channels))
    turned = context.transpose(w, (*range(2, w.rank), 1, 0))
    weight = context.reshape(turned, (1, taps, *turned.shape[-2:]))
    columns = Window((1, taps), (1, taps), (1, 1), (0, 0), (0, 0), (samples, 1))
    result = convolved(context, image, weight, columns, groups)
    result = context.reshape(result, (batch, *window.extents, w.shape[0]))
    return [channels_first(context, with_bias(context, result, node.optional(3)))]


def _along(context: Context, shape: Shape, axis: int, step: int) -> Value:
    """The index along an axis of all elements of a shape, times a step."""
    found = context.scaled(context.iota(shape[axis], axis, len(shape)), step)
    return context.broadcast(found, shape)


DEFORMABLE: Table = {("", "DeformConv"): _deform_conv}
