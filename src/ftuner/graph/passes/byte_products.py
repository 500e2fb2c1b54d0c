"""Multiplies 8-bit integers as integers, on devices that have the instruction.

`((a - zero) * scale) @ (b * factor)`, where a is uint8 or int8 and b a constant that fits int8,
becomes `(a @ b - zero * sum(b)) * (scale * factor)`, with exact sums in int32. The sums are float32
from then on, which also stands for their way through int32 in the results of MatMulInteger.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import FLOAT32, INT8X4, INT32, INT64, UINT8
from ftuner.graph.algebra import apply, constant, zero_padded
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Array, Graph, Node, Value
from ftuner.graph.ops.contraction import WORD_BYTES, words_of
from ftuner.graph.passes.int8 import weight_levels
from ftuner.graph.rewriting import Surroundings, rewritten, scalar

SIGN = 128
"""An int8 plus this has the bits of a uint8, but for the highest."""


class _Rows(NamedTuple):
    """A tensor as `(levels - zero) * scale`."""

    levels: Value
    """Of uint8 or int8."""
    zero: Value | None
    """A scalar."""
    scale: float


def multiply_bytes(graph: Graph) -> Graph:
    """Write products of 8-bit levels and weights as `byte_matmul`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    weights: dict[Value, tuple[Array, Array] | None] = {}
    builder = Builder()
    builder.reserve(v.name for node in graph.nodes for v in (*node.inputs, *node.outputs))
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
    missing = -len(integers) % WORD_BYTES
    if missing:
        last = (0,) * (levels.rank - 1)
        levels = zero_padded(levels, (*last, 0), (*last, missing))
        integers = np.pad(integers, ((0, missing), (0, 0)))
    found = apply("byte_matmul", levels, constant(words_of(integers.astype(np.int8)), INT8X4))
    if zero is not None:
        found = found - (zero.cast(FLOAT32) + shift) * sums
    elif shift:
        found = found - sums * shift
    factor = (factor * scale).astype(np.float32)
    return found if np.all(factor == 1) else found * constant(factor)


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
