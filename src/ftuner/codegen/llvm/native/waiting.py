"""Emits how threads wait for each other: system calls of Linux, mailboxes, waits for the slot of a
record, wake-ups, and phases that the tasks of a team share.

A wait polls with the CPU's pause hint, then sleeps in the kernel (a futex on Linux, short naps
elsewhere). It never yields: that would put the thread, still runnable, at the end of the run queue.

A phase has one part for each task and ends when all parts are done. A task does its own part first,
which finds its data in the caches, then parts that no other task has begun: it waits for work,
never for a worker that has not come. A team of one task does its parts without atomic operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I32, I64, PTR, VOID, IRBuilder, const
from ftuner.codegen.llvm.native.records import SLOT_BYTES, PoolSlot, TeamState
from ftuner.core.operating_system import FUTEX, has_system_calls, is_x86, nap, system_call_number
from ftuner.hardware.tuning import NativeTuning


def system_call(builder: IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    """Call the C library's `syscall(number, ...)`."""
    symbol = "syscall"
    function = builder.module.globals.get(symbol)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(I64, [I64], var_arg=True), symbol)
    return builder.call(function, [const(system_call_number(name)), *arguments])


def mailbox_of(builder: IRBuilder, pool: ir.Value, worker: ir.Value) -> ir.Value:
    """The address of a worker's mailbox."""
    mailboxes = builder.slot_address(pool, PoolSlot.MAILBOXES)
    return builder.record_at(mailboxes, worker, PoolSlot.MAILBOX_SIZE)


_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129


def _pause(builder: IRBuilder) -> None:
    if is_x86():
        builder.external("llvm.x86.sse2.pause", VOID)
    else:
        builder.external("llvm.aarch64.hint", VOID, ir.Constant(I32, 1))


def _futex(builder: IRBuilder, address: ir.Value, operation: int, value: ir.Value) -> None:
    system_call(builder, FUTEX, address, const(operation), value, ir.Constant(PTR, None))


def wake_threads(builder: IRBuilder, address: ir.Value, most: int) -> None:
    """Wake at most `most` threads that sleep on the slot at `address`."""
    _futex(builder, address, _FUTEX_WAKE_PRIVATE, const(most))


def _polls_per_us(tuning: NativeTuning) -> int:
    return tuning.polls_per_us_x86 if is_x86() else tuning.polls_per_us_other


def polls_for_job(tuning: NativeTuning) -> ir.Constant:
    """Polls of a worker without a job, before it sleeps."""
    return const(tuning.spin_for_job_us * _polls_per_us(tuning))


def polls_for_others(tuning: NativeTuning) -> ir.Constant:
    """Polls of a thread that waits for others in a job, before it sleeps."""
    return const(tuning.spin_for_others_us * _polls_per_us(tuning))


class Watched(NamedTuple):
    """The addresses of a slot that threads wait for, and of the count of those that sleep."""

    place: ir.Value
    sleepers: ir.Value

    @classmethod
    def of(cls, builder: IRBuilder, record: ir.Value, slot: int, sleepers: int) -> Watched:
        """Two slots of a record."""
        return cls(builder.slot_address(record, slot), builder.slot_address(record, sleepers))


def wait_until(
    builder: IRBuilder, tuning: NativeTuning, slot: Watched, relation: str, value: ir.Value,
    spins: ir.Value, mask: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    """Wait until the slot, masked by `mask`, is in `relation` to `value`.

    Polls `spins` times, then sleeps until `wake`, which must be called after each change of the
    slot. Returns the slot's value.
    """
    entry = builder.block
    poll, again, pause, sleep, done = (
        builder.append_basic_block(f"wait.{x}") for x in ("poll", "again", "pause", "sleep", "done")
    )
    builder.branch(poll)
    builder.position_at_end(poll)
    count = builder.phi(I64)
    count.add_incoming(const(0), entry)
    seen = builder.load_atomic(slot.place, "acquire", SLOT_BYTES, typ=I64)
    looked_at = seen if mask is None else builder.and_(seen, mask)
    builder.cbranch(builder.icmp_signed(relation, looked_at, value), done, again)
    builder.position_at_end(again)
    following = builder.add(count, 1)
    builder.cbranch(builder.icmp_signed("<", count, spins), pause, sleep)
    builder.position_at_end(pause)
    _pause(builder)
    count.add_incoming(following, builder.block)
    builder.branch(poll)
    builder.position_at_end(sleep)
    if has_system_calls():
        # Count first, then the kernel looks at the slot, both in one total order: either the
        # waker sees the count or the kernel sees the new value and returns at once.
        builder.atomic_rmw("add", slot.sleepers, const(1), "seq_cst")
        _futex(builder, slot.place, _FUTEX_WAIT_PRIVATE, seen)
        builder.atomic_rmw("sub", slot.sleepers, const(1), "seq_cst")
    else:
        name, duration = nap(tuning.nap_us)
        builder.external(name, VOID, ir.Constant(I32, duration))
    count.add_incoming(following, builder.block)
    builder.branch(poll)
    builder.position_at_end(done)
    return seen


def wake(builder: IRBuilder, slot: Watched) -> ir.Value:
    """Wake all threads that sleep on a slot, which was just changed with seq_cst.

    Returns whether any thread slept.
    """
    if not has_system_calls():
        return ir.Constant(I1, 0)
    asleep = builder.load_atomic(slot.sleepers, "seq_cst", SLOT_BYTES, typ=I64)
    any_asleep = builder.icmp_signed("!=", asleep, 0)
    with builder.if_then(any_asleep, likely=False):
        wake_threads(builder, slot.place, 0x7FFFFFFF)
    return any_asleep


class Team:
    """The phases of one task, in order. Every task of the team emits the same."""

    def __init__(
        self, builder: IRBuilder, state: ir.Value, size: ir.Value, rank: ir.Value,
        tuning: NativeTuning,
    ) -> None:  # fmt: skip
        """`state`: the address of a `TeamState`, all zeros when the first task begins. `rank`: the
        number of the task, which numbers its own part."""
        self._builder, self._state, self._tuning = builder, state, tuning
        self.size, self._rank = size, rank
        self._several = builder.icmp_signed(">", size, 1)
        self._number = builder.variable(0)
        self._done = Watched.of(builder, state, TeamState.DONE, TeamState.SLEEPERS)

    @contextmanager
    def phase(self) -> Iterator[ir.Value]:
        """Emit the body of a phase; yields the number of the part that is to be done."""
        builder, size = self._builder, self.size
        number = builder.load(self._number, typ=I64)
        following = builder.add(number, 1)
        mine, done = builder.reserve(I1), self._done
        with builder.counted_loop(0, size) as distance:
            part = builder.add(self._rank, distance)
            around = builder.icmp_signed(">=", part, size)
            part = builder.select(around, builder.sub(part, size), part)
            builder.store(builder.not_(self._several), mine)
            with builder.if_then(self._several):
                self._claim(part, number, following, mine)
            with builder.if_then(builder.load(mine, typ=I1)):
                yield part
                with builder.if_then(self._several):
                    builder.atomic_rmw("add", done.place, const(1), "seq_cst")
                    wake(builder, done)
        with builder.if_then(self._several):
            parts, spins = builder.mul(following, size), polls_for_others(self._tuning)
            wait_until(builder, self._tuning, done, ">=", parts, spins)
        builder.store(following, self._number)

    def _claim(self, part: ir.Value, number: ir.Value, following: ir.Value, mine: ir.Value) -> None:
        """Take a part of a phase, unless it is taken."""
        builder = self._builder
        place = self._claims(part)
        seen = builder.load_atomic(place, "monotonic", SLOT_BYTES, typ=I64)
        with builder.if_then(builder.icmp_signed("==", seen, number)):
            swapped = builder.cmpxchg(place, number, following, "acq_rel", "monotonic")
            builder.store(builder.extract_value(swapped, 1), mine)

    def _claims(self, part: ir.Value) -> ir.Value:
        first = self._builder.slot_address(self._state, TeamState.CLAIMS)
        return self._builder.record_at(first, part, TeamState.CLAIM_SLOTS)

    def leave(self) -> None:
        """Emit the end of a task: the last one leaves zeros for the next run."""
        builder, state = self._builder, self._state
        with builder.if_then(self._several):
            place = builder.slot_address(state, TeamState.LEFT)
            left = builder.atomic_rmw("add", place, const(1), "acq_rel")
            last = builder.icmp_signed("==", builder.add(left, 1), self.size)
            with builder.if_then(last):
                for slot in (TeamState.DONE, TeamState.LEFT):
                    builder.store(0, builder.slot_address(state, slot))
                with builder.counted_loop(0, self.size) as part:
                    builder.store(0, self._claims(part))
