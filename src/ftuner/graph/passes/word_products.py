"""Products of narrow numbers, on devices that have the instruction.

Of a quantised model, `((a - zero) * scale) @ (b * factor)`, where a is uint8 or int8 and b a
constant that fits int8, becomes `(a @ b - zero * sum(b)) * (scale * factor)`, with exact sums in
int32. The sums are float32 from then on, which also stands for their way through int32 in the
results of MatMulInteger.

Of any model, products of float32 by a weight are computed in another precision if that is asked
for: both operands are rounded to bfloat16, as are those of attention, or to 8-bit levels with a
scale for each row of a, so that rows do not depend on each other, and for each column of the
weight, or in each block of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dim import static
from ftuner.core.dtype import BFLOAT16, FLOAT32, INT8, INT32, INT64, UINT8, DType, codes_of
from ftuner.core.product import WORD_PRODUCTS
from ftuner.graph.algebra import apply, zero_padded
from ftuner.graph.arrays import converted
from ftuner.graph.arrays import words as bits_of
from ftuner.graph.blocks import as_signed, of_blocks
from ftuner.graph.ir import Array, Node, Value, building
from ftuner.graph.ops.contraction import words_of
from ftuner.graph.ops.reduction import LEVELS, SIGN
from ftuner.graph.passes.narrow_weights import (
    by_blocks,
    in_int4,
    int4_blocks,
    known_weight,
    weight_levels,
)
from ftuner.graph.rewrite.rule import Pass, rule, together
from ftuner.graph.rewrite.surroundings import Surroundings, scalar

EXTREMA = ("minimum", "maximum")
"""What `row_range` gives."""
MOVES = ("transpose", "reshape")
MOVES_OF_OPERANDS = (*MOVES, "slice")
"""The moves before attention, of which slices take a merged product apart."""
MOST_EXACT = 512
"""Longest blocks whose sums of products of levels, below 2^15 each, float32 has exactly."""
LEAST_STEPS = 16
"""Fewest steps of k for which the operands of a product are rounded: it takes longer to round rows
than to multiply them. Assumed."""


@rule("reduce")
def range_of_rows(node: Node, around: Surroundings) -> Value | None:
    """The least or the greatest element of a tensor of which both are read, by way of those of
    rows: each row is read once, and tasks are rows."""
    (x,) = node.inputs
    whole = {n.attributes["kind"] for n in around.consumers(x)
             if n.op == "reduce" and len(n.attributes["axes"]) == x.rank}  # fmt: skip
    kind, width = node.attributes["kind"], x.shape[-1] if x.rank > 1 else 0
    if (
        kind not in EXTREMA
        or len(node.attributes["axes"]) < x.rank
        or not whole.issuperset(EXTREMA)
    ):
        return None
    if x.dtype.kind != "float" or not isinstance(width, int) or width < LEAST_STEPS:
        return None
    rows = building().add_many("row_range", x)[EXTREMA.index(kind)]
    return rows.reduce(kind, range(rows.rank), keep=False)


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
    """Rewrite a product or a convolution of levels that is converted to float32 by way of integers,
    which nothing else reads and which may be moved."""
    before: Node | None = node
    moves: list[Node] = []
    whole = False
    while before is not None and before.op in ("cast", *MOVES):
        (x,) = before.inputs
        if before.op in MOVES:
            moves.append(before)
        elif before is not node:
            whole = True
            if before.output.dtype not in (INT32, INT64):
                return None
        before = around.producer_of(x) if around.read(x) == 1 else None
    if before is None or before.op not in ("matmul", "convolution"):
        return None
    found = _of_levels(before, around, whole)
    if found is None:
        return None
    for move in reversed(moves):
        found = apply(move.op, found, **move.attributes)
    return found


def _of_levels(node: Node, around: Surroundings, whole: bool = False) -> Value | None:
    """The product of a node by levels. `whole`: only one of integers, which conversion to integers
    leaves as they are."""
    a, b = node.inputs
    rows = _rows(around, a) if isinstance(a.shape[-1], int) else None
    found = None if rows is None or b.rank < 2 else around.once(weight_levels, b)
    if rows is None or found is None or node.attributes.get("groups", 1) != 1:
        return None
    if whole and not (rows.scale == 1 and np.all(found[1] == 1)):
        return None
    return _product(rows, *found, node.attributes) if node.op != "matmul" or b.rank == 2 else None


@rule("convolution")
def convolution_of_levels(node: Node, around: Surroundings) -> Value | None:
    """The rewrite for a convolution that is not in groups."""
    return _of_levels(node, around)


products_of_levels = together(product_of_levels, product_of_levels_as_float, convolution_of_levels)


def _product(rows: _Rows, integers: Array, factor: Array, window: Mapping[str, Any]) -> Value:
    """The product of rows and integers (..., k, n). `window`: of a convolution; else empty."""
    levels, zero, scale = rows
    shift = 0.0
    if levels.dtype != UINT8:
        levels = apply("bit_cast", levels, of=levels.dtype, to=UINT8)
        levels, shift = apply("bitwise_xor", levels, levels.like(SIGN)), SIGN
    level = None if zero is None and not shift else shift if zero is None else zero + shift
    if window:
        window = {name: value for name, value in window.items() if name != "groups"}
        levels, window = _padded(levels, integers.shape[:-2], window, level)
    sums = integers.sum(tuple(range(integers.ndim - 1)))
    found = _by_words(levels, integers.astype(np.int8), window)
    if level is not None:
        found = found - _row(sums) * level
    factor = factor * scale
    return found if np.all(factor == 1) else found * _row(factor)


def _padded(
    levels: Value, kernel: Sequence[int], window: Mapping[str, Any], zero: Value | float | None
) -> tuple[Value, Mapping[str, Any]]:
    """The levels with what the window reads beyond them, which has the zero point, and the window
    on that. Without a zero point it reads zeros there."""
    begin, extents = window["begin"], window["extents"]
    steps = zip(extents, window["strides"], window["dilations"], kernel, strict=True)
    needed = [(n - 1) * stride + (k - 1) * dilation + 1 for n, stride, dilation, k in steps]
    after = tuple(n - b - d for n, b, d in zip(needed, begin, levels.shape[1:-1], strict=True))
    if zero is None or not any(n != 0 for n in (*begin, *after)):
        return levels, window
    fill = (zero if isinstance(zero, Value) else building().scalar(zero, FLOAT32)).cast(UINT8)
    found = apply("pad", levels, fill, before=(0, *begin, 0), after=(0, *after, 0),
                  mode="constant")  # fmt: skip
    return found, {**window, "begin": (0,) * len(begin)}


def _row(numbers: Array) -> Value:
    return building().constant(numbers.astype(np.float32), FLOAT32)


def _by_words(rows: Value, weight: Array, window: Mapping[str, Any] | None = None) -> Value:
    """The product of rows and of a weight (..., k, n) as memory has it, both filled up to words
    with zeros."""
    dtype = WORD_PRODUCTS[rows.dtype].b
    missing = -weight.shape[-2] % dtype.numbers
    if missing:
        last = (0,) * (rows.rank - 1)
        rows = zero_padded(rows, (*last, 0), (*last, missing))
        weight = np.pad(weight, (*[(0, 0)] * (weight.ndim - 2), (0, missing), (0, 0)))
    words = building().constant(words_of(weight, dtype), dtype)
    return apply("word_convolution" if window else "word_matmul", rows, words, **(window or {}))


def _known_weight(node: Node, around: Surroundings) -> Array | None:
    weight = known_weight(node, around)
    return weight if weight is not None and len(weight) >= LEAST_STEPS else None


@rule("matmul")
def in_bfloat16(node: Node, around: Surroundings) -> Value | None:
    weight = _known_weight(node, around)
    if weight is None:
        return None
    rounded = bits_of(converted(weight, BFLOAT16), BFLOAT16)
    return _by_words(node.inputs[0].cast(BFLOAT16), rounded)


@rule("attention")
def attention_in_bfloat16(node: Node, around: Surroundings) -> Value | None:
    q, k, v, *others = node.inputs
    depth = q.shape[-1]
    if q.dtype != FLOAT32 or not isinstance(depth, int) or depth < LEAST_STEPS:
        return None
    # What memory has in float32 is rounded as it is packed.
    kept = depth % 2 == 0 and all(_is_in_memory(around, x) for x in (k, v))
    turned = around.producer(k, "transpose")
    if kept:
        k = k.swapped()
    elif turned is None:
        k = _in_bfloat16(around, k).swapped()
    else:
        *batch, rows, columns = turned.attributes["perm"]
        k = _in_bfloat16(around, turned.inputs[0]).transpose((*batch, columns, rows))
    q, v = _in_bfloat16(around, q), v if kept else _in_bfloat16(around, v)
    if depth % 2:
        first = (0,) * (q.rank - 1)
        q, k = (zero_padded(x, (*first, 0), (*first, 1)) for x in (q, k))
    return apply("word_attention", q, k, v, *others, **node.attributes)


def _is_in_memory(around: Surroundings, value: Value) -> bool:
    """Whether a value is an input or a constant, or a past of that kind with what is appended."""
    node = around.producer_of(value)
    moved = node is not None and node.op in (*MOVES_OF_OPERANDS, "concat")
    return node is None or (moved and _is_in_memory(around, node.inputs[0]))


def _in_bfloat16(around: Surroundings, value: Value) -> Value:
    """The value rounded before it is moved, where it is computed, or as a file has it."""
    node = around.producer_of(value)
    if node is not None and node.op == "cast" and node.inputs[0].dtype == BFLOAT16:
        return node.inputs[0]
    if node is None or node.op not in MOVES_OF_OPERANDS or not _is_rounded(around, node.inputs[0]):
        return value.cast(BFLOAT16)
    return apply(node.op, _in_bfloat16(around, node.inputs[0]), **node.attributes)


def _is_rounded(around: Surroundings, value: Value) -> bool:
    """Whether all that reads a value, or reads it moved, rounds it to bfloat16."""
    readers = around.consumers(value)
    return around.read(value) == len(readers) and all(
        (n.op == "attention" and any(value is x for x in n.inputs[:3]))
        or (n.op == "cast" and n.output.dtype == BFLOAT16)
        or (n.op in MOVES_OF_OPERANDS and _is_rounded(around, n.output))
        for n in readers
    )


@rule("matmul")
def in_int8(node: Node, around: Surroundings) -> Value | None:
    weight = _known_weight(node, around)
    return None if weight is None else _by_levels(node.inputs[0], weight)


@rule("matmul")
def in_int4_by_levels(node: Node, around: Surroundings) -> Value | None:
    """The product of levels of rows and the weight rounded to blocks."""
    found = int4_blocks(node, around)
    a, weight = node.inputs
    return None if found is None else _levels_by_blocks(a, *found, static(weight.shape)[0])


@rule("block_matmul")
def blocks_by_levels(node: Node) -> Value | None:
    """The product of levels of rows and a weight that a file has in blocks of levels."""
    a, blocks = node.inputs
    dtype = blocks.dtype
    if blocks.constant is None or codes_of(dtype) or dtype.numbers > MOST_EXACT:
        return None
    return _levels_by_blocks(a, blocks.constant, dtype, len(blocks.constant) * dtype.numbers)


class Precision(NamedTuple):
    """How products of float32 by weights, and attention, are computed in another precision."""

    rewrite: Pass
    rows: DType
    """The dtype that rows are rounded to."""


PRECISIONS: Mapping[str, Precision] = {
    "bfloat16": Precision(together(in_bfloat16, attention_in_bfloat16), BFLOAT16),
    "int8-dynamic": Precision(in_int8, UINT8),
    "int4-weights": Precision(in_int4, FLOAT32),
    "int4-dynamic": Precision(together(in_int4_by_levels, blocks_by_levels), UINT8),
}
"""The other precisions, by the names that users give."""


def _by_levels(a: Value, weight: Array) -> Value:
    """The product of rows that are rounded to levels of their own range."""
    rows, scale = building().add_many("row_levels", a)
    factor = np.abs(weight).max(0) / LEVELS
    factor = np.where(factor == 0, 1, factor)
    integers = np.rint(weight / factor).astype(np.int8)
    found = _by_words(rows, integers) - _row(SIGN * integers.sum(0, dtype=np.int64))
    return found * scale.unsqueeze([a.rank - 1]) * _row(factor)


def _levels_by_blocks(a: Value, blocks: Array, dtype: DType, k: int) -> Value:
    """The product of rows that are rounded to levels of their own range, and a weight in blocks."""
    rows, scale = building().add_many("row_levels", a)
    sums = of_blocks(blocks, dtype)[:k].sum(0, dtype=np.float64)
    found = by_blocks(rows, *as_signed(blocks, dtype)) - _row(SIGN * sums)
    return found * scale.unsqueeze([a.rank - 1])


def _rows(around: Surroundings, value: Value) -> _Rows | None:
    """The tensor as levels of 8 bits, if it is that; transpositions and reshapes are of the
    levels."""
    moves: list[Node] = []

    def producer(op: str) -> Node | None:
        nonlocal value
        while (node := around.producer_of(value)) is not None and node.op in MOVES:
            moves.append(node)
            (value,) = node.inputs
        return node if node is not None and node.op == op else None

    scale, zero = 1.0, None
    if (multiply := producer("multiply")) is not None:
        x, other = multiply.inputs
        number = scalar(other)
        if number is None or x.shape != multiply.output.shape:
            return None
        value, scale = x, number
    if (subtract := producer("subtract")) is not None:
        x, zero = subtract.inputs
        if zero.rank or x.shape != subtract.output.shape:
            return None
        value, zero = x, None if scalar(zero) == 0 else zero.cast(FLOAT32)
    cast = producer("cast")
    if cast is None or cast.inputs[0].dtype not in (INT8, UINT8):
        return None
    (levels,) = cast.inputs
    for node in reversed(moves):
        levels = apply(node.op, levels, **node.attributes)
    return _Rows(levels, zero, scale)
