"""Emits the native half of the thread pool: worker loop, launch, barrier.

A worker is a Python thread that has released the interpreter's lock; it enters `ftuner_pool_worker`
once and stays there. A launch writes the job, posts it to the workers that it needs and takes part
as worker 0.

`records.PoolSlot` has the layout of the pool. Slots that are written separately are on cache lines
of their own.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, const
from ftuner.codegen.llvm.native import thread_state
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Barrier, PoolSlot
from ftuner.codegen.llvm.native.symbols import (
    POOL_BARRIER_SYMBOL,
    POOL_RUN_SYMBOL,
    POOL_WORKER_SYMBOL,
)
from ftuner.codegen.llvm.native.waiting import (
    Watched,
    mailbox_of,
    polls_for_job,
    polls_for_others,
    wait_until,
    wake,
    wake_threads,
)
from ftuner.core.operating_system import has_system_calls
from ftuner.hardware.tuning import NativeTuning

JOB_TYPE = ir.FunctionType(VOID, [PTR, I64])
"""A job: `void job(argument, worker)`."""

_GATE_NUMBER_BITS = 32
_CLOSED = 1 << 31
_ENTERED = 1 << 16
"""Fields of `PoolSlot.GATE`."""


def emit_pool(module: ir.Module, tuning: NativeTuning) -> None:
    """Add the pool's functions to a module."""
    _emit_barrier(module, tuning)
    _emit_worker(module, tuning)
    _emit_run(module, tuning)


def wait_for_all(builder: IRBuilder, pool: ir.Value, workers: ir.Value) -> None:
    """Emit a wait at the barrier of the pool, until `workers` threads have arrived."""
    function = builder.module.globals[POOL_BARRIER_SYMBOL]
    builder.call(function, [builder.slot_address(pool, PoolSlot.BARRIER), workers])


def wait_for_completed(
    builder: IRBuilder, pool: ir.Value, chunks: ir.Value, tuning: NativeTuning
) -> None:
    """Wait until `chunks` chunks of the program are done."""
    completed = Watched.of(builder, pool, PoolSlot.COMPLETED, PoolSlot.COMPLETED_SLEEPERS)
    wait_until(builder, tuning, completed, ">=", chunks, polls_for_others(tuning))


def add_completed(builder: IRBuilder, pool: ir.Value, chunks: ir.Value) -> None:
    """Add to the count of completed chunks of the program, and wake threads that wait for it."""
    completed = Watched.of(builder, pool, PoolSlot.COMPLETED, PoolSlot.COMPLETED_SLEEPERS)
    builder.atomic_rmw("add", completed.place, chunks, "seq_cst")
    wake(builder, completed)


def _emit_barrier(module: ir.Module, tuning: NativeTuning) -> None:
    """`void barrier(record, workers)`: returns once `workers` callers have arrived."""
    kind = ir.FunctionType(VOID, [PTR, I64])
    builder, (record, workers) = begun(module, kind, POOL_BARRIER_SYMBOL)
    watched = Watched.of(builder, record, Barrier.GENERATION, Barrier.SLEEPERS)
    arrived = builder.slot_address(record, Barrier.ARRIVED)
    generation = builder.load_atomic(watched.place, "acquire", SLOT_BYTES, typ=I64)
    before = builder.atomic_rmw("add", arrived, const(1), "acq_rel")
    last = builder.icmp_signed("==", builder.add(before, 1), workers)
    with builder.if_else(last) as (release, wait):
        with release:
            builder.atomic_rmw("xchg", arrived, const(0), "monotonic")
            following = builder.add(generation, 1)
            builder.atomic_rmw("xchg", watched.place, following, "seq_cst")
            wake(builder, watched)
        with wait:
            wait_until(builder, tuning, watched, "!=", generation, polls_for_others(tuning))
    builder.ret_void()


def _emit_worker(module: ir.Module, tuning: NativeTuning) -> None:
    """`void worker(pool, index)`: serve jobs until a null job arrives."""
    builder, (pool, index) = begun(module, ir.FunctionType(VOID, [PTR, I64]), POOL_WORKER_SYMBOL)
    mailbox = mailbox_of(builder, pool, index)
    mail = Watched.of(builder, mailbox, PoolSlot.MAIL_JOBS, PoolSlot.MAIL_SLEEPERS)
    gate = Watched.of(builder, pool, PoolSlot.GATE, PoolSlot.GATE_SLEEPERS)
    thread_state.introduce(builder, mailbox)
    float_mode = thread_state.set_default_float_mode(builder)
    serve, look, enter, late, inside, work, leave = map(
        builder.append_basic_block, ("serve", "look", "enter", "late", "inside", "work", "leave")
    )
    entry = builder.block
    builder.branch(serve)
    builder.position_at_end(serve)
    # Jobs posted that this worker has seen, and the number of the last job that it entered.
    jobs_seen, served, spins = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    posted = wait_until(builder, tuning, mail, "!=", jobs_seen, spins)
    thread_state.settle(builder, mailbox)
    builder.branch(look)

    builder.position_at_end(look)
    seen = builder.load_atomic(gate.place, "acquire", SLOT_BYTES, typ=I64)
    number = builder.lshr(seen, _GATE_NUMBER_BITS)
    workers = builder.slot(pool, PoolSlot.WORKERS)
    is_open = builder.icmp_signed("==", builder.and_(seen, _CLOSED), 0)
    is_new = builder.icmp_signed("!=", number, served)
    invited = builder.icmp_signed("<", index, workers)
    builder.cbranch(builder.and_(is_open, builder.and_(is_new, invited)), enter, late)
    builder.position_at_end(enter)
    entered = builder.add(seen, _ENTERED + 1)
    swapped = builder.cmpxchg(gate.place, seen, entered, "acq_rel", "monotonic")
    builder.cbranch(builder.extract_value(swapped, 1), inside, look)

    builder.position_at_end(inside)
    job, argument = builder.pointer_slots(pool, PoolSlot.JOB, PoolSlot.ARGUMENT)
    builder.cbranch(builder.icmp_unsigned("==", job, ir.Constant(PTR, None)), leave, work)
    builder.position_at_end(work)
    builder.call_address(JOB_TYPE, job, [argument, index])
    builder.atomic_rmw("sub", gate.place, const(1), "seq_cst")
    woken = wake(builder, gate)
    # A caller that was just woken may be on this CPU: sleep at once to make room for it.
    again = builder.select(woken, 0, polls_for_job(tuning))
    after_work = builder.block
    builder.branch(serve)
    builder.position_at_end(late)
    builder.branch(serve)
    for phi, first, after, otherwise in (
        (jobs_seen, const(0), posted, posted),
        (served, const(0), number, served),
        (spins, polls_for_job(tuning), again, polls_for_job(tuning)),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(after, after_work)
        phi.add_incoming(otherwise, late)
    builder.position_at_end(leave)
    thread_state.restore_float_mode(builder, float_mode)
    builder.ret_void()


def _emit_run(module: ir.Module, tuning: NativeTuning) -> None:
    """`void run(pool, job, argument, workers, epochs, everyone)`: run a job as worker 0; one caller
    at a time.

    `epochs`: the number of epochs of work stealing that the job uses. `everyone`: whether all
    workers must take part; otherwise workers that have not entered when the caller has finished are
    shut out. A null job makes the workers leave their loops.
    """
    kind = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])
    builder, (pool, job, argument, workers, epochs, everyone) = begun(module, kind, POOL_RUN_SYMBOL)
    gate = Watched.of(builder, pool, PoolSlot.GATE, PoolSlot.GATE_SLEEPERS)
    builder.set_slot(pool, PoolSlot.JOB, job)
    builder.set_slot(pool, PoolSlot.ARGUMENT, argument)
    builder.set_slot(pool, PoolSlot.WORKERS, workers)
    number_bits = const(_GATE_NUMBER_BITS)
    before = builder.lshr(builder.load(gate.place, typ=I64), number_bits)
    opened = builder.shl(builder.add(before, 1), number_bits)
    builder.atomic_rmw("xchg", gate.place, opened, "seq_cst")
    with builder.counted_loop(1, workers) as worker:
        mailbox = mailbox_of(builder, pool, worker)
        builder.atomic_rmw("add", mailbox, const(1), "seq_cst")
        if has_system_calls():
            sleepers = builder.slot_address(mailbox, PoolSlot.MAIL_SLEEPERS)
            asleep = builder.load_atomic(sleepers, "seq_cst", SLOT_BYTES, typ=I64)
            with builder.if_then(builder.icmp_signed("!=", asleep, 0), likely=False):
                thread_state.place_worker(
                    builder, pool, mailbox, worker, thread_state.current_cpu(builder)
                )
                wake_threads(builder, mailbox, 1)
    is_job = builder.icmp_unsigned("!=", job, ir.Constant(PTR, None))
    with builder.if_then(is_job):
        builder.call_address(JOB_TYPE, job, [argument, const(0)])
        spins = polls_for_others(tuning)
        all_needed = builder.icmp_signed("!=", everyone, 0)
        with builder.if_then(all_needed):
            others = builder.mul(builder.sub(workers, 1), _ENTERED)
            wait_until(builder, tuning, gate, "==", builder.or_(opened, others), spins)
        builder.atomic_rmw("or", gate.place, const(_CLOSED), "seq_cst")
        wait_until(builder, tuning, gate, "==", const(0), spins, const(_ENTERED - 1))
        epoch = builder.slot_address(pool, PoolSlot.EPOCH)
        builder.store(builder.add(builder.load(epoch, typ=I64), epochs), epoch)
    builder.ret_void()
