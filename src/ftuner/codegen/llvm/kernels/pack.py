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
    at,
    begun,
    const,
    intrinsic,
    quarter_lanes,
    scalar_type,
    shuffle,
    transpose,
    variable,
)
from ftuner.codegen.llvm.ir.loops import Rows, carried_loop, copy_rows, counted_loop
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
    zeros = variable(builder, ir.Constant(ir.VectorType(scalar_type(dtype), lanes), None), 64)
    contiguous = builder.icmp_signed("==", column_stride, const(size))
    with builder.if_else(contiguous) as (copy, gather):
        with copy:
            _copy_contiguous(builder, dtype, lanes, given, tuning.pack_unrolled_vectors)
        with gather:
            transposable = builder.icmp_signed("==", k_stride, const(size))
            steps = const(quarter_lanes(dtype))
            blocks = builder.select(transposable, builder.sdiv(k, steps), const(0))
            _transpose_blocks(builder, dtype, lanes, given, zeros, blocks)
            _copy_elements(builder, dtype, given, builder.mul(blocks, steps))
    builder.ret_void()
    return builder.function


def _copy_contiguous(
    builder: ir.IRBuilder, dtype: DType, lanes: int, given: _Given, unrolled_vectors: int
) -> None:
    """Columns that are neighbours: whole vectors for the common widths, pieces for the others."""
    source, k_stride, _, target, k, width, padded = given
    size = dtype.itemsize
    vector = ir.VectorType(scalar_type(dtype), lanes)
    done = builder.append_basic_block("copy.done")
    for vectors in range(1, unrolled_vectors + 1):
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
    given, made = Rows(source, k_stride), Rows(target, padded_bytes)
    copy_rows(builder, (dtype, lanes), given, made, k, width)
    builder.branch(done)
    builder.position_at_end(done)


def _fill_zero(builder: ir.IRBuilder, target: ir.Value, size: ir.Value) -> None:
    memset = intrinsic(builder.module, "llvm.memset.p0.i64", VOID, [PTR, I8, I64, I1])
    builder.call(memset, [target, ir.Constant(I8, 0), size, ir.Constant(I1, 0)])


def _copy_elements(builder: ir.IRBuilder, dtype: DType, given: _Given, begin: ir.Value) -> None:
    """The steps from `begin` on, one element after the other."""
    source, k_stride, column_stride, target, k, width, padded = given
    element, size = scalar_type(dtype), dtype.itemsize
    with counted_loop(builder, begin, k) as step:
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
    builder: ir.IRBuilder, dtype: DType, lanes: int, given: _Given, zeros: ir.Value,
    blocks: ir.Value,
) -> None:  # fmt: skip
    """The first `blocks` times as many steps of k as a quarter vector of 16 bytes holds.

    Columns go from right to left: zeros, then quarters of a vector, then whole vectors. What is
    written after the end of the row is overwritten by what comes first in the next row.
    """
    source, _, column_stride, target, _, width, padded = given
    steps, size = quarter_lanes(dtype), dtype.itemsize
    whole = builder.sdiv(width, const(lanes))
    row_bytes = builder.mul(padded, const(size))
    with builder.if_then(builder.icmp_signed("<", width, padded)):
        vectors = builder.sdiv(builder.add(padded, const(lanes - 1)), const(lanes))
        zero = builder.load(zeros, typ=ir.VectorType(scalar_type(dtype), lanes))
        with counted_loop(builder, whole, vectors) as number:
            behind = builder.sub(number, whole)
            last = builder.sub(vectors, const(1))
            column = builder.mul(builder.sub(last, behind), const(lanes * size))
            with counted_loop(builder, 0, builder.mul(blocks, const(steps))) as step:
                row = at(builder, target, builder.mul(step, row_bytes))
                builder.store(zero, at(builder, row, column), align=size)

    def columns(
        first: ir.Value, count: ir.Value, lanes: int, places: Callable[[ir.Value], _Places]
    ) -> None:
        """`count` times `lanes` columns from `first` on, from right to left."""
        with counted_loop(builder, 0, count) as reverse:
            number = builder.sub(builder.sub(count, const(1)), reverse)
            column = builder.add(first, builder.mul(number, const(lanes)))
            corner = at(builder, target, builder.mul(column, const(size)))
            begin, advances = places(column)

            def block(values: list[ir.Value]) -> list[ir.Value]:
                *pointers, row = values
                ends = [at(builder, p, a) for p, a in zip(pointers, advances, strict=True)]
                for vector in _transposed(builder, dtype, pointers):
                    builder.store(vector, row, align=size)
                    row = at(builder, row, row_bytes)
                return [*ends, row]

            carried_loop(builder, blocks, [*begin, corner], block)

    def some(first: ir.Value) -> _Places:
        """A quarter's columns. Those that do not exist are read from zeros, again and again."""
        pointers, advances = [], []
        for j in range(steps):
            column = builder.add(first, const(j))
            exists = builder.icmp_signed("<", column, width)
            place = at(builder, source, builder.mul(column, column_stride))
            pointers.append(builder.select(exists, place, zeros))
            advances.append(builder.select(exists, const(QUARTER_BYTES), const(0)))
        return pointers, advances

    def all_of_vector(first: ir.Value) -> _Places:
        pointers = [
            at(builder, source, builder.mul(builder.add(first, const(j)), column_stride))
            for j in range(lanes)
        ]
        return pointers, [const(QUARTER_BYTES)] * lanes

    done = builder.mul(whole, const(lanes))
    left = builder.add(builder.sub(width, done), const(steps - 1))
    columns(done, builder.sdiv(left, const(steps)), steps, some)
    columns(const(0), whole, lanes, all_of_vector)


def _transposed(builder: ir.IRBuilder, dtype: DType, columns: list[ir.Value]) -> list[ir.Value]:
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
                shuffle(builder, x, y, range(2 * x.type.count))
                for x, y in zip(pieces[::2], pieces[1::2], strict=True)
            ]
        loaded.append(pieces[0])
    return transpose(builder, loaded, steps)
