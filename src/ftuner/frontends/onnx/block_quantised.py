"""Products by weights and rows of tables of 2, 4 or 8 bits, with scales and zeros of blocks."""

from __future__ import annotations

import numpy as np

from ftuner.core.dtype import CODES, FLOAT32, FLOAT64, HALF_DTYPES, INT32, UINT8
from ftuner.frontends.onnx.context import Context
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import Positive, onnx
from ftuner.graph.algebra import apply, constant, gather, scalar
from ftuner.graph.blocks import blocks_of, of_blocks, unpacked
from ftuner.graph.checks import fitting, malformed, unsupported
from ftuner.graph.ir import Array, Value
from ftuner.graph.passes.narrow_weights import LEAST_ELEMENTS, by_blocks

_BITS = (2, 4, 8)
_LEAST_BLOCK = 16


def _blocks_of(context: Context, blocks: Value, shape: tuple[int, int], what: str) -> Array:
    """A constant with an element for each block of each column, flat or not."""
    array = context.array_of(blocks, what)
    if array.size != shape[0] * shape[1]:
        raise malformed(f"{what} {blocks.type}; expected {list(shape)}")
    return array.reshape(shape)


def _expect_bits(bits: int) -> None:
    if bits not in _BITS:
        raise unsupported(f"bits is {bits}; supported are {_BITS}")


def _expect_blocks(block: int) -> None:
    if block < _LEAST_BLOCK or block & (block - 1):
        raise malformed(f"block_size is {block}; expected a power of two from 16 on")


@onnx("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(
    context: Context, a: Value, b: Value, scales: Value, zero: Value | None, order: Value | None,
    bias: Value | None, block_size: int, K: Positive, N: Positive, weight_prepacked: int = 0,
    bits: int = 4, accuracy_level: int = 0,
) -> Value:  # fmt: skip
    _expect_bits(bits)
    _expect_blocks(block_size)
    if order is not None:
        raise unsupported("input g_idx, blocks in an order of their own")
    if weight_prepacked:
        raise unsupported("weight_prepacked is not 0: a layout of one machine's kernels")
    if a.dtype.kind != "float" or b.dtype != UINT8:
        raise malformed(f"product of {a.type} and {b.type}")
    blocks = -(-K // block_size)
    packed = context.array_of(b, "the weight")
    size = block_size * bits // 8
    if packed.size != N * blocks * size or b.rank > 3:
        raise malformed(
            f"the weight is {b.type}; expected [{N}, {blocks}, {size}] for N {N}, "
            f"K {K} and blocks of {block_size}"
        )
    shape = (N, blocks)
    factors = _blocks_of(context, scales, shape, "the scales").astype(np.float32)
    zeros = _zero_points(context, zero, bits, shape)
    weight, dtype = blocks_of(packed.reshape(N, blocks, size), bits, factors, zeros)
    if K * N < LEAST_ELEMENTS or a.dtype == FLOAT64:
        result = _product(context, a, of_blocks(weight, dtype)[:K].T, scales)
    else:
        _expect_dtype(a, scales)
        result = by_blocks(a.cast(FLOAT32), weight, dtype).cast(a.dtype)
    return result if bias is None else result + fitting(bias, result, "the bias")


def _expect_dtype(a: Value, scales: Value) -> None:
    if scales.dtype != a.dtype:
        raise malformed(f"A is {a.type}, the scales are {scales.type}")


def _product(context: Context, a: Value, weight: Array, scales: Value) -> Value:
    """`a @ weight.T`, in the dtype of the scales of the weight."""
    dtype = scales.dtype
    _expect_dtype(a, scales)
    wide = np.ascontiguousarray(weight.T, np.float32)
    if dtype.name not in HALF_DTYPES:
        wide = wide.astype(dtype.name)
    return a @ context.builder.stored(wide, dtype)


@onnx("MatMulBnb4", domain=MICROSOFT)
def _matmul_bnb4(
    context: Context, a: Value, b: Value, scales: Value, quant_type: int, K: Positive,
    N: Positive, block_size: int, transB: bool = True, training_mode: int = 0,
) -> Value:  # fmt: skip
    """A weight of four bits as bitsandbytes has it: blocks of the flat weight, the first of two
    elements in the higher bits."""
    _expect_blocks(block_size)
    if quant_type not in range(len(CODES)):
        raise malformed(f"quant_type is {quant_type}; expected 0 (FP4) or 1 (NF4)")
    if not transB:
        raise unsupported("transB is 0")
    packed, count = context.array_of(b, "the weight").ravel(), K * N
    if b.dtype != UINT8 or packed.size != -(-count // 2):
        raise malformed(f"the weight is {b.type} for K {K} and N {N}")
    if a.dtype.kind != "float":
        raise malformed(f"product of {a.type} and {b.type}")
    codes = list(CODES)[quant_type]
    blocks = _blocks_of(context, scales, (1, -(-count // block_size)), "the scales")
    blocks = blocks.astype(np.float32)
    lowest_first = packed >> 4 | packed << 4
    if count >= LEAST_ELEMENTS and K % block_size == 0 and a.dtype != FLOAT64:
        _expect_dtype(a, scales)
        shape = (N, K // block_size)
        levels = lowest_first.reshape(*shape, -1)
        weight, dtype = blocks_of(levels, 4, blocks.reshape(shape), None, codes)
        return by_blocks(a.cast(FLOAT32), weight, dtype).cast(a.dtype)
    wide = np.asarray(CODES[codes], np.float32)[unpacked(lowest_first, 4)[:count]]
    wide = wide * np.repeat(blocks, block_size)[:count]
    return _product(context, a, wide.reshape(N, K), scales)


def _zero_points(
    context: Context, zero: Value | None, bits: int, shape: tuple[int, int]
) -> Array | None:
    """The zero point of each block: packed as the weight is, or floats; None if all are half of the
    range."""
    if zero is None:
        return None
    if zero.dtype.kind == "float":
        return _blocks_of(context, zero, shape, "the zero points").astype(np.float32)
    words = -(-shape[1] * bits // 8)
    if zero.dtype != UINT8:
        raise malformed(f"zero points {zero.type}; expected uint8 or floats")
    packed = _blocks_of(context, zero, (shape[0], words), "the zero points")
    found = unpacked(packed, bits)[:, : shape[1]]
    return None if np.all(found == 1 << (bits - 1)) else found.astype(np.float32)


@onnx("GatherBlockQuantized", domain=MICROSOFT)
def _gather(
    context: Context, data: Value, indices: Value, scales: Value, zero: Value | None,
    bits: int = 4, block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1,
) -> Value:  # fmt: skip
    """Rows of a table, which stays packed: only what is gathered becomes floats."""
    _expect_bits(bits)
    _expect_blocks(block_size)
    if data.dtype != UINT8:
        raise unsupported(f"data of {data.type}; supported is uint8")
    if scales.dtype.kind != "float" or indices.dtype.kind != "int":
        raise malformed(f"indices {indices.type}, scales {scales.type}")
    if context.axis(gather_axis, data.rank) != 0:
        raise malformed("gather_axis is not 0, for data of uint8")
    if data.rank < 2 or quantize_axis not in (-1, data.rank - 1):
        raise malformed(f"quantize_axis is not the last of {data.type}, or the first")
    packed = context.known(data.shape, "the shape of data")
    size = packed[-1] * (8 // bits)
    blocks = (*packed[:-1], -(-size // block_size))
    if scales.shape != blocks:
        raise malformed(f"scales {scales.type}; expected {list(blocks)}")
    places = constant(np.arange(size) // block_size)

    def of_elements(table: Value) -> Value:
        """What the blocks of the gathered elements have, for each element."""
        found = gather(table, indices)
        return gather(found, places, found.rank - 1)

    levels = _apart(gather(data, indices), bits).cast(INT32)
    if zero is None:
        middle = scalar(1 << (bits - 1), INT32)
    else:
        words = (*blocks[:-1], -(-blocks[-1] * bits // 8))
        if zero.dtype != UINT8 or zero.shape != words:
            raise malformed(f"zero points {zero.type}; expected uint8 {list(words)}")
        array = unpacked(context.array_of(zero, "the zero points"), bits)[..., : blocks[-1]]
        middle = of_elements(constant(array)).cast(INT32)
    return (levels - middle).cast(scales.dtype) * of_elements(scales)


def _apart(words: Value, bits: int) -> Value:
    """The numbers along the last axis of bytes, which hold the lowest bits first."""
    if bits == 8:
        return words
    shifts = constant(np.arange(0, 8, bits, dtype=np.uint8))
    shifted = apply("shift_right", words.unsqueeze([words.rank]), shifts)
    apart = shifted & scalar((1 << bits) - 1, UINT8)
    return apart.reshape((*words.shape[:-1], words.shape[-1] * (8 // bits)))
