"""The native driver: walks a worker's share of a plan, in LLVM IR.

`ftuner_gemm_<dtype>(call, worker)` is the job that every worker of the pool runs. For each of its
batch elements it packs what is to be packed and walks its bands: blocks of rows, blocks of k,
panels, row segments, and within a segment the uKernel's own loop over row tiles. `abi` names the
records it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.ir as ir

from ftuner.codegen.llvm.abi import (
    MAX_OPERANDS,
    POOL_BARRIER_SYMBOL,
    POOL_RUN_SYMBOL,
    SLOT_BYTES,
    Band,
    Call,
    Context,
    Pack,
    Plan,
    Segment,
    Worker,
    call_symbol,
)
from ftuner.codegen.llvm.build import (
    I64,
    PTR,
    VOID,
    at,
    call_address,
    const,
    pointer_slot,
    reserve,
    set_slot,
    slot,
)
from ftuner.codegen.llvm.chunks import DEAL_SYMBOL, NO_CHUNK, TAKE_SYMBOL
from ftuner.codegen.llvm.gemm import KERNEL_TYPE
from ftuner.codegen.llvm.loops import counted_loop, partition_bounds
from ftuner.codegen.llvm.pack import emit_pack
from ftuner.codegen.llvm.pool import JOB_TYPE
from ftuner.core.dtype import DType

REDUCE_TYPE = ir.FunctionType(VOID, [PTR, I64, I64])
"""`void reduce(call, first_row, last_row)`."""


def emit_driver(module: ir.Module, dtype: DType, lanes: int) -> None:
    """Add the driver of an element type: packing, the worker's job, and the entry for Python."""
    pack = emit_pack(module, dtype, lanes)
    job = _emit_job(module, dtype, pack)
    _emit_entry(module, dtype, job)


def _emit_entry(module: ir.Module, dtype: DType, job: ir.Function) -> None:
    """`void call(plan, pool, workspace, &a, &b, &c, operands)`.

    Arrays are passed as addresses of the words that hold the addresses of their elements;
    `operands`, which may be null, is an array of `MAX_OPERANDS` such addresses, null from the first
    that is not used.
    """
    function = ir.Function(module, ir.FunctionType(VOID, [PTR] * 7), call_symbol(dtype))
    plan, pool, workspace, a, b, c, operands = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    call = reserve(builder, ir.ArrayType(I64, int(Call.SIZE)))
    set_slot(builder, call, Call.PLAN, plan)
    set_slot(builder, call, Call.POOL, pool)
    set_slot(builder, call, Call.WORKSPACE, workspace)
    for index, word in zip((Call.A, Call.B, Call.C), (a, b, c), strict=True):
        set_slot(builder, call, index, builder.load(word, typ=PTR))
    null = ir.Constant(PTR, None)
    with builder.if_then(builder.icmp_unsigned("!=", operands, null)):
        for i in range(MAX_OPERANDS):
            word = pointer_slot(builder, operands, i)
            with builder.if_then(builder.icmp_unsigned("!=", word, null)):
                set_slot(builder, call, Call.OPERANDS + i, builder.load(word, typ=PTR))
    workers = slot(builder, plan, Plan.WORKERS)
    with builder.if_else(builder.icmp_signed(">", workers, const(1))) as (many, one):
        with many:
            chunks = slot(builder, plan, Plan.CHUNKS)
            with builder.if_then(builder.icmp_signed(">", chunks, const(0))):
                builder.call(module.globals[DEAL_SYMBOL], [pool, chunks, workers])
            run = module.globals[POOL_RUN_SYMBOL]
            builder.call(run, [pool, job, call, workers])
        with one:
            builder.call(job, [call, const(0)])
    builder.ret_void()


@dataclass(frozen=True)
class _Operands:
    """Addresses of one batch element, and the packed B that bands read."""

    a: ir.Value
    b: ir.Value
    c: ir.Value
    packed: ir.Value
    a_block: ir.Value
    workspace: ir.Value
    next_a: ir.Value
    """Bytes to the A of the next batch element; 0 if it is not to be fetched. `next_b` likewise."""
    next_b: ir.Value


WALK_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64, I64, I64, I64])
ALL_PANELS = 1 << 62
"""Behind the last panel of any share."""


def _emit_job(module: ir.Module, dtype: DType, pack: ir.Function) -> ir.Function:
    """`void gemm(call, worker)`: the worker's own share, or chunk after chunk of everybody's."""
    walk = _emit_walk(module, dtype, pack)
    function = ir.Function(module, JOB_TYPE, f"ftuner_gemm_{dtype}")
    function.linkage = "internal"
    call, worker = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    plan = pointer_slot(builder, call, Call.PLAN)
    records = at(builder, plan, Plan.WORKER_RECORDS * SLOT_BYTES)
    own = at(builder, records, builder.mul(worker, const(Worker.SIZE * SLOT_BYTES)))
    chunks = slot(builder, plan, Plan.CHUNKS)
    with builder.if_else(builder.icmp_signed(">", chunks, const(0))) as (together, apart):
        with together:
            _take_chunks(builder, call, plan, records, worker, chunks, walk)
        with apart:
            begin, end = (
                slot(builder, own, Worker.BATCH_BEGIN),
                slot(builder, own, Worker.BATCH_END),
            )
            builder.call(walk, [call, own, worker, begin, end, const(0), const(ALL_PANELS)])
    split = builder.icmp_signed(">", slot(builder, plan, Plan.PARTS), const(1))
    with builder.if_then(split):
        pool, workers = pointer_slot(builder, call, Call.POOL), slot(builder, plan, Plan.WORKERS)
        builder.call(module.globals[POOL_BARRIER_SYMBOL], [pool, workers])
        first = slot(builder, own, Worker.REDUCE_BEGIN)
        last = slot(builder, own, Worker.REDUCE_END)
        reduce = pointer_slot(builder, plan, Plan.REDUCE)
        call_address(builder, REDUCE_TYPE, reduce, [call, first, last])
    builder.ret_void()
    return function


def _take_chunks(
    builder: ir.IRBuilder,
    call: ir.Value,
    plan: ir.Value,
    record: ir.Value,
    worker: ir.Value,
    chunks: ir.Value,
    walk: ir.Function,
) -> None:
    """Take chunk after chunk until there is none."""
    pool, workers = pointer_slot(builder, call, Call.POOL), slot(builder, plan, Plan.WORKERS)
    extent = slot(builder, plan, Plan.CHUNK_EXTENT)
    by_panels = builder.icmp_signed("!=", slot(builder, plan, Plan.CHUNK_BY_PANELS), const(0))
    batch_begin = slot(builder, record, Worker.BATCH_BEGIN)
    batch_end = slot(builder, record, Worker.BATCH_END)
    take = builder.append_basic_block("take")
    work = builder.append_basic_block("work")
    done = builder.append_basic_block("done")
    builder.branch(take)
    builder.position_at_end(take)
    chunk = builder.call(builder.module.globals[TAKE_SYMBOL], [pool, worker, workers])
    builder.cbranch(builder.icmp_signed("!=", chunk, const(NO_CHUNK)), work, done)
    builder.position_at_end(work)
    begin, end = partition_bounds(builder, extent, chunks, chunk)
    builder.call(
        walk,
        [
            call,
            record,
            worker,
            builder.select(by_panels, batch_begin, begin),
            builder.select(by_panels, batch_end, end),
            builder.select(by_panels, begin, const(0)),
            builder.select(by_panels, end, const(ALL_PANELS)),
        ],
    )
    builder.branch(take)
    builder.position_at_end(done)


@dataclass(frozen=True)
class _Panels:
    """The panels of a record that belong to a chunk: `begin` to `end` of its own."""

    begin: ir.Value
    end: ir.Value


def _clip(
    builder: ir.IRBuilder, first: ir.Value, panels: ir.Value, begin: ir.Value, end: ir.Value
) -> _Panels:
    """Panels `begin` to `end` of all, counted from `first`, within `panels`."""
    low = _maximum(builder, builder.sub(begin, first), const(0))
    high = _minimum(builder, builder.sub(end, first), panels)
    return _Panels(low, high)


def _emit_walk(module: ir.Module, dtype: DType, pack: ir.Function) -> ir.Function:
    """`void walk(call, record, worker, batch_begin, batch_end, panel_begin, panel_end)`."""
    function = ir.Function(module, WALK_TYPE, f"ftuner_walk_{dtype}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    call, share, worker, batch_begin, batch_end, panel_begin, panel_end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    plan = pointer_slot(builder, call, Call.PLAN)
    context = reserve(builder, ir.ArrayType(I64, int(Context.SIZE)))
    _fill_context(builder, call, plan, context)
    workspace = pointer_slot(builder, call, Call.WORKSPACE)
    private = at(builder, workspace, slot(builder, share, Worker.PRIVATE_OFFSET))
    stride = slot(builder, plan, Plan.PRIVATE_STRIDE)
    private = at(builder, private, builder.mul(worker, stride))
    shared = at(builder, workspace, slot(builder, plan, Plan.SHARED_PACK_OFFSET))
    together = builder.icmp_signed("!=", slot(builder, plan, Plan.SHARED_PACK), const(0))
    packed = builder.select(together, shared, private)
    a_block = at(builder, workspace, slot(builder, share, Worker.A_BLOCK_OFFSET))
    pool = pointer_slot(builder, call, Call.POOL)
    workers = slot(builder, plan, Plan.WORKERS)
    barrier = module.globals[POOL_BARRIER_SYMBOL]

    with counted_loop(builder, batch_begin, batch_end) as batch:
        a, b, c = _batch_element(builder, call, plan, batch)
        next_a, next_b = _next_element(builder, call, plan, share, batch, a, b)
        operands = _Operands(a, b, c, packed, a_block, workspace, next_a, next_b)
        packs = pointer_slot(builder, share, Worker.PACKS)
        with counted_loop(builder, const(0), slot(builder, share, Worker.PACK_COUNT)) as i:
            record = at(builder, packs, builder.mul(i, const(Pack.SIZE * SLOT_BYTES)))
            first, count = (
                slot(builder, record, Pack.FIRST_PANEL),
                slot(builder, record, Pack.PANELS),
            )
            panels = _clip(builder, first, count, panel_begin, panel_end)
            _pack_b(builder, dtype, plan, pack, record, operands, panels)
        with builder.if_then(together):
            builder.call(barrier, [pool, workers])
        bands = pointer_slot(builder, share, Worker.BANDS)
        with counted_loop(builder, const(0), slot(builder, share, Worker.BAND_COUNT)) as i:
            record = at(builder, bands, builder.mul(i, const(Band.SIZE * SLOT_BYTES)))
            first, count = (
                slot(builder, record, Band.FIRST_PANEL),
                slot(builder, record, Band.PANELS),
            )
            panels = _clip(builder, first, count, panel_begin, panel_end)
            with builder.if_then(builder.icmp_signed("<", panels.begin, panels.end)):
                _band(builder, dtype, plan, pack, context, record, operands, panels)
    builder.ret_void()
    return function


def _fill_context(builder: ir.IRBuilder, call: ir.Value, plan: ir.Value, context: ir.Value) -> None:
    for i in range(MAX_OPERANDS):
        address = slot(builder, call, Call.OPERANDS + i)
        stride = slot(builder, plan, Plan.OPERAND_STRIDES + i)
        set_slot(builder, context, Context.OPERANDS + 2 * i, address)
        set_slot(builder, context, Context.OPERANDS + 2 * i + 1, stride)


def _batch_element(
    builder: ir.IRBuilder, call: ir.Value, plan: ir.Value, batch: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Addresses of A, B and C of one batch element: its index in mixed radix, last axis fastest."""
    rank = slot(builder, plan, Plan.BATCH_RANK)
    axes = pointer_slot(builder, plan, Plan.BATCH_AXES)
    left, *offsets = [reserve(builder, I64, SLOT_BYTES) for _ in range(4)]
    builder.store(batch, left)
    for variable in offsets:
        builder.store(const(0), variable)
    with counted_loop(builder, const(0), rank) as axis:
        record = at(builder, axes, builder.mul(axis, const(4 * SLOT_BYTES)))
        extent = slot(builder, record, 0)
        value = builder.load(left, typ=I64)
        index = builder.urem(value, extent)
        builder.store(builder.udiv(value, extent), left)
        for i, variable in enumerate(offsets):
            moved = builder.mul(index, slot(builder, record, 1 + i))
            builder.store(builder.add(builder.load(variable, typ=I64), moved), variable)
    a, b, c = (
        at(builder, pointer_slot(builder, call, source), builder.load(offset, typ=I64))
        for source, offset in zip((Call.A, Call.B, Call.C), offsets, strict=True)
    )
    return a, b, c


def _next_element(
    builder: ir.IRBuilder,
    call: ir.Value,
    plan: ir.Value,
    share: ir.Value,
    batch: ir.Value,
    a: ir.Value,
    b: ir.Value,
) -> tuple[ir.Value, ir.Value]:
    """Bytes from A and B of this batch element to those of the next, if they are to be fetched."""
    variables = [reserve(builder, I64, SLOT_BYTES) for _ in range(2)]
    for variable in variables:
        builder.store(const(0), variable)
    following = builder.add(batch, const(1))
    wanted = builder.icmp_signed("!=", slot(builder, plan, Plan.NEXT_ELEMENT), const(0))
    exists = builder.icmp_signed("<", following, slot(builder, share, Worker.BATCH_END))
    with builder.if_then(builder.and_(wanted, exists)):
        places = _batch_element(builder, call, plan, following)
        for variable, here, there in zip(variables, (a, b), places, strict=False):
            distance = builder.sub(builder.ptrtoint(there, I64), builder.ptrtoint(here, I64))
            builder.store(distance, variable)
    next_a, next_b = (builder.load(variable, typ=I64) for variable in variables)
    return next_a, next_b


def _pack_b(
    builder: ir.IRBuilder,
    dtype: DType,
    plan: ir.Value,
    pack: ir.Function,
    record: ir.Value,
    operands: _Operands,
    panels: _Panels,
) -> None:
    """Pack panels of one record, all of k, one behind the other."""
    k = slot(builder, plan, Plan.K)
    k_stride = slot(builder, plan, Plan.B_K_STRIDE)
    column_stride = slot(builder, plan, Plan.B_COLUMN_STRIDE)
    column = slot(builder, record, Pack.COLUMN)
    width = slot(builder, record, Pack.WIDTH)
    padded = slot(builder, record, Pack.PADDED)
    target = at(builder, operands.packed, slot(builder, record, Pack.OFFSET))
    panel_bytes = builder.mul(builder.mul(padded, k), const(dtype.itemsize))
    with counted_loop(builder, panels.begin, panels.end) as panel:
        first = builder.add(column, builder.mul(panel, padded))
        source = at(builder, operands.b, builder.mul(first, column_stride))
        behind = builder.sub(panel, panels.begin)
        place = at(builder, target, builder.mul(behind, panel_bytes))
        builder.call(pack, [source, k_stride, column_stride, place, k, width, padded])


def _minimum(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def _maximum(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed(">", x, y), x, y)


def _blocks(builder: ir.IRBuilder, extent: ir.Value, block: ir.Value) -> ir.Value:
    """How many blocks cover an extent; one, empty, where the extent is zero."""
    count = builder.sdiv(builder.add(extent, builder.sub(block, const(1))), block)
    return _maximum(builder, count, const(1))


def _band(
    builder: ir.IRBuilder,
    dtype: DType,
    plan: ir.Value,
    pack: ir.Function,
    context: ir.Value,
    band: ir.Value,
    operands: _Operands,
    panels: _Panels,
) -> None:
    """Blocks of rows, then of k: `mc x kc` of A stays in L2 while the band's panels pass by."""
    tiles = slot(builder, band, Band.FIRST_SEGMENT + Segment.TILES)
    block_tiles = slot(builder, band, Band.BLOCK_TILES)
    k_begin, k_end = slot(builder, band, Band.K_BEGIN), slot(builder, band, Band.K_END)
    kc = slot(builder, band, Band.KC)
    row_blocks = _blocks(builder, tiles, block_tiles)
    k_blocks = _blocks(builder, builder.sub(k_end, k_begin), kc)
    partial = slot(builder, band, Band.PARTIAL)
    whole = builder.icmp_signed("<", partial, const(0))

    # Where this band's results go: C, or a partial product in the workspace.
    offset = builder.mul(partial, slot(builder, plan, Plan.PARTIAL_BYTES))
    offset = builder.add(offset, slot(builder, plan, Plan.PARTIAL_OFFSET))
    partial_stride = builder.mul(slot(builder, plan, Plan.N), const(dtype.itemsize))
    c = builder.select(whole, operands.c, at(builder, operands.workspace, offset))
    c_stride = builder.select(whole, slot(builder, plan, Plan.C_ROW_STRIDE), partial_stride)
    accumulate = builder.select(whole, slot(builder, plan, Plan.ACCUMULATE), const(0))
    set_slot(builder, context, Context.C_ROW_STRIDE, c_stride)
    set_slot(builder, context, Context.B_K_STRIDE, slot(builder, band, Band.B_K_STRIDE))
    set_slot(builder, context, Context.VALID_COLUMNS, slot(builder, band, Band.VALID_COLUMNS))

    with counted_loop(builder, const(0), row_blocks) as block:
        first = builder.mul(block, block_tiles)
        last_block = builder.icmp_signed("==", block, builder.sub(row_blocks, const(1)))
        end = _minimum(builder, builder.add(first, block_tiles), tiles)
        with counted_loop(builder, const(0), k_blocks) as k_block:
            begin = builder.add(k_begin, builder.mul(k_block, kc))
            length = _minimum(builder, kc, builder.sub(k_end, begin))
            is_first = builder.icmp_signed("==", k_block, const(0))
            is_last = builder.icmp_signed("==", k_block, builder.sub(k_blocks, const(1)))
            finish = builder.and_(is_last, whole)
            set_slot(builder, context, Context.ACCUMULATE,
                     builder.select(is_first, accumulate, const(1)))  # fmt: skip
            set_slot(builder, context, Context.FINISH, builder.zext(finish, I64))
            rows = _RowBlock(first, end, last_block)
            steps = _KBlock(begin, length)
            _block(builder, dtype, plan, pack, context, band, operands, panels, rows, steps, c,
                   c_stride)  # fmt: skip


@dataclass(frozen=True)
class _RowBlock:
    first: ir.Value
    """Tiles of the first segment."""
    end: ir.Value
    last: ir.Value
    """Whether the segments behind the first belong to this block."""


@dataclass(frozen=True)
class _KBlock:
    begin: ir.Value
    length: ir.Value


@dataclass(frozen=True)
class _SegmentShare:
    """The part of one segment that lies in a row block."""

    kernel: ir.Value
    mr: ir.Value
    tiles: ir.Value
    row: ir.Value
    a_offset: ir.Value
    """Bytes into the packed block of A."""


def _segments(
    builder: ir.IRBuilder,
    dtype: DType,
    band: ir.Value,
    rows: _RowBlock,
    steps: _KBlock,
    body: Callable[[_SegmentShare], None],
) -> None:
    """Call `body` with the segments of a row block, one loop over them."""
    row_variable, a_variable = (reserve(builder, I64, SLOT_BYTES) for _ in range(2))
    builder.store(slot(builder, band, Band.ROW), row_variable)
    builder.store(const(0), a_variable)
    with counted_loop(builder, const(0), slot(builder, band, Band.SEGMENTS)) as index:
        offset = builder.mul(index, const(Segment.SIZE * SLOT_BYTES))
        record = at(builder, at(builder, band, Band.FIRST_SEGMENT * SLOT_BYTES), offset)
        mr, all_tiles = slot(builder, record, Segment.MR), slot(builder, record, Segment.TILES)
        main = builder.icmp_signed("==", index, const(0))
        first = builder.select(main, rows.first, const(0))
        others = builder.select(rows.last, all_tiles, const(0))
        count = builder.sub(builder.select(main, rows.end, others), first)
        row = builder.load(row_variable, typ=I64)
        a_offset = builder.load(a_variable, typ=I64)
        kernel = pointer_slot(builder, record, Segment.KERNEL)
        here = builder.add(row, builder.mul(first, mr))
        body(_SegmentShare(kernel, mr, count, here, a_offset))
        builder.store(builder.add(row, builder.mul(all_tiles, mr)), row_variable)
        elements = builder.mul(builder.mul(count, mr), steps.length)
        moved = builder.add(a_offset, builder.mul(elements, const(dtype.itemsize)))
        builder.store(moved, a_variable)


def _block(
    builder: ir.IRBuilder,
    dtype: DType,
    plan: ir.Value,
    pack: ir.Function,
    context: ir.Value,
    band: ir.Value,
    operands: _Operands,
    panels: _Panels,
    rows: _RowBlock,
    steps: _KBlock,
    c: ir.Value,
    c_stride: ir.Value,
) -> None:
    """One `mc x kc` block of A against all panels of the band."""
    a_row_stride = slot(builder, plan, Plan.A_ROW_STRIDE)
    a_k_stride = slot(builder, plan, Plan.A_K_STRIDE)
    a_first = at(builder, operands.a, builder.mul(steps.begin, a_k_stride))
    packs_a = builder.icmp_signed("!=", slot(builder, band, Band.PACK_A), const(0))
    size = const(dtype.itemsize)

    def pack_segment(share: _SegmentShare) -> None:
        tile_bytes = builder.mul(builder.mul(share.mr, steps.length), size)
        with counted_loop(builder, const(0), share.tiles) as tile:
            row = builder.add(share.row, builder.mul(tile, share.mr))
            source = at(builder, a_first, builder.mul(row, a_row_stride))
            place = builder.add(share.a_offset, builder.mul(tile, tile_bytes))
            target = at(builder, operands.a_block, place)
            builder.call(
                pack, [source, a_k_stride, a_row_stride, target, steps.length, share.mr, share.mr]
            )

    with builder.if_then(packs_a):
        _segments(builder, dtype, band, rows, steps, pack_segment)

    b_in_workspace = builder.icmp_signed("!=", slot(builder, band, Band.B_IN_WORKSPACE), const(0))
    b_k_stride = slot(builder, band, Band.B_K_STRIDE)
    b_first = builder.select(b_in_workspace, operands.packed, operands.b)
    b_offset = builder.add(slot(builder, band, Band.B_OFFSET),
                           builder.mul(steps.begin, b_k_stride))  # fmt: skip
    b_first = at(builder, b_first, b_offset)
    panel_stride = slot(builder, band, Band.B_PANEL_STRIDE)
    panel_width = slot(builder, band, Band.PANEL_WIDTH)
    column_0 = slot(builder, band, Band.COLUMN)
    a_in_place_stride = slot(builder, plan, Plan.A_STRIDE)

    # The tiles of a panel fetch the next one, an even part each. A single tile would fetch it no
    # sooner than the next panel's own tile does. In a batch, they fetch an even part of the next
    # element.
    tiles = builder.sub(rows.end, rows.first)
    others = builder.select(rows.last, slot(builder, band, Band.OTHER_TILES), const(0))
    tiles = _maximum(builder, builder.add(tiles, others), const(1))
    several = builder.icmp_signed(">", tiles, const(1))
    row_of_b = builder.mul(panel_width, size)
    part_of_row = builder.sdiv(row_of_b, tiles)
    in_one_piece = builder.icmp_signed("==", b_k_stride, row_of_b)
    of_panel = builder.select(builder.and_(several, in_one_piece), part_of_row, const(0))
    column_bytes = builder.mul(slot(builder, plan, Plan.K), size)
    in_batch = builder.icmp_signed("!=", operands.next_b, const(0))
    next_b = at(builder, operands.b, operands.next_b)
    next_b = at(builder, next_b, builder.mul(steps.begin, row_of_b))
    # A chunk's last panel fetches the first of the worker's next chunk, unless that is still to be
    # packed.
    end = builder.select(b_in_workspace, panels.end, slot(builder, band, Band.PANELS))
    last_panel = builder.sub(end, const(1))

    # In the workspace the chunk's first panel comes first.
    skipped = builder.select(b_in_workspace, panels.begin, const(0))
    with counted_loop(builder, panels.begin, panels.end) as panel:
        place_of_panel = builder.mul(builder.sub(panel, skipped), panel_stride)
        b_panel = at(builder, b_first, place_of_panel)
        column = builder.add(column_0, builder.mul(panel, panel_width))
        follows = builder.icmp_signed("<", panel, last_panel)
        of_element = at(builder, next_b, builder.mul(column, column_bytes))
        next_panel = at(builder, b_panel, panel_stride)
        set_slot(builder, context, Context.NEXT_B, builder.select(in_batch, of_element, next_panel))
        step = builder.select(follows, of_panel, const(0))
        step = builder.select(in_batch, part_of_row, step)
        set_slot(builder, context, Context.NEXT_B_STEP, step)
        is_first = builder.icmp_signed("==", panel, panels.begin)
        distance = builder.select(is_first, operands.next_a, const(0))
        set_slot(builder, context, Context.NEXT_A_DISTANCE, distance)

        def run_segment(
            share: _SegmentShare,
            b_panel: ir.Value = b_panel,
            column: ir.Value = column,
            step: ir.Value = step,
        ) -> None:
            in_place = at(builder, a_first, builder.mul(share.row, a_row_stride))
            in_block = at(builder, operands.a_block, share.a_offset)
            a = builder.select(packs_a, in_block, in_place)
            packed_stride = builder.mul(share.mr, size)
            stride = builder.select(packs_a, packed_stride, a_in_place_stride)
            tile_stride = builder.select(
                packs_a,
                builder.mul(packed_stride, steps.length),
                builder.mul(share.mr, a_row_stride),
            )
            set_slot(builder, context, Context.A_STRIDE, stride)
            set_slot(builder, context, Context.A_TILE_STRIDE, tile_stride)
            place = at(builder, c, builder.mul(share.row, c_stride))
            place = at(builder, place, builder.mul(column, size))
            with builder.if_then(builder.icmp_signed(">", share.tiles, const(0))):
                call_address(
                    builder,
                    KERNEL_TYPE,
                    share.kernel,
                    [context, a, b_panel, place, share.row, column, steps.length, share.tiles],
                )
            part = builder.mul(builder.mul(share.tiles, steps.length), step)
            next_b = pointer_slot(builder, context, Context.NEXT_B)
            set_slot(builder, context, Context.NEXT_B, at(builder, next_b, part))

        _segments(builder, dtype, band, rows, steps, run_segment)
