"""Weights of few bits: matrices (k, n) as blocks of levels along k, each with a scale.

An element of an array of blocks is a block of one column (`core.dtype.block_of_levels`); NumPy
holds it as bytes. The last block of a column is filled up with levels that are multiplied by zeros.
"""

from __future__ import annotations

import numpy as np

from ftuner.core.dtype import (
    DType,
    block_of_codes,
    block_of_levels,
    block_of_signed_levels,
    codes_of,
    has_signed_levels,
    levels_of,
)
from ftuner.graph.arrays import held_in
from ftuner.graph.ir import Array

WORD = np.dtype("<u4")


def blocks_of(
    levels: Array, bits: int, scales: Array, zeros: Array | None, codes: str = ""
) -> tuple[Array, DType]:
    """Blocks (blocks, n), and their dtype, of levels (n, blocks, bytes), the lowest bits first, and
    of scales and zero points (n, blocks). `zeros`: None if all are half of the range. `codes`: the
    name of what levels of four bits stand for."""
    n, count, size = levels.shape
    numbers = size * 8 // bits
    dtype = block_of_levels(bits, numbers, zeros is not None)
    if codes:
        dtype = block_of_codes(codes, numbers)
    of_levels = size // WORD.itemsize
    words = np.empty((count, n, dtype.itemsize // WORD.itemsize), WORD)
    words[..., :of_levels] = np.ascontiguousarray(levels).view(WORD).transpose(1, 0, 2)
    parameters = words.view("<f4")[..., of_levels:]
    parameters[..., 0] = scales.T
    if zeros is not None:
        parameters[..., 1] = zeros.T
    return words.view(held_in(dtype))[..., 0], dtype


def of_blocks(blocks: Array, dtype: DType) -> Array:
    """The float32 weight (k, n) that blocks hold."""
    bits, has_zeros = levels_of(dtype)
    count, n = blocks.shape
    packed_levels, numbers = _parts(blocks, dtype)
    levels, half = unpacked(packed_levels, bits), np.float32(1 << (bits - 1))
    if has_signed_levels(dtype):
        words = levels.reshape(count, n, -1, WORD.itemsize, 8 // bits) ^ (1 << (bits - 1))
        levels = words.swapaxes(-1, -2).reshape(levels.shape)
        step = np.float32(2.0 ** (8 - bits))
        numbers = np.stack([numbers[..., 0] * step, numbers[..., -1] / step + half], -1)
    zeros = numbers[..., 1:2] if has_zeros else half
    codes = np.asarray(codes_of(dtype), np.float32)
    with np.errstate(all="ignore"):
        values = codes[levels] if codes.size else levels.astype(np.float32) - zeros
        weight: Array = values * numbers[..., :1]
    return np.ascontiguousarray(weight.transpose(0, 2, 1)).reshape(-1, n)


def _parts(blocks: Array, dtype: DType) -> tuple[Array, Array]:
    """The levels of blocks (..., bytes), and their scales and perhaps zero points, which are both
    parts of one array of words."""
    bits, _ = levels_of(dtype)
    words = np.ascontiguousarray(blocks).view(WORD).reshape(*blocks.shape, -1)
    of_levels = dtype.numbers * bits // (8 * WORD.itemsize)
    levels = np.ascontiguousarray(words[..., :of_levels]).view(np.uint8)
    return levels, words[..., of_levels:].view("<f4")


def as_signed(blocks: Array, dtype: DType) -> tuple[Array, DType]:
    """Return a weight as blocks whose levels become signed bytes by a shift and a mask.

    Level `4 i + j` of a word, minus half of the range, is field `i` of byte `j`, in two's
    complement. At the top of a byte it is `2 ** (8 - bits)` times as large: the scale has the
    inverse factor, and the zero point, which is minus half of the range, too, has this one."""
    bits, has_zeros = levels_of(dtype)
    packed_levels, numbers = _parts(blocks, dtype)
    levels = unpacked(packed_levels, bits) ^ (1 << (bits - 1))
    words = levels.reshape(*blocks.shape, -1, 8 // bits, WORD.itemsize)
    ordered = packed(words.swapaxes(-1, -2), bits).reshape(packed_levels.shape)
    step = np.float32(2.0 ** (8 - bits))
    zeros = (numbers[..., 1] - np.float32(1 << (bits - 1))) * step if has_zeros else None
    found, _ = blocks_of(
        ordered.swapaxes(0, 1), bits, (numbers[..., 0] / step).T, None if zeros is None else zeros.T
    )  # fmt: skip
    return found, block_of_signed_levels(bits, dtype.numbers, has_zeros)


def unpacked(packed: Array, bits: int) -> Array:
    """The numbers along the last axis of bytes, which hold the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(*packed.shape[:-1], -1)


def packed(levels: Array, bits: int) -> Array:
    """The inverse of `unpacked`."""
    of_byte = 8 // bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = levels.astype(np.uint8).reshape(*levels.shape[:-1], -1, of_byte) << shifts
    found: Array = np.bitwise_or.reduce(apart, axis=-1)
    return found


def rounded(weight: Array, bits: int, numbers: int) -> tuple[Array, DType]:
    """A finite float32 weight (k, n) rounded to blocks of `numbers` steps of k.

    The zero points are half of the range, so that the number of largest magnitude is exact, or such
    that the least and the largest number are: what leaves the smaller sum of squared errors."""
    k, n = weight.shape
    whole = np.pad(weight, ((0, -k % numbers), (0, 0)), mode="edge").T.reshape(n, -1, numbers)
    most = (1 << bits) - 1
    half = np.float32(1 << (bits - 1))
    low, high = whole.min(-1, keepdims=True), whole.max(-1, keepdims=True)
    extreme = np.where(-low > high, low, high)
    candidates = ((extreme / -half, half), ((high - low) / np.float32(most), None))
    found: list[tuple[float, Array, Array, Array | None]] = []
    for step, middle in candidates:
        scale = np.where(step == 0, np.float32(1), step)
        zero = -low / scale if middle is None else middle
        levels = np.clip(np.rint(whole / scale + zero), 0, most)
        lost = float(np.square((levels - zero) * scale - whole, dtype=np.float64).sum())
        found.append((lost, levels, scale, zero if middle is None else None))
    _, levels, scales, zeros = min(found, key=lambda each: each[0])
    zeros = None if zeros is None else np.broadcast_to(zeros, scales.shape)[..., 0]
    return blocks_of(packed(levels, bits), bits, scales[..., 0], zeros)
