"""Emits what completes a band of a plan for a range of rows: the row tiles that cover the rows of a
call.

`Band* covered(band, rows, memory)` returns the band itself if its plan is for one number of rows.
Otherwise it copies the band to `memory` and looks its rows and segments up.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    PTR,
    at,
    const,
    maximum,
    minimum,
    pointer_slot,
    set_slot,
    slot,
    slot_address,
)
from ftuner.codegen.llvm.ir.loops import counted_loop, partition_bounds
from ftuner.codegen.llvm.kernels.step import COVER_BYTES
from ftuner.codegen.llvm.native.kernel_records import AllCovers
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Band, Segment
from ftuner.core.cpu.tile import MAX_SEGMENTS
from ftuner.core.dtype import DType


def emit_covered(module: ir.Module, dtype: DType) -> ir.Function:
    """Add the function to the driver of a dtype."""
    kind = ir.FunctionType(PTR, [PTR, I64, PTR])
    function = ir.Function(module, kind, f"ftuner_covered_{dtype}")
    function.linkage = "internal"
    band, rows, memory = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    none = builder.icmp_signed("==", slot(builder, band, Band.COVERS), const(0))
    with builder.if_then(none):
        builder.ret(band)
    with counted_loop(builder, 0, Band.SEGMENTS) as i:
        offset = builder.mul(i, const(SLOT_BYTES))
        builder.store(builder.load(at(builder, band, offset), typ=I64), at(builder, memory, offset))
    begin, end = _rows_of_part(builder, band, rows)
    set_slot(builder, memory, Band.ROW, begin)
    first_rows, others = _look_up(builder, band, builder.sub(end, begin), memory)
    block_tiles = builder.udiv(slot(builder, band, Band.BLOCK_TILES), first_rows)
    set_slot(builder, memory, Band.BLOCK_TILES, maximum(builder, block_tiles, const(1)))
    set_slot(builder, memory, Band.OTHER_TILES, others)
    set_slot(builder, memory, Band.SEGMENTS, const(MAX_SEGMENTS))
    builder.ret(memory)
    return function


def _rows_of_part(
    builder: ir.IRBuilder, band: ir.Value, rows: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """`planner.cpu.candidates.split_rows`."""
    part, parts = slot(builder, band, Band.ROW_PART), slot(builder, band, Band.ROW_PARTS)
    tile = slot(builder, band, Band.ROW_TILE)
    several = builder.mul(builder.mul(tile, parts), const(2))
    one = builder.icmp_signed("<", rows, several)
    unit = builder.select(one, const(1), tile)
    units = builder.udiv(builder.add(rows, builder.sub(unit, const(1))), unit)
    bounds = partition_bounds(builder, units, parts, part)
    begin, end = (minimum(builder, builder.mul(bound, unit), rows) for bound in bounds)
    return begin, end


def _look_up(
    builder: ir.IRBuilder, band: ir.Value, rows: ir.Value, memory: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Write the segments that cover some rows. Returns the height of the first one, and the row
    tiles of the others."""
    covers = pointer_slot(builder, band, Band.COVERS)
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
        target = Band.FIRST_SEGMENT + i * Segment.SIZE
        for field, value in enumerate((kernel, mr, tiles)):
            set_slot(builder, memory, target + field, value)
    return first_rows, others
