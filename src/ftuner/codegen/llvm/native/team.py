"""Emits phases that the tasks of a team share within one kernel.

A phase has one part for each task and ends when all parts are done. A task does its own part first,
which finds its data in the caches, then parts that no other task has begun: it waits for work,
never for a worker that has not come. A team of one task does its parts without atomic operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I64, at, const, reserve, slot_address
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.native.records import SLOT_BYTES, TeamState
from ftuner.codegen.llvm.native.waiting import polls_for_others, wait_until, wake
from ftuner.hardware.tuning import NativeTuning


class Team:
    """The phases of one task, in order. Every task of the team emits the same."""

    def __init__(
        self, builder: ir.IRBuilder, state: ir.Value, size: ir.Value, rank: ir.Value,
        tuning: NativeTuning,
    ) -> None:  # fmt: skip
        """`state`: the address of a `TeamState`, all zeros when the first task begins. `rank`: the
        number of the task, which numbers its own part."""
        self._builder, self._state, self._tuning = builder, state, tuning
        self.size, self._rank = size, rank
        self._several = builder.icmp_signed(">", size, const(1))
        self._number = reserve(builder, I64)
        builder.store(const(0), self._number)

    @contextmanager
    def phase(self) -> Iterator[ir.Value]:
        """Emit the body of a phase; yields the number of the part that is to be done."""
        builder, size = self._builder, self.size
        number = builder.load(self._number, typ=I64)
        following = builder.add(number, const(1))
        mine = reserve(builder, I1)
        with counted_loop(builder, 0, size) as distance:
            part = builder.add(self._rank, distance)
            around = builder.icmp_signed(">=", part, size)
            part = builder.select(around, builder.sub(part, size), part)
            builder.store(builder.not_(self._several), mine)
            with builder.if_then(self._several):
                self._claim(part, number, following, mine)
            with builder.if_then(builder.load(mine, typ=I1)):
                yield part
                with builder.if_then(self._several):
                    place = slot_address(builder, self._state, TeamState.DONE)
                    builder.atomic_rmw("add", place, const(1), "seq_cst")
                    wake(builder, place, slot_address(builder, self._state, TeamState.SLEEPERS))
        with builder.if_then(self._several):
            wait_until(
                builder, self._tuning, slot_address(builder, self._state, TeamState.DONE), ">=",
                builder.mul(following, size), polls_for_others(self._tuning),
                slot_address(builder, self._state, TeamState.SLEEPERS),
            )  # fmt: skip
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
        builder = self._builder
        first = slot_address(builder, self._state, TeamState.CLAIMS)
        return at(builder, first, builder.mul(part, const(TeamState.CLAIM_SLOTS * SLOT_BYTES)))

    def leave(self) -> None:
        """Emit the end of a task: the last one leaves zeros for the next run."""
        builder, state = self._builder, self._state
        with builder.if_then(self._several):
            place = slot_address(builder, state, TeamState.LEFT)
            left = builder.atomic_rmw("add", place, const(1), "acq_rel")
            last = builder.icmp_signed("==", builder.add(left, const(1)), self.size)
            with builder.if_then(last):
                for slot in (TeamState.DONE, TeamState.LEFT):
                    builder.store(const(0), slot_address(builder, state, slot))
                with counted_loop(builder, 0, self.size) as part:
                    builder.store(const(0), self._claims(part))
