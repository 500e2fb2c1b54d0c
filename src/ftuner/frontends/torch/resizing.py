"""Resized images, and samples of them."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim
from ftuner.frontends.torch.dims import scaled_extent
from ftuner.frontends.torch.registry import aten
from ftuner.graph.checks import malformed, unsupported
from ftuner.graph.compositions.interpolation import Axis
from ftuner.graph.compositions.resizing import Mode, resampled
from ftuner.graph.compositions.sampling import grid_samples
from ftuner.graph.ir import Value

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


def _upsampled(
    x: Value, sizes: Sequence[Dim], scales: Sequence[float | None], kind: str,
    corners: bool = False, exact: bool = False, antialias: bool = False,
) -> Value:  # fmt: skip
    if kind != "nearest" and x.dtype.kind != "float":
        raise unsupported(f"interpolation of {x.type}, which torch computes in fixed point")
    if antialias and corners:
        raise unsupported("antialiasing between the centres of corners")
    axes = [a for a in _axes(x, sizes, scales) if a.changes]
    if kind == "nearest":
        coordinates = "centres_by_inverse" if exact else "by_inverse"
    else:
        coordinates = "align_corners" if corners else "half_pixel_by_inverse"
    cubic = _ANTIALIAS_CUBIC if antialias else _CUBIC
    mode = Mode(kind, coordinates, "floor", cubic, antialias, antialias)
    return resampled(x, axes, mode, {}, 0.0) if axes else x


def _given(
    x: Value, output_size: Sizes, scale_factors: Scales
) -> tuple[Sequence[Dim], list[float | None]]:
    if output_size is not None:
        return output_size, [None] * len(output_size)
    if scale_factors is None:
        raise malformed("neither a size nor scales")
    extents = x.shape[x.rank - len(scale_factors) :]
    sizes = [scaled_extent(n, scale) for n, scale in zip(extents, scale_factors, strict=True)]
    return sizes, list(scale_factors)


_NEAREST = [f"upsample_nearest{r}d.vec" for r in (1, 2, 3)]
_EXACT = [f"_upsample_nearest_exact{r}d.vec" for r in (1, 2, 3)]


@aten(*_NEAREST, exact=False)
@aten(*_EXACT, exact=True)
def _nearest(input: Value, output_size: Sizes, scale_factors: Scales, *, exact: bool) -> Value:
    return _upsampled(input, *_given(input, output_size, scale_factors), "nearest", exact=exact)


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", kind="linear")
@aten("upsample_bicubic2d.vec", kind="cubic")
@aten("_upsample_bilinear2d_aa.vec", kind="linear", antialias=True)
@aten("_upsample_bicubic2d_aa.vec", kind="cubic", antialias=True)
def _interpolated(
    input: Value, output_size: Sizes, align_corners: bool, scale_factors: Scales, *, kind: str,
    antialias: bool = False,
) -> Value:  # fmt: skip
    sizes, scales = _given(input, output_size, scale_factors)
    return _upsampled(input, sizes, scales, kind, align_corners, antialias=antialias)


@aten("upsample_nearest1d", exact=False)
@aten("_upsample_nearest_exact1d", exact=True)
def _nearest_1d(
    x: Value, output_size: Sequence[Dim], scales: float | None = None, *, exact: bool
) -> Value:
    return _upsampled(x, output_size, [scales], "nearest", exact=exact)


@aten("upsample_nearest2d", exact=False)
@aten("_upsample_nearest_exact2d", exact=True)
def _nearest_2d(
    x: Value, output_size: Sequence[Dim], scales_h: float | None = None,
    scales_w: float | None = None, *, exact: bool,
) -> Value:  # fmt: skip
    return _upsampled(x, output_size, [scales_h, scales_w], "nearest", exact=exact)


@aten("upsample_nearest3d", exact=False)
@aten("_upsample_nearest_exact3d", exact=True)
def _nearest_3d(
    x: Value, output_size: Sequence[Dim], scales_d: float | None = None,
    scales_h: float | None = None, scales_w: float | None = None, *, exact: bool,
) -> Value:  # fmt: skip
    return _upsampled(x, output_size, [scales_d, scales_h, scales_w], "nearest", exact=exact)


@aten("upsample_linear1d")
def _linear_1d(
    x: Value, output_size: Sequence[Dim], align_corners: bool, scales: float | None = None
) -> Value:
    return _upsampled(x, output_size, [scales], "linear", align_corners)


@aten("upsample_bilinear2d", kind="linear")
@aten("upsample_bicubic2d", kind="cubic")
@aten("_upsample_bilinear2d_aa", kind="linear", antialias=True)
@aten("_upsample_bicubic2d_aa", kind="cubic", antialias=True)
def _interpolated_2d(
    x: Value, output_size: Sequence[Dim], align_corners: bool, scales_h: float | None = None,
    scales_w: float | None = None, *, kind: str, antialias: bool = False,
) -> Value:  # fmt: skip
    scales = [scales_h, scales_w]
    return _upsampled(x, output_size, scales, kind, align_corners, antialias=antialias)


@aten("upsample_trilinear3d")
def _linear_3d(
    x: Value, output_size: Sequence[Dim], align_corners: bool, scales_d: float | None = None,
    scales_h: float | None = None, scales_w: float | None = None,
) -> Value:  # fmt: skip
    scales = [scales_d, scales_h, scales_w]
    return _upsampled(x, output_size, scales, "linear", align_corners)


_MODES, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    mode, padding = _MODES[interpolation_mode], _PADDINGS[padding_mode]
    return grid_samples(input, grid, mode, padding, align_corners)
