"""A block of rows by the panels of a packed matrix, for kernels that call uKernels themselves."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    at,
    call_address,
    const,
    maximum,
    pointer_slot,
    reserve,
    set_slot,
    slot,
    slot_address,
)
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.kernels.product import KERNEL_TYPE
from ftuner.codegen.llvm.native.kernel_records import AllCovers
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Context, Segment
from ftuner.core.cpu.tile import MAX_SEGMENTS

COVER_BYTES = MAX_SEGMENTS * Segment.SIZE * SLOT_BYTES
"""A table of segments: `MAX_SEGMENTS` records, unused ones without tiles."""


def product_context(builder: ir.IRBuilder) -> ir.Value:
    """The context of uKernels that write all of k at once and prefetch nothing."""
    context = reserve(builder, ir.ArrayType(I64, int(Context.SIZE)))
    for index in range(int(Context.SIZE)):
        set_slot(builder, context, index, const(0))
    set_slot(builder, context, Context.FINISH, const(1))
    return context


def emit_panel(
    builder: ir.IRBuilder, context: ir.Value, cover: ir.Value, a: ir.Value, a_row: ir.Value,
    b: ir.Value, c: ir.Value, c_row: ir.Value, k: ir.Value,
    place: tuple[ir.Value, ir.Value] = (const(0), const(0)),
) -> None:  # fmt: skip
    """Multiply rows of A by one panel, with the uKernels of a cover from top to bottom. `a_row` and
    `c_row`: bytes between rows, which the context holds too (`A_STRIDE`, `C_ROW_STRIDE`), and the
    number of columns that are stored (`VALID_COLUMNS`). `place`: the first row and column, for the
    operands of the epilogue."""
    first_row, column = place
    done = reserve(builder, I64, SLOT_BYTES)
    builder.store(const(0), done)
    with counted_loop(builder, 0, MAX_SEGMENTS) as i:
        record = at(builder, cover, builder.mul(i, const(Segment.SIZE * SLOT_BYTES)))
        tiles, mr = slot(builder, record, Segment.TILES), slot(builder, record, Segment.MR)
        with builder.if_then(builder.icmp_signed(">", tiles, const(0))):
            row = builder.load(done, typ=I64)
            set_slot(builder, context, Context.A_TILE_STRIDE, builder.mul(mr, a_row))
            kernel = pointer_slot(builder, record, Segment.KERNEL)
            here = at(builder, a, builder.mul(row, a_row))
            there = at(builder, c, builder.mul(row, c_row))
            call_address(builder, KERNEL_TYPE, kernel,
                         [context, here, b, there, builder.add(first_row, row), column, k,
                          tiles])  # fmt: skip
            builder.store(builder.add(row, builder.mul(mr, tiles)), done)


def emit_cover(
    builder: ir.IRBuilder, covers: ir.Value, rows: ir.Value, target: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Write the segments by which `AllCovers` at `covers` covers some rows to `target`: listed
    ones, or main tiles and then those of the rows that are left. Returns the height of the first
    one, and the row tiles of the others."""
    limit, main = slot(builder, covers, AllCovers.LIMIT), slot(builder, covers, AllCovers.MAIN)
    beyond = builder.sub(rows, limit)
    is_long = builder.icmp_signed(">", beyond, const(0))
    more = builder.add(builder.udiv(beyond, main), const(1))
    more = builder.select(is_long, more, const(0))
    left = builder.sub(rows, builder.mul(more, main))
    after = builder.select(is_long, builder.add(limit, const(1)), const(0))
    number = builder.add(left, after)
    tables = slot_address(builder, covers, AllCovers.TABLES)
    cover = at(builder, tables, builder.mul(number, const(COVER_BYTES)))
    first_rows, others = const(1), const(0)
    for i in range(MAX_SEGMENTS):
        kernel, mr, tiles = (slot(builder, cover, i * Segment.SIZE + f) for f in range(3))
        if i == 0:
            # Rows that follow main tiles have these first.
            tiles = builder.add(tiles, more)
            first_rows = maximum(builder, mr, const(1))
        else:
            others = builder.add(others, tiles)
        for field, value in enumerate((kernel, mr, tiles)):
            set_slot(builder, target, i * Segment.SIZE + field, value)
    return first_rows, others


def emit_covers(builder: ir.IRBuilder, covers: Sequence[ir.Value], rows: ir.Value) -> ir.Value:
    """Memory with the segments that cover some rows, of each of some `AllCovers`."""
    memory = reserve(builder, ir.ArrayType(I64, len(covers) * COVER_BYTES // SLOT_BYTES))
    for number, table in enumerate(covers):
        emit_cover(builder, table, rows, at(builder, memory, number * COVER_BYTES))
    return memory
