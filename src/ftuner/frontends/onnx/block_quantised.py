"""Products by weights and rows of tables of 2, 4 or 8 bits, with scales and zeros of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import HALF_DTYPES, INT32, UINT8
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.algebra import apply, constant, fitting, gather, malformed, scalar, unsupported
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
        raise malformed(f"{what} {node.input(number).type}; expected {list(shape)}")
    return array.reshape(shape)


def _expect_bits(context: Context, bits: int) -> None:
    if bits not in _BITS:
        raise unsupported(f"bits is {bits}; supported are {_BITS}")


def _expect_blocks(context: Context, block: int) -> None:
    if block < _LEAST_BLOCK or block & (block - 1):
        raise malformed(f"block_size is {block}; expected a power of two from 16 on")


def _matmul_n_bits(context: Context, node: NodeView) -> Sequence[Value]:
    a, b = node.input(0), node.input(1)
    bits, block = node.integer("bits", 4), node.integer("block_size")
    depth, columns = node.integer("K"), node.integer("N")
    _expect_bits(context, bits)
    _expect_blocks(context, block)
    if depth < 1 or columns < 1:
        raise malformed(f"K is {depth}, N is {columns}")
    if node.optional(4) is not None:
        raise unsupported("input g_idx, blocks in an order of their own")
    if node.integer("weight_prepacked", 0):
        raise unsupported("weight_prepacked is not 0: a layout of one machine's kernels")
    if a.dtype.kind != "float" or b.dtype != UINT8:
        raise malformed(f"product of {a.type} and {b.type}")
    blocks = -(-depth // block)
    packed = context.array_of(b, "the weight")
    size = block * bits // 8
    if packed.size != columns * blocks * size or b.rank > 3:
        raise malformed(
            f"the weight is {b.type}; expected [{columns}, {blocks}, {size}] for N {columns}, "
            f"K {depth} and blocks of {block}"
        )
    levels = _unpacked(packed.reshape(columns, blocks, size), bits, block).astype(np.float32)
    shape = (columns, blocks)
    levels -= _zero_points(context, node, bits, shape)[..., None]
    scales = _blocks_of(context, node, 2, shape, "the scales").astype(np.float32)
    weight = (levels * scales[..., None]).reshape(columns, -1)[:, :depth]
    result = _product(context, a, weight, node.input(2))
    bias = node.optional(5)
    return [
        result if bias is None
        else result + fitting(bias, result, "the bias")
    ]  # fmt: skip


def _product(context: Context, a: Value, weight: Array, scales: Value) -> Value:
    """`a @ weight.T`, in the dtype of the scales of the weight."""
    dtype = scales.dtype
    if dtype != a.dtype:
        raise malformed(f"A is {a.type}, the scales are {scales.type}")
    wide = np.ascontiguousarray(weight.T, np.float32)
    if dtype.name not in HALF_DTYPES:
        wide = wide.astype(dtype.name)
    return a @ context.builder.stored(wide, dtype)


_FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
_NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip
"""The levels of QLoRA (arXiv 2305.14314): quantiles of the normal distribution."""
_LEVELS = (np.concatenate([_FP4, -_FP4]), _NF4)
"""What the four bits of bitsandbytes stand for, by `quant_type`."""


def _matmul_bnb4(context: Context, node: NodeView) -> Sequence[Value]:
    """A weight of four bits as bitsandbytes has it: blocks of the flat weight, the first of two
    elements in the higher bits."""
    a, b = node.input(0), node.input(1)
    depth, columns, block = (node.integer(name) for name in ("K", "N", "block_size"))
    kind = node.integer("quant_type")
    _expect_blocks(context, block)
    if kind not in range(len(_LEVELS)):
        raise malformed(f"quant_type is {kind}; expected 0 (FP4) or 1 (NF4)")
    if not node.flag("transB", True):
        raise unsupported("transB is 0")
    packed, count = context.array_of(b, "the weight").ravel(), depth * columns
    if min(depth, columns) < 1 or b.dtype != UINT8 or packed.size != -(-count // 2):
        raise malformed(f"the weight is {b.type} for K {depth} and N {columns}")
    if a.dtype.kind != "float":
        raise malformed(f"product of {a.type} and {b.type}")
    scales = _blocks_of(context, node, 2, (1, -(-count // block)), "the scales").astype(np.float32)
    levels = _LEVELS[kind][np.stack([packed >> 4, packed & 15], 1).ravel()[:count]]
    weight = levels * np.repeat(scales, block)[:count]
    return [_product(context, a, weight.reshape(columns, depth), node.input(2))]


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
        raise malformed(f"zero points {zero.type}; expected uint8 or floats")
    packed = _blocks_of(context, node, 3, (shape[0], words), "the zero points")
    return _unpacked(packed, bits, shape[1]).astype(np.float32)


def _gather(context: Context, node: NodeView) -> Sequence[Value]:
    """Rows of a table, which stays packed: only what is gathered becomes floats."""
    data, indices, scales, zero = (
        node.input(0), node.input(1), node.input(2), node.optional(3),
    )  # fmt: skip
    bits, block = node.integer("bits", 4), node.integer("block_size", 128)
    _expect_bits(context, bits)
    _expect_blocks(context, block)
    if data.dtype != UINT8:
        raise unsupported(f"data of {data.type}; supported is uint8")
    if scales.dtype.kind != "float" or indices.dtype.kind != "int":
        raise malformed(f"indices {indices.type}, scales {scales.type}")
    if context.axis(node.integer("gather_axis", 0), data.rank) != 0:
        raise malformed("gather_axis is not 0, for data of uint8")
    if data.rank < 2 or node.integer("quantize_axis", 1) not in (-1, data.rank - 1):
        raise malformed(f"quantize_axis is not the last of {data.type}, or the first")
    packed = context.known(data.shape, "the shape of data")
    size = packed[-1] * (8 // bits)
    blocks = (*packed[:-1], -(-size // block))
    if scales.shape != blocks:
        raise malformed(f"scales {scales.type}; expected {list(blocks)}")
    places = constant(np.arange(size) // block)

    def rows(table: Value) -> Value:
        return gather(table, indices)

    def of_elements(table: Value) -> Value:
        """What the blocks of the gathered elements have, for each element."""
        found = rows(table)
        return gather(found, places, found.rank - 1)

    levels = _apart(context, rows(data), bits).cast(INT32)
    if zero is None:
        middle = scalar(1 << (bits - 1), INT32)
    else:
        words = (*blocks[:-1], -(-blocks[-1] * bits // 8))
        if zero.dtype != UINT8 or zero.shape != words:
            raise malformed(f"zero points {zero.type}; expected uint8 {list(words)}")
        array = _unpacked(context.array_of(zero, "the zero points"), bits, blocks[-1])
        middle = of_elements(constant(array)).cast(INT32)
    distance = levels - middle
    return [distance.cast(scales.dtype) * of_elements(scales)]


def _apart(context: Context, words: Value, bits: int) -> Value:
    """The numbers along the last axis of bytes, which hold the lowest bits first."""
    if bits == 8:
        return words
    shifts = constant(np.arange(0, 8, bits, dtype=np.uint8))
    shifted = apply("shift_right", words.unsqueeze([words.rank]), shifts)
    apart = shifted & scalar((1 << bits) - 1, UINT8)
    return apart.reshape((*words.shape[:-1], words.shape[-1] * (8 // bits)))


BLOCK_QUANTISED: Table = {
    (MICROSOFT, "GatherBlockQuantized"): _gather,
    (MICROSOFT, "MatMulBnb4"): _matmul_bnb4,
    (MICROSOFT, "MatMulNBits"): _matmul_n_bits,
}
