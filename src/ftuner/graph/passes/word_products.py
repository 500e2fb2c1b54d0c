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
from ftuner.graph.algebra import apply, constant, equal, rint, where, zero_padded
from ftuner.graph.arrays import converted, words
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Array, Graph, Node, Value
from ftuner.graph.ops.contraction import words_of
from ftuner.graph.passes.int8 import weight_levels
from ftuner.graph.rewriting import Surroundings, rewritten, scalar

SIGN = 128
"""An int8 plus this has the bits of a uint8, but for the highest."""
LEVELS = 127
"""Largest magnitude of a level of an int8 with the zero point 0."""
LEAST_STEPS = 16
"""Fewest steps of k for which the operands of a product are rounded: it takes longer to round rows
than to multiply them. Assumed."""
BFLOAT16_PRECISION, INT8_PRECISION = "bfloat16", "int8-dynamic"
PRECISIONS: Mapping[str, DType] = {BFLOAT16_PRECISION: BFLOAT16, INT8_PRECISION: UINT8}
"""What float32 may be multiplied in, by name, with the dtype that rows are rounded to."""


class _Rows(NamedTuple):
    """A tensor as `(levels - zero) * scale`."""

    levels: Value
    """Of uint8 or int8."""
    zero: Value | None
    """A scalar."""
    scale: float


def multiply_levels(graph: Graph) -> Graph:
    """Write products of 8-bit levels and weights as `word_matmul`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    weights: dict[Value, tuple[Array, Array] | None] = {}
    builder = _beside(graph)
    for node in graph.nodes:
        if node.op != "matmul" or node.inputs[1].rank != 2:
            continue
        a, b = node.inputs
        rows, result = _rows(around, a), _as_float32(around, node.output)
        if rows is None or result is None or not isinstance(a.shape[-1], int):
            continue
        if b not in weights:
            weights[b] = weight_levels(around, b)
        found = weights[b]
        if found is not None:
            before = len(builder.nodes)
            with builder.writing():
                same[result] = _product(rows, *found)
            places[node] = builder.nodes[before:]
    return rewritten(graph, places, same)


def _product(rows: _Rows, integers: Array, factor: Array) -> Value:
    levels, zero, scale = rows
    shift = 0
    if levels.dtype != UINT8:
        levels = apply("bit_cast", levels, of=levels.dtype, to=UINT8)
        levels, shift = apply("bitwise_xor", levels, levels.like(SIGN)), SIGN
    sums = constant(integers.sum(0).astype(np.float32))
    found = _by_words(levels, integers.astype(np.int8))
    if zero is not None:
        found = found - (zero.cast(FLOAT32) + shift) * sums
    elif shift:
        found = found - sums * shift
    factor = (factor * scale).astype(np.float32)
    return found if np.all(factor == 1) else found * constant(factor)


def _by_words(rows: Value, weight: Array) -> Value:
    """The product of rows and of a weight (k, n) as memory has it, both filled up to words with
    zeros."""
    dtype = WORDS[rows.dtype]
    missing = -len(weight) % dtype.numbers
    if missing:
        last = (0,) * (rows.rank - 1)
        rows = zero_padded(rows, (*last, 0), (*last, missing))
        weight = np.pad(weight, ((0, missing), (0, 0)))
    return apply("word_matmul", rows, constant(words_of(weight, dtype), dtype))


def _beside(graph: Graph) -> Builder:
    """A builder whose values have no name of the graph's."""
    builder = Builder()
    builder.reserve(v.name for node in graph.nodes for v in (*node.inputs, *node.outputs))
    return builder


def multiply_in(graph: Graph, precision: str) -> Graph:
    """Compute products of float32 by weights in one of `PRECISIONS`."""
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    builder = _beside(graph)
    for node in graph.nodes:
        if node.op != "matmul":
            continue
        a, b = node.inputs
        weight = b.constant
        if weight is None or weight.ndim != 2 or b.dtype != FLOAT32 or len(weight) < LEAST_STEPS:
            continue
        before = len(builder.nodes)
        with builder.writing():
            if precision == BFLOAT16_PRECISION:
                rounded = words(converted(weight, BFLOAT16), BFLOAT16)
                same[node.output] = _by_words(a.cast(BFLOAT16), rounded)
            else:
                same[node.output] = _by_levels(a, weight)
        places[node] = builder.nodes[before:]
    return rewritten(graph, places, same)


def _by_levels(a: Value, weight: Array) -> Value:
    """The product of rows that are rounded to levels of their own range."""
    most = abs(a).reduce("maximum", [a.rank - 1])
    scale = where(equal(most, 0), 1, most * (1 / LEVELS))
    rows = (rint(a / scale) + SIGN).cast(UINT8)
    factor = np.abs(weight).max(0) / LEVELS
    factor = np.where(factor == 0, 1, factor)
    integers = np.rint(weight / factor).astype(np.int8)
    found = _by_words(rows, integers) - constant(SIGN * integers.sum(0, dtype=np.float32))
    return found * scale * constant(factor.astype(np.float32))


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


def _as_float32(around: Surroundings, value: Value) -> Value | None:
    """The product itself, if it is float32 and no integer follows; else what it is converted to
    by way of integers alone."""
    reader = around.only_consumer(value)
    if value.dtype == FLOAT32 and (reader is None or reader.op != "cast"):
        return value
    while reader is not None and reader.op == "cast":
        value = reader.output
        if value.dtype == FLOAT32:
            return value
        if value.dtype not in (INT32, INT64):
            return None
        reader = around.only_consumer(value)
    return None
