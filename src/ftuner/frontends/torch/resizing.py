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


_MODES, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    mode, padding = _MODES[interpolation_mode], _PADDINGS[padding_mode]
    return grid_samples(input, grid, mode, padding, align_corners)
