"""Emits the native driver, which walks a worker's share of a plan.

`ftuner_gemm_<dtype>(call, worker)` is the job that every worker of the pool runs. For each batch
element it packs what the plan packs and walks the bands (`band`). `ftuner_alone_<dtype>(call)` does
the same chunks or shares one after the other on one thread. Both sum every element of C in the same
order, so results do not depend on which thread computes them. `records` has the layouts that it
reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, const
from ftuner.codegen.llvm.kernels.pack import emit_pack
from ftuner.codegen.llvm.native.band import BandWalk, Operands, Panels, emit_covered
from ftuner.codegen.llvm.native.records import Band, Call, Context, Pack, Plan, PoolSlot, Worker
from ftuner.codegen.llvm.native.symbols import POOL_RUN_SYMBOL, driver_symbol
from ftuner.codegen.llvm.native.thread_pool import JOB_TYPE, wait_for_all
from ftuner.codegen.llvm.native.thread_state import default_float_mode
from ftuner.codegen.llvm.native.work_stealing import taken_chunks
from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.dtype import DType
from ftuner.hardware.tuning import NativeTuning

REDUCE_TYPE = ir.FunctionType(VOID, [PTR, I64, I64])
"""`void reduce(call, first_row, last_row)`."""


ALONE_TYPE = ir.FunctionType(VOID, [PTR])
ENTRY_TYPE = ir.FunctionType(VOID, [PTR] * 7)
"""`void call(plan, pool, workspace, &a, &b, &c, operands)`."""


def emit_driver(module: ir.Module, dtype: DType, lanes: int, tuning: NativeTuning) -> None:
    """Add the driver of a dtype: packing, the worker's job, and the entry for Python."""
    pack = emit_pack(module, dtype, lanes, tuning)
    walk = _emit_walk(module, dtype, pack, emit_covered(module, dtype))
    chunk = _emit_chunk(module, dtype, walk)
    _emit_panels(module, dtype, walk)
    job = _emit_job(module, dtype, chunk)
    alone = _emit_alone(module, dtype, chunk, walk)
    _emit_entry(module, dtype, job, alone)


def _emit_entry(module: ir.Module, dtype: DType, job: ir.Function, alone: ir.Function) -> None:
    """Add the entry, an `ENTRY_TYPE`. If `pool` is null, the caller's thread does all the work.

    Arrays are passed as addresses of the words that hold their data pointers. `operands`, which may
    be null, is an array of `MAX_OPERANDS` such addresses; unused ones at its end are null.
    """
    builder, given = begun(module, ENTRY_TYPE, driver_symbol("call", dtype))
    plan, pool, workspace, a, b, c, operands = given
    call = builder.reserve(ir.ArrayType(I64, int(Call.SIZE)))
    builder.set_slot(call, Call.PLAN, plan)
    builder.set_slot(call, Call.POOL, pool)
    builder.set_slot(call, Call.WORKSPACE, workspace)
    builder.set_slot(call, Call.WINDOW, 0)
    builder.set_slot(call, Call.ROWS, builder.slot(plan, Plan.ROWS))
    for index, word in zip((Call.A, Call.B, Call.C), (a, b, c), strict=True):
        builder.set_slot(call, index, builder.load(word, typ=PTR))
    null = ir.Constant(PTR, None)
    for i in range(MAX_OPERANDS):
        builder.set_slot(call, Call.OPERANDS + i, 0)
    with builder.if_then(builder.icmp_unsigned("!=", operands, null)):
        for i in range(MAX_OPERANDS):
            word = builder.pointer_slot(operands, i)
            with builder.if_then(builder.icmp_unsigned("!=", word, null)):
                builder.set_slot(call, Call.OPERANDS + i, builder.load(word, typ=PTR))
    has_pool = builder.icmp_unsigned("!=", pool, null)
    with default_float_mode(builder), builder.if_else(has_pool) as (many, one):
        with many:
            workers, chunks = builder.slots(plan, Plan.WORKERS, Plan.CHUNKS)
            everyone = builder.zext(builder.icmp_signed("==", chunks, 0), I64)
            run = module.globals[POOL_RUN_SYMBOL]
            builder.call(run, [pool, job, call, workers, const(1), everyone])
        with one:
            builder.call(alone, [call])
    builder.ret_void()


CHUNK_TYPE = ir.FunctionType(VOID, [PTR, I64, I64])
PANELS_TYPE = ir.FunctionType(VOID, [PTR, I64, I64, I64, I64])
WALK_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64, I64, I64, I64, I64, I64])
ALL_PANELS = 1 << 62
"""An end beyond the last panel of any share."""
PACKS, BANDS = 1, 2
"""The work of a walk, as bits: pack, multiply."""


def _emit_job(module: ir.Module, dtype: DType, chunk: ir.Function) -> ir.Function:
    """`void gemm(call, worker)`: the worker's own share, or chunks by work stealing."""
    builder, (call, worker) = begun(module, JOB_TYPE, driver_symbol("gemm", dtype), internal=True)
    plan = builder.pointer_slot(call, Call.PLAN)
    pool, workers = builder.pointer_slot(call, Call.POOL), builder.slot(plan, Plan.WORKERS)
    chunks = builder.slot(plan, Plan.CHUNKS)
    with builder.if_else(builder.icmp_signed(">", chunks, 0)) as (dealt, own):
        with dealt:
            epoch = builder.add(builder.slot(pool, PoolSlot.EPOCH), 1)
            with taken_chunks(builder, pool, (worker, workers), epoch, chunks) as number:
                builder.call(chunk, [call, worker, number])
        with own:
            builder.call(chunk, [call, worker, worker])
    with builder.if_then(_is_split(builder, plan)):
        wait_for_all(builder, pool, workers)
        _reduce(builder, call, plan, worker)
    builder.ret_void()
    return builder.function


def _emit_alone(
    module: ir.Module, dtype: DType, chunk: ir.Function, walk: ir.Function
) -> ir.Function:
    """`void alone(call)`: all chunks of a plan, or the shares of all workers, on one thread."""
    builder, (call,) = begun(module, ALONE_TYPE, driver_symbol("alone", dtype), internal=True)
    plan = builder.pointer_slot(call, Call.PLAN)
    workers, chunks = builder.slots(plan, Plan.WORKERS, Plan.CHUNKS)
    together = builder.icmp_signed("!=", builder.slot(plan, Plan.SHARED_PACK), 0)
    with builder.if_else(together, likely=False) as (shared, own):
        with shared:
            # All workers' packing comes before all multiplying: they read each other's panels.
            for does in (PACKS, BANDS):
                with builder.counted_loop(0, workers) as worker:
                    _share(builder, walk, call, _worker_record(builder, plan, worker), worker, does)
        with own:
            dealt = builder.icmp_signed(">", chunks, 0)
            with builder.counted_loop(0, builder.select(dealt, chunks, workers)) as number:
                # A chunk uses the workspace of its worker; a share has its own.
                builder.call(chunk, [call, const(0), number])
    with builder.if_then(_is_split(builder, plan)), builder.counted_loop(0, workers) as worker:
        _reduce(builder, call, plan, worker)
    builder.ret_void()
    return builder.function


def _is_split(builder: IRBuilder, plan: ir.Value) -> ir.Value:
    """Whether the plan is split-k."""
    return builder.icmp_signed(">", builder.slot(plan, Plan.PARTS), 1)


def _reduce(builder: IRBuilder, call: ir.Value, plan: ir.Value, worker: ir.Value) -> None:
    """Add up the partial products of a worker's rows."""
    rows, workers = builder.slot(call, Call.ROWS), builder.slot(plan, Plan.WORKERS)
    first, last = builder.partition_bounds(rows, workers, worker)
    reduce = builder.pointer_slot(plan, Plan.REDUCE)
    builder.call_address(REDUCE_TYPE, reduce, [call, first, last])


def _share(
    builder: IRBuilder, walk: ir.Function, call: ir.Value, record: ir.Value, worker: ir.Value,
    does: int,
) -> None:  # fmt: skip
    """Walk the whole share of a worker record."""
    batch = (builder.slot(record, Worker.BATCH_BEGIN), builder.slot(record, Worker.BATCH_END))
    panels = (const(0), const(0), const(ALL_PANELS))
    builder.call(walk, [call, record, worker, *batch, *panels, const(does)])


def _worker_record(builder: IRBuilder, plan: ir.Value, worker: ir.Value) -> ir.Value:
    return builder.record_at(builder.slot_address(plan, Plan.WORKER_RECORDS), worker, Worker.SIZE)


def _emit_chunk(module: ir.Module, dtype: DType, walk: ir.Function) -> ir.Function:
    """`void chunk(call, worker, number)`: a chunk of a plan; of a plan without chunks, the share of
    worker `number`."""
    builder, given = begun(module, CHUNK_TYPE, driver_symbol("chunk", dtype), internal=True)
    call, worker, number = given
    plan = builder.pointer_slot(call, Call.PLAN)
    chunks = builder.slot(plan, Plan.CHUNKS)
    dealt = builder.icmp_signed(">", chunks, 0)
    record = _worker_record(builder, plan, builder.select(dealt, 0, number))
    batch_begin, batch_end = builder.slots(record, Worker.BATCH_BEGIN, Worker.BATCH_END)
    with builder.if_else(dealt) as (piece, share):
        with piece:
            extent, panels = builder.slots(plan, Plan.CHUNK_EXTENT, Plan.CHUNK_BY_PANELS)
            by_panels = builder.icmp_signed("!=", panels, 0)
            begin, end = builder.partition_bounds(extent, chunks, number)
            ranges = [
                builder.select(by_panels, batch_begin, begin),
                builder.select(by_panels, batch_end, end),
                builder.select(by_panels, begin, 0),
                builder.select(by_panels, begin, 0),
                builder.select(by_panels, end, ALL_PANELS),
            ]
            builder.call(walk, [call, record, worker, *ranges, const(PACKS | BANDS)])
        with share:
            _share(builder, walk, call, record, worker, PACKS | BANDS)
    builder.ret_void()
    return builder.function


def _emit_panels(module: ir.Module, dtype: DType, walk: ir.Function) -> None:
    """Add `void panels(call, worker, panels, begin, end)`: some of the panels of a plan that is one
    share, as they are computed in their chunk."""
    builder, given = begun(module, PANELS_TYPE, driver_symbol("panels", dtype), internal=True)
    call, worker, panels, begin, end = given
    plan = builder.pointer_slot(call, Call.PLAN)
    record = _worker_record(builder, plan, const(0))
    batch = (builder.slot(record, Worker.BATCH_BEGIN), builder.slot(record, Worker.BATCH_END))
    chunks = builder.maximum(builder.slot(plan, Plan.CHUNKS), 1)
    with builder.counted_loop(begin, end) as panel:
        following = builder.add(panel, 1)
        # The last chunk that begins no later.
        number = builder.udiv(builder.sub(builder.mul(following, chunks), 1), panels)
        chunk, _ = builder.partition_bounds(panels, chunks, number)
        ranges = [*batch, chunk, panel, following]
        builder.call(walk, [call, record, worker, *ranges, const(PACKS | BANDS)])
    builder.ret_void()


def _emit_walk(
    module: ir.Module, dtype: DType, pack: ir.Function, covered: ir.Function
) -> ir.Function:
    """`void walk(call, record, worker, batch_begin, batch_end, chunk, panel_begin, panel_end,
    does)`: `chunk` is the first panel of the chunk, `does` is `PACKS`, `BANDS` or both."""
    builder, given = begun(module, WALK_TYPE, f"ftuner_walk_{dtype}", internal=True)
    call, share, worker, batch_begin, batch_end, chunk, begin, end, does = given
    builder.function.attributes.add("noinline")
    plan = builder.pointer_slot(call, Call.PLAN)
    context = builder.reserve(ir.ArrayType(I64, int(Context.SIZE)))
    builder.set_slot(context, Context.WINDOW, builder.slot(call, Call.WINDOW))
    take_operands(builder, call, plan, context)
    workspace = builder.pointer_slot(call, Call.WORKSPACE)
    private = builder.at(workspace, builder.slot(share, Worker.PRIVATE_OFFSET))
    stride = builder.slot(plan, Plan.PRIVATE_STRIDE)
    private = builder.at(private, worker, stride)
    shared = builder.at(workspace, builder.slot(plan, Plan.SHARED_PACK_OFFSET))
    together = builder.icmp_signed("!=", builder.slot(plan, Plan.SHARED_PACK), 0)
    packed = builder.select(together, shared, private)
    both = builder.icmp_signed("==", does, PACKS | BANDS)
    waits = builder.and_(together, both)
    a_block = builder.at(workspace, builder.slot(share, Worker.A_BLOCK_OFFSET))
    pool = builder.pointer_slot(call, Call.POOL)
    workers = builder.slot(plan, Plan.WORKERS)

    @contextmanager
    def each(
        kind: type[Pack] | type[Band], records: int, count: int, part: int
    ) -> Iterator[tuple[ir.Value, Panels]]:
        """Emit a loop over records of a kind; yields each with its panels. There is none if `does`
        excludes their part of the work."""
        first = builder.pointer_slot(share, records)
        wanted = builder.icmp_signed("!=", builder.and_(does, part), 0)
        wanted = builder.select(wanted, builder.slot(share, count), 0)
        with builder.counted_loop(0, wanted) as i:
            record = builder.record_at(first, i, kind.SIZE)
            # Relative to the record's first panel, and clipped to its panels.
            first_panel, panels = builder.slots(record, kind.FIRST_PANEL, kind.PANELS)
            of_chunk, low = (
                builder.maximum(builder.sub(x, first_panel), 0) for x in (chunk, begin)
            )
            high = builder.minimum(builder.sub(end, first_panel), panels)
            yield record, Panels(of_chunk, low, high)

    rows = builder.slot(call, Call.ROWS)
    memory = builder.reserve(ir.ArrayType(I64, int(Band.SIZE)))
    element = _Element(builder, call, plan, batch_begin)
    with builder.counted_loop(batch_begin, batch_end) as batch:
        a, b, c = element.addresses()
        next_a, next_b = element.go_on(share, batch)
        operands = Operands(a, b, c, packed, a_block, workspace, next_a, next_b)
        with each(Pack, Worker.PACKS, Worker.PACK_COUNT, PACKS) as (record, panels):
            # One after the other, each over all of k.
            k, k_stride, column_stride = builder.slots(
                plan, Plan.K, Plan.B_K_STRIDE, Plan.B_COLUMN_STRIDE
            )
            column, width, padded = builder.slots(record, Pack.COLUMN, Pack.WIDTH, Pack.PADDED)
            target = builder.at(packed, builder.slot(record, Pack.OFFSET))
            panel_bytes = builder.mul(builder.mul(padded, k), dtype.itemsize)
            with builder.counted_loop(panels.begin, panels.end) as panel:
                first = builder.add(column, builder.mul(panel, padded))
                source = builder.at(b, first, column_stride)
                number = builder.sub(panel, panels.begin)
                place = builder.at(target, number, panel_bytes)
                builder.call(pack, [source, k_stride, column_stride, place, k, width, padded])
        with builder.if_then(waits):
            wait_for_all(builder, pool, workers)
        with (
            each(Band, Worker.BANDS, Worker.BAND_COUNT, BANDS) as (record, panels),
            builder.if_then(builder.icmp_signed("<", panels.begin, panels.end)),
        ):
            band = builder.call(covered, [record, rows, memory])
            BandWalk(builder, dtype, plan, pack, context, band, operands, panels).walk()
    builder.ret_void()
    return builder.function


def take_operands(builder: IRBuilder, call: ir.Value, plan: ir.Value, context: ir.Value) -> None:
    """Let the context have the operands of the epilogue, those of a call."""
    for i in range(MAX_OPERANDS):
        address = builder.slot(call, Call.OPERANDS + i)
        stride = builder.slot(plan, Plan.OPERAND_STRIDES + i)
        builder.set_slot(context, Context.OPERANDS + 2 * i, address)
        builder.set_slot(context, Context.OPERANDS + 2 * i + 1, stride)


class _Element:
    """The addresses of A, B and C of the current batch element. Elements are numbered in row-major
    order over the batch axes."""

    def __init__(self, builder: IRBuilder, call: ir.Value, plan: ir.Value, first: ir.Value) -> None:
        self._builder, self._plan = builder, plan
        self._arrays = builder.pointer_slots(call, Call.A, Call.B, Call.C)
        self._offsets = [builder.variable(0) for _ in self._arrays]
        self._left = builder.variable(first)
        self._find(first)

    def _find(self, number: ir.Value) -> None:
        """Move to the element of a number."""
        builder, plan = self._builder, self._plan
        rank = builder.slot(plan, Plan.BATCH_RANK)
        axes = builder.pointer_slot(plan, Plan.BATCH_AXES)
        builder.store(number, self._left)
        for offset in self._offsets:
            builder.store(0, offset)
        with builder.counted_loop(0, rank) as axis:
            record = builder.record_at(axes, axis, 4)
            index = builder.load(self._left, typ=I64)
            # The remainder is the first axis's index: no division there, and most batches have one
            # axis.
            divides = builder.icmp_signed("<", axis, builder.sub(rank, 1))

            def rest(index: ir.Value = index, record: ir.Value = record) -> list[ir.Value]:
                extent = builder.slot(record, 0)
                builder.store(builder.udiv(index, extent), self._left)
                return [builder.urem(index, extent)]

            (here,) = builder.changed_if(divides, [index], rest)
            for i, offset in enumerate(self._offsets):
                moved = builder.mul(here, builder.slot(record, 1 + i))
                builder.store(builder.add(builder.load(offset, typ=I64), moved), offset)

    def addresses(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The addresses of A, B and C."""
        builder = self._builder
        a, b, c = (
            builder.at(array, builder.load(offset, typ=I64))
            for array, offset in zip(self._arrays, self._offsets, strict=True)
        )
        return a, b, c

    def go_on(self, share: ir.Value, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Move to the element after `number`. Returns the byte distances from the current A and B
        to the next ones, 0 if those are not prefetched."""
        builder = self._builder
        before = [builder.load(offset, typ=I64) for offset in self._offsets]
        following = builder.add(number, 1)
        with builder.if_then(
            builder.icmp_signed("<", following, builder.slot(share, Worker.BATCH_END))
        ):
            self._find(following)
        wanted = builder.icmp_signed("!=", builder.slot(self._plan, Plan.NEXT_ELEMENT), 0)
        next_a, next_b = (
            builder.select(wanted, builder.sub(builder.load(offset, typ=I64), old), 0)
            for offset, old in zip(self._offsets[:2], before, strict=False)
        )
        return next_a, next_b
