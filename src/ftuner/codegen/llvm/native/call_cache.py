"""Emits the native call cache: functions that Python calls with the arrays of a product, or of a
program that has one output.

`PyObject *known_call(self, arguments, count)` takes the input arrays and, of a product, `out`,
which may be None. It returns the result. `self` is an array that holds a `records.Site`. If the
layouts of the arrays are not in the cache, it does nothing and returns None, or False from the
second such call on, which Python should then add. It is called with the interpreter's lock held,
and releases it while it computes.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I32, I64, PTR, VOID, IRBuilder, begun, const
from ftuner.codegen.llvm.native.binding_records import ArrayField, Known, Site
from ftuner.codegen.llvm.native.driver import ENTRY_TYPE
from ftuner.codegen.llvm.native.program import RUN_TYPE
from ftuner.codegen.llvm.native.records import SLOT_BYTES, PoolSlot
from ftuner.codegen.llvm.native.symbols import (
    GIVE_WORKSPACE_SYMBOL,
    TAKE_WORKSPACE_SYMBOL,
    known_call_symbol,
)
from ftuner.core.operating_system import CLOCK
from ftuner.hardware.tuning import NativeTuning

NULL = ir.Constant(PTR, None)
ANY_PROBE_SHIFT = 64 - (Site.PROBES - 1).bit_length()
"""The high bits of a 64-bit product, as many as a probe number has."""


def emit_known_call(
    module: ir.Module, inputs: int, header_bytes: int, tuning: NativeTuning
) -> ir.Function:
    """Add the function for `inputs` arrays to read: A, and B if no record brings one.

    `header_bytes`: of a Python object, before its own fields. After a call in which a worker was
    preempted, `tuning.calls_alone` short calls run on one thread: two CPUs of a virtual machine may
    share one for tens of milliseconds and hand it over by sleeping, so that calls of 50 us take
    1.1 ms, and 0.1 ms on one thread.
    """
    call = _KnownCall(module, known_call_symbol(inputs), inputs + 1, header_bytes)
    builder = call.builder
    call.go_on_if(builder.icmp_signed("==", call.count, inputs + 1))
    objects = builder.pointer_slots(call.arguments, *range(inputs + 1))
    words = [builder.at(value, header_bytes) for value in objects]
    is_made = builder.icmp_unsigned("==", objects[-1], call.none)
    call.begin_signature()
    for word in words[:-1]:
        call.sign(word, ArrayField.ALIGNED)
    with builder.if_else(is_made) as (made, given):
        with made:
            call.append(const(0))
        with given:
            call.sign(words[-1], ArrayField.ALIGNED | ArrayField.WRITEABLE)
    record = call.find_record()
    with builder.if_then(builder.not_(is_made)):
        for i in range(inputs):
            apart = builder.not_(_overlap(builder, record, i, words[i], inputs, words[-1]))
            call.go_on_if(apart)

    def multiply(pool: ir.Value, workspace: ir.Value, result: ir.Value) -> None:
        own_b = words[1] if len(words) > 2 else NULL
        known_b = builder.pointer_slot(record, Known.B)
        b = builder.select(builder.icmp_unsigned("!=", known_b, NULL), known_b, own_b)
        c = builder.at(result, header_bytes)
        operands, entry = builder.pointer_slots(record, Known.OPERANDS, Known.ENTRY)
        plan = builder.pointer_slot(record, Known.PLAN)
        arguments = [plan, pool, workspace, words[0], b, c, operands]
        builder.call_address(ENTRY_TYPE, entry, arguments)

    call.run(multiply, objects[-1], is_made, tuning, exclusive=False)
    return builder.function


def emit_known_program(module: ir.Module, header_bytes: int, tuning: NativeTuning) -> None:
    """Add the function for the input arrays of a program, which makes its output."""
    call = _KnownCall(module, known_call_symbol(None), Known.MAX_INPUTS, header_bytes)
    builder, count = call.builder, call.count
    call.go_on_if(builder.icmp_unsigned("<=", count, Known.MAX_INPUTS))
    arrays = builder.reserve(ir.ArrayType(PTR, Known.MAX_INPUTS + 1))
    call.begin_signature()
    with builder.counted_loop(0, count) as number:
        value = builder.pointer_slot(call.arguments, number)
        builder.set_slot(arrays, number, value)
        call.sign(builder.at(value, header_bytes), ArrayField.ALIGNED)
    record = call.find_record()

    def execute(pool: ir.Value, workspace: ir.Value, result: ir.Value) -> None:
        builder.set_slot(arrays, count, result)
        entry, plan = builder.pointer_slots(record, Known.ENTRY, Known.PLAN)
        alone = builder.zext(builder.icmp_unsigned("==", pool, NULL), I64)
        builder.call_address(RUN_TYPE, entry, [plan, arrays, alone])

    call.run(execute, call.none, ir.Constant(I1, 1), tuning, exclusive=True)


def _field(builder: IRBuilder, word: ir.Value, field: int, kind: ir.Type) -> ir.Value:
    """A field of the array whose data pointer is at `word`."""
    return builder.load(builder.at(word, field), typ=kind)


def _overlap(
    builder: IRBuilder, record: ir.Value, i: int, word: ir.Value, out: int, out_word: ir.Value
) -> ir.Value:
    """Whether the memory of the `i`-th array and of `out` may overlap."""

    def span(number: int, word: ir.Value) -> tuple[ir.Value, ir.Value]:
        first = _field(builder, word, ArrayField.DATA, I64)
        low, high = (builder.slot(record, Known.SPANS + 2 * number + side) for side in (0, 1))
        return builder.add(first, low), builder.add(first, high)

    low, high = span(i, word)
    out_low, out_high = span(out, out_word)
    return builder.and_(
        builder.icmp_unsigned("<", out_low, high), builder.icmp_unsigned("<", low, out_high)
    )


class _KnownCall:
    """A function that Python calls."""

    record: ir.Value
    """The record of the call, once it is found."""

    def __init__(self, module: ir.Module, symbol: str, arrays: int, header_bytes: int) -> None:
        """`arrays`: most of them that it is called with."""
        kind = ir.FunctionType(PTR, [PTR, PTR, I64])
        self.builder, (itself, self.arguments, self.count) = begun(module, kind, symbol)
        builder, self._arrays = self.builder, arrays
        # Where calls end that no record is of, and those that a record should be of.
        self._unknown, self._seen = map(builder.append_basic_block, ("unknown", "seen"))
        self._site = builder.load(builder.at(itself, header_bytes), typ=PTR)
        self.none = builder.pointer_slot(self._site, Site.NONE)

    def go_on_if(self, condition: ir.Value, otherwise: ir.Block | None = None) -> None:
        """Where the condition does not hold, the call is unknown, if nothing else is given."""
        following = self.builder.append_basic_block("following")
        self.builder.cbranch(condition, following, otherwise or self._unknown)
        self.builder.position_at_end(following)

    def begin_signature(self) -> None:
        """Have memory for the signature of the arrays; see `Known.LENGTH`."""
        builder, most = self.builder, self._arrays * (2 + 2 * Known.MAX_AXES)
        self._signature = builder.reserve(ir.ArrayType(I64, most))
        self._length = builder.variable(0)
        self._array_type = builder.pointer_slot(self._site, Site.ARRAY_TYPE)

    def append(self, value: ir.Value) -> None:
        builder = self.builder
        end = builder.load(self._length, typ=I64)
        builder.set_slot(self._signature, end, value)
        builder.store(builder.add(end, 1), self._length)

    def sign(self, word: ir.Value, flags: int) -> None:
        """Append an array to the signature."""
        builder = self.builder
        type_ = _field(builder, word, ArrayField.TYPE, PTR)
        self.go_on_if(builder.icmp_unsigned("==", type_, self._array_type))
        axes = builder.zext(_field(builder, word, ArrayField.AXES, I32), I64)
        self.go_on_if(builder.icmp_unsigned("<=", axes, Known.MAX_AXES))
        held = builder.zext(_field(builder, word, ArrayField.FLAGS, I32), I64)
        held = builder.shl(builder.and_(held, flags), 32)
        self.append(_field(builder, word, ArrayField.DTYPE, I64))
        self.append(builder.or_(axes, held))
        for field in (ArrayField.EXTENTS, ArrayField.STRIDES):
            numbers = _field(builder, word, field, PTR)
            with builder.counted_loop(0, axes) as axis:
                self.append(builder.slot(numbers, axis))

    def find_record(self) -> ir.Value:
        """The record of the signature, made for as many threads as there are now."""
        builder = self.builder
        self.record = record = self._find(builder.load(self._length, typ=I64))
        threads = builder.load(builder.pointer_slot(self._site, Site.THREADS), typ=I64)
        as_before = builder.icmp_signed("==", threads, builder.slot(record, Known.THREADS))
        self.go_on_if(as_before, self._seen)
        return record

    def _find(self, length: ir.Value) -> ir.Value:
        """The record of the signature. If there is none, branches to `seen` if such a call was made
        before, else to `unknown`."""
        builder, site, signature = self.builder, self._site, self._signature

        def word(of: ir.Value, i: ir.Value) -> ir.Value:
            return builder.slot(of, i)

        def hashed(values: list[ir.Value]) -> list[ir.Value]:
            i, before = values
            mixed = builder.mul(builder.xor(before, word(signature, i)), Known.HASH_FACTOR)
            return [builder.add(i, 1), builder.xor(mixed, builder.lshr(mixed, 32))]

        _, hash_ = builder.carried_loop(length, [const(0), const(0)], hashed)
        table = builder.slot_address(site, Site.TABLE)
        found, missed, head = map(builder.append_basic_block, ("found", "missed", "probe"))
        before = builder.block
        builder.branch(head)
        builder.position_at_end(head)
        probe = builder.phi(I64)
        probe.add_incoming(const(0), before)
        self.go_on_if(builder.icmp_signed("<", probe, Site.PROBES), missed)
        place = builder.and_(builder.add(hash_, probe), Site.TABLE_SLOTS - 1)
        record = builder.pointer_slot(table, place)
        self.go_on_if(builder.icmp_unsigned("!=", record, NULL), missed)
        same_hash = builder.icmp_signed("==", builder.slot(record, Known.HASH), hash_)
        same_length = builder.icmp_signed("==", builder.slot(record, Known.LENGTH), length)
        compare, following = map(builder.append_basic_block, ("compare", "next"))
        builder.cbranch(builder.and_(same_hash, same_length), compare, following)
        builder.position_at_end(compare)
        expected = builder.slot_address(record, Known.SIGNATURE)

        def compared(values: list[ir.Value]) -> list[ir.Value]:
            i, difference = values
            here = builder.xor(word(signature, i), word(expected, i))
            return [builder.add(i, 1), builder.or_(difference, here)]

        _, difference = builder.carried_loop(length, [const(0), const(0)], compared)
        builder.cbranch(builder.icmp_signed("==", difference, 0), found, following)
        builder.position_at_end(following)
        probe.add_incoming(builder.add(probe, 1), following)
        builder.branch(head)

        builder.position_at_end(missed)
        misses = builder.add(builder.slot(site, Site.MISSES), 1)
        builder.set_slot(site, Site.MISSES, misses)
        hashes = builder.slot_address(site, Site.SEEN)

        def place_of(i: ir.Value) -> ir.Value:
            return builder.and_(builder.add(hash_, i), Site.TABLE_SLOTS - 1)

        def looked(values: list[ir.Value]) -> list[ir.Value]:
            i, times, free = values
            here = word(hashes, place_of(i))
            again = builder.icmp_signed("==", here, hash_)
            return [
                builder.add(i, 1),
                builder.add(times, builder.zext(again, I64)),
                builder.select(builder.icmp_signed("==", here, 0), i, free),
            ]

        # If no slot is free, a pseudo-random one is replaced: with a fixed choice, alternating
        # calls could replace each other forever.
        any_ = builder.lshr(builder.mul(misses, Known.HASH_FACTOR), ANY_PROBE_SHIFT)
        first = [const(0), const(0), any_]
        _, times, chosen = builder.carried_loop(const(Site.PROBES), first, looked)
        first_time = builder.icmp_signed("==", times, 0)
        with builder.if_then(first_time):
            builder.set_slot(hashes, place_of(chosen), hash_)
        builder.cbranch(first_time, self._unknown, self._seen)
        builder.position_at_end(found)
        return record

    def _hold(self, value: ir.Value) -> None:
        self.builder.external("Py_IncRef", VOID, value)

    def _let_go(self, *values: ir.Value) -> None:
        """Release references; does nothing for null."""
        for value in values:
            self.builder.external("Py_DecRef", VOID, value)

    def _call_object(self, function: ir.Value, arguments: ir.Value) -> ir.Value:
        return self.builder.external("PyObject_CallObject", PTR, function, arguments)

    def run(
        self, compute: Callable[[ir.Value, ir.Value, ir.Value], None], out: ir.Value,
        is_made: ir.Value, tuning: NativeTuning, exclusive: bool,
    ) -> None:  # fmt: skip
        """Run the record's plan and return the result: None from calls that are unknown, False from
        those that were seen. `compute`: calls its entry with the pool, which may be null, a
        workspace and the result. `exclusive`: whether one call at a time runs."""
        builder, site, record = self.builder, self._site, self.record
        # First of all: Python code that runs from here on may remove the record.
        owner = builder.pointer_slot(record, Known.OWNER)
        self._hold(owner)
        builder.set_slot(record, Known.LAST_USE, builder.slot(site, Site.MISSES))
        place = builder.reserve(PTR, SLOT_BYTES)
        with builder.if_else(is_made) as (made, given):
            with made:
                empty, shape = builder.pointer_slots(record, Known.EMPTY, Known.EMPTY_ARGUMENTS)
                builder.store(self._call_object(empty, shape), place)
            with given:
                self._hold(out)
                builder.store(out, place)
        result = builder.load(place, typ=PTR)
        failed = builder.append_basic_block("failed")
        self.go_on_if(builder.icmp_unsigned("!=", result, NULL), failed)

        # Take the pool if the plan has several workers; without it the caller does the plan alone.
        pool = builder.variable(NULL)
        workers = builder.slot(record, Known.WORKERS)
        without_workers = builder.append_basic_block("without_workers")
        with builder.if_then(builder.icmp_signed(">", workers, 1)):
            self._take_pool(workers, pool, failed, without_workers)
        taken = builder.load(pool, typ=PTR)
        has_pool = builder.icmp_unsigned("!=", taken, NULL)
        workspace = self._take_workspace()
        needed = builder.icmp_signed("!=", builder.slot(record, Known.WORKSPACE_BYTES), 0)
        lacking = builder.and_(builder.icmp_signed("==", workspace, 0), needed)
        busy = builder.icmp_signed("!=", builder.slot(site, Site.BUSY), 0)
        without_workspace = builder.append_basic_block("without_workspace")
        self.go_on_if(builder.not_(builder.or_(lacking, busy)), without_workspace)

        patience = builder.slot(record, Known.PATIENCE_NS)
        short = builder.icmp_signed("!=", patience, 0)
        began = _nanoseconds(builder, builder.and_(has_pool, short))
        builder.set_slot(site, Site.BUSY, int(exclusive))
        state = self.builder.external("PyEval_SaveThread", PTR)
        compute(taken, builder.inttoptr(workspace, PTR), result)
        took = builder.sub(_nanoseconds(builder, builder.and_(has_pool, short)), began)
        self.builder.external("PyEval_RestoreThread", VOID, state)
        builder.set_slot(site, Site.BUSY, 0)
        with builder.if_then(builder.icmp_signed("!=", workspace, 0)):
            table = builder.pointer_slot(site, Site.WORKSPACES)
            builder.call(builder.module.globals[GIVE_WORKSPACE_SYMBOL], [table, workspace])
        with builder.if_then(has_pool):
            held_up = builder.icmp_signed(">", took, patience)
            with builder.if_then(builder.and_(held_up, short), likely=False):
                builder.set_slot(taken, PoolSlot.ALONE_FOR, tuning.calls_alone)
            self._release()
        self._let_go(owner)
        builder.ret(result)

        builder.position_at_end(without_workspace)
        with builder.if_then(has_pool):
            self._release()
        self._let_go(result, owner)
        builder.branch(self._unknown)
        builder.position_at_end(without_workers)
        self._let_go(result, owner)
        builder.branch(self._seen)
        builder.position_at_end(failed)
        self._let_go(result, owner)
        builder.ret(NULL)
        for block, number in ((self._unknown, Site.NONE), (self._seen, Site.FALSE)):
            builder.position_at_end(block)
            answer = builder.pointer_slot(site, number)
            self._hold(answer)
            builder.ret(answer)

    def _take_workspace(self) -> ir.Value:
        """The address of a workspace; 0 if the plan needs none or none is free."""
        builder, site = self.builder, self._site
        workspace = builder.variable(0)
        size = builder.slot(self.record, Known.WORKSPACE_BYTES)
        with builder.if_then(builder.icmp_signed("!=", size, 0)):
            table = builder.pointer_slot(site, Site.WORKSPACES)
            take = builder.module.globals[TAKE_WORKSPACE_SYMBOL]
            most = builder.slot(site, Site.MOST_WORKSPACE_BYTES)
            builder.store(builder.call(take, [table, size, most]), workspace)
        return builder.load(workspace, typ=I64)

    def _take_pool(
        self, workers: ir.Value, pool: ir.Value, failed: ir.Block, without_workers: ir.Block
    ) -> None:
        """Take the pool if it is free and short calls do not avoid its workers. If it has too few
        workers, branches to `without_workers`, so that Python starts them."""
        builder, record = self.builder, self.record
        acquire, arguments = builder.pointer_slots(record, Known.ACQUIRE, Known.ACQUIRE_ARGUMENTS)
        answer = self._call_object(acquire, arguments)
        self.go_on_if(builder.icmp_unsigned("!=", answer, NULL), failed)
        self._let_go(answer)
        is_ours = builder.icmp_unsigned("==", answer, builder.pointer_slot(self._site, Site.TRUE))
        with builder.if_then(is_ours):
            memory = builder.pointer_slot(record, Known.POOL)
            left = builder.slot(memory, PoolSlot.ALONE_FOR)
            short = builder.icmp_signed("!=", builder.slot(record, Known.PATIENCE_NS), 0)
            avoided = builder.and_(builder.icmp_signed(">", left, 0), short)
            with builder.if_else(avoided, likely=False) as (avoid, ask):
                with avoid:
                    builder.set_slot(memory, PoolSlot.ALONE_FOR, builder.sub(left, 1))
                    self._release()
                with ask:
                    started = builder.slot(memory, PoolSlot.STARTED)
                    enough = builder.icmp_signed(">=", builder.add(started, 1), workers)
                    too_few = builder.append_basic_block("too_few")
                    self.go_on_if(enough, too_few)
                    builder.store(memory, pool)
                    following = builder.block
                    builder.position_at_end(too_few)
                    self._release()
                    builder.branch(without_workers)
                    builder.position_at_end(following)

    def _release(self) -> None:
        """Release the pool."""
        release = self.builder.pointer_slot(self.record, Known.RELEASE)
        self._let_go(self._call_object(release, NULL))


def _nanoseconds(builder: IRBuilder, wanted: ir.Value) -> ir.Value:
    """The clock's time in ns if `wanted`, else 0; always 0 where the system has no clock."""
    time = builder.reserve(ir.ArrayType(I64, 2))
    for i in range(2):
        builder.set_slot(time, i, 0)
    if CLOCK is not None:
        with builder.if_then(wanted):
            builder.external("clock_gettime", I32, ir.Constant(I32, CLOCK), time)
    seconds, rest = builder.slots(time, 0, 1)
    return builder.add(builder.mul(seconds, 10**9), rest)
