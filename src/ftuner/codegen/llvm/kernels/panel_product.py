"""A block of rows by the panels of a packed matrix, for kernels that call uKernels themselves."""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    at,
    call_address,
    const,
    pointer_slot,
    reserve,
    set_slot,
    slot,
)
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.kernels.product import KERNEL_TYPE
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
) -> None:  # fmt: skip
    """Multiply rows of A by one panel, with the uKernels of a cover from top to bottom. `a_row` and
    `c_row`: bytes between rows, which the context holds too (`A_STRIDE`, `C_ROW_STRIDE`), and the
    number of columns that are stored (`VALID_COLUMNS`)."""
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
                         [context, here, b, there, row, const(0), k, tiles])  # fmt: skip
            builder.store(builder.add(row, builder.mul(mr, tiles)), done)
