"""Products of narrow numbers, on devices that have the instruction.

Of a quantised model, `((a - zero) * scale) @ (b * factor)`, where a is uint8 or int8 and b a
constant that fits int8, becomes `(a @ b - zero * sum(b)) * (scale * factor)`, with exact sums in
int32. The sums are float32 from then on, which also stands for their way through int32 in the
results of MatMulInteger.

Of any model, products of float32 by a weight are computed in another precision if that is asked
for: both operands are rounded to bfloat16, or to 8-bit levels with a scale for each row of a, so
that rows do not depend on each other, and for each column of the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import BFLOAT16, FLOAT32, INT32, INT64, UINT8, WORDS, DType
from ftuner.graph.algebra import apply, equal, rint, where, zero_padded
from ftuner.graph.arrays import converted, words
from ftuner.graph.ir import Array, Node, Value, building
from ftuner.graph.ops.contraction import words_of
from ftuner.graph.passes.int8 import weight_levels
from ftuner.graph.rewrite.rule import Rule, rule, together
from ftuner.graph.rewrite.surroundings import Surroundings, scalar

SIGN = 128
"""An int8 plus this has the bits of a uint8, but for the highest."""
LEVELS = 127
"""Largest magnitude of a level of an int8 with the zero point 0."""
LEAST_STEPS = 16
"""Fewest steps of k for which the operands of a product are rounded: it takes longer to round rows
than to multiply them. Assumed."""


class _Rows(NamedTuple):
    """A tensor as `(levels - zero) * scale`."""

    levels: Value
    """Of uint8 or int8."""
    zero: Value | None
    """A scalar."""
    scale: float


@rule("matmul")
def product_of_levels(node: Node, around: Surroundings) -> Value | None:
    """The product of 8-bit levels and a weight, unless it is converted to integers."""
    reader = around.only_consumer(node.output)
    integers = reader is not None and reader.op == "cast"
    return None if integers else _of_levels(node, around)


@rule("cast")
def product_of_levels_as_float(node: Node, around: Surroundings) -> Value | None:
    """The same product that is converted to float32 by way of integers that nothing else reads."""
    before: Node | None = node
    while before is not None and before.op == "cast":
        (x,) = before.inputs
        if before is not node and before.output.dtype not in (INT32, INT64):
            return None
        before = around.producer_of(x) if around.read(x) == 1 else None
    return None if before is None or before.op != "matmul" else _of_levels(before, around)


products_of_levels = together(product_of_levels, product_of_levels_as_float)


def _of_levels(node: Node, around: Surroundings) -> Value | None:
    a, b = node.inputs
    known = b.rank == 2 and isinstance(a.shape[-1], int)
    rows = _rows(around, a) if known else None
    found = None if rows is None else around.once(weight_levels, b)
    return None if rows is None or found is None else _product(rows, *found)


def _product(rows: _Rows, integers: Array, factor: Array) -> Value:
    levels, zero, scale = rows
    shift = 0
    if levels.dtype != UINT8:
        levels = apply("bit_cast", levels, of=levels.dtype, to=UINT8)
        levels, shift = apply("bitwise_xor", levels, levels.like(SIGN)), SIGN
    sums = _row(integers.sum(0))
    found = _by_words(levels, integers.astype(np.int8))
    if zero is not None:
        found = found - (zero.cast(FLOAT32) + shift) * sums
    elif shift:
        found = found - sums * shift
    factor = factor * scale
    return found if np.all(factor == 1) else found * _row(factor)


def _row(numbers: Array) -> Value:
    return building().constant(numbers.astype(np.float32), FLOAT32)


def _by_words(rows: Value, weight: Array) -> Value:
    """The product of rows and of a weight (k, n) as memory has it, both filled up to words with
    zeros."""
    dtype = WORDS[rows.dtype]
    missing = -len(weight) % dtype.numbers
    if missing:
        last = (0,) * (rows.rank - 1)
        rows = zero_padded(rows, (*last, 0), (*last, missing))
        weight = np.pad(weight, ((0, missing), (0, 0)))
    return apply("word_matmul", rows, building().constant(words_of(weight, dtype), dtype))


def _known_weight(node: Node) -> Array | None:
    weight = node.inputs[1].constant
    if weight is None or weight.ndim != 2 or node.output.dtype != FLOAT32:
        return None
    return weight if len(weight) >= LEAST_STEPS else None


@rule("matmul")
def in_bfloat16(node: Node) -> Value | None:
    weight = _known_weight(node)
    if weight is None:
        return None
    rounded = words(converted(weight, BFLOAT16), BFLOAT16)
    return _by_words(node.inputs[0].cast(BFLOAT16), rounded)


@rule("matmul")
def in_int8(node: Node) -> Value | None:
    weight = _known_weight(node)
    return None if weight is None else _by_levels(node.inputs[0], weight)


IN_PRECISION: Mapping[str, Rule] = {"bfloat16": in_bfloat16, "int8-dynamic": in_int8}
"""How float32 is multiplied in other precisions, by their names."""
PRECISIONS: Mapping[str, DType] = {"bfloat16": BFLOAT16, "int8-dynamic": UINT8}
"""The dtypes that rows are rounded to then."""


def _by_levels(a: Value, weight: Array) -> Value:
    """The product of rows that are rounded to levels of their own range."""
    most = abs(a).reduce("maximum", [a.rank - 1])
    scale = where(equal(most, 0), 1, most * (1 / LEVELS))
    rows = (rint(a / scale) + SIGN).cast(UINT8)
    factor = np.abs(weight).max(0) / LEVELS
    factor = np.where(factor == 0, 1, factor)
    integers = np.rint(weight / factor).astype(np.int8)
    found = _by_words(rows, integers) - _row(SIGN * integers.sum(0, dtype=np.int64))
    return found * scale * _row(factor)


def _rows(around: Surroundings, value: Value) -> _Rows | None:
    """The tensor as levels of 8 bits, if it is that."""
    scale = 1.0
    multiply = around.producer(value, "multiply")
    if multiply is not None:
        number = scalar(multiply.inputs[1])
        if number is None or multiply.inputs[0].shape != value.shape:
            return None
        value, scale = multiply.inputs[0], number
    zero, subtract = None, around.producer(value, "subtract")
    if subtract is not None:
        zero = subtract.inputs[1]
        if zero.rank or subtract.inputs[0].shape != value.shape:
            return None
        value = subtract.inputs[0]
    cast = around.producer(value, "cast")
    if cast is None or cast.inputs[0].dtype.kind not in ("int", "uint"):
        return None
    (levels,) = cast.inputs
    return _Rows(levels, zero, scale) if levels.dtype.bits == 8 else None
