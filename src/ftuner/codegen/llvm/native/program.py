"""Emits the runner of programs, in which workers walk one table of steps.

`void run(program, io, alone)` first writes the addresses that depend on the caller's arrays; `io`
holds the addresses of the array objects, whose headers of `header_bytes` are followed by the data
pointer. Then every worker walks the steps. Steps are cut into chunks, and a step begins when the
chunks that it depends on are done: a thread waits for work, never for a worker that has not woken
yet. If `alone` is not 0, the caller does the same chunks one after the other, without the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, const
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.codegen.llvm.native.binding_records import Tasks
from ftuner.codegen.llvm.native.records import PRODUCT_KINDS, Patch, PoolSlot, Program, Step
from ftuner.codegen.llvm.native.symbols import (
    POOL_RUN_SYMBOL,
    PROGRAM_SYMBOL,
    TASKS_SYMBOL,
    DriverFunction,
    driver_symbol,
)
from ftuner.codegen.llvm.native.thread_pool import JOB_TYPE, add_completed, wait_for_completed
from ftuner.codegen.llvm.native.thread_state import default_float_mode
from ftuner.codegen.llvm.native.work_stealing import Share, taken_chunks
from ftuner.hardware.tuning import NativeTuning

RUN_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64])


def emit_program(module: ir.Module, header_bytes: int, tuning: NativeTuning) -> None:
    """Add the runner to a module that has the pool and the drivers."""
    job, walk = _emit_job(module, tuning), _emit_alone(module)
    builder, (program, io, alone) = begun(module, RUN_TYPE, PROGRAM_SYMBOL)
    patches = builder.pointer_slot(program, Program.PATCHES)
    with builder.counted_loop(0, builder.slot(program, Program.PATCH_COUNT)) as i:
        record = builder.record_at(patches, i, Patch.SIZE)
        number = builder.slot(record, Patch.ARRAY)
        array = builder.pointer_slot(builder.slot_address(io, number), 0)
        data = builder.load(builder.at(array, header_bytes), typ=PTR)
        address = builder.at(data, builder.slot(record, Patch.OFFSET))
        builder.store(address, builder.pointer_slot(record, Patch.SLOT))
    has_pool = builder.icmp_signed("==", alone, 0)
    with default_float_mode(builder), builder.if_else(has_pool) as (many, one):
        with many:
            workers = builder.slot(program, Program.WORKERS)
            pool = builder.pointer_slot(program, Program.POOL)
            # The program may start at a later step; earlier ones then count as completed.
            steps = builder.pointer_slot(program, Program.STEPS)
            builder.set_slot(pool, PoolSlot.COMPLETED, builder.slot(steps, Step.BEFORE))
            count = builder.slot(program, Program.STEP_COUNT)
            run = module.globals[POOL_RUN_SYMBOL]
            builder.call(run, [pool, job, program, workers, count, const(0)])
        with one:
            builder.call(walk, [program])
    builder.ret_void()


def emit_tasks(module: ir.Module, header_bytes: int) -> None:
    """Add `void tasks(plan, io, alone)`, which runs the job of a `binding_records.Tasks`; `io` and
    `alone` are those of programs."""
    builder, (plan, io, alone) = begun(module, RUN_TYPE, TASKS_SYMBOL)
    record = builder.slot_address(plan, Tasks.RECORD)
    builder.set_slot(record, 0, 0)
    addresses = builder.slot_address(record, builder.slot(plan, Tasks.ADDRESSES))
    with builder.counted_loop(0, builder.slot(plan, Tasks.ARRAYS)) as i:
        array = builder.pointer_slot(io, i)
        data = builder.load(builder.at(array, header_bytes), typ=PTR)
        builder.set_slot(addresses, i, data)
    job, pool = builder.pointer_slots(plan, Tasks.JOB, Tasks.POOL)
    has_pool = builder.icmp_signed("==", alone, 0)
    with default_float_mode(builder), builder.if_else(has_pool) as (many, one):
        with many:
            threads = builder.slot(plan, Tasks.THREADS)
            run = module.globals[POOL_RUN_SYMBOL]
            builder.call(run, [pool, job, record, threads, const(0), const(0)])
        with one:
            builder.call_address(JOB_TYPE, job, [record, const(0)])
    builder.ret_void()


def _emit_job(module: ir.Module, tuning: NativeTuning) -> ir.Function:
    """`void job(program, worker)`: one worker's walk over the steps."""
    builder, (program, worker) = begun(module, JOB_TYPE, "ftuner_walk_program", internal=True)
    pool, steps = builder.pointer_slots(program, Program.POOL, Program.STEPS)
    epoch = builder.variable(builder.slot(pool, PoolSlot.EPOCH))
    with builder.counted_loop(0, builder.slot(program, Program.STEP_COUNT)) as i:
        record = builder.record_at(steps, i, Step.SIZE)
        wait_for_completed(builder, pool, builder.slot(record, Step.BEFORE), tuning)
        number = builder.add(builder.load(epoch, typ=I64), 1)
        builder.store(number, epoch)
        workers = builder.slot(record, Step.WORKERS)
        with builder.if_then(builder.icmp_signed("<", worker, workers)):
            done = _shared(builder, pool, record, (worker, workers), number)
            with builder.if_then(builder.icmp_signed(">", done, 0)):
                add_completed(builder, pool, done)
    builder.ret_void()
    return builder.function


def _emit_alone(module: ir.Module) -> ir.Function:
    """`void alone(program)`: all steps on one thread."""
    kind = ir.FunctionType(VOID, [PTR])
    builder, (program,) = begun(module, kind, "ftuner_walk_program_alone", internal=True)
    steps = builder.pointer_slot(program, Program.STEPS)
    with builder.counted_loop(0, builder.slot(program, Program.STEP_COUNT)) as i:
        record = builder.record_at(steps, i, Step.SIZE)
        some = builder.icmp_signed(">", builder.slot(record, Step.CHUNKS), 0)
        kind = _has_kernel(builder, record)
        with builder.if_then(some), builder.if_else(kind) as (kernel, product):
            with kernel:
                # The result of a task does not depend on the chunks.
                tasks = builder.slot(record, Step.TASKS)
                _tasks(builder, record, const(0), (const(0), tasks))
            with product, builder.if_else(_of_several(builder, record)) as (several, one):
                with several, builder.counted_loop(0, builder.slot(record, Step.CHUNKS)) as chunk:
                    _panels(builder, record, const(0), chunk)
                with one:
                    call = builder.pointer_slot(record, Step.ARGUMENT)
                    _of_kind(builder, record, "alone", [call])
    builder.ret_void()
    return builder.function


def _shared(
    builder: IRBuilder, pool: ir.Value, record: ir.Value, share: Share, epoch: ir.Value
) -> ir.Value:
    """A worker's part of a step; returns the number of chunks it has done."""
    worker, _ = share
    done = builder.variable(0)
    chunks, tasks = builder.slots(record, Step.CHUNKS, Step.TASKS)
    together = builder.icmp_signed("!=", builder.slot(record, Step.TOGETHER), 0)
    with builder.if_else(together) as (own, dealt):
        with own:
            call = builder.pointer_slot(record, Step.ARGUMENT)
            _of_kind(builder, record, "gemm", [call, worker])
            builder.store(1, done)
        with dealt, taken_chunks(builder, pool, share, epoch, chunks) as chunk:
            bounds = builder.partition_bounds(tasks, chunks, chunk)
            with builder.if_else(_has_kernel(builder, record)) as (kernel, product):
                with kernel:
                    _tasks(builder, record, worker, bounds)
                with product, builder.if_else(_of_several(builder, record)) as (several, one):
                    with several:
                        _panels(builder, record, worker, chunk)
                    with one:
                        call = builder.pointer_slot(record, Step.ARGUMENT)
                        _of_kind(builder, record, "chunk", [call, worker, chunk])
            builder.store(builder.add(builder.load(done, typ=I64), 1), done)
    return builder.load(done, typ=I64)


def _of_several(builder: IRBuilder, record: ir.Value) -> ir.Value:
    """Whether a product is of several requests, which take turns."""
    return builder.icmp_signed(">", builder.slot(record, Step.CALL_COUNT), 0)


def _panels(builder: IRBuilder, record: ir.Value, worker: ir.Value, chunk: ir.Value) -> None:
    """A chunk of the products of several requests: successive ones are the same panels of each, so
    that these are read from memory once."""
    count = builder.slot(record, Step.CALL_COUNT)
    parts = builder.udiv(builder.slot(record, Step.CHUNKS), count)
    panels = builder.slot(record, Step.PANELS)
    bounds = builder.partition_bounds(panels, parts, builder.udiv(chunk, count))
    calls = builder.pointer_slot(record, Step.CALLS)
    call = builder.pointer_slot(builder.slot_address(calls, builder.urem(chunk, count)), 0)
    _of_kind(builder, record, "panels", [call, worker, panels, *bounds])


def _has_kernel(builder: IRBuilder, record: ir.Value) -> ir.Value:
    return builder.icmp_signed("==", builder.slot(record, Step.KIND), 0)


def _tasks(
    builder: IRBuilder, record: ir.Value, worker: ir.Value, tasks: tuple[ir.Value, ir.Value]
) -> None:
    """Call the kernel of a step for a range of its tasks."""
    argument, dims = builder.pointer_slots(record, Step.ARGUMENT, Step.DIMS)
    status = builder.slot_address(record, Step.STATUS)
    function = builder.pointer_slot(record, Step.FUNCTION)
    builder.call_address(STEP_KERNEL_TYPE, function, [argument, dims, status, worker, *tasks])


def _of_kind(
    builder: IRBuilder, record: ir.Value, function: DriverFunction, arguments: Sequence[ir.Value]
) -> None:
    """Call the driver function of a product's dtype."""
    kind = builder.slot(record, Step.KIND)
    for dtype, number in PRODUCT_KINDS.items():
        with builder.if_then(builder.icmp_signed("==", kind, number)):
            builder.call(builder.module.globals[driver_symbol(function, dtype)], arguments)
