"""Products by weights of 2, 4 or 8 bits, with a scale and a zero point for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import HALF_DTYPES, UINT8
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.ir import Array, Value

_BITS = (2, 4, 8)
_LEAST_BLOCK = 16


def _unpacked(words: Array, bits: int, count: int) -> Array:
    """The first `count` numbers along the last axis of bytes, which hold the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart: Array = (words[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    apart = apart.reshape(*words.shape[:-1], -1)
    return apart[..., :count]


def _blocks_of(
    context: Context, node: NodeView, number: int, shape: tuple[int, int], what: str
) -> Array:
    """A constant with an element for each block of each column, flat or not."""
    array = context.array_of(node.input(number), what)
    if array.size != shape[0] * shape[1]:
        raise context.malformed(f"{what} {node.input(number).type}; expected {list(shape)}")
    return array.reshape(shape)


def _matmul_n_bits(context: Context, node: NodeView) -> Sequence[Value]:
    a, b = node.input(0), node.input(1)
    bits, block = node.integer("bits", 4), node.integer("block_size")
    depth, columns = node.integer("K"), node.integer("N")
    if bits not in _BITS:
        raise context.unsupported(f"bits is {bits}; supported are {_BITS}")
    if block < _LEAST_BLOCK or block & (block - 1):
        raise context.malformed(f"block_size is {block}; expected a power of two from 16 on")
    if depth < 1 or columns < 1:
        raise context.malformed(f"K is {depth}, N is {columns}")
    if node.optional(4) is not None:
        raise context.unsupported("input g_idx, blocks in an order of their own")
    if node.integer("weight_prepacked", 0):
        raise context.unsupported("weight_prepacked is not 0: a layout of one machine's kernels")
    if a.dtype.kind != "float" or b.dtype != UINT8:
        raise context.malformed(f"product of {a.type} and {b.type}")
    blocks = -(-depth // block)
    packed = context.array_of(b, "the weight")
    size = block * bits // 8
    if packed.size != columns * blocks * size or b.rank > 3:
        raise context.malformed(
            f"the weight is {b.type}; expected [{columns}, {blocks}, {size}] for N {columns}, "
            f"K {depth} and blocks of {block}"
        )
    levels = _unpacked(packed.reshape(columns, blocks, size), bits, block).astype(np.float32)
    shape = (columns, blocks)
    levels -= _zero_points(context, node, bits, shape)[..., None]
    scales = _blocks_of(context, node, 2, shape, "the scales").astype(np.float32)
    weight = (levels * scales[..., None]).reshape(columns, -1)[:, :depth].T
    wide = np.ascontiguousarray(weight, np.float32)
    dtype = node.input(2).dtype
    if dtype != a.dtype:
        raise context.malformed(f"A is {a.type}, the scales are {node.input(2).type}")
    if dtype.name not in HALF_DTYPES:
        wide = wide.astype(dtype.name)
    result = context.matmul(a, context.builder.stored(wide, dtype))
    bias = node.optional(5)
    return [
        result if bias is None
        else context.add("add", result, context.fitting(bias, result, "the bias"))
    ]  # fmt: skip


def _zero_points(context: Context, node: NodeView, bits: int, shape: tuple[int, int]) -> Array:
    """The zero point of each block: packed as the weight is, or floats; half of the range if none
    are given."""
    zero = node.optional(3)
    if zero is None:
        return np.full(shape, 1 << (bits - 1), np.float32)
    if zero.dtype.kind == "float":
        return _blocks_of(context, node, 3, shape, "the zero points").astype(np.float32)
    words = -(-shape[1] * bits // 8)
    if zero.dtype != UINT8:
        raise context.malformed(f"zero points {zero.type}; expected uint8 or floats")
    packed = _blocks_of(context, node, 3, (shape[0], words), "the zero points")
    return _unpacked(packed, bits, shape[1]).astype(np.float32)


BLOCK_QUANTISED: Table = {(MICROSOFT, "MatMulNBits"): _matmul_n_bits}
