"""Rows of operators on images that have no windows: resizing, sampling, norms, blocks."""

from __future__ import annotations

import numpy as np
from onnx import helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, Extent, elements, static, times
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import FLOATS, TAME, Fill, Tensor
from tests.random_graphs.window_rows import MAX_SIDE, followed, image, spend

COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
"""In which onnxruntime and ONNX's evaluator agree."""


def _scaled(e: Extent, scale: float) -> Extent:
    return followed(e, f"{scale}", [int(np.float32(n) * np.float32(scale)) for n in e.at])


@row("Resize", 1.2, since=11)
def _resize(maker: Maker) -> None:
    draws = maker.draws
    mode = draws.pick(("nearest", "linear", "cubic"))
    x = image(
        maker, FLOATS if mode != "nearest" else ("float32", "float64", "uint8", "int32"), (4,)
    )
    attributes = {"mode": mode, "coordinate_transformation_mode": draws.pick(COORDINATES)}
    if mode == "nearest":
        modes = ("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")
        attributes["nearest_mode"] = draws.pick(modes)
    roi = maker.constant(np.zeros(0, np.float32), share=True)
    if draws.chance(0.6):
        scales = [1.0, 1.0, *(draws.pick((2.0, 0.5, 3.0, 1.0, 1.5, 1.3)) for _ in range(2))]
        # Corners are aligned by extents, which peers round or not.
        attributes["coordinate_transformation_mode"] = draws.pick(COORDINATES[:2])
        shape = [_scaled(e, s) for e, s in zip(x.shape, scales, strict=True)]
        operands = [x, roi, maker.constant(np.array(scales, np.float32), share=True)]
    else:
        sizes = [draws.pick((8, 5, 1, 12, 3)) for _ in range(2)]
        shape = [*x.shape[:2], *map(static, sizes)]
        empty = maker.constant(np.zeros(0, np.float32), share=True)
        operands = [x, roi, empty, maker.spelled(shape)]
    if min(min(e.at) for e in shape[2:]) < 1:
        raise DeclinedError("nothing is left")
    spend(maker, shape, 16)
    size = 2 * x.size
    maker.add("Resize", operands, shape, x.dtype, -size, size, **attributes)


@row("Upsample", 0.3, until=9)
def _upsample(maker: Maker) -> None:
    x = image(maker, ("float32",), (4,))
    scales = [1.0, 1.0, *(maker.draws.pick((2.0, 3.0, 1.0)) for _ in range(2))]
    shape = [_scaled(e, s) for e, s in zip(x.shape, scales, strict=True)]
    mode = maker.draws.pick(("nearest", "linear"))
    spend(maker, shape, 4)
    if maker.opset < 9:
        maker.moved("Upsample", x, shape, mode=mode, scales=scales)
        return
    operands = [x, maker.constant(np.array(scales, np.float32), share=True)]
    maker.add("Upsample", operands, shape, x.dtype, x.low, x.high, mode=mode)


# Norms.


def _channels(maker: Maker, x: Tensor, count: int) -> list[Tensor]:
    """A scale and a bias."""
    return [maker.weight((count,), x.dtype) for _ in range(2)]


@row("InstanceNormalization", 0.5)
def _instance_norm(maker: Maker) -> None:
    x = image(maker, ("float32",))
    epsilon = maker.draws.pick((None, 1e-2))
    operands = [x, *_channels(maker, x, x.shape[1].at[0])]
    maker.add("InstanceNormalization", operands, x.shape, x.dtype, -40, 40, epsilon=epsilon)


@row("GroupNormalization", 0.5, since=21)
def _group_norm(maker: Maker) -> None:
    x = image(maker, ("float32",))
    channels = x.shape[1].at[0]
    counts = (1, 2, 4, 3, max(channels, 1))
    groups = maker.draws.pick([g for g in counts if channels % g == 0])
    operands = [x, *_channels(maker, x, channels)]
    maker.add("GroupNormalization", operands, x.shape, x.dtype, -40, 40, num_groups=groups)


@row("norm of groups", 1.0, idiom=True)
def _merged_group_norm(maker: Maker) -> None:
    """As PyTorch's exporter writes it: a norm of instances, whose channels are merged groups."""
    draws = maker.draws
    x = image(maker, ("float32",), (4, 3))
    channels = x.shape[1].at[0]
    if draws.chance(0.7):
        # A convolution before it, whose result has channels last.
        spend(maker, x.shape, channels)
        size = x.size * 4 * max(channels, 1) ** 0.5
        shape = (channels, channels, *[1] * (x.rank - 2))
        w = maker.weight(shape, x.dtype, max(channels, 1) ** -0.5)
        x = maker.add("Conv", [x, w], x.shape, x.dtype, -size, size)
    groups = draws.pick([g for g in (1, 2, 4, 3, max(channels, 1)) if channels % g == 0])
    each = static(channels // groups)
    merged = (x.shape[0], static(groups), times([each, *x.shape[2:]]))
    y = maker.moved("Reshape", x, merged, maker.spelled(merged))
    ones, zeros = (maker.constant(np.full(groups, n, np.float32), share=True) for n in (1, 0))
    operands = [y, ones, zeros] if draws.chance(0.7) else [y, *_channels(maker, y, groups)]
    y = maker.add("InstanceNormalization", operands, merged, x.dtype, -40, 40)
    y = maker.add("Reshape", [y, maker.spelled(x.shape)], x.shape, x.dtype, -40, 40)
    if draws.chance(0.8):
        scale, bias = (maker.weight((channels, *[1] * (x.rank - 2)), x.dtype) for _ in range(2))
        y = maker.add("Mul", [y, scale], x.shape, x.dtype, -200, 200)
        maker.add("Add", [y, bias], x.shape, x.dtype, -205, 205)


@row("LRN", 0.3)
def _local_response_norm(maker: Maker) -> None:
    x = image(maker, ("float32",), (4,))
    size = maker.draws.pick((3, 5, 1))
    maker.moved("LRN", x, x.shape, size=size,
              alpha=maker.draws.pick((None, 0.5)), beta=maker.draws.pick((None, 0.5)))  # fmt: skip


@row("LpNormalization", 0.3)
def _lp_norm(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "LpNormalization", FLOATS), (2, 3, 4), size=TAME)
    if any(0 in e.at for e in x.shape):
        raise DeclinedError("statistics of nothing")
    axis = maker.draws.below(x.rank)
    # The evaluator and onnxruntime take no magnitudes with p = 1.
    maker.add("LpNormalization", [x], x.shape, x.dtype, -1, 1, axis=axis, p=2)


@row("MeanVarianceNormalization", 0.3, since=9)
def _mean_variance_norm(maker: Maker) -> None:
    x = image(maker, ("float32",), (4,), least=2)
    maker.add("MeanVarianceNormalization", [x], x.shape, x.dtype, -40, 40)


# Elements that move.


@row("DepthToSpace", 0.4)
def _depth_to_space(maker: Maker) -> None:
    edge = maker.draws.pick((2, 3))
    x = image(maker, ("float32",), (4,), channels=edge * edge * maker.draws.pick((1, 2, 4)))
    rows, columns = (followed(e, f"{edge}*", [edge * n for n in e.at]) for e in x.shape[2:])
    shape = (x.shape[0], static(x.shape[1].at[0] // edge**2), rows, columns)
    mode = maker.draws.pick((None, "CRD")) if maker.opset >= 11 else None
    maker.moved("DepthToSpace", x, shape, blocksize=edge, mode=mode)


@row("SpaceToDepth", 0.4)
def _space_to_depth(maker: Maker) -> None:
    edge = maker.draws.pick((2, 3))
    sides = [static(edge * maker.draws.pick((2, 1, 3, 5))) for _ in range(2)]
    channels = maker.draws.pick((3, 1, 4))
    x = maker.shaped((static(2), static(channels), *sides), "float32")
    shape = (x.shape[0], static(channels * edge**2), *(static(e.at[0] // edge) for e in sides))
    maker.moved("SpaceToDepth", x, shape, blocksize=edge)


@row("CenterCropPad", 0.3, since=18)
def _centre(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "CenterCropPad", FLOATS), (2, 3, 4))
    axis = maker.draws.below(x.rank)
    if 0 in x.shape[axis].at:
        raise DeclinedError("an empty axis")
    size = maker.draws.pick((4, 1, 7, 16))
    shape = [static(size) if i == axis else e for i, e in enumerate(x.shape)]
    operands = [x, maker.integers([size])]
    maker.add("CenterCropPad", operands, shape, x.dtype, x.low, x.high, axes=[axis])


@row("Col2Im", 0.3, since=18)
def _from_columns(maker: Maker) -> None:
    draws = maker.draws
    kernel, sizes = [draws.pick((2, 1, 3)) for _ in range(2)], [draws.pick((4, 5, 7)) for _ in "yx"]
    strides, begin = [draws.pick((1, 2)) for _ in range(2)], draws.below(2)
    counts = [(n + 2 * begin - k) // s + 1 for n, k, s in zip(sizes, kernel, strides, strict=True)]
    channels = draws.pick((2, 1, 3))
    columns, blocks = channels * kernel[0] * kernel[1], counts[0] * counts[1]
    x = maker.shaped((static(2), static(columns), static(blocks)), "float32", TAME)
    operands = [x, maker.integers(sizes), maker.integers(kernel)]
    shape = (x.shape[0], static(channels), *map(static, sizes))
    size = x.size * kernel[0] * kernel[1]
    maker.add("Col2Im", operands, shape, x.dtype, -size, size, strides=strides,
              pads=[begin] * 4 if begin else None)  # fmt: skip


# Positions that are data.


@row("GridSample", 0.4, since=16)
def _grid_sample(maker: Maker) -> None:
    draws = maker.draws
    x = image(maker, ("float32",), (4,), least=2)
    outputs = (static(draws.pick((3, 5, 1))), static(draws.pick((4, 7, 2))))
    bound = 1.3
    fill = Fill("uniform", (-bound,) * BINDINGS, (bound,) * BINDINGS)
    grid = maker.input((x.shape[0], *outputs, static(2)), x.dtype, fill)
    modes = ("linear", "nearest", "cubic") if maker.opset >= 20 else ("bilinear", "nearest")
    shape = (*x.shape[:2], *outputs)
    spend(maker, shape, 16)
    maker.add("GridSample", [x, grid], shape, x.dtype, -3 * x.size, 3 * x.size,
              mode=draws.pick(modes), align_corners=draws.pick((None, 1)),
              padding_mode=draws.pick(("zeros", "border", "reflection")))  # fmt: skip


@row("AffineGrid", 0.3, since=20)
def _affine_grid(maker: Maker) -> None:
    rank = maker.draws.pick((2, 3))
    theta = maker.shaped((static(2), static(rank), static(rank + 1)), "float32", TAME)
    sizes = [2, 3, *(maker.draws.pick((4, 2, 5)) for _ in range(rank))]
    shape = (static(2), *map(static, sizes[2:]), static(rank))
    size = theta.size * (rank + 1)
    maker.add("AffineGrid", [theta, maker.integers(sizes)], shape, "float32", -size, size,
              align_corners=maker.draws.pick((None, 1)))  # fmt: skip


@row("RoiAlign", 0.3, since=16)
def _roi_align(maker: Maker) -> None:
    draws = maker.draws
    x = image(maker, ("float32",), (4,), least=2)
    count = static(draws.pick((3, 1, 8)))
    low = np.random.default_rng(maker.seed).uniform(0, 4, (count.at[0], 2))
    boxes = np.concatenate([low, low + 5], 1).astype(np.float32)
    images = maker.integers([0] * count.at[0])
    bins = draws.pick((2, 1, 3))
    spend(maker, (count, x.shape[1]), 16 * bins**2)
    maker.moved("RoiAlign", x, (count, x.shape[1], static(bins), static(bins)),
              maker.constant(boxes), images,
              output_height=bins, output_width=bins, sampling_ratio=draws.pick((2, 1, 0)),
              mode="avg", spatial_scale=draws.pick((1.0, 0.5)))  # fmt: skip


@row("MaxRoiPool", 0.2)
def _max_roi_pool(maker: Maker) -> None:
    x = image(maker, ("float32",), (4,), least=2)
    count, bins = static(maker.draws.pick((3, 1, 8))), maker.draws.pick((2, 1, 3))
    low = maker.random().uniform(0, 4, (count.at[0], 2))
    table = np.concatenate([np.zeros((count.at[0], 1)), low, low + 5], 1).astype(np.float32)
    spend(maker, (count, *x.shape[1:]), bins)
    maker.add("MaxRoiPool", [x, maker.constant(table)],
              (count, x.shape[1], static(bins), static(bins)), x.dtype, min(x.low, 0),
              max(x.high, 0), pooled_shape=[bins, bins])  # fmt: skip


@row("DeformConv", 0.3, since=19)
def _deform_conv(maker: Maker) -> None:
    draws = maker.draws
    x = image(maker, ("float32",), (4,), least=3)
    channels, count = x.shape[1].at[0], draws.pick((4, 1, 3))
    kernel = draws.pick((2, 1, 3))
    extents = [followed(e, f"-{kernel - 1}", [n - kernel + 1 for n in e.at]) for e in x.shape[2:]]
    moves = static(2 * kernel**2)
    if max(elements((x.shape[0], moves, *extents))) > MAX_SIDE**2 * 4:
        raise DeclinedError("too many samples")
    fill = Fill("uniform", (-1.5,) * BINDINGS, (1.5,) * BINDINGS)
    offset = maker.input((x.shape[0], moves, *extents), x.dtype, fill)
    w = maker.weight((count, channels, kernel, kernel), x.dtype, 0.3)
    shape = (x.shape[0], static(count), *extents)
    spend(maker, shape, channels * kernel**2 * 8)
    size = x.size * channels * kernel**2
    maker.add("DeformConv", [x, w, offset], shape, x.dtype, -size, size)


@row("NonMaxSuppression", 0.2, since=10)
def _suppression(maker: Maker) -> None:
    draws = maker.draws
    count = maker.extent(zero=0.0, large=0.0)
    if count.most > MAX_SIDE:
        raise DeclinedError("too many boxes")
    fill = Fill("uniform", (0.0,) * BINDINGS, (1.0,) * BINDINGS)
    boxes = maker.input((static(2), count, static(4)), "float32", fill)
    scores = maker.input((static(2), static(draws.pick((2, 1, 3))), count), "float32", fill)
    limit = maker.integers([draws.pick((3, 10, 1))])
    thresholds = [
        maker.constant(np.array([draws.pick(pool)], np.float32), share=True)
        for pool in ((0.5, 0.1), (0.3, 0.0))
    ]
    found = maker.name()
    inputs = [x.name for x in (boxes, scores, limit, *thresholds)]
    centred = draws.pick((0, 1))
    maker.nodes.append(
        helper.make_node("NonMaxSuppression", inputs, [found], center_point_box=centred)
    )
    maker.ends.append(found)
