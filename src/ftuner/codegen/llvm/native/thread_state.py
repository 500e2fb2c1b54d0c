"""Emits the state of a pool's threads: the CPUs that they stay on (Linux), and their floating-point
mode.

Schedulers tend to wake a thread on the CPU of its waker (on a virtual machine a halted CPU looks
stolen) and leave both there for milliseconds. So a launch bars a sleeping worker from the CPUs of
the caller and of the workers before it, until it has woken. A thread's affinity is the user's
setting: it is read from the system at each launch, and restored.

A thread inherits the mode of its creator, and libraries change it: one built with fast-math flushes
subnormal numbers to zero on the thread that loads it. Any thread may take any chunk, so all compute
in the mode that a process starts with. The caller's mode is restored afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, VOID, IRBuilder, const
from ftuner.codegen.llvm.native.records import SLOT_BYTES, PoolSlot
from ftuner.codegen.llvm.native.waiting import mailbox_of, system_call
from ftuner.core.operating_system import GETTID, has_system_calls, is_x86


def current_cpu(builder: IRBuilder) -> ir.Value:
    """The number of the CPU that this thread runs on."""
    return builder.sext(builder.external("sched_getcpu", I32), I64)


def _affinity(builder: IRBuilder, name: str, thread: ir.Value, mask: ir.Value) -> ir.Value:
    """Get or set the CPU affinity of a thread; negative if the system refuses."""
    size = const(PoolSlot.CPU_MASK_WORDS * SLOT_BYTES)
    return builder.external(name, I32, builder.trunc(thread, I32), size, mask)


def introduce(builder: IRBuilder, mailbox: ir.Value) -> None:
    """Store the kernel's id of this thread, for `place_worker`."""
    if has_system_calls():
        thread = system_call(builder, GETTID)
        builder.set_slot(mailbox, PoolSlot.MAIL_THREAD, thread)


def place_worker(
    builder: IRBuilder, pool: ir.Value, mailbox: ir.Value, worker: ir.Value, caller: ir.Value
) -> None:
    """Make a sleeping worker wake on a CPU of its own, where its affinity allows that."""
    thread = builder.slot(mailbox, PoolSlot.MAIL_THREAD)
    allowed = builder.slot_address(mailbox, PoolSlot.MAIL_ALLOWED)
    barred = builder.slot_address(mailbox, PoolSlot.MAIL_BARRED)
    now = builder.reserve(ir.ArrayType(I64, PoolSlot.CPU_MASK_WORDS))
    answer = _affinity(builder, "sched_getaffinity", thread, now)
    with builder.if_then(builder.icmp_signed(">=", answer, ir.Constant(I32, 0))):
        # A worker that was late for the previous job may still be barred.
        moved = builder.slot(mailbox, PoolSlot.MAIL_MOVED)
        same = builder.and_(builder.icmp_signed("!=", moved, 0), _equal(builder, now, barred))
        with builder.if_then(builder.not_(same)):
            _copy(builder, now, allowed)
        free = builder.reserve(ir.ArrayType(I64, PoolSlot.CPU_MASK_WORDS))
        _copy(builder, allowed, free)
        _remove_cpu(builder, free, caller)
        with builder.counted_loop(1, worker) as other:
            cpu = builder.slot(mailbox_of(builder, pool, other), PoolSlot.MAIL_CPU)
            _remove_cpu(builder, free, cpu)
        some = builder.not_(_equal(builder, free, None))
        fewer = builder.not_(_equal(builder, free, now))
        with builder.if_then(builder.and_(some, fewer)):
            _copy(builder, free, barred)
            _affinity(builder, "sched_setaffinity", thread, free)
            # After the system call: a worker that wakes before it must not clear the flag early.
            place = builder.slot_address(mailbox, PoolSlot.MAIL_MOVED)
            builder.atomic_rmw("xchg", place, const(1), "release")


def settle(builder: IRBuilder, mailbox: ir.Value) -> None:
    """Store the CPU of this worker. If a launch barred it from CPUs, restore its affinity, unless
    it was changed from outside meanwhile."""
    if not has_system_calls():
        return
    builder.set_slot(mailbox, PoolSlot.MAIL_CPU, current_cpu(builder))
    place = builder.slot_address(mailbox, PoolSlot.MAIL_MOVED)
    moved = builder.load_atomic(place, "monotonic", SLOT_BYTES, typ=I64)
    with builder.if_then(builder.icmp_signed("!=", moved, 0), likely=False):
        builder.atomic_rmw("xchg", place, const(0), "acq_rel")
        now = builder.reserve(ir.ArrayType(I64, PoolSlot.CPU_MASK_WORDS))
        answer = _affinity(builder, "sched_getaffinity", const(0), now)
        known = builder.icmp_signed(">=", answer, ir.Constant(I32, 0))
        unchanged = _equal(builder, now, builder.slot_address(mailbox, PoolSlot.MAIL_BARRED))
        with builder.if_then(builder.and_(known, unchanged)):
            allowed = builder.slot_address(mailbox, PoolSlot.MAIL_ALLOWED)
            _affinity(builder, "sched_setaffinity", const(0), allowed)


def _copy(builder: IRBuilder, source: ir.Value, target: ir.Value) -> None:
    for word in range(PoolSlot.CPU_MASK_WORDS):
        builder.set_slot(target, word, builder.slot(source, word))


def _equal(builder: IRBuilder, one: ir.Value, other: ir.Value | None) -> ir.Value:
    """Whether two sets of CPUs are equal; if `other` is None, whether the set is empty."""
    difference: ir.Value = const(0)
    for word in range(PoolSlot.CPU_MASK_WORDS):
        here = builder.slot(one, word)
        if other is not None:
            here = builder.xor(here, builder.slot(other, word))
        difference = builder.or_(difference, here)
    return builder.icmp_signed("==", difference, 0)


def _remove_cpu(builder: IRBuilder, mask: ir.Value, cpu: ir.Value) -> None:
    """Remove a CPU from a set; CPU numbers beyond the set are ignored."""
    inside = builder.icmp_unsigned("<", cpu, 64 * PoolSlot.CPU_MASK_WORDS)
    with builder.if_then(inside):
        place = builder.slot_address(mask, builder.lshr(cpu, 6))
        bit = builder.shl(const(1), builder.and_(cpu, 63))
        word = builder.load(place, typ=I64)
        builder.store(builder.and_(word, builder.not_(bit)), place)


_X86_DEFAULT = 0x1F80
"""MXCSR: round to nearest, keep subnormal numbers, mask exceptions (Intel SDM 1, 10.2.3)."""
_X86_FLAGS = 0x3F
"""The exception flags of MXCSR, which are status and not mode."""
_AARCH64_DEFAULT = 0
"""FPCR: the same (Arm ARM, C5.2.8)."""


@contextmanager
def default_float_mode(builder: IRBuilder) -> Iterator[None]:
    """Emit code that sets the default mode before the context and restores the old one after."""
    before = set_default_float_mode(builder)
    yield
    restore_float_mode(builder, before)


def set_default_float_mode(builder: IRBuilder) -> ir.Value:
    """Emit code that sets the default mode; returns the old one, for `restore_float_mode`."""
    before = _mode(builder)
    with builder.if_then(_differs(builder, before), likely=False):
        _set_mode(builder, _default())
    return before


def restore_float_mode(builder: IRBuilder, before: ir.Value) -> None:
    with builder.if_then(_differs(builder, before), likely=False):
        _set_mode(builder, before)


def _default() -> ir.Constant:
    return ir.Constant(I32, _X86_DEFAULT) if is_x86() else ir.Constant(I64, _AARCH64_DEFAULT)


def _differs(builder: IRBuilder, mode: ir.Value) -> ir.Value:
    """Whether a mode differs from the default."""
    if is_x86():
        mode = builder.and_(mode, ir.Constant(I32, ~_X86_FLAGS & 0xFFFFFFFF))
    return builder.icmp_unsigned("!=", mode, _default())


def _mode(builder: IRBuilder) -> ir.Value:
    if not is_x86():
        return builder.external("llvm.aarch64.get.fpcr", I64)
    place = builder.reserve(I32, 4)
    builder.external("llvm.x86.sse.stmxcsr", VOID, place)
    return builder.load(place, typ=I32)


def _set_mode(builder: IRBuilder, mode: ir.Value) -> None:
    if not is_x86():
        builder.external("llvm.aarch64.set.fpcr", VOID, mode)
        return
    place = builder.reserve(I32, 4)
    builder.store(mode, place)
    builder.external("llvm.x86.sse.ldmxcsr", VOID, place)
