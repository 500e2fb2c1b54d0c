"""Emits the walk of one band: blocks of rows, blocks of k, panels, row segments, and within a
segment the uKernel's own loop over row tiles.

It also decides what the tiles prefetch. `records` has the layouts that it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, IRBuilder, begun, const
from ftuner.codegen.llvm.kernels.product import KERNEL_TYPE
from ftuner.codegen.llvm.kernels.step import emit_cover
from ftuner.codegen.llvm.kernels.widen import WIDEN_TYPE
from ftuner.codegen.llvm.native.records import Band, Context, Plan, Segment
from ftuner.core.cpu.tile import MAX_SEGMENTS
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass


@dataclass(frozen=True)
class Operands:
    """The addresses of one batch element, and of the packed B that bands read."""

    a: ir.Value
    b: ir.Value
    c: ir.Value
    packed: ir.Value
    a_block: ir.Value
    workspace: ir.Value
    next_a: ir.Value
    """Bytes to the A of the next batch element; 0 if it is not prefetched. `next_b` has the same
    meaning for B."""
    next_b: ir.Value


@dataclass(frozen=True)
class Panels:
    """The panels of a record that are walked, from `begin` to `end`."""

    first: ir.Value
    """The first panel of their chunk, of which no tile before asks for B."""
    begin: ir.Value
    end: ir.Value


def _blocks(builder: IRBuilder, extent: ir.Value, block: ir.Value) -> ir.Value:
    """The number of blocks that cover an extent; one empty block if the extent is 0."""
    rounded = builder.add(extent, builder.sub(block, 1))
    several = builder.icmp_signed(">", extent, block)
    return _unless_one(builder, several, lambda: builder.udiv(rounded, block), const(1))


def _unless_one(
    builder: IRBuilder, condition: ir.Value, quotient: Callable[[], ir.Value], one: ir.Value
) -> ir.Value:
    """`quotient()` if a condition holds, else `one`: small batch elements skip the division."""
    (value,) = builder.changed_if(condition, [one], lambda: [quotient()])
    return value


@dataclass(frozen=True)
class _Block:
    """Rows and k steps of one block."""

    first: ir.Value
    """Range of tiles of the first segment."""
    end: ir.Value
    last: ir.Value
    """Whether the other segments belong to this block."""
    k_begin: ir.Value
    steps: ir.Value


@dataclass(frozen=True)
class _SegmentShare:
    """The part of one segment within a block of rows."""

    kernel: ir.Value
    mr: ir.Value
    tiles: ir.Value
    row: ir.Value
    a_offset: ir.Value
    """Bytes into the packed block of A."""


@dataclass(frozen=True)
class BandWalk:
    """The loops over blocks of rows and of k. A block of A, `mc x kc`, stays in L2 while the panels
    of the band stream by."""

    builder: IRBuilder
    dtype: DType
    plan: ir.Value
    pack: ir.Function
    context: ir.Value
    band: ir.Value
    operands: Operands
    panels: Panels

    def walk(self) -> None:
        """All blocks."""
        builder, plan, band, operands = self.builder, self.plan, self.band, self.operands
        tiles = builder.slot(band, Band.FIRST_SEGMENT + Segment.TILES)
        block_tiles = builder.slot(band, Band.BLOCK_TILES)
        k_begin, k_end = builder.slot(band, Band.K_BEGIN), builder.slot(band, Band.K_END)
        kc = builder.slot(band, Band.KC)
        row_blocks = _blocks(builder, tiles, block_tiles)
        k_blocks = _blocks(builder, builder.sub(k_end, k_begin), kc)
        partial = builder.slot(band, Band.PARTIAL)
        whole = builder.icmp_signed("<", partial, 0)

        # The band writes C, or a partial product in the workspace.
        offset = builder.mul(partial, builder.slot(plan, Plan.PARTIAL_BYTES))
        offset = builder.add(offset, builder.slot(plan, Plan.PARTIAL_OFFSET))
        partial_stride = builder.mul(builder.slot(plan, Plan.N), self.dtype.itemsize)
        c = builder.select(whole, operands.c, builder.at(operands.workspace, offset))
        c_stride = builder.select(whole, builder.slot(plan, Plan.C_ROW_STRIDE), partial_stride)
        accumulate = builder.select(whole, builder.slot(plan, Plan.ACCUMULATE), 0)
        self._set(Context.C_ROW_STRIDE, c_stride)
        self._set(Context.B_K_STRIDE, builder.slot(band, Band.B_K_STRIDE))
        self._set(Context.VALID_COLUMNS, builder.slot(band, Band.VALID_COLUMNS))
        self._set(Context.K_STREAMS, builder.slot(band, Band.K_STREAMS))
        self._set(Context.AHEAD, builder.slot(band, Band.AHEAD))

        with builder.counted_loop(0, row_blocks) as block:
            first = builder.mul(block, block_tiles)
            last_block = builder.icmp_signed("==", block, builder.sub(row_blocks, 1))
            end = builder.minimum(builder.add(first, block_tiles), tiles)
            with builder.counted_loop(0, k_blocks) as k_block:
                begin = builder.add(k_begin, builder.mul(k_block, kc))
                steps = builder.minimum(kc, builder.sub(k_end, begin))
                is_first = builder.icmp_signed("==", k_block, 0)
                is_last = builder.icmp_signed("==", k_block, builder.sub(k_blocks, 1))
                finish = builder.slot(plan, Plan.FINISH)
                finish = builder.select(builder.and_(is_last, whole), finish, 0)
                self._set(Context.ACCUMULATE, builder.select(is_first, accumulate, 1))
                self._set(Context.FINISH, finish)
                self._set(Context.K_BEGIN, begin)
                self._block(_Block(first, end, last_block, begin, steps), c, c_stride)

    def _set(self, index: int, value: ir.Value) -> None:
        self.builder.set_slot(self.context, index, value)

    def _segments(self, block: _Block, body: Callable[[_SegmentShare], None]) -> None:
        """Emit a loop over the segments of a block of rows, with `body` inside."""
        builder, band = self.builder, self.band
        row_variable = builder.variable(builder.slot(band, Band.ROW))
        a_variable = builder.variable(0)
        with builder.counted_loop(0, builder.slot(band, Band.SEGMENTS)) as index:
            segments = builder.slot_address(band, Band.FIRST_SEGMENT)
            record = builder.record_at(segments, index, Segment.SIZE)
            mr, all_tiles = builder.slot(record, Segment.MR), builder.slot(record, Segment.TILES)
            main = builder.icmp_signed("==", index, 0)
            first = builder.select(main, block.first, 0)
            others = builder.select(block.last, all_tiles, 0)
            count = builder.sub(builder.select(main, block.end, others), first)
            row = builder.load(row_variable, typ=I64)
            a_offset = builder.load(a_variable, typ=I64)
            kernel = builder.pointer_slot(record, Segment.KERNEL)
            here = builder.add(row, builder.mul(first, mr))
            body(_SegmentShare(kernel, mr, count, here, a_offset))
            builder.store(builder.add(row, builder.mul(all_tiles, mr)), row_variable)
            elements = builder.mul(builder.mul(count, mr), block.steps)
            moved = builder.add(a_offset, builder.mul(elements, self.dtype.itemsize))
            builder.store(moved, a_variable)

    def _block(self, block: _Block, c: ir.Value, c_stride: ir.Value) -> None:
        """One `mc x kc` block of A against all panels of the band."""
        builder, plan, band = self.builder, self.plan, self.band
        operands, panels = self.operands, self.panels
        a_row_stride = builder.slot(plan, Plan.A_ROW_STRIDE)
        a_k_stride = builder.slot(plan, Plan.A_K_STRIDE)
        a_first = builder.at(operands.a, block.k_begin, a_k_stride)
        packs_a = builder.icmp_signed("!=", builder.slot(band, Band.PACK_A), 0)
        size = const(self.dtype.itemsize)
        c_size = builder.slot(plan, Plan.C_ITEMSIZE)

        def pack_segment(share: _SegmentShare) -> None:
            tile_bytes = builder.mul(builder.mul(share.mr, block.steps), size)
            with builder.counted_loop(0, share.tiles) as tile:
                row = builder.add(share.row, builder.mul(tile, share.mr))
                source = builder.at(a_first, row, a_row_stride)
                place = builder.add(share.a_offset, builder.mul(tile, tile_bytes))
                target = builder.at(operands.a_block, place)
                given = [source, a_k_stride, a_row_stride, target, block.steps, share.mr, share.mr]
                builder.call(self.pack, given)

        with builder.if_then(packs_a):
            self._segments(block, pack_segment)

        b_in_workspace = builder.icmp_signed("!=", builder.slot(band, Band.B_IN_WORKSPACE), 0)
        b_k_stride = builder.slot(band, Band.B_K_STRIDE)
        b_first = builder.select(b_in_workspace, operands.packed, operands.b)
        b_offset = builder.add(builder.slot(band, Band.B_OFFSET),
                               builder.mul(block.k_begin, b_k_stride))  # fmt: skip
        b_first = builder.at(b_first, b_offset)
        panel_stride = builder.slot(band, Band.B_PANEL_STRIDE)
        panel_width = builder.slot(band, Band.PANEL_WIDTH)
        column_0 = builder.slot(band, Band.COLUMN)
        a_in_place_stride = builder.slot(plan, Plan.A_STRIDE)

        # Each tile of a panel prefetches an even part of the next panel, or in a batch of the next
        # element. A single tile would prefetch the panel no sooner than the panel's own tile reads
        # it, unless it is in parts: each of them passes the panel.
        tiles = builder.sub(block.end, block.first)
        others = builder.select(block.last, builder.slot(band, Band.OTHER_TILES), 0)
        tiles = builder.maximum(builder.add(tiles, others), 1)
        several = builder.icmp_signed(">", tiles, 1)
        height = builder.slot(band, Band.FIRST_SEGMENT + Segment.MR)
        in_parts = builder.icmp_signed(">=", height, builder.slot(band, Band.IN_PARTS_FROM))
        several = builder.or_(several, in_parts)
        row_of_b = builder.mul(panel_width, builder.slot(band, Band.B_ITEMSIZE))
        part_of_row = _unless_one(builder, several, lambda: builder.udiv(row_of_b, tiles), row_of_b)
        in_one_piece = builder.icmp_signed("==", b_k_stride, row_of_b)
        of_panel = builder.select(builder.and_(several, in_one_piece), part_of_row, 0)
        column_bytes = builder.mul(builder.slot(plan, Plan.K), size)
        in_batch = builder.icmp_signed("!=", operands.next_b, 0)
        next_b = builder.at(operands.b, operands.next_b)
        next_b = builder.at(next_b, block.k_begin, row_of_b)
        # The last panel of a chunk prefetches the first panel of the worker's next chunk, unless
        # that is not packed yet.
        end = builder.select(b_in_workspace, panels.end, builder.slot(band, Band.PANELS))
        last_panel = builder.sub(end, 1)

        # The workspace begins with the chunk's first panel.
        skipped = builder.select(b_in_workspace, panels.begin, 0)
        widen = builder.pointer_slot(band, Band.WIDENS)
        widens = builder.icmp_unsigned("!=", widen, ir.Constant(PTR, None))
        just_written = builder.or_(b_in_workspace, widens)
        with builder.counted_loop(panels.begin, panels.end) as panel:
            place_of_panel = builder.mul(builder.sub(panel, skipped), panel_stride)
            b_panel = builder.at(b_first, place_of_panel)
            column = builder.add(column_0, builder.mul(panel, panel_width))
            follows = builder.icmp_signed("<", panel, last_panel)
            of_element = builder.at(next_b, column, column_bytes)
            next_panel = builder.at(b_panel, panel_stride)
            self._set(Context.NEXT_B, builder.select(in_batch, of_element, next_panel))
            step = builder.select(follows, of_panel, 0)
            step = builder.select(in_batch, part_of_row, step)
            self._set(Context.NEXT_B_STEP, step)
            is_first = builder.icmp_signed("==", panel, panels.begin)
            begins = builder.icmp_signed("==", panel, panels.first)
            unasked = builder.or_(begins, builder.icmp_signed("==", of_panel, 0))
            unasked = builder.and_(unasked, builder.not_(just_written))
            self._set(Context.ASKS_FOR_B, builder.zext(unasked, I64))
            distance = builder.select(is_first, operands.next_a, 0)
            self._set(Context.NEXT_A_DISTANCE, distance)

            with builder.if_then(widens):
                given = [b_panel, operands.packed, block.steps, panel_width]
                builder.call_address(WIDEN_TYPE, widen, given)
            b_read = builder.select(widens, operands.packed, b_panel)

            def run_segment(
                share: _SegmentShare,
                b_read: ir.Value = b_read,
                column: ir.Value = column,
                step: ir.Value = step,
            ) -> None:
                in_place = builder.at(a_first, share.row, a_row_stride)
                in_block = builder.at(operands.a_block, share.a_offset)
                a = builder.select(packs_a, in_block, in_place)
                packed_stride = builder.mul(share.mr, size)
                stride = builder.select(packs_a, packed_stride, a_in_place_stride)
                tile_stride = builder.select(
                    packs_a,
                    builder.mul(packed_stride, block.steps),
                    builder.mul(share.mr, a_row_stride),
                )
                self._set(Context.A_STRIDE, stride)
                self._set(Context.A_TILE_STRIDE, tile_stride)
                place = builder.at(c, share.row, c_stride)
                c_at = builder.at(place, column, c_size)
                given = [self.context, a, b_read, c_at, share.row, column, block.steps, share.tiles]
                with builder.if_then(builder.icmp_signed(">", share.tiles, 0)):
                    builder.call_address(KERNEL_TYPE, share.kernel, given)
                part = builder.mul(builder.mul(share.tiles, block.steps), step)
                next_b = builder.pointer_slot(self.context, Context.NEXT_B)
                self._set(Context.NEXT_B, builder.at(next_b, part))
                # Later tiles of the panel find it in L2.
                self._set(Context.ASKS_FOR_B, const(0))

            self._segments(block, run_segment)


def emit_covered(module: ir.Module, dtype: DType) -> ir.Function:
    """Add to the driver of a dtype what completes a band of a plan for a range of rows: the row
    tiles that cover the rows of a call.

    `Band* covered(band, rows, memory)` returns the band itself if its plan is for one number of
    rows. Otherwise it copies the band to `memory` and looks its rows and segments up.
    """
    kind = ir.FunctionType(PTR, [PTR, I64, PTR])
    builder, (band, rows, memory) = begun(module, kind, f"ftuner_covered_{dtype}", internal=True)
    none = builder.icmp_signed("==", builder.slot(band, Band.COVERS), 0)
    with builder.if_then(none):
        builder.ret(band)
    with builder.counted_loop(0, Band.SEGMENTS) as i:
        builder.set_slot(memory, i, builder.slot(band, i))
    begin, end = _rows_of_part(builder, band, rows)
    builder.set_slot(memory, Band.ROW, begin)
    first_rows, others = emit_cover(
        builder, builder.pointer_slot(band, Band.COVERS), builder.sub(end, begin),
        builder.slot_address(memory, Band.FIRST_SEGMENT),
    )  # fmt: skip
    block_tiles = builder.udiv(builder.slot(band, Band.BLOCK_TILES), first_rows)
    builder.set_slot(memory, Band.BLOCK_TILES, builder.maximum(block_tiles, 1))
    builder.set_slot(memory, Band.OTHER_TILES, others)
    builder.set_slot(memory, Band.SEGMENTS, MAX_SEGMENTS)
    builder.ret(memory)
    return builder.function


def _rows_of_part(builder: IRBuilder, band: ir.Value, rows: ir.Value) -> tuple[ir.Value, ir.Value]:
    """`planner.cpu.candidates.split_rows`."""
    part, parts = builder.slot(band, Band.ROW_PART), builder.slot(band, Band.ROW_PARTS)
    tile = builder.slot(band, Band.ROW_TILE)
    several = builder.mul(builder.mul(tile, parts), 2)
    one = builder.icmp_signed("<", rows, several)
    unit = builder.select(one, 1, tile)
    units = builder.udiv(builder.add(rows, builder.sub(unit, 1)), unit)
    bounds = builder.partition_bounds(units, parts, part)
    begin, end = (builder.minimum(builder.mul(bound, unit), rows) for bound in bounds)
    return begin, end
