"""Emits what binding does for each new shape over all dims, steps, buffers and slots of a program.

Each works on the words of a shape: the values of all dims, then areas that `binding_records` names.

`i64 find(deciding, words, known, done)` evaluates the dims, then what stands for their ranges, and
looks up what was decided for them among `known` (`Entry`). It returns the number of decisions that
are missing, or -1 if dims cannot be evaluated. `done`: 0; 1 if `words` have the values of dims; 2
if they have all but decisions. If none is missing, what they decide is in `words`.

`i64 decide(sharing, words, sources, most_chunks, later)` decides how workers share the steps, and
places the buffers in an arena as `runtime.shapes.layout.first_fit` does; it returns the bytes of
all, and writes the offset of each to `sources`. `later` is the address of a `Later`, or 0.

`void fill(sharing, base, records, fills, count, sources, words)` adds the address `base` to the
offsets of buffers, copies the image to `records`, and adds `source + word * factor` to slots. Each
of `fills` has four integers of 32 bits: the numbers of the slot, the source and the word, and the
factor. Of several for a slot, the last one counts.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I32, I64, PTR, VOID, IRBuilder, begun, const
from ftuner.codegen.llvm.native.binding_records import (
    Deciding,
    Decision,
    Entry,
    Found,
    Known,
    Later,
    Living,
    Sharing,
    Summary,
)
from ftuner.codegen.llvm.native.evaluating import emit_evaluation
from ftuner.codegen.llvm.native.records import ALIGNMENT_BYTES, SLACK_BYTES
from ftuner.codegen.llvm.native.symbols import DECIDE_SYMBOL, FILL_SYMBOL, FIND_SYMBOL

_FIELD_BYTES = 4
"""Bytes of an integer of a fill."""


def emit_binding(module: ir.Module) -> None:
    """Add the functions to a module."""
    _emit_find(module, emit_evaluation(module), _emit_look_up(module))
    _emit_fill(module)
    kind = ir.FunctionType(I64, [I64, PTR, PTR, PTR, PTR])
    builder, given = begun(module, kind, "ftuner_place_buffers", internal=True)
    _Placing(builder, *given)
    _emit_decide(module, builder.function)


def _copy(b: IRBuilder, source: ir.Value, target: ir.Value, count: ir.Value) -> ir.Value:
    """Copy words; returns the address after the last one."""

    def copied(own: IRBuilder, source: ir.Value, target: ir.Value, count: ir.Value) -> None:
        with own.counted_loop(0, count) as i:
            word = own.slot(source, i)
            own.set_slot(target, i, word)

    b.shared("ftuner_copy_words", VOID, [source, target, count], copied, "noinline")
    return b.slot_address(source, count)


def _emit_find(module: ir.Module, evaluate: ir.Function, look_up: ir.Function) -> None:
    kind = ir.FunctionType(I64, [PTR, PTR, PTR, I64])
    b, (deciding, words, known, done) = begun(module, kind, FIND_SYMBOL)

    def run(first: int, count: int, words: ir.Value) -> ir.Value:
        given = b.pointer_slot(deciding, first), b.slot(deciding, count)
        return b.call(evaluate, [*given, words])

    with b.if_then(b.icmp_signed("<", done, 1)):
        failed = run(Deciding.DIMS, Deciding.DIM_COUNT, words)
        with b.if_then(b.icmp_signed("!=", failed, 0)):
            b.ret(const(-1))
    with b.if_then(b.icmp_signed("<", done, 2)):
        run(Deciding.ROUNDED, Deciding.ROUNDED_COUNT, words)
        coarse = b.slot(deciding, Deciding.COARSE)
        with b.if_then(b.icmp_signed("!=", coarse, 0)):
            others = b.slot_address(words, coarse)
            failed = run(Deciding.DIMS, Deciding.COARSE_COUNT, others)
            with b.if_then(b.icmp_signed("!=", failed, 0)):
                # No extents of the graph: decide for those that are given.
                _copy(b, words, others, coarse)

    def area(number: int) -> ir.Value:
        return b.slot_address(words, b.slot(deciding, number))

    summary, every, owners = (area(n) for n in (Deciding.SUMMARY, Deciding.FOUND, Deciding.OWNERS))
    for part in range(Summary.SIZE):
        b.set_slot(summary, part, 0)
    missing = b.variable(0)
    with b.counted_loop(0, b.slot(deciding, Deciding.COUNT)) as i:
        row = b.record_at(b.pointer_slot(deciding, Deciding.DECISIONS), i, Decision.SIZE)
        found = b.record_at(every, i, Found.SIZE)
        number = b.call(look_up, [deciding, words, known, row, found])
        b.set_slot(found, Found.ENTRY, number)
        with b.if_else(b.icmp_signed("==", number, 0)) as (fails, succeeds):
            with fails:
                b.store(b.add(b.load(missing, typ=I64), 1), missing)
            with succeeds:
                entry = b.inttoptr(number, PTR)
                b.set_slot(entry, Entry.USES, b.add(b.slot(entry, Entry.USES), 1))
                b.set_slot(owners, i, b.slot(entry, Entry.OWNER))
                for n in range(Summary.SIZE):
                    one, others = b.slot(entry, Entry.SUMMARY + n), b.slot(summary, n)
                    together = b.add if n == Summary.KEPT_BYTES else b.maximum
                    b.set_slot(summary, n, together(one, others))
                own = b.slot_address(entry, b.add(b.slot(found, Found.LENGTH), Entry.KEY))
                for first in (Decision.SHARES, Decision.VALUES, Decision.VARIANTS):
                    target = b.slot_address(words, b.slot(row, first))
                    own = _copy(b, own, target, b.slot(row, first + 1))
    b.ret(b.load(missing, typ=I64))


def _emit_look_up(module: ir.Module) -> ir.Function:
    """`i64 look_up(deciding, words, known, decision, found)`: the address of an entry, or 0. Writes
    the key to its area, and its digest and length to `found`."""
    kind = ir.FunctionType(I64, [PTR] * 5)
    b, (deciding, words, known, row, found) = begun(
        module, kind, "ftuner_look_up_decision", internal=True
    )

    holds = b.variable(0)
    condition = b.slot(row, Decision.CONDITION)
    with b.if_then(b.icmp_signed(">=", condition, 0)):
        every = b.slot_address(words, b.slot(deciding, Deciding.FOUND))
        other = b.slot(b.record_at(every, condition, Found.SIZE), Found.ENTRY)
        with b.if_then(b.icmp_signed("==", other, 0)):
            b.ret(const(0))
        b.store(b.slot(b.inttoptr(other, PTR), Entry.HOLDS), holds)
    idle = b.load(holds, typ=I64)
    key = b.slot_address(words, b.slot(row, Decision.KEY))
    workers = b.slot(words, b.slot(deciding, Deciding.WORKERS))
    b.set_slot(key, 0, b.slot(row, Decision.FORM))
    b.set_slot(key, 1, b.or_(b.shl(workers, 1), idle))
    nothing = b.icmp_signed("!=", idle, 0)
    count = b.select(nothing, 0, b.slot(row, Decision.LENGTH))
    numbers = b.pointer_slot(deciding, Deciding.NUMBERS)
    numbers = b.slot_address(numbers, b.slot(row, Decision.FIRST))
    with b.counted_loop(0, count) as i:
        b.set_slot(b.slot_address(key, i), 2, b.slot(words, b.slot(numbers, i)))
    length = b.add(count, 2)
    digest = b.variable(0)
    with b.counted_loop(0, length) as i:
        mixed = b.xor(b.load(digest, typ=I64), b.slot(key, i))
        mixed = b.mul(mixed, Known.HASH_FACTOR)
        b.store(b.xor(mixed, b.lshr(mixed, 32)), digest)
    own = b.load(digest, typ=I64)
    b.set_slot(found, Found.DIGEST, own)
    b.set_slot(found, Found.LENGTH, length)
    last, always = b.slot(known, 0), ir.Constant(I1, 1)
    place = b.variable(own)
    with b.while_holds(lambda: always):
        here = b.and_(b.load(place, typ=I64), last)
        number = b.slot(b.slot_address(known, here), 1)
        with b.if_then(b.icmp_signed("==", number, 0)):
            b.ret(const(0))
        entry = b.inttoptr(number, PTR)
        alike = b.icmp_signed("==", b.slot(entry, Entry.DIGEST), own)
        alike = b.and_(alike, b.icmp_signed("==", b.slot(entry, Entry.LENGTH), length))
        with b.if_then(alike):
            differ = b.variable(0)
            with b.counted_loop(0, length) as i:
                other = b.slot(b.slot_address(entry, i), Entry.KEY)
                both = b.xor(other, b.slot(key, i))
                b.store(b.or_(b.load(differ, typ=I64), both), differ)
            with b.if_then(b.icmp_signed("==", b.load(differ, typ=I64), 0)):
                b.ret(number)
        b.store(b.add(here, 1), place)
    b.unreachable()
    return b.function


def _emit_decide(module: ir.Module, place: ir.Function) -> None:
    kind = ir.FunctionType(I64, [PTR, PTR, PTR, I64, PTR])
    builder, (sharing, words, sources, most, later) = begun(module, kind, DECIDE_SYMBOL)
    steps, buffers, pairs = (
        builder.slot(sharing, n) for n in (Sharing.STEPS, Sharing.BUFFERS, Sharing.PAIRS)
    )

    def area(number: int) -> ir.Value:
        return builder.slot_address(words, builder.slot(sharing, number))

    shares, shared, sizes = (area(n) for n in (Sharing.SHARES, Sharing.SHARED, Sharing.SIZES))

    def element(index: ir.Value, array: int, record: ir.Value = sharing) -> ir.Value:
        """An element of an array of a record."""
        return builder.slot(builder.pointer_slot(record, array), index)

    def deal(target: ir.Value, idle: bool) -> None:
        done = builder.variable(0)
        with builder.counted_loop(0, steps) as i:
            row = element(i, Sharing.ROWS)
            share = [builder.slot(builder.record_at(shares, row, 3), n) for n in range(3)]
            count = builder.slot(words, element(i, Sharing.COUNTS))
            counted = builder.slot(area(Sharing.WORKERS), 0), builder.minimum(count, most)
            is_counted = builder.icmp_signed("==", row, 0)
            for n, value in enumerate(counted):
                share[n] = builder.select(is_counted, value, share[n])
            if idle:
                rests = builder.icmp_signed("!=", element(i, Later.IDLE, later), 0)
                share[1:] = [builder.select(rests, 0, value) for value in share[1:]]
            ended = builder.load(done, typ=I64)
            stage = element(i, Sharing.STAGES)
            rows = [builder.slot_address(target, builder.mul(steps, n)) for n in range(4)]
            # The first step of a stage, which may be this one, has its chunks before.
            builder.set_slot(rows[3], i, ended)
            share.append(builder.slot(rows[3], stage))
            for to, value in zip(rows, share, strict=True):
                builder.set_slot(to, i, value)
            builder.store(builder.add(ended, share[1]), done)

    has_later = builder.icmp_unsigned("!=", builder.ptrtoint(later, I64), 0)
    deal(shared, False)
    with builder.if_then(has_later):
        deal(builder.pointer_slot(later, Later.SHARED), True)

    chunks = builder.slot_address(shared, steps)
    with builder.counted_loop(0, buffers) as i:
        builder.set_slot(sizes, i, element(i, Sharing.ALWAYS))
    with builder.counted_loop(0, pairs) as i:
        written = builder.slot_address(sizes, element(i, Sharing.WRITTEN))
        some = builder.slot(chunks, element(i, Sharing.WRITERS))
        builder.store(builder.or_(builder.load(written, typ=I64), some), written)
    with builder.if_then(has_later), builder.counted_loop(0, buffers) as i:
        size = builder.slot_address(sizes, i)
        elsewhere = builder.icmp_signed("!=", element(i, Later.ELSEWHERE, later), 0)
        here = builder.load(size, typ=I64)
        builder.store(builder.select(elsewhere, 0, here), size)
    with builder.counted_loop(0, buffers) as i:
        size = builder.slot_address(sizes, i)
        elements = builder.slot(words, element(i, Sharing.ELEMENTS))
        taken = builder.mul(elements, element(i, Sharing.ITEM_BYTES))
        taken = builder.add(taken, SLACK_BYTES + ALIGNMENT_BYTES - 1)
        taken = builder.and_(taken, -ALIGNMENT_BYTES)
        absent = builder.icmp_signed("==", builder.load(size, typ=I64), 0)
        builder.store(builder.select(absent, 0, taken), size)
    lifetimes = builder.pointer_slot(sharing, Sharing.LIFETIMES)
    offsets = builder.slot_address(sources, builder.slot(sharing, Sharing.FIRST_SOURCE))
    builder.ret(builder.call(place, [buffers, lifetimes, sizes, offsets, area(Sharing.LIVING)]))


def _emit_fill(module: ir.Module) -> None:
    kind = ir.FunctionType(VOID, [PTR, I64, PTR, PTR, I64, PTR, PTR])
    builder, (sharing, base, records, fills, count, sources, words) = begun(
        module, kind, FILL_SYMBOL
    )
    image = builder.pointer_slot(sharing, Sharing.IMAGE)
    _copy(builder, image, records, builder.slot(sharing, Sharing.IMAGE_WORDS))
    first = builder.slot_address(sources, builder.slot(sharing, Sharing.FIRST_SOURCE))
    with builder.counted_loop(0, builder.slot(sharing, Sharing.BUFFERS)) as i:
        source = builder.slot_address(first, i)
        builder.store(builder.add(builder.load(source, typ=I64), base), source)
    with builder.counted_loop(0, count) as i:
        row = builder.at(fills, i, 4 * _FIELD_BYTES)
        target, source, word, factor = (
            builder.sext(builder.load(builder.at(row, n * _FIELD_BYTES), typ=I32), I64)
            for n in range(4)
        )
        added = builder.slot(sources, source)
        value = builder.mul(builder.slot(words, word), factor)
        found = builder.add(builder.slot(image, target), added)
        builder.set_slot(records, target, builder.add(found, value))
    builder.ret_void()


class _Placing:
    def __init__(
        self, builder: IRBuilder, count: ir.Value, lifetimes: ir.Value, sizes: ir.Value,
        offsets: ir.Value, living: ir.Value,
    ) -> None:  # fmt: skip
        self._builder, self._living = builder, living
        self._count, self._stage, total = (builder.variable(0) for _ in range(3))
        with builder.counted_loop(0, count) as i:
            life = builder.record_at(lifetimes, i, 2)
            size = builder.slot(sizes, i)
            first = builder.slot(life, 0)
            later = builder.icmp_signed(">", first, builder.load(self._stage, typ=I64))
            with builder.if_then(later):
                builder.store(first, self._stage)
                self._forget(first)
            offset, place = self._lowest(size)
            end = builder.add(offset, size)
            self._insert(place, offset, end, builder.slot(life, 1))
            builder.set_slot(offsets, i, offset)
            builder.store(builder.maximum(end, builder.load(total, typ=I64)), total)
        builder.ret(builder.load(total, typ=I64))

    def _record(self, index: ir.Value) -> ir.Value:
        return self._builder.record_at(self._living, index, Living.SIZE)

    def _forget(self, stage: ir.Value) -> None:
        """Leave out buffers that are read no more from a stage on."""
        builder = self._builder
        count = builder.load(self._count, typ=I64)
        builder.store(0, self._count)
        with builder.counted_loop(0, count) as i:
            record = self._record(i)
            lives = builder.icmp_signed(">=", builder.slot(record, Living.LAST), stage)
            with builder.if_then(lives):
                kept = builder.load(self._count, typ=I64)
                _copy(builder, record, self._record(kept), const(Living.SIZE))
                builder.store(builder.add(kept, 1), self._count)

    def _lowest(self, size: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The lowest offset that living buffers leave, and the number of those before it."""
        builder = self._builder
        offset, place = builder.variable(0), builder.variable(0)
        with builder.counted_loop(0, builder.load(self._count, typ=I64)) as i:
            record = self._record(i)
            here, before = builder.load(offset, typ=I64), builder.load(place, typ=I64)
            fits = builder.icmp_signed(
                "<=", builder.add(here, size), builder.slot(record, Living.BEGIN)
            )
            # After the first gap that fits, no more.
            goes_on = builder.icmp_signed("==", before, i)
            with builder.if_then(builder.and_(goes_on, builder.not_(fits))):
                end = builder.slot(record, Living.END)
                builder.store(builder.maximum(here, end), offset)
                builder.store(builder.add(i, 1), place)
        return builder.load(offset, typ=I64), builder.load(place, typ=I64)

    def _insert(self, place: ir.Value, begin: ir.Value, end: ir.Value, last: ir.Value) -> None:
        builder = self._builder
        count = builder.load(self._count, typ=I64)
        with builder.counted_loop(0, builder.sub(count, place)) as i:
            target = builder.sub(count, i)
            before = self._record(builder.sub(target, 1))
            _copy(builder, before, self._record(target), const(Living.SIZE))
        for field, value in enumerate((begin, end, last)):
            builder.set_slot(self._record(place), field, value)
        builder.store(builder.add(count, 1), self._count)
