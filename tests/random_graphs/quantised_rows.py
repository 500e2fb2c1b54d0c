"""Rows of quantised integers."""

from __future__ import annotations

import numpy as np
from tests.random_graphs.contraction_rows import matmul
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import Extent, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import row
from tests.random_graphs.tensors import Tensor

from ftuner.graph.passes.narrow_weights import LEAST_BYTES


def _parameters(maker: Maker, x: Tensor, levels: str, axis: int | None) -> list[Tensor | None]:
    """A scale, and maybe a zero point: of the tensor, or of each index along an axis."""
    random = maker.random()
    shape = [] if axis is None else [x.shape[axis].at[0]]
    scale = maker.constant(np.asarray(random.random(shape) * 0.2 + 0.02, np.float32))
    if maker.draws.chance(0.5):
        return [scale, None]
    info = np.iinfo(levels)
    low = max(int(info.min), -20)
    zero = random.integers(low, min(int(info.max), 20), shape)
    return [scale, maker.constant(np.asarray(zero, levels))]


def _axis(maker: Maker, x: Tensor) -> int | None:
    axes = [i for i, e in enumerate(x.shape) if e.static and e.at[0]]
    if maker.opset >= 13 and axes and maker.draws.chance(0.4):
        return maker.draws.pick(axes)
    return None


@row("QuantizeLinear", 0.8, since=10)
def _quantize(maker: Maker) -> None:
    x = maker.operand(("float32",), (2, 1, 3, 4))
    levels = maker.draws.pick(("uint8", "int8"))
    axis = _axis(maker, x)
    scale, zero = _parameters(maker, x, levels, axis)
    if zero is None and levels == "int8":
        shape = scale.shape if scale is not None else ()
        zero = maker.constant(np.zeros([e.at[0] for e in shape], levels))
    maker.add("QuantizeLinear", [x, scale, zero], x.shape, levels, -128, 255, axis=axis)


@row("DequantizeLinear", 0.8, since=10)
def _dequantize(maker: Maker) -> None:
    x = maker.operand(("uint8", "int8"), (2, 1, 3, 4))
    axis = _axis(maker, x)
    parameters = _parameters(maker, x, x.dtype, axis)
    maker.add("DequantizeLinear", [x, *parameters], x.shape, "float32", -50, 50, axis=axis)


@row("levels of eight bits", 0.6, since=13, idiom=True)
def _levels(maker: Maker) -> None:
    """A tensor and a weight of integers that are large enough for words, as floats again, and their
    product or convolution."""
    random, of_rows = maker.random(), maker.draws.pick(("uint8", "int8"))
    k, n = maker.draws.pick(((64, 40), (67, 33), (130, 16)))
    conv = maker.draws.chance(0.4)
    shape: tuple[Extent, ...] = (maker.extent(large=0), static(k))
    shape = (*shape, static(5), static(4)) if conv else (shape[0], static(3), shape[1])
    weight = (n, k, 3, 2) if conv else (k, n)
    x = maker.shaped(shape, of_rows)
    zero = np.array(random.integers(0, 20), of_rows)
    parameters = [maker.constant(np.float32(0.02)), maker.constant(zero)]
    wide = maker.add("DequantizeLinear", [x, *parameters], shape, "float32", -6, 6)
    w = maker.constant(random.integers(-128, 128, weight).astype(np.int8))
    scales = (0.01 * random.random(n) + 0.001).astype(np.float32)
    b = maker.add("DequantizeLinear", [w, maker.constant(scales)], [*map(static, weight)],
                  "float32", -2, 2, axis=0 if conv else 1)  # fmt: skip
    size = 12 * k * (6 if conv else 1)
    if conv:
        made = (shape[0], static(n), static(5), static(5))
        maker.add("Conv", [wide, b], made, "float32", -size, size, pads=[1, 1, 1, 1])
    else:
        maker.add("MatMul", [wide, b], (*shape[:-1], static(n)), "float32", -size, size)


@row("weight of eight bits", 1.0, since=13, idiom=True)
def _weight(maker: Maker) -> None:
    """A product with a weight of integers, widened, shifted, scaled, transposed."""
    if maker.draws.chance(0.7):
        # Smaller matrices are widened while the graph is built.
        sizes = ((128, 128), (512, 33), (129, 128), (LEAST_BYTES, 1), (64, 257), (8, 2048))
        k, n = map(static, maker.draws.pick(sizes))
        shape_ = (maker.extent(large=0), k) if maker.draws.chance(0.6) else (
            maker.extent(large=0, zero=0), static(3), k)  # fmt: skip
        a = maker.shaped(shape_, "float32", 1e4)
    else:
        a = maker.operand(("float32",), (2, 3), lambda x: x.shape[-1].static, 1e4)
        k, n = a.shape[-1], static(maker.draws.pick((16, 1, 8, 33, 64)))
    levels = maker.draws.pick(("int8", "uint8"))
    turned = maker.draws.chance(0.3)
    if k.at[0] * n.at[0] > 2 * LEAST_BYTES:
        raise DeclinedError("no such weight")
    shape = (n, k) if turned else (k, n)
    random = maker.random()
    low, high = (-128, 128) if levels == "int8" else (100, 156)
    w = maker.constant(random.integers(low, high, [e.at[0] for e in shape]).astype(levels))
    kind = maker.draws.pick(("dequantize", "cast"))
    along = maker.draws.pick((None, 0, 1))
    scales = [] if along is None else [shape[along].at[0]]
    scale: np.ndarray = np.asarray(random.random(scales) * 0.01 + 0.001, np.float32)
    zero = np.asarray(random.integers(-3, 3, scales) + (128 if levels == "uint8" else 0), levels)
    shifted = levels == "uint8" or maker.draws.chance(0.5)
    if kind == "dequantize":
        parameters = [maker.constant(scale), maker.constant(zero) if shifted else None]
        wide = maker.add("DequantizeLinear", [w, *parameters], shape, "float32", -2, 2,
                         axis=along)  # fmt: skip
    else:
        wide = maker.add("Cast", [w], shape, "float32", -128, 255, to=1)
        column = (-1, 1) if along == 0 else (-1,)
        if shifted:
            minus = maker.constant(zero.astype(np.float32).reshape(column if scales else ()))
            wide = maker.add("Sub", [wide, minus], shape, "float32", -140, 140)
        factor = maker.constant(scale.reshape(column if scales else ()))
        wide = maker.add("Mul", [wide, factor], shape, "float32", -3, 3)
    if turned:
        wide = maker.add("Transpose", [wide], (k, n), "float32", wide.low, wide.high, perm=[1, 0])
    matmul(maker, a, wide)
