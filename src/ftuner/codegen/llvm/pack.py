"""Packing a panel: `width` columns over `k` steps, wherever they lie, to contiguous k steps.

Signature of the compiled function::

    void pack(source, k_stride, column_stride, target, k, width, padded)

writes `target[s * padded + j] = source[s, j]` for `j < width` and zeros for `width <= j < padded`.
Strides in bytes, of any sign. Where `padded` is not a multiple of the lanes, up to one vector
behind the panel is overwritten: targets leave that room, and panels are packed in ascending order.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.abi import pack_symbol
from ftuner.codegen.llvm.build import (
    I1,
    I8,
    I64,
    PTR,
    VOID,
    at,
    const,
    intrinsic,
    reserve,
    scalar_type,
    shuffle,
)
from ftuner.codegen.llvm.loops import counted_loop
from ftuner.codegen.llvm.rows import copy_rows
from ftuner.core.dtype import DType

UNROLLED_VECTORS = 4
"""Panel widths, in vectors, that are copied without a loop over the row."""

PACK_TYPE = ir.FunctionType(VOID, [PTR, I64, I64, PTR, I64, I64, I64])


def emit_pack(module: ir.Module, dtype: DType, lanes: int) -> ir.Function:
    """Add the packing function of an element type to a module."""
    function = ir.Function(module, PACK_TYPE, pack_symbol(dtype))
    source, k_stride, column_stride, target, k, width, padded = function.args
    source.add_attribute("noalias")
    target.add_attribute("noalias")
    size = dtype.itemsize
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    vector = ir.VectorType(scalar_type(dtype), lanes)
    zeros = reserve(builder, vector)
    builder.store(ir.Constant(vector, [0.0] * lanes), zeros)
    contiguous = builder.icmp_signed("==", column_stride, const(size))
    with builder.if_else(contiguous) as (copy, gather):
        with copy:
            _copy_contiguous(builder, dtype, lanes, source, k_stride, target, k, width, padded)
        with gather:
            transposable = builder.icmp_signed("==", k_stride, const(size))
            blocks = builder.select(transposable, builder.sdiv(k, const(lanes)), const(0))
            _transpose_blocks(builder, dtype, lanes, zeros, source, column_stride, target, blocks,
                              width, padded)  # fmt: skip
            done = builder.mul(blocks, const(lanes))
            _copy_elements(builder, dtype, source, k_stride, column_stride, target, done, k, width,
                           padded)  # fmt: skip
    builder.ret_void()
    return function


def _copy_contiguous(
    builder: ir.IRBuilder,
    dtype: DType,
    lanes: int,
    source: ir.Value,
    k_stride: ir.Value,
    target: ir.Value,
    k: ir.Value,
    width: ir.Value,
    padded: ir.Value,
) -> None:
    """Columns that are neighbours: whole vectors for the common widths, pieces for the others."""
    size = dtype.itemsize
    vector = ir.VectorType(scalar_type(dtype), lanes)
    done = builder.append_basic_block("copy.done")
    for vectors in range(1, UNROLLED_VECTORS + 1):
        fits = builder.icmp_signed("==", width, const(vectors * lanes))
        with builder.if_then(builder.and_(fits, builder.icmp_signed("==", width, padded))):
            with counted_loop(builder, const(0), k) as step:
                row = at(builder, source, builder.mul(step, k_stride))
                place = at(builder, target, builder.mul(step, const(vectors * lanes * size)))
                for v in range(vectors):
                    offset = v * lanes * size
                    value = builder.load(at(builder, row, offset), typ=vector, align=size)
                    builder.store(value, at(builder, place, offset), align=size)
            builder.branch(done)
            # `if_then` leaves an ended block alone.
    padded_bytes = builder.mul(padded, const(size))
    with builder.if_then(builder.icmp_signed("<", width, padded)):
        _fill_zero(builder, target, builder.mul(k, padded_bytes))
    copy_rows(builder, dtype, lanes, source, k_stride, target, padded_bytes, k, width)
    builder.branch(done)
    builder.position_at_end(done)


def _fill_zero(builder: ir.IRBuilder, target: ir.Value, size: ir.Value) -> None:
    memset = intrinsic(builder.module, "llvm.memset.p0.i64", VOID, [PTR, I8, I64, I1])
    builder.call(memset, [target, ir.Constant(I8, 0), size, ir.Constant(I1, 0)])


def _copy_elements(
    builder: ir.IRBuilder,
    dtype: DType,
    source: ir.Value,
    k_stride: ir.Value,
    column_stride: ir.Value,
    target: ir.Value,
    begin: ir.Value,
    end: ir.Value,
    width: ir.Value,
    padded: ir.Value,
) -> None:
    """Steps `begin` to `end`, one element after the other."""
    element, size = scalar_type(dtype), dtype.itemsize
    with counted_loop(builder, begin, end) as step:
        from_step = at(builder, source, builder.mul(step, k_stride))
        to_step = at(builder, target, builder.mul(builder.mul(step, padded), const(size)))
        with counted_loop(builder, const(0), width) as j:
            value = builder.load(
                at(builder, from_step, builder.mul(j, column_stride)), typ=element, align=size
            )
            builder.store(value, at(builder, to_step, builder.mul(j, const(size))), align=size)
        rest = builder.mul(builder.sub(padded, width), const(size))
        _fill_zero(builder, at(builder, to_step, builder.mul(width, const(size))), rest)


def _transpose_blocks(
    builder: ir.IRBuilder,
    dtype: DType,
    lanes: int,
    zeros: ir.Value,
    source: ir.Value,
    column_stride: ir.Value,
    target: ir.Value,
    blocks: ir.Value,
    width: ir.Value,
    padded: ir.Value,
) -> None:
    """The first `blocks * lanes` steps of k, in squares of `lanes x lanes`.

    Column blocks go from right to left: what a block writes behind its row is written again, and
    rightly, by the leftmost block of the next row.
    """
    element, size = scalar_type(dtype), dtype.itemsize
    vector = ir.VectorType(element, lanes)
    squares = builder.sdiv(builder.add(padded, const(lanes - 1)), const(lanes))
    row_bytes = builder.mul(padded, const(size))
    with counted_loop(builder, const(0), squares) as reverse:
        block = builder.sub(builder.sub(squares, const(1)), reverse)
        first = builder.mul(block, const(lanes))
        pointers, advances = [], []
        for r in range(lanes):
            j = builder.add(first, const(r))
            exists = builder.icmp_signed("<", j, width)
            place = at(builder, source, builder.mul(j, column_stride))
            pointers.append(builder.select(exists, place, zeros))
            advances.append(builder.select(exists, const(lanes * size), const(0)))
        with counted_loop(builder, const(0), blocks) as square:
            rows = [
                builder.load(at(builder, p, builder.mul(square, step)), typ=vector, align=size)
                for p, step in zip(pointers, advances, strict=True)
            ]
            place = at(builder, target, builder.mul(first, const(size)))
            place = at(builder, place, builder.mul(builder.mul(square, const(lanes)), row_bytes))
            for row in transpose(builder, rows):
                builder.store(row, place, align=size)
                place = at(builder, place, row_bytes)


def transpose(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """A square of `n` vectors of `n` lanes, transposed by log2(n) rounds of exchanges."""
    n = len(rows)
    rows = list(rows)
    distance = 1
    while distance < n:
        for i in range(n):
            if i & distance:
                continue
            x, y = rows[i], rows[i + distance]
            low = [lane if not lane & distance else n + lane - distance for lane in range(n)]
            high = [lane + distance if not lane & distance else n + lane for lane in range(n)]
            rows[i] = shuffle(builder, x, y, low)
            rows[i + distance] = shuffle(builder, x, y, high)
        distance *= 2
    return rows
