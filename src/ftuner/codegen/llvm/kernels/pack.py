"""Packing a panel: `width` columns over `k` steps, with any strides, to contiguous k steps.

Signature of the compiled function::

    void pack(source, k_stride, column_stride, target, k, width, padded)

writes `target[s * padded + j] = source[s, j]` for `j < width` and zeros for `width <= j < padded`.
Strides in bytes, of any sign. Where `padded` is not a multiple of the lanes, up to one vector
after the panel is overwritten: targets leave that room, and panels are packed in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I1,
    I8,
    I64,
    PTR,
    QUARTER_BYTES,
    VOID,
    IRBuilder,
    begun,
    const,
    quarter_lanes,
    scalar_type,
)
from ftuner.codegen.llvm.ir.rows import Rows, copy_rows
from ftuner.codegen.llvm.native.symbols import driver_symbol
from ftuner.core.dtype import DType
from ftuner.hardware.tuning import NativeTuning

_Places = tuple[list[ir.Value], list[ir.Value]]
"""Where columns begin that are transposed together, and how far the next block of k steps is."""

_Given = Sequence[ir.Value]
"""The arguments of the function."""

PACK_TYPE = ir.FunctionType(VOID, [PTR, I64, I64, PTR, I64, I64, I64])


def emit_pack(module: ir.Module, dtype: DType, lanes: int, tuning: NativeTuning) -> ir.Function:
    """Add the packing function of an element type to a module."""
    builder, given = begun(module, PACK_TYPE, driver_symbol("pack", dtype))
    source, k_stride, column_stride, target, k, *_ = given
    source.add_attribute("noalias")
    target.add_attribute("noalias")
    size = dtype.itemsize
    zeros = builder.variable(ir.Constant(ir.VectorType(scalar_type(dtype), lanes), None), 64)
    contiguous = builder.icmp_signed("==", column_stride, size)
    with builder.if_else(contiguous) as (copy, gather):
        with copy:
            _copy_contiguous(builder, dtype, lanes, given, tuning.pack_unrolled_vectors)
        with gather:
            transposable = builder.icmp_signed("==", k_stride, size)
            steps = const(quarter_lanes(dtype))
            blocks = builder.select(transposable, builder.sdiv(k, steps), 0)
            _transpose_blocks(builder, dtype, lanes, given, zeros, blocks)
            _copy_elements(builder, dtype, given, builder.mul(blocks, steps))
    builder.ret_void()
    return builder.function


def _copy_contiguous(
    builder: IRBuilder, dtype: DType, lanes: int, given: _Given, unrolled_vectors: int
) -> None:
    """Columns that are neighbours: whole vectors for the common widths, pieces for the others."""
    source, k_stride, _, target, k, width, padded = given
    size = dtype.itemsize
    vector = ir.VectorType(scalar_type(dtype), lanes)
    done = builder.append_basic_block("copy.done")
    for vectors in range(1, unrolled_vectors + 1):
        fits = builder.icmp_signed("==", width, vectors * lanes)
        with builder.if_then(builder.and_(fits, builder.icmp_signed("==", width, padded))):
            with builder.counted_loop(0, k) as step:
                row = builder.at(source, step, k_stride)
                place = builder.at(target, step, vectors * lanes * size)
                for v in range(vectors):
                    offset = v * lanes * size
                    value = builder.load(builder.at(row, offset), typ=vector, align=size)
                    builder.store(value, builder.at(place, offset), align=size)
            builder.branch(done)
            # `if_then` leaves an ended block alone.
    padded_bytes = builder.mul(padded, size)
    with builder.if_then(builder.icmp_signed("<", width, padded)):
        _fill_zero(builder, target, builder.mul(k, padded_bytes))
    given, made = Rows(source, k_stride), Rows(target, padded_bytes)
    copy_rows(builder, (dtype, lanes), given, made, k, width)
    builder.branch(done)
    builder.position_at_end(done)


def _fill_zero(builder: IRBuilder, target: ir.Value, size: ir.Value) -> None:
    value, volatile = ir.Constant(I8, 0), ir.Constant(I1, 0)
    builder.external("llvm.memset.p0.i64", VOID, target, value, size, volatile)


def _copy_elements(builder: IRBuilder, dtype: DType, given: _Given, begin: ir.Value) -> None:
    """The steps from `begin` on, one element after the other."""
    source, k_stride, column_stride, target, k, width, padded = given
    element, size = scalar_type(dtype), dtype.itemsize
    with builder.counted_loop(begin, k) as step:
        from_step = builder.at(source, step, k_stride)
        to_step = builder.at(target, builder.mul(step, padded), size)
        with builder.counted_loop(0, width) as j:
            value = builder.load(builder.at(from_step, j, column_stride), typ=element, align=size)
            builder.store(value, builder.at(to_step, j, size), align=size)
        rest = builder.mul(builder.sub(padded, width), size)
        _fill_zero(builder, builder.at(to_step, width, size), rest)


def _transpose_blocks(
    builder: IRBuilder, dtype: DType, lanes: int, given: _Given, zeros: ir.Value, blocks: ir.Value
) -> None:
    """The first `blocks` times as many steps of k as a quarter vector of 16 bytes holds.

    Columns go from right to left: zeros, then quarters of a vector, then whole vectors. What is
    written after the end of the row is overwritten by what comes first in the next row.
    """
    source, _, column_stride, target, _, width, padded = given
    steps, size = quarter_lanes(dtype), dtype.itemsize
    whole = builder.sdiv(width, lanes)
    row_bytes = builder.mul(padded, size)
    with builder.if_then(builder.icmp_signed("<", width, padded)):
        vectors = builder.sdiv(builder.add(padded, lanes - 1), lanes)
        zero = builder.load(zeros, typ=ir.VectorType(scalar_type(dtype), lanes))
        with builder.counted_loop(whole, vectors) as number:
            behind = builder.sub(number, whole)
            last = builder.sub(vectors, 1)
            column = builder.mul(builder.sub(last, behind), lanes * size)
            with builder.counted_loop(0, builder.mul(blocks, steps)) as step:
                row = builder.at(target, step, row_bytes)
                builder.store(zero, builder.at(row, column), align=size)

    def columns(
        first: ir.Value, count: ir.Value, lanes: int, places: Callable[[ir.Value], _Places]
    ) -> None:
        """`count` times `lanes` columns from `first` on, from right to left."""
        with builder.counted_loop(0, count) as reverse:
            number = builder.sub(builder.sub(count, 1), reverse)
            column = builder.add(first, builder.mul(number, lanes))
            corner = builder.at(target, column, size)
            begin, advances = places(column)

            def block(values: list[ir.Value]) -> list[ir.Value]:
                *pointers, row = values
                ends = [builder.at(p, a) for p, a in zip(pointers, advances, strict=True)]
                for vector in _transposed(builder, dtype, pointers):
                    builder.store(vector, row, align=size)
                    row = builder.at(row, row_bytes)
                return [*ends, row]

            builder.carried_loop(blocks, [*begin, corner], block)

    def some(first: ir.Value) -> _Places:
        """A quarter's columns. Those that do not exist are read from zeros, again and again."""
        pointers, advances = [], []
        for j in range(steps):
            column = builder.add(first, j)
            exists = builder.icmp_signed("<", column, width)
            place = builder.at(source, column, column_stride)
            pointers.append(builder.select(exists, place, zeros))
            advances.append(builder.select(exists, QUARTER_BYTES, 0))
        return pointers, advances

    def all_of_vector(first: ir.Value) -> _Places:
        pointers = [builder.at(source, builder.add(first, j), column_stride) for j in range(lanes)]
        return pointers, [const(QUARTER_BYTES)] * lanes

    done = builder.mul(whole, lanes)
    left = builder.add(builder.sub(width, done), steps - 1)
    columns(done, builder.sdiv(left, steps), steps, some)
    columns(const(0), whole, lanes, all_of_vector)


def _transposed(builder: IRBuilder, dtype: DType, columns: list[ir.Value]) -> list[ir.Value]:
    """The next 16 bytes of each column, as one vector for each step of k.

    Columns that are a quarter vector apart are loaded into the quarters of one vector, so that all
    that is left to do stays within quarters, where shuffles are cheap.
    """
    steps = quarter_lanes(dtype)
    quarter = ir.VectorType(scalar_type(dtype), steps)
    loaded = []
    for r in range(steps):
        pieces = [
            builder.load(column, typ=quarter, align=dtype.itemsize) for column in columns[r::steps]
        ]
        while len(pieces) > 1:
            pieces = [
                builder.shuffle(x, y, range(2 * x.type.count))
                for x, y in zip(pieces[::2], pieces[1::2], strict=True)
            ]
        loaded.append(pieces[0])
    return builder.transpose(loaded, steps)
