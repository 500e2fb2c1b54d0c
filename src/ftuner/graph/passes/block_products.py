"""Products of float32 rows by weights of few bits, which are blocks of levels with scales."""

from __future__ import annotations

import numpy as np

from ftuner.core.dtype import FLOAT32, DType
from ftuner.graph.algebra import apply, zero_padded
from ftuner.graph.blocks import of_blocks, rounded
from ftuner.graph.ir import Array, Node, Value, building
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings, constant

LEAST_ELEMENTS = 1 << 14
"""Smaller weights are float32: they stay in the nearest caches either way. Assumed."""
BITS, NUMBERS = 4, 32
"""What weights are rounded to if that is asked for: the blocks of most files of 4 bits."""


def by_blocks(rows: Value, blocks: Array, dtype: DType) -> Value:
    """The product of float32 rows and a weight of at least as many steps of k."""
    missing = len(blocks) * dtype.numbers - rows.shape[-1]
    if missing != 0:
        before = (0,) * rows.rank
        rows = zero_padded(rows, before, (*before[1:], missing))
    weight = building().constant(blocks, dtype)
    return apply("block_matmul", rows, weight, block=dtype)


@rule("block_matmul")
def widened_blocks(node: Node, around: Surroundings) -> Value:
    """The product by the float32 weight, on devices that widen no blocks."""
    rows, blocks = node.inputs
    return rows @ around.once(_widened, blocks)


def _widened(around: Surroundings, blocks: Value) -> Value:
    assert blocks.constant is not None
    return constant(f"{blocks.name}_wide", FLOAT32, of_blocks(blocks.constant, blocks.dtype))


@rule("matmul")
def in_int4(node: Node, around: Surroundings) -> Value | None:
    """The product by the weight rounded to blocks, if it is large, finite and read here alone."""
    rows, weight = node.inputs
    array = weight.constant
    if array is None or array.ndim != 2 or node.output.dtype != FLOAT32:
        return None
    small = array.size < LEAST_ELEMENTS or len(array) < NUMBERS
    if small or around.read(weight) > 1 or not np.isfinite(array).all():
        return None
    return by_blocks(rows, *rounded(array, BITS, NUMBERS))
