"""What kernels of steps share: their function type and checks, and products by packed panels.

`void kernel(buffers, dims, status, worker, begin, end)` computes the tasks `begin` to `end` of a
step. `buffers` holds the address of each buffer that the step reads, then of each that it writes;
`dims` the values that the kernel reads at run time; `status` is where a failed check writes its
number, an index and an extent; `worker` is the number of the worker that calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I1,
    I64,
    PTR,
    VOID,
    at,
    call_address,
    const,
    intrinsic,
    maximum,
    pointer_slot,
    record_at,
    reserve,
    set_slot,
    slot,
    slot_address,
    variable,
)
from ftuner.codegen.llvm.ir.functions import lanes_of, widened
from ftuner.codegen.llvm.ir.loops import Rows, counted_loop
from ftuner.codegen.llvm.kernels.product import KERNEL_TYPE
from ftuner.codegen.llvm.native.records import SLOT_BYTES, AllCovers, Context, Segment, Status
from ftuner.core.cpu.tile import MAX_SEGMENTS

STEP_KERNEL_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])


def fail(
    builder: ir.IRBuilder, status: ir.Value, number: int, wrong: ir.Value, index: ir.Value,
    extent: ir.Value,
) -> None:  # fmt: skip
    """Write the number of a check that failed, the index in the first lane that is `wrong`, and the
    extent that it is outside of. Of several failures, of any workers, the first is written."""
    wrong, index, extent = widened(builder, [wrong, index, extent])
    if count := lanes_of(wrong):
        mask = builder.bitcast(wrong, ir.IntType(count))
        name = f"llvm.cttz.i{count}"
        trailing = intrinsic(builder.module, name, mask.type, [mask.type, I1])
        lane = builder.zext(builder.call(trailing, [mask, ir.Constant(I1, 1)]), I64)
        index, extent = (builder.extract_element(v, lane) for v in (index, extent))
    written = builder.cmpxchg(status, const(0), const(number), "monotonic")
    with builder.if_then(builder.extract_value(written, 1)):
        builder.store(index, slot_address(builder, status, Status.INDEX))
        builder.store(extent, slot_address(builder, status, Status.EXTENT))


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
    builder: ir.IRBuilder, context: ir.Value, cover: ir.Value, a: Rows, b: ir.Value, c: Rows,
    k: ir.Value, place: tuple[ir.Value, ir.Value] = (const(0), const(0)),
) -> None:  # fmt: skip
    """Multiply rows of A by one panel, with the uKernels of a cover from top to bottom. The context
    holds the strides of `a` and `c`, too (`A_STRIDE`, `C_ROW_STRIDE`), and the number of columns
    that are stored (`VALID_COLUMNS`). `place`: the first row and column, for the
    operands of the epilogue."""
    first_row, column = place
    done = variable(builder, const(0))
    with counted_loop(builder, 0, MAX_SEGMENTS) as i:
        record = record_at(builder, cover, i, Segment.SIZE)
        tiles, mr = slot(builder, record, Segment.TILES), slot(builder, record, Segment.MR)
        with builder.if_then(builder.icmp_signed(">", tiles, const(0))):
            row = builder.load(done, typ=I64)
            set_slot(builder, context, Context.A_TILE_STRIDE, builder.mul(mr, a.stride))
            kernel = pointer_slot(builder, record, Segment.KERNEL)
            here = at(builder, a.first, builder.mul(row, a.stride))
            there = at(builder, c.first, builder.mul(row, c.stride))
            at_row = builder.add(first_row, row)
            given = [context, here, b, there, at_row, column, k, tiles]
            call_address(builder, KERNEL_TYPE, kernel, given)
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
