"""Emits waits for the slot of a record that another thread changes, and wake-ups.

A wait polls with the CPU's pause hint, then sleeps in the kernel (a futex on Linux, short naps
elsewhere). It never yields: that would put the thread, still runnable, at the end of the run queue.
"""

from __future__ import annotations

import platform

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I32, I64, PTR, VOID, const, intrinsic
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.codegen.llvm.native.system_calls import FUTEX, has_system_calls, system_call
from ftuner.hardware.tuning import NativeTuning

_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _pause(builder: ir.IRBuilder) -> None:
    if _is_x86():
        builder.call(intrinsic(builder.module, "llvm.x86.sse2.pause", VOID, []), [])
    else:
        hint = intrinsic(builder.module, "llvm.aarch64.hint", VOID, [I32])
        builder.call(hint, [ir.Constant(I32, 1)])


def _futex(builder: ir.IRBuilder, address: ir.Value, operation: int, value: ir.Value) -> None:
    system_call(builder, FUTEX, address, const(operation), value, ir.Constant(PTR, None))


def wake_threads(builder: ir.IRBuilder, address: ir.Value, most: int) -> None:
    """Wake at most `most` threads that sleep on the slot at `address`."""
    _futex(builder, address, _FUTEX_WAKE_PRIVATE, const(most))


def _polls_per_us(tuning: NativeTuning) -> int:
    return tuning.polls_per_us_x86 if _is_x86() else tuning.polls_per_us_other


def polls_for_job(tuning: NativeTuning) -> ir.Constant:
    """Polls of a worker without a job, before it sleeps."""
    return const(tuning.spin_for_job_us * _polls_per_us(tuning))


def polls_for_others(tuning: NativeTuning) -> ir.Constant:
    """Polls of a thread that waits for others in a job, before it sleeps."""
    return const(tuning.spin_for_others_us * _polls_per_us(tuning))


def wait_until(
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

    Polls `spins` times, then sleeps until `wake`, which must be called after each change of the
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
    if has_system_calls():
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


def wake(builder: ir.IRBuilder, address: ir.Value, sleepers: ir.Value) -> ir.Value:
    """Wake all threads that sleep on the slot at `address`, which was just changed with seq_cst.

    Returns whether any thread slept.
    """
    if not has_system_calls():
        return ir.Constant(I1, 0)
    asleep = builder.load_atomic(sleepers, "seq_cst", SLOT_BYTES, typ=I64)
    any_asleep = builder.icmp_signed("!=", asleep, const(0))
    with builder.if_then(any_asleep, likely=False):
        wake_threads(builder, address, 0x7FFFFFFF)
    return any_asleep
