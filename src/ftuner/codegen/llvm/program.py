"""Running a program: all workers walk one table of steps, side by side, in LLVM IR.

`void run(program, io)` first writes the addresses that depend on the caller's arrays (`io` holds,
for each of them, the address of the word that holds the address of its elements), then has every
worker walk the steps. A step's work is spread over the workers; between two steps they wait for
each other.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.abi import (
    POOL_RUN_SYMBOL,
    PRODUCT_KINDS,
    PROGRAM_SYMBOL,
    SLOT_BYTES,
    Patch,
    PoolSlot,
    Program,
    Step,
    job_symbol,
)
from ftuner.codegen.llvm.build import (
    PTR,
    VOID,
    at,
    call_address,
    const,
    pointer_slot,
    slot,
)
from ftuner.codegen.llvm.chunks import DEAL_SYMBOL, taken_chunks
from ftuner.codegen.llvm.loops import counted_loop, partition_bounds
from ftuner.codegen.llvm.nest import KERNEL_TYPE
from ftuner.codegen.llvm.pool import JOB_TYPE, wait_for_all


def emit_program(module: ir.Module) -> None:
    """Add the runner to a module that has the pool and the drivers."""
    job = _emit_job(module)
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, PTR]), PROGRAM_SYMBOL)
    program, io = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    patches = pointer_slot(builder, program, Program.PATCHES)
    with counted_loop(builder, 0, slot(builder, program, Program.PATCH_COUNT)) as i:
        record = at(builder, patches, builder.mul(i, const(Patch.SIZE * SLOT_BYTES)))
        number = slot(builder, record, Patch.ARRAY)
        word = pointer_slot(builder, at(builder, io, builder.mul(number, const(SLOT_BYTES))), 0)
        array = builder.load(word, typ=PTR)
        address = at(builder, array, slot(builder, record, Patch.OFFSET))
        builder.store(address, pointer_slot(builder, record, Patch.SLOT))
    workers = slot(builder, program, Program.WORKERS)
    with builder.if_else(builder.icmp_signed(">", workers, const(1))) as (many, one):
        with many:
            pool = pointer_slot(builder, program, Program.POOL)
            builder.call(module.globals[POOL_RUN_SYMBOL], [pool, job, program, workers])
        with one:
            builder.call(job, [program, const(0)])
    builder.ret_void()


def _emit_job(module: ir.Module) -> ir.Function:
    """`void job(program, worker)`: one worker's part of every step."""
    function = ir.Function(module, JOB_TYPE, "ftuner_walk_program")
    function.linkage = "internal"
    program, worker = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    pool = pointer_slot(builder, program, Program.POOL)
    workers = slot(builder, program, Program.WORKERS)
    steps = pointer_slot(builder, program, Program.STEPS)
    together = builder.icmp_signed(">", workers, const(1))
    with counted_loop(builder, 0, slot(builder, program, Program.STEP_COUNT)) as i:
        record = at(builder, steps, builder.mul(i, const(Step.SIZE * SLOT_BYTES)))
        with builder.if_then(together):
            # Nobody begins a step before all have ended the one before.
            wait_for_all(builder, pool, PoolSlot.STEP_BARRIER, workers)
            _deal(builder, pool, record, worker, workers)
        kind = slot(builder, record, Step.KIND)
        is_nest = builder.icmp_signed("==", kind, const(0))
        with builder.if_else(is_nest) as (nest, product):
            with nest:
                _nest(builder, pool, record, worker, workers)
            with product:
                _product(builder, record, kind, worker)
    builder.ret_void()
    return function


def _deal(
    builder: ir.IRBuilder, pool: ir.Value, record: ir.Value, worker: ir.Value, workers: ir.Value
) -> None:
    """Deal the chunks of a step that has any, before anybody takes one."""
    chunks = slot(builder, record, Step.CHUNKS)
    with builder.if_then(builder.icmp_signed(">", chunks, const(0))):
        with builder.if_then(builder.icmp_signed("==", worker, const(0))):
            is_nest = builder.icmp_signed("==", slot(builder, record, Step.KIND), const(0))
            planned = builder.select(is_nest, workers, slot(builder, record, Step.TASKS))
            builder.call(builder.module.globals[DEAL_SYMBOL], [pool, chunks, planned])
        wait_for_all(builder, pool, PoolSlot.STEP_BARRIER, workers)


def _nest(
    builder: ir.IRBuilder, pool: ir.Value, record: ir.Value, worker: ir.Value, workers: ir.Value
) -> None:
    """An even part of the tasks, or chunk after chunk of them."""
    tasks = slot(builder, record, Step.TASKS)
    chunks = slot(builder, record, Step.CHUNKS)
    several = builder.icmp_signed(">", workers, const(1))
    dealt = builder.and_(several, builder.icmp_signed(">", chunks, const(0)))
    with builder.if_else(dealt) as (stolen, even):
        with stolen, taken_chunks(builder, pool, worker, workers) as chunk:
            _tasks(builder, record, worker, *partition_bounds(builder, tasks, chunks, chunk))
        with even:
            _tasks(builder, record, worker, *partition_bounds(builder, tasks, workers, worker))


def _tasks(
    builder: ir.IRBuilder, record: ir.Value, worker: ir.Value, begin: ir.Value, end: ir.Value
) -> None:
    with builder.if_then(builder.icmp_signed("<", begin, end)):
        arguments = [
            pointer_slot(builder, record, Step.ARGUMENT),
            pointer_slot(builder, record, Step.DIMS),
            at(builder, record, Step.STATUS * SLOT_BYTES),
            worker,
            begin,
            end,
        ]
        function = pointer_slot(builder, record, Step.FUNCTION)
        call_address(builder, KERNEL_TYPE, function, arguments)


def _product(builder: ir.IRBuilder, record: ir.Value, kind: ir.Value, worker: ir.Value) -> None:
    planned = slot(builder, record, Step.TASKS)
    with builder.if_then(builder.icmp_signed("<", worker, planned)):
        call = pointer_slot(builder, record, Step.ARGUMENT)
        for dtype, number in PRODUCT_KINDS.items():
            with builder.if_then(builder.icmp_signed("==", kind, const(number))):
                builder.call(builder.module.globals[job_symbol(dtype)], [call, worker])
