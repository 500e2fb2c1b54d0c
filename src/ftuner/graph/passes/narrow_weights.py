"""Products by narrow weights. Those of 8-bit integers are kept: uKernels widen them, and the scale
follows the product. Those of fewer bits are blocks of levels with scales."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ftuner.core.dim import static
from ftuner.core.dtype import FLOAT32, INT8, DType
from ftuner.graph.algebra import apply, zero_padded
from ftuner.graph.arrays import converted
from ftuner.graph.blocks import of_blocks, rounded
from ftuner.graph.ir import Array, Node, Value, building
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings, constant

LEAST_BYTES = 16 << 10
"""Least size of weights that are kept. Derived: smaller ones fit L1 as floats, too."""
MAX_DEPTH = 8
"""Most nodes between the integers and the product. Exporters write up to four."""


class _Levels(NamedTuple):
    """A weight as integers times a scale that broadcasts with it, of as many axes."""

    integers: Array
    """In a dtype wide enough for the subtraction of a zero point."""
    scale: Array


@rule("matmul")
def int8_weight(node: Node, around: Surroundings) -> Value | None:
    """Replace `x @ ((widened - zero) * scale)` by `(x @ integers) * scale`, if there is one scale
    for the weight or one per column, and the integers minus the zero point fit 8 bits."""
    x, weight = node.inputs
    found = around.once(_weight, weight) if 0 not in x.shape else None
    return None if found is None else apply("narrow_matmul", x, found[0]) * found[1]


def _weight(around: Surroundings, value: Value) -> tuple[Value, Value] | None:
    """A matrix as a weight of 8-bit integers and the scale of its columns, if it is one."""
    found = weight_levels(around, value) if value.rank == 2 else None
    if found is None or found[0].size < LEAST_BYTES:
        return None
    integers, scale = found
    weight = constant(f"{value.name}_int8", INT8, integers)
    return weight, constant(f"{value.name}_scale", value.dtype, scale)


def weight_levels(around: Surroundings, value: Value) -> tuple[Array, Array] | None:
    """The integers of a weight, which fit 8 bits, and the scale of its last axis, if it is one."""
    levels, limits = _levels(around, value, MAX_DEPTH), np.iinfo(np.int8)
    if levels is None or levels.scale.size != levels.scale.shape[-1]:
        return None
    integers, scale = levels
    if integers.min() < limits.min or integers.max() > limits.max:
        return None
    return integers, np.broadcast_to(scale.reshape(-1), integers.shape[-1:])


def _levels(around: Surroundings, value: Value, depth: int) -> _Levels | None:
    """The integers and scale of a weight that at most `depth` nodes compute by widening, shifting,
    scaling, transposing and reshaping integers; else None."""
    if not depth:
        return None
    cast = around.producer(value, "cast")
    if cast is not None:
        array = cast.inputs[0].constant
        narrow = array is not None and array.ndim >= 2 and array.itemsize == 1
        if not narrow or array is None or array.dtype.kind not in "iu":
            return None
        return _Levels(array.astype(np.int16), np.ones((1,) * array.ndim))
    transpose = around.producer(value, "transpose")
    if transpose is not None:
        found = _levels(around, transpose.inputs[0], depth - 1)
        perm = transpose.attributes["perm"]
        return found and _Levels(*(x.transpose(perm) for x in found))
    reshape = around.producer(value, "reshape")
    if reshape is not None and (shape := value.shape)[-1:] == reshape.inputs[0].shape[-1:]:
        found = _levels(around, reshape.inputs[0], depth - 1)
        if found is None or found.scale.size != found.scale.shape[-1]:
            return None
        scale = found.scale.reshape((*[1] * (len(shape) - 1), -1))
        return _Levels(found.integers.reshape(static(shape)), scale)
    subtract = around.producer(value, "subtract")
    if subtract is not None:
        zero = _numbers(around, subtract.inputs[1])
        return _shifted(_levels(around, subtract.inputs[0], depth - 1), zero)
    multiply = around.producer(value, "multiply")
    if multiply is not None:
        for x, other in (multiply.inputs, multiply.inputs[::-1]):
            factor = _numbers(around, other)
            if factor is not None:
                return _scaled(_levels(around, x, depth - 1), factor)
    return None


def _numbers(around: Surroundings, value: Value) -> Array | None:
    """A constant, or one that is kept narrow and widened."""
    cast = around.producer(value, "cast")
    if cast is None or (narrow := cast.inputs[0].constant) is None:
        return value.constant
    return converted(narrow, value.dtype)


def _shifted(levels: _Levels | None, zero: Array | None) -> _Levels | None:
    """The levels minus a zero point; None if they are scaled already."""
    if levels is None or zero is None or np.any(levels.scale != 1):
        return None
    if not _broadcasts(zero, levels.integers):
        return None
    whole = zero.astype(np.int16)
    if np.any(whole != zero) or np.any(np.abs(zero) > np.iinfo(np.uint8).max):
        return None
    return levels._replace(integers=levels.integers - whole)


def _scaled(levels: _Levels | None, factor: Array) -> _Levels | None:
    if levels is None or not _broadcasts(factor, levels.integers):
        return None
    # A scale of several axes cannot follow the product.
    lines = np.broadcast_shapes(levels.scale.shape, factor.shape)
    if sum(n != 1 for n in lines) > 1 or not np.all(np.isfinite(factor)):
        return None
    return levels._replace(scale=levels.scale * factor)


def _broadcasts(array: Array, integers: Array) -> bool:
    """Whether a weight stays as large with an operand."""
    return np.broadcast_shapes(array.shape, integers.shape) == integers.shape


LEAST_ELEMENTS = 1 << 14
"""Smaller weights are float32: they stay in the nearest caches either way. Assumed."""
BITS, NUMBERS = 4, 32
"""What weights are rounded to if that is asked for: the blocks of most files of 4 bits."""


def by_blocks(rows: Value, blocks: Array, dtype: DType) -> Value:
    """The product of rows and a weight of at least as many steps of k."""
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
    """The product by the weight rounded to blocks."""
    found = int4_blocks(node, around)
    return None if found is None else by_blocks(node.inputs[0], *found)


def known_weight(node: Node, around: Surroundings) -> Array | None:
    """The weight (k, n) of a product of float32, if it is a matrix of the graph. Where that is
    large, as is a table of tokens that a product reads, too, folding has left it transposed."""
    weight = node.inputs[1]
    turned = around.producer(weight, "transpose")
    array = weight.constant if turned is None else turned.inputs[0].constant
    if array is None or weight.rank != 2 or node.output.dtype != FLOAT32:
        return None
    return array if turned is None else array.T


def int4_blocks(node: Node, around: Surroundings) -> tuple[Array, DType] | None:
    """The weight of a product rounded to blocks, if it is large, finite and read there alone."""
    weight, array = node.inputs[1], known_weight(node, around)
    if array is None:
        return None
    small = array.size < LEAST_ELEMENTS or len(array) < NUMBERS
    if small or around.read(weight) > 1 or not np.isfinite(array).all():
        return None
    return rounded(array, BITS, NUMBERS)
