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
from ftuner.codegen.llvm.kernels.step import emit_cover
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Band
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
    first_rows, others = emit_cover(
        builder, pointer_slot(builder, band, Band.COVERS), builder.sub(end, begin),
        slot_address(builder, memory, Band.FIRST_SEGMENT),
    )  # fmt: skip
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
