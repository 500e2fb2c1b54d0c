"""Emits the native half of the thread pool: worker loop, launch, barrier.

A worker is a Python thread that has released the interpreter's lock; it enters `ftuner_pool_worker`
once and stays there. A launch writes the job, posts it to the workers that it needs and takes part
as worker 0. A wait polls with the CPU's pause hint, then sleeps in the kernel (a futex on Linux,
short naps elsewhere). It never yields: that would put the thread, still runnable, at the end of the
run queue.

`records.PoolSlot` has the layout of the pool. Slots that are written separately are on cache lines
of their own.
"""

from __future__ import annotations

import platform
import sys

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I1,
    I32,
    I64,
    PTR,
    VOID,
    at,
    call_address,
    const,
    intrinsic,
    reserve,
    set_slot,
    slot,
)
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.native.float_mode import restore_float_mode, set_default_float_mode
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Barrier, PoolSlot
from ftuner.codegen.llvm.native.symbols import (
    POOL_BARRIER_SYMBOL,
    POOL_RUN_SYMBOL,
    POOL_WORKER_SYMBOL,
)
from ftuner.hardware.tuning import NativeTuning

JOB_TYPE = ir.FunctionType(VOID, [PTR, I64])
"""A job: `void job(argument, worker)`."""

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
_GETTID_NUMBER = {"x86_64": 186, "aarch64": 178}
_GATE_NUMBER_BITS = 32
_CLOSED = 1 << 31
_ENTERED = 1 << 16
"""Fields of `PoolSlot.GATE`."""
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129


def emit_pool(module: ir.Module, tuning: NativeTuning) -> None:
    """Add the pool's functions to a module."""
    _emit_barrier(module, tuning)
    _emit_worker(module, tuning)
    _emit_run(module, tuning)


def wait_for_all(builder: ir.IRBuilder, pool: ir.Value, barrier: int, workers: ir.Value) -> None:
    """Emit a wait at a barrier of the pool, until `workers` threads have arrived."""
    function = builder.module.globals[POOL_BARRIER_SYMBOL]
    builder.call(function, [_slot_address(builder, pool, barrier), workers])


def _slot_address(builder: ir.IRBuilder, pool: ir.Value, index: int) -> ir.Value:
    return at(builder, pool, index * SLOT_BYTES)


def mailbox_of(builder: ir.IRBuilder, pool: ir.Value, worker: ir.Value) -> ir.Value:
    """The address of a worker's mailbox."""
    offset = builder.mul(worker, const(PoolSlot.MAILBOX_SIZE * SLOT_BYTES))
    return at(builder, at(builder, pool, PoolSlot.MAILBOXES * SLOT_BYTES), offset)


def _pause(builder: ir.IRBuilder) -> None:
    if platform.machine().lower() in ("x86_64", "amd64"):
        builder.call(intrinsic(builder.module, "llvm.x86.sse2.pause", VOID, []), [])
    else:
        hint = intrinsic(builder.module, "llvm.aarch64.hint", VOID, [I32])
        builder.call(hint, [ir.Constant(I32, 1)])


def _is_linux() -> bool:
    return sys.platform == "linux"


def _can_futex() -> bool:
    return _is_linux() and platform.machine() in _FUTEX_NUMBER


def _current_cpu(builder: ir.IRBuilder) -> ir.Value:
    function = intrinsic(builder.module, "sched_getcpu", I32, [])
    return builder.sext(builder.call(function, []), I64)


def _affinity(builder: ir.IRBuilder, name: str, thread: ir.Value, mask: ir.Value) -> ir.Value:
    """Get or set the CPU affinity of a thread; negative if the system refuses."""
    function = intrinsic(builder.module, name, I32, [I32, I64, PTR])
    size = const(PoolSlot.CPU_MASK_WORDS * SLOT_BYTES)
    return builder.call(function, [builder.trunc(thread, I32), size, mask])


def _introduce(builder: ir.IRBuilder, mailbox: ir.Value) -> None:
    """Store the kernel's id of this thread, for `_place`."""
    if _can_futex():
        thread = _system_call(builder, _GETTID_NUMBER[platform.machine()])
        set_slot(builder, mailbox, PoolSlot.MAIL_THREAD, thread)


def _place(
    builder: ir.IRBuilder, pool: ir.Value, mailbox: ir.Value, worker: ir.Value, caller: ir.Value
) -> None:
    """Make a sleeping worker wake on its own CPU.

    Schedulers tend to wake a thread on the CPU of its waker (on a virtual machine a halted CPU
    looks stolen) and leave both there for milliseconds. So the worker is barred from the CPUs of
    the caller and of the workers before it until it has woken. Its affinity is the user's setting,
    so it is read from the system at each launch.
    """
    thread = slot(builder, mailbox, PoolSlot.MAIL_THREAD)
    allowed, barred = (_mask(builder, mailbox, i) for i in (PoolSlot.MAIL_ALLOWED,
                                                            PoolSlot.MAIL_BARRED))  # fmt: skip
    now = reserve(builder, ir.ArrayType(I64, PoolSlot.CPU_MASK_WORDS))
    answer = _affinity(builder, "sched_getaffinity", thread, now)
    with builder.if_then(builder.icmp_signed(">=", answer, ir.Constant(I32, 0))):
        # A worker that was late for the previous job may still be barred.
        moved = slot(builder, mailbox, PoolSlot.MAIL_MOVED)
        same = builder.and_(
            builder.icmp_signed("!=", moved, const(0)), _equal(builder, now, barred)
        )
        with builder.if_then(builder.not_(same)):
            _copy(builder, now, allowed)
        free = reserve(builder, ir.ArrayType(I64, PoolSlot.CPU_MASK_WORDS))
        _copy(builder, allowed, free)
        _remove_cpu(builder, free, caller)
        with counted_loop(builder, const(1), worker) as other:
            cpu = slot(builder, mailbox_of(builder, pool, other), PoolSlot.MAIL_CPU)
            _remove_cpu(builder, free, cpu)
        some = builder.not_(_equal(builder, free, None))
        fewer = builder.not_(_equal(builder, free, now))
        with builder.if_then(builder.and_(some, fewer)):
            _copy(builder, free, barred)
            _affinity(builder, "sched_setaffinity", thread, free)
            # After the system call: a worker that wakes before it must not clear the flag early.
            place = _slot_address(builder, mailbox, PoolSlot.MAIL_MOVED)
            builder.atomic_rmw("xchg", place, const(1), "release")


def _settle(builder: ir.IRBuilder, mailbox: ir.Value) -> None:
    """Store the CPU of this worker. If a launch barred it from CPUs, restore its affinity, unless
    it was changed from outside meanwhile."""
    if not _can_futex():
        return
    set_slot(builder, mailbox, PoolSlot.MAIL_CPU, _current_cpu(builder))
    place = _slot_address(builder, mailbox, PoolSlot.MAIL_MOVED)
    moved = builder.load_atomic(place, "monotonic", SLOT_BYTES, typ=I64)
    with builder.if_then(builder.icmp_signed("!=", moved, const(0)), likely=False):
        builder.atomic_rmw("xchg", place, const(0), "acq_rel")
        now = reserve(builder, ir.ArrayType(I64, PoolSlot.CPU_MASK_WORDS))
        answer = _affinity(builder, "sched_getaffinity", const(0), now)
        known = builder.icmp_signed(">=", answer, ir.Constant(I32, 0))
        unchanged = _equal(builder, now, _mask(builder, mailbox, PoolSlot.MAIL_BARRED))
        with builder.if_then(builder.and_(known, unchanged)):
            allowed = _mask(builder, mailbox, PoolSlot.MAIL_ALLOWED)
            _affinity(builder, "sched_setaffinity", const(0), allowed)


def _mask(builder: ir.IRBuilder, mailbox: ir.Value, first: int) -> ir.Value:
    """The address of a set of CPUs in a mailbox."""
    return at(builder, mailbox, first * SLOT_BYTES)


def _copy(builder: ir.IRBuilder, source: ir.Value, target: ir.Value) -> None:
    for word in range(PoolSlot.CPU_MASK_WORDS):
        set_slot(builder, target, word, slot(builder, source, word))


def _equal(builder: ir.IRBuilder, one: ir.Value, other: ir.Value | None) -> ir.Value:
    """Whether two sets of CPUs are equal; if `other` is None, whether the set is empty."""
    difference: ir.Value = const(0)
    for word in range(PoolSlot.CPU_MASK_WORDS):
        here = slot(builder, one, word)
        if other is not None:
            here = builder.xor(here, slot(builder, other, word))
        difference = builder.or_(difference, here)
    return builder.icmp_signed("==", difference, const(0))


def _remove_cpu(builder: ir.IRBuilder, mask: ir.Value, cpu: ir.Value) -> None:
    """Remove a CPU from a set; CPU numbers beyond the set are ignored."""
    inside = builder.icmp_unsigned("<", cpu, const(64 * PoolSlot.CPU_MASK_WORDS))
    with builder.if_then(inside):
        place = at(builder, mask, builder.mul(builder.lshr(cpu, const(6)), const(SLOT_BYTES)))
        bit = builder.shl(const(1), builder.and_(cpu, const(63)))
        word = builder.load(place, typ=I64)
        builder.store(builder.and_(word, builder.not_(bit)), place)


def _system_call(builder: ir.IRBuilder, number: int, *arguments: ir.Value) -> ir.Value:
    """Call the C library's `syscall(number, ...)`."""
    name = "syscall"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(I64, [I64], var_arg=True), name)
    return builder.call(function, [const(number), *arguments])


def _futex(builder: ir.IRBuilder, address: ir.Value, operation: int, value: ir.Value) -> None:
    number = _FUTEX_NUMBER[platform.machine()]
    _system_call(builder, number, address, const(operation), value, ir.Constant(PTR, None))


def _polls_per_us(tuning: NativeTuning) -> int:
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return tuning.polls_per_us_x86 if is_x86 else tuning.polls_per_us_other


def _polls_for_job(tuning: NativeTuning) -> ir.Constant:
    return const(tuning.spin_for_job_us * _polls_per_us(tuning))


def _polls_for_others(tuning: NativeTuning) -> ir.Constant:
    return const(tuning.spin_for_others_us * _polls_per_us(tuning))


def _wait(
    builder: ir.IRBuilder,
    tuning: NativeTuning,
    address: ir.Value,
    relation: str,
    value: ir.Value,
    spins: ir.Value,
    sleepers: ir.Value,
    mask: ir.Value | None = None,
) -> ir.Value:
    """Wait until the slot at `address`, masked by `mask`, is in `relation` to `value`.

    Polls `spins` times, then sleeps until `_wake`, which must be called after each change of the
    slot. `sleepers` is the address of the count of sleeping threads. Returns the slot's value.
    """
    entry = builder.block
    poll = builder.append_basic_block("wait.poll")
    again = builder.append_basic_block("wait.again")
    pause = builder.append_basic_block("wait.pause")
    sleep = builder.append_basic_block("wait.sleep")
    done = builder.append_basic_block("wait.done")
    builder.branch(poll)
    builder.position_at_end(poll)
    count = builder.phi(I64)
    count.add_incoming(const(0), entry)
    seen = builder.load_atomic(address, "acquire", SLOT_BYTES, typ=I64)
    looked_at = seen if mask is None else builder.and_(seen, mask)
    builder.cbranch(builder.icmp_signed(relation, looked_at, value), done, again)
    builder.position_at_end(again)
    following = builder.add(count, const(1))
    builder.cbranch(builder.icmp_signed("<", count, spins), pause, sleep)
    builder.position_at_end(pause)
    _pause(builder)
    count.add_incoming(following, builder.block)
    builder.branch(poll)
    builder.position_at_end(sleep)
    if _can_futex():
        # Count first, then the kernel looks at the slot, both in one total order: either the
        # waker sees the count or the kernel sees the new value and returns at once.
        builder.atomic_rmw("add", sleepers, const(1), "seq_cst")
        _futex(builder, address, _FUTEX_WAIT_PRIVATE, seen)
        builder.atomic_rmw("sub", sleepers, const(1), "seq_cst")
    else:
        function = intrinsic(builder.module, "usleep", I32, [I32])
        builder.call(function, [ir.Constant(I32, tuning.nap_us)])
    count.add_incoming(following, builder.block)
    builder.branch(poll)
    builder.position_at_end(done)
    return seen


def _wake(builder: ir.IRBuilder, address: ir.Value, sleepers: ir.Value) -> ir.Value:
    """Wake all threads that sleep on the slot at `address`, which was just changed with seq_cst.

    Returns whether any thread slept.
    """
    if not _can_futex():
        return ir.Constant(I1, 0)
    asleep = builder.load_atomic(sleepers, "seq_cst", SLOT_BYTES, typ=I64)
    any_asleep = builder.icmp_signed("!=", asleep, const(0))
    with builder.if_then(any_asleep, likely=False):
        _futex(builder, address, _FUTEX_WAKE_PRIVATE, const(0x7FFFFFFF))
    return any_asleep


def wait_for_completed(
    builder: ir.IRBuilder, pool: ir.Value, chunks: ir.Value, tuning: NativeTuning
) -> None:
    """Wait until `chunks` chunks of the program are done."""
    place = _slot_address(builder, pool, PoolSlot.COMPLETED)
    sleepers = _slot_address(builder, pool, PoolSlot.COMPLETED_SLEEPERS)
    _wait(builder, tuning, place, ">=", chunks, _polls_for_others(tuning), sleepers)


def add_completed(builder: ir.IRBuilder, pool: ir.Value, chunks: ir.Value) -> None:
    """Add to the count of completed chunks of the program, and wake threads that wait for it."""
    place = _slot_address(builder, pool, PoolSlot.COMPLETED)
    builder.atomic_rmw("add", place, chunks, "seq_cst")
    _wake(builder, place, _slot_address(builder, pool, PoolSlot.COMPLETED_SLEEPERS))


def _emit_barrier(module: ir.Module, tuning: NativeTuning) -> None:
    """`void barrier(record, workers)`: returns once `workers` callers have arrived."""
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64]), POOL_BARRIER_SYMBOL)
    record, workers = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    generation_address = _slot_address(builder, record, Barrier.GENERATION)
    arrived_address = _slot_address(builder, record, Barrier.ARRIVED)
    sleepers = _slot_address(builder, record, Barrier.SLEEPERS)
    generation = builder.load_atomic(generation_address, "acquire", SLOT_BYTES, typ=I64)
    before = builder.atomic_rmw("add", arrived_address, const(1), "acq_rel")
    last = builder.icmp_signed("==", builder.add(before, const(1)), workers)
    with builder.if_else(last) as (release, wait):
        with release:
            builder.atomic_rmw("xchg", arrived_address, const(0), "monotonic")
            following = builder.add(generation, const(1))
            builder.atomic_rmw("xchg", generation_address, following, "seq_cst")
            _wake(builder, generation_address, sleepers)
        with wait:
            _wait(
                builder,
                tuning,
                generation_address,
                "!=",
                generation,
                _polls_for_others(tuning),
                sleepers,
            )
    builder.ret_void()


def _emit_worker(module: ir.Module, tuning: NativeTuning) -> None:
    """`void worker(pool, index)`: serve jobs until a null job arrives."""
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64]), POOL_WORKER_SYMBOL)
    pool, index = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    mailbox = mailbox_of(builder, pool, index)
    sleepers = at(builder, mailbox, PoolSlot.MAIL_SLEEPERS * SLOT_BYTES)
    gate = _slot_address(builder, pool, PoolSlot.GATE)
    _introduce(builder, mailbox)
    float_mode = set_default_float_mode(builder)
    serve = function.append_basic_block("serve")
    look = function.append_basic_block("look")
    enter = function.append_basic_block("enter")
    late = function.append_basic_block("late")
    inside = function.append_basic_block("inside")
    work = function.append_basic_block("work")
    leave = function.append_basic_block("leave")
    entry = builder.block
    builder.branch(serve)
    builder.position_at_end(serve)
    # Jobs posted that this worker has seen, and the number of the last job that it entered.
    jobs_seen, served, spins = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    posted = _wait(builder, tuning, mailbox, "!=", jobs_seen, spins, sleepers)
    _settle(builder, mailbox)
    builder.branch(look)

    builder.position_at_end(look)
    seen = builder.load_atomic(gate, "acquire", SLOT_BYTES, typ=I64)
    number = builder.lshr(seen, const(_GATE_NUMBER_BITS))
    workers = builder.load(_slot_address(builder, pool, PoolSlot.WORKERS), typ=I64)
    is_open = builder.icmp_signed("==", builder.and_(seen, const(_CLOSED)), const(0))
    is_new = builder.icmp_signed("!=", number, served)
    invited = builder.icmp_signed("<", index, workers)
    builder.cbranch(builder.and_(is_open, builder.and_(is_new, invited)), enter, late)
    builder.position_at_end(enter)
    swapped = builder.cmpxchg(gate, seen, builder.add(seen, const(_ENTERED + 1)), "acq_rel",
                              "monotonic")  # fmt: skip
    builder.cbranch(builder.extract_value(swapped, 1), inside, look)

    builder.position_at_end(inside)
    job = builder.load(_slot_address(builder, pool, PoolSlot.JOB), typ=PTR)
    argument = builder.load(_slot_address(builder, pool, PoolSlot.ARGUMENT), typ=PTR)
    builder.cbranch(builder.icmp_unsigned("==", job, ir.Constant(PTR, None)), leave, work)
    builder.position_at_end(work)
    call_address(builder, JOB_TYPE, job, [argument, index])
    builder.atomic_rmw("sub", gate, const(1), "seq_cst")
    woken = _wake(builder, gate, _slot_address(builder, pool, PoolSlot.GATE_SLEEPERS))
    # A caller that was just woken may be on this CPU: sleep at once to make room for it.
    again = builder.select(woken, const(0), _polls_for_job(tuning))
    after_work = builder.block
    builder.branch(serve)
    builder.position_at_end(late)
    builder.branch(serve)
    for phi, first, after, otherwise in (
        (jobs_seen, const(0), posted, posted),
        (served, const(0), number, served),
        (spins, _polls_for_job(tuning), again, _polls_for_job(tuning)),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(after, after_work)
        phi.add_incoming(otherwise, late)
    builder.position_at_end(leave)
    restore_float_mode(builder, float_mode)
    builder.ret_void()


def _emit_run(module: ir.Module, tuning: NativeTuning) -> None:
    """`void run(pool, job, argument, workers, epochs, everyone)`: run a job as worker 0; one caller
    at a time.

    `epochs`: the number of epochs of work stealing that the job uses. `everyone`: whether all
    workers must take part; otherwise workers that have not entered when the caller has finished are
    shut out. A null job makes the workers leave their loops.
    """
    function = ir.Function(
        module, ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64]), POOL_RUN_SYMBOL
    )
    pool, job, argument, workers, epochs, everyone = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    gate = _slot_address(builder, pool, PoolSlot.GATE)
    builder.store(job, _slot_address(builder, pool, PoolSlot.JOB))
    builder.store(argument, _slot_address(builder, pool, PoolSlot.ARGUMENT))
    builder.store(workers, _slot_address(builder, pool, PoolSlot.WORKERS))
    number_bits = const(_GATE_NUMBER_BITS)
    before = builder.lshr(builder.load(gate, typ=I64), number_bits)
    opened = builder.shl(builder.add(before, const(1)), number_bits)
    builder.atomic_rmw("xchg", gate, opened, "seq_cst")
    with counted_loop(builder, const(1), workers) as worker:
        mailbox = mailbox_of(builder, pool, worker)
        builder.atomic_rmw("add", mailbox, const(1), "seq_cst")
        if _can_futex():
            sleepers = at(builder, mailbox, PoolSlot.MAIL_SLEEPERS * SLOT_BYTES)
            asleep = builder.load_atomic(sleepers, "seq_cst", SLOT_BYTES, typ=I64)
            with builder.if_then(builder.icmp_signed("!=", asleep, const(0)), likely=False):
                _place(builder, pool, mailbox, worker, _current_cpu(builder))
                _futex(builder, mailbox, _FUTEX_WAKE_PRIVATE, const(1))
    is_job = builder.icmp_unsigned("!=", job, ir.Constant(PTR, None))
    with builder.if_then(is_job):
        call_address(builder, JOB_TYPE, job, [argument, const(0)])
        sleepers = _slot_address(builder, pool, PoolSlot.GATE_SLEEPERS)
        spins = _polls_for_others(tuning)
        all_needed = builder.icmp_signed("!=", everyone, const(0))
        with builder.if_then(all_needed):
            others = builder.mul(builder.sub(workers, const(1)), const(_ENTERED))
            _wait(builder, tuning, gate, "==", builder.or_(opened, others), spins, sleepers)
        builder.atomic_rmw("or", gate, const(_CLOSED), "seq_cst")
        _wait(builder, tuning, gate, "==", const(0), spins, sleepers, const(_ENTERED - 1))
        epoch = _slot_address(builder, pool, PoolSlot.EPOCH)
        builder.store(builder.add(builder.load(epoch, typ=I64), epochs), epoch)
    builder.ret_void()
