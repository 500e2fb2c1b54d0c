"""Rows of operators with windows: convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import ONE, Extent, Shape, derived, elements, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import FLOATS, TAME, Fill, Tensor

CHANNELS = (4, 3, 8, 1, 16, 6, 32, 5)
SIDES = (8, 5, 7, 16, 3, 12, 1, 17)
"""Extents of spatial axes."""
MAX_SIDE = 64
PADDINGS = ("SAME_UPPER", "SAME_LOWER", "VALID")


def image(
    maker: Maker, dtypes: Sequence[str], ranks: Sequence[int] = (4, 3, 5), least: int = 1,
    channels: int | None = None,
) -> Tensor:  # fmt: skip
    """A tensor (batch, channels, ...) with a known number of channels: one that there is, or a new
    input."""

    def fits(x: Tensor) -> bool:
        if x.rank not in ranks or not x.shape[1].static or 0 in x.shape[0].at:
            return False
        if channels is not None and x.shape[1].at[0] != channels:
            return False
        return all(min(e.at) >= least and e.most <= MAX_SIDE for e in x.shape[2:])

    draws = maker.draws
    known = [x for x in reversed(maker.tensors) if x.dtype in dtypes and x.size < TAME and fits(x)]
    if known and draws.chance(0.7):
        return draws.pick(known[:3])
    rank = draws.pick(ranks)
    sides = [_side(maker, least) for _ in range(rank - 2)]
    if rank == 5:
        sides[1:] = [static(draws.pick((3, 4, 5, 2))) for _ in sides[1:]]
    number = draws.pick(CHANNELS) if channels is None else channels
    shape = (draws.pick((ONE, static(2))), static(number), *sides)
    return maker.leaf(shape, maker.dtype(dtypes))


def _side(maker: Maker, least: int) -> Extent:
    if maker.draws.chance(0.4):
        found = maker.symbol()
        if min(found.at) >= least and found.most <= MAX_SIDE:
            return found
    return static(max(maker.draws.pick(SIDES), least))


@dataclass(frozen=True)
class Window:
    """A window with attributes as a node has them, and the spatial extents of the result."""

    kernel: list[int]
    attributes: dict[str, object]
    extents: Shape


def window(maker: Maker, x: Tensor, dilates: bool = True, rounds: bool = False) -> Window:
    """A window that fits an image."""
    draws, rank = maker.draws, x.rank - 2
    kernel = [draws.pick((3, 1, 2, 5)) for _ in range(rank)]
    strides = [draws.pick((1, 2, 3)) for _ in range(rank)]
    before = [draws.below(k) for k in kernel]
    after = [draws.below(k) for k in kernel]
    auto = draws.pick(PADDINGS) if draws.chance(0.15) else None
    # With these, onnxruntime has no dilations.
    dilates = dilates and auto is None
    dilations = [draws.pick((1, 1, 2)) if dilates else 1 for _ in range(rank)]
    up = rounds and auto is None and draws.chance(0.2)
    attributes: dict[str, object] = {"strides": strides if draws.chance(0.9) else None}
    if attributes["strides"] is None:
        strides = [1] * rank
    if auto is None:
        attributes["pads"] = [*before, *after]
    else:
        attributes["auto_pad"] = auto
        before = after = [0] * rank
        # Peers do not agree on padding below zero.
        strides = [min(pair) for pair in zip(strides, kernel, strict=True)]
        attributes["strides"] = strides
    if any(d > 1 for d in dilations):
        attributes["dilations"] = dilations
    if up:
        attributes["ceil_mode"] = 1
    extents = []
    for axis, e in enumerate(x.shape[2:]):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        stride = strides[axis]
        if auto is not None and auto.startswith("SAME"):
            at = [-(-n // stride) for n in e.at]
        else:
            padded = [n + before[axis] + after[axis] for n in e.at]
            if min(padded) < reach and not up:
                raise DeclinedError("the window does not fit")
            at = [(n - reach) // stride + 1 for n in padded]
            if up:
                whole = [-(-(n - reach) // stride) + 1 for n in padded]
                starts = [-(-(n + before[axis]) // stride) for n in e.at]
                at = [min(pair) for pair in zip(whole, starts, strict=True)]
                if min(at) < 1:
                    raise DeclinedError("no window begins within the map")
        extents.append(
            followed(e, f"{reach},{stride},{before[axis]},{after[axis]},{auto},{up}", at)
        )
    return Window(kernel, attributes, tuple(extents))


def followed(e: Extent, how: str, at: Sequence[int]) -> Extent:
    """An extent that follows from another."""
    if list(at) == list(e.at):
        return e
    return static(at[0]) if e.static else derived(f"{e.key}:{how}", at)


def spend(maker: Maker, shape: Sequence[Extent], taps: int) -> None:
    maker.spend([n * taps for n in elements(shape)])


def groups_of(maker: Maker, channels: int) -> int:
    kind = maker.draws.weighted(("one", "depthwise", "some"), (0.6, 0.2, 0.2))
    if kind == "depthwise":
        return max(channels, 1)
    return maker.draws.pick([g for g in (2, 3, 4) if channels % g == 0] or [1]) if (
        kind == "some") else 1  # fmt: skip


def _weight(maker: Maker, shape: Sequence[int], dtype: str) -> Tensor:
    """A constant for the most part."""
    if maker.draws.chance(0.1):
        return maker.input(tuple(map(static, shape)), dtype)
    return maker.weight(shape, dtype, 1 / max(float(np.prod(shape[1:])), 1.0) ** 0.5)


@row("Conv", 3.0)
def _conv(maker: Maker) -> None:
    x = image(maker, dtypes_of(maker, "Conv", FLOATS))
    channels = x.shape[1].at[0]
    groups = groups_of(maker, channels)
    some = (1, 2, 3, max(channels // groups, 1)) if groups > 1 else (8, 16, 5, 1, 33)
    count = groups * maker.draws.pick(some)
    found = window(maker, x)
    taps = int(np.prod(found.kernel)) * channels // groups
    operands = [x, _weight(maker, (count, channels // groups, *found.kernel), x.dtype)]
    if maker.draws.chance(0.5):
        operands.append(maker.weight((count,), x.dtype))
    shape = (x.shape[0], static(count), *found.extents)
    spend(maker, shape, taps)
    size = x.size * 4 * max(taps, 1) ** 0.5 + 5
    kernel = found.kernel if maker.draws.chance(0.5) else None
    maker.add("Conv", operands, shape, x.dtype, -size, size, kernel_shape=kernel,
              group=groups if groups > 1 else None, **found.attributes)  # fmt: skip


@row("separable convolution", 1.5, idiom=True)
def _separable(maker: Maker) -> None:
    """A depthwise convolution or pooling between pointwise ones, as in mobile networks."""
    draws = maker.draws
    x = image(maker, ("float32", "float32", "float64"), (4,), least=3)

    def pointwise(x: Tensor, count: int) -> Tensor:
        channels = x.shape[1].at[0]
        shape = (x.shape[0], static(count), *x.shape[2:])
        spend(maker, shape, channels)
        size = x.size * 4 * max(channels, 1) ** 0.5 + 5
        operands = [x, maker.weight((count, channels, 1, 1), x.dtype, max(channels, 1) ** -0.5)]
        if draws.chance(0.7):
            operands.append(maker.weight((count,), x.dtype))
        y = maker.add("Conv", operands, shape, x.dtype, -size, size)
        return maker.add("Relu", [y], shape, x.dtype, 0.0, size) if draws.chance(0.5) else y

    y = pointwise(x, draws.pick((8, 37, 16, 64))) if draws.chance(0.8) else x
    found = window(maker, y)
    channels = y.shape[1].at[0]
    shape = (*y.shape[:2], *found.extents)
    spend(maker, shape, int(np.prod(found.kernel)))
    if draws.chance(0.25) and (maker.opset >= 10 or "dilations" not in found.attributes):
        attributes = dict(found.attributes, kernel_shape=found.kernel)
        y = maker.moved("MaxPool", y, shape, **attributes)
    else:
        w = maker.weight((channels, 1, *found.kernel), y.dtype, 0.3)
        size = y.size * 10 + 5
        y = maker.add("Conv", [y, w], shape, y.dtype, -size, size, group=channels,
                      **found.attributes)  # fmt: skip
    if draws.chance(0.8):
        z = pointwise(y, draws.pick((16, 5, 24)))
        if z.shape == x.shape and draws.chance(0.7):
            maker.add("Add", [z, x], x.shape, x.dtype, z.low + x.low, z.high + x.high)


@row("ConvTranspose", 0.8)
def _transposed(maker: Maker) -> None:
    draws = maker.draws
    x = image(maker, dtypes_of(maker, "ConvTranspose", FLOATS), (4, 3))
    channels, rank = x.shape[1].at[0], x.rank - 2
    groups = groups_of(maker, channels)
    each = draws.pick((2, 1, 3))
    kernel = [draws.pick((3, 2, 1, 4, 7)) for _ in range(rank)]
    strides = [draws.pick((2, 1, 3, 5)) for _ in range(rank)]
    before = [draws.below(2) for _ in kernel]
    after = [draws.below(2) for _ in kernel]
    extra = [draws.below(s) if draws.chance(0.3) else 0 for s in strides]
    extents = []
    for axis, e in enumerate(x.shape[2:]):
        lost = before[axis] + after[axis]
        at = [(n - 1) * strides[axis] + kernel[axis] + extra[axis] - lost for n in e.at]
        if min(at) < 1:
            raise DeclinedError("nothing is left")
        extents.append(followed(e, f"{strides[axis]}*,{kernel[axis]},{extra[axis]},{lost}", at))
    operands = [x, _weight(maker, (channels, each, *kernel), x.dtype)]
    if draws.chance(0.5):
        operands.append(maker.weight((each * groups,), x.dtype))
    shape = (x.shape[0], static(each * groups), *extents)
    taps = int(np.prod(kernel)) * channels // groups
    spend(maker, shape, taps)
    size = x.size * 4 * taps + 5
    maker.add("ConvTranspose", operands, shape, x.dtype, -size, size, strides=strides,
              pads=[*before, *after], group=groups if groups > 1 else None,
              output_padding=extra if any(extra) else None)  # fmt: skip


def _pool(op: str, weight: float) -> None:
    @row(op, weight)
    def make(maker: Maker) -> None:
        draws = maker.draws
        wanted = ("float32", "float64", "int8", "uint8") if op == "MaxPool" else FLOATS
        x = image(maker, dtypes_of(maker, op, wanted))
        dilates = op == "MaxPool" and maker.opset >= 10
        found = window(maker, x, dilates, rounds=op == "MaxPool" and maker.opset >= 10)
        shape = (*x.shape[:2], *found.extents)
        spend(maker, shape, int(np.prod(found.kernel)))
        attributes = dict(found.attributes, kernel_shape=found.kernel)
        low, high = x.low, x.high
        if op == "LpPool":
            attributes["p"] = draws.pick((2, 1, 3))
            if maker.opset < 18:
                attributes.pop("dilations", None)
            low, high = 0.0, x.size * 30
        if op == "AveragePool":
            low, high = -x.size, x.size
            attributes["count_include_pad"] = draws.pick((None, 1))
        results = [maker.new(shape, x.dtype, low, high)]
        gives = op == "MaxPool" and maker.opset >= 8 and draws.chance(0.15)
        if gives and not 0.0 <= x.size < TAME:
            raise DeclinedError("which of many equal ones")
        if gives:
            results.append(maker.new(shape, "int64", 0, max(elements(x.shape))))
        maker.node(op, [x], results, **attributes)


for _name, _share in (("MaxPool", 1.2), ("AveragePool", 1.0), ("LpPool", 0.3)):
    _pool(_name, _share)


def _global(op: str, weight: float) -> None:
    @row(op, weight)
    def make(maker: Maker) -> None:
        x = image(maker, ("float32",))
        shape = (*x.shape[:2], *[ONE] * (x.rank - 2))
        size = x.size * (1 if op != "GlobalLpPool" else max(elements(x.shape)))
        maker.add(op, [x], shape, x.dtype, -size, size)


for _name, _share in (("GlobalAveragePool", 0.8), ("GlobalMaxPool", 0.4), ("GlobalLpPool", 0.2)):
    _global(_name, _share)


@row("MaxUnpool", 0.2, since=9)
def _unpool(maker: Maker) -> None:
    x = image(maker, ("float32",), (4,))
    rows, columns = x.shape[2:]
    whole = [followed(e, "2*", [2 * n for n in e.at]) for e in (rows, columns)]
    pooled = maker.new(x.shape, x.dtype, x.low, x.high)
    numbers = maker.new(x.shape, "int64", 0, 4 * max(elements(x.shape)))
    # Of numbers: of NaN it does not matter where they go.
    wide = maker.input((*x.shape[:2], *whole), x.dtype, Fill("normal"))
    sides = {"kernel_shape": [2, 2], "strides": [2, 2]}
    maker.node("MaxPool", [wide], [pooled, numbers], **sides)
    maker.add("MaxUnpool", [pooled, numbers], wide.shape, x.dtype, wide.low, wide.high, **sides)
