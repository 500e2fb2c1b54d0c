"""Padding, what moves elements between channels, space and columns, and resized images."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, minimum, product, quotient
from ftuner.frontends.torch.dims import scaled_extent
from ftuner.frontends.torch.promotion import Number, valued
from ftuner.frontends.torch.registry import aten
from ftuner.frontends.torch.windows import Ints, batched, each
from ftuner.graph.algebra import apply, gather, iota, zero_padded
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.compositions.interpolation import Axis
from ftuner.graph.compositions.resizing import Mode, resampled
from ftuner.graph.compositions.sampling import grid_samples
from ftuner.graph.compositions.transposed import Blocks, summed_blocks
from ftuner.graph.ir import Value


@aten("constant_pad_nd")
def _padded(
    x: Value, pad: Sequence[Dim], value: Number | None = 0, *, mode: str = "constant"
) -> Value:
    """x padded by pairs of widths, those of the last axis first."""
    before: list[Dim] = [0] * x.rank
    after: list[Dim] = [0] * x.rank
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = pad[2 * i], pad[2 * i + 1]
    if all(n == 0 for n in (*before, *after)):
        return x
    fill = [valued(0 if value is None else value, x.dtype)] if mode == "constant" else []
    return apply("pad", x, *fill, before=tuple(before), after=tuple(after), mode=mode)


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", mode="reflect")
@aten("replication_pad1d", "replication_pad2d", "replication_pad3d", mode="edge")
@aten("_pad_circular", mode="wrap")
def _repeating_pad(x: Value, padding: Sequence[Dim], *, mode: str) -> Value:
    return _padded(x, padding, mode=mode)


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@aten("pad")
def _pad(x: Value, pad: Sequence[Dim], mode: str = "constant", value: float | None = None) -> Value:
    return _padded(x, pad, value, mode=_MODES[mode])


@aten("pixel_shuffle")
def _pixel_shuffle(x: Value, upscale_factor: int) -> Value:
    r = upscale_factor
    *outer, channels, height, width = x.shape
    depth = quotient(channels, r * r)
    require(depth * r * r, channels, f"{channels} channels as blocks of {r} by {r}")
    split = x.reshape((*outer, depth, r, r, height, width))
    n = len(outer)
    moved = split.transpose((*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return moved.reshape((*outer, depth, height * r, width * r))


@aten("pixel_unshuffle")
def _pixel_unshuffle(x: Value, downscale_factor: int) -> Value:
    r = downscale_factor
    *outer, channels, height, width = x.shape
    rows, columns = quotient(height, r), quotient(width, r)
    for count, extent in ((rows, height), (columns, width)):
        require(count * r, extent, f"blocks of {r} along {extent}")
    split = x.reshape((*outer, channels, rows, r, columns, r))
    n = len(outer)
    moved = split.transpose((*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return moved.reshape((*outer, channels * r * r, rows, columns))


@aten("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(x: Value, groups: Dim) -> Value:
    batch, channels, *rest = x.shape
    split = x.reshape((batch, groups, quotient(channels, groups), *rest))
    return split.transpose((0, 2, 1, *range(3, split.rank))).reshape(x.shape)


@aten("im2col")
def _to_columns(x: Value, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Value:
    """The windows of images as columns."""
    x, alone = batched(x, 2)
    kernel, dilations, pads, strides = (
        each(n, 2) for n in (kernel_size, dilation, padding, stride)
    )
    found = zero_padded(x, (0, 0, *pads), (0, 0, *pads))
    counts: list[Dim] = []
    for i in range(2):
        axis = 2 + 2 * i
        reach = (kernel[i] - 1) * dilations[i] + 1
        extent = found.shape[axis]
        require(minimum(reach, extent), reach, f"a window of {reach} along {extent}")
        counts.append(quotient(extent - reach, strides[i]) + 1)
        at = iota(kernel[i], 0, 2) * dilations[i] + iota(counts[i], 1, 2) * strides[i]
        found = gather(found, at, axis)
    moved = found.transpose((0, 1, 2, 4, 3, 5))
    result = moved.reshape((x.shape[0], x.shape[1] * product(kernel), product(counts)))
    return result.squeeze([0]) if alone else result


@aten("col2im")
def _from_columns(
    x: Value, output_size: Sequence[Dim], kernel_size: Ints, dilation: Ints, padding: Ints,
    stride: Ints,
) -> Value:  # fmt: skip
    """Images whose elements are the sums of the windows that have them."""
    alone = x.rank == 2
    x = x.unsqueeze([0]) if alone else x
    kernel, dilations, pads, strides = (
        each(n, 2) for n in (kernel_size, dilation, padding, stride)
    )
    counts = tuple(
        quotient(size + 2 * pad - ((k - 1) * d + 1), s) + 1
        for size, pad, k, d, s in zip(output_size, pads, kernel, dilations, strides, strict=True)
    )
    batch, columns, blocks = x.shape
    channels = quotient(columns, product(kernel))
    require(channels * product(kernel), columns, f"{x.type} as windows {list(kernel)}")
    require(product(counts), blocks, f"{x.type} as windows {list(kernel)}")
    apart = x.reshape((batch, channels, *kernel, *counts)).transpose((0, 1, 2, 4, 3, 5))
    of_windows = Blocks(kernel, counts, strides, dilations, pads)
    found = summed_blocks(apart, 2, of_windows, list(output_size))
    return found.squeeze([0]) if alone else found


# Resized images, and samples of them.

Sizes = Sequence[Dim] | None
Scales = Sequence[float] | None
_CUBIC, _ANTIALIAS_CUBIC = -0.75, -0.5
"""The coefficient of Keys' cubic interpolation."""


def _axes(x: Value, sizes: Sequence[Dim], scales: Sequence[float | None]) -> list[Axis]:
    first = x.rank - len(sizes)
    found = []
    for i, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        extent = x.shape[first + i]
        ratio: tuple[Dim, Dim] = (size, extent)
        if scale is not None and scale > 0:
            ratio = scale.as_integer_ratio()
        found.append(Axis(first + i, extent, size, (ratio,)))
    return found


_OVERLOADS = ("default", "vec")
"""With scales as numbers, and with a list of them, or of sizes."""


def _ops(*names: str) -> list[str]:
    return [f"{name}.{overload}" for name in names for overload in _OVERLOADS]


@aten(*_ops(*(f"upsample_nearest{r}d" for r in (1, 2, 3))), kind="nearest")
@aten(*_ops(*(f"_upsample_nearest_exact{r}d" for r in (1, 2, 3))), kind="nearest", exact=True)
@aten(*_ops("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), kind="linear")
@aten(*_ops("upsample_bicubic2d"), kind="cubic")
@aten(*_ops("_upsample_bilinear2d_aa"), kind="linear", antialias=True)
@aten(*_ops("_upsample_bicubic2d_aa"), kind="cubic", antialias=True)
def _upsampled(
    input: Value, output_size: Sizes, align_corners: bool = False, scale_factors: Scales = None,
    scales: float | None = None, scales_d: float | None = None, scales_h: float | None = None,
    scales_w: float | None = None, *, kind: str, exact: bool = False, antialias: bool = False,
) -> Value:  # fmt: skip
    x = input
    if kind != "nearest" and x.dtype.kind != "float":
        raise unsupported(f"interpolation of {x.type}, which torch computes in fixed point")
    if antialias and align_corners:
        raise unsupported("antialiasing between the centres of corners")
    if output_size is None:
        if scale_factors is None:
            raise malformed("neither a size nor scales")
        factors: Sequence[float | None] = scale_factors
        extents = x.shape[x.rank - len(scale_factors) :]
        output_size = [scaled_extent(n, s) for n, s in zip(extents, scale_factors, strict=True)]
    else:
        factors = [scales_d, scales_h, scales if scales_w is None else scales_w]
        factors = factors[-len(output_size) :]
    axes = [a for a in _axes(x, output_size, factors) if a.changes]
    if kind == "nearest":
        coordinates = "centres_by_inverse" if exact else "by_inverse"
    else:
        coordinates = "align_corners" if align_corners else "half_pixel_by_inverse"
    cubic = _ANTIALIAS_CUBIC if antialias else _CUBIC
    mode = Mode(kind, coordinates, "floor", cubic, antialias, antialias)
    return resampled(x, axes, mode, {}, 0.0) if axes else x


_SAMPLED, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    mode, padding = _SAMPLED[interpolation_mode], _PADDINGS[padding_mode]
    return grid_samples(input, grid, mode, padding, align_corners)
