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

from functools import partial

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I1,
    I32,
    I64,
    PTR,
    VOID,
    at,
    begun,
    const,
    maximum,
    minimum,
    pointer_slot,
    record_at,
    set_slot,
    slot,
    variable,
)
from ftuner.codegen.llvm.ir.loops import counted_loop, while_holds
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


def _copy(b: ir.IRBuilder, source: ir.Value, target: ir.Value, count: ir.Value) -> ir.Value:
    """Copy words; returns the address after the last one."""
    name = "ftuner_copy_words"
    function = b.module.globals.get(name)
    if function is None:
        own, given = begun(b.module, ir.FunctionType(VOID, [PTR, PTR, I64]), name, internal=True)
        function = own.function
        function.attributes.add("noinline")
        with counted_loop(own, 0, given[2]) as i:
            word = own.load(record_at(own, given[0], i), typ=I64)
            own.store(word, record_at(own, given[1], i))
        own.ret_void()
    b.call(function, [source, target, count])
    return record_at(b, source, count)


def _emit_find(module: ir.Module, evaluate: ir.Function, look_up: ir.Function) -> None:
    kind = ir.FunctionType(I64, [PTR, PTR, PTR, I64])
    b, (deciding, words, known, done) = begun(module, kind, FIND_SYMBOL)

    def run(first: int, count: int, words: ir.Value) -> ir.Value:
        given = pointer_slot(b, deciding, first), slot(b, deciding, count)
        return b.call(evaluate, [*given, words])

    with b.if_then(b.icmp_signed("<", done, const(1))):
        failed = run(Deciding.DIMS, Deciding.DIM_COUNT, words)
        with b.if_then(b.icmp_signed("!=", failed, const(0))):
            b.ret(const(-1))
    with b.if_then(b.icmp_signed("<", done, const(2))):
        run(Deciding.ROUNDED, Deciding.ROUNDED_COUNT, words)
        coarse = slot(b, deciding, Deciding.COARSE)
        with b.if_then(b.icmp_signed("!=", coarse, const(0))):
            others = record_at(b, words, coarse)
            failed = run(Deciding.DIMS, Deciding.COARSE_COUNT, others)
            with b.if_then(b.icmp_signed("!=", failed, const(0))):
                # No extents of the graph: decide for those that are given.
                _copy(b, words, others, coarse)

    def area(number: int) -> ir.Value:
        return record_at(b, words, slot(b, deciding, number))

    summary, every, owners = (area(n) for n in (Deciding.SUMMARY, Deciding.FOUND, Deciding.OWNERS))
    for part in range(Summary.SIZE):
        set_slot(b, summary, part, const(0))
    missing = variable(b, const(0))
    with counted_loop(b, 0, slot(b, deciding, Deciding.COUNT)) as i:
        row = record_at(b, pointer_slot(b, deciding, Deciding.DECISIONS), i, Decision.SIZE)
        found = record_at(b, every, i, Found.SIZE)
        number = b.call(look_up, [deciding, words, known, row, found])
        set_slot(b, found, Found.ENTRY, number)
        with b.if_else(b.icmp_signed("==", number, const(0))) as (fails, succeeds):
            with fails:
                b.store(b.add(b.load(missing, typ=I64), const(1)), missing)
            with succeeds:
                entry = b.inttoptr(number, PTR)
                set_slot(b, entry, Entry.USES, b.add(slot(b, entry, Entry.USES), const(1)))
                b.store(slot(b, entry, Entry.OWNER), record_at(b, owners, i))
                for n in range(Summary.SIZE):
                    one, others = slot(b, entry, Entry.SUMMARY + n), slot(b, summary, n)
                    together = b.add if n == Summary.KEPT_BYTES else partial(maximum, b)
                    set_slot(b, summary, n, together(one, others))
                own = record_at(b, entry, b.add(slot(b, found, Found.LENGTH), const(Entry.KEY)))
                for first in (Decision.SHARES, Decision.VALUES, Decision.VARIANTS):
                    target = record_at(b, words, slot(b, row, first))
                    own = _copy(b, own, target, slot(b, row, first + 1))
    b.ret(b.load(missing, typ=I64))


def _emit_look_up(module: ir.Module) -> ir.Function:
    """`i64 look_up(deciding, words, known, decision, found)`: the address of an entry, or 0. Writes
    the key to its area, and its digest and length to `found`."""
    kind = ir.FunctionType(I64, [PTR] * 5)
    b, (deciding, words, known, row, found) = begun(
        module, kind, "ftuner_look_up_decision", internal=True
    )

    def word(address: ir.Value, index: ir.Value) -> ir.Value:
        return slot(b, record_at(b, address, index), 0)

    holds = variable(b, const(0))
    condition = slot(b, row, Decision.CONDITION)
    with b.if_then(b.icmp_signed(">=", condition, const(0))):
        every = record_at(b, words, slot(b, deciding, Deciding.FOUND))
        other = slot(b, record_at(b, every, condition, Found.SIZE), Found.ENTRY)
        with b.if_then(b.icmp_signed("==", other, const(0))):
            b.ret(const(0))
        b.store(slot(b, b.inttoptr(other, PTR), Entry.HOLDS), holds)
    idle = b.load(holds, typ=I64)
    key = record_at(b, words, slot(b, row, Decision.KEY))
    workers = word(words, slot(b, deciding, Deciding.WORKERS))
    set_slot(b, key, 0, slot(b, row, Decision.FORM))
    set_slot(b, key, 1, b.or_(b.shl(workers, const(1)), idle))
    nothing = b.icmp_signed("!=", idle, const(0))
    count = b.select(nothing, const(0), slot(b, row, Decision.LENGTH))
    numbers = pointer_slot(b, deciding, Deciding.NUMBERS)
    numbers = record_at(b, numbers, slot(b, row, Decision.FIRST))
    with counted_loop(b, 0, count) as i:
        set_slot(b, record_at(b, key, i), 2, word(words, word(numbers, i)))
    length = b.add(count, const(2))
    digest = variable(b, const(0))
    with counted_loop(b, 0, length) as i:
        mixed = b.xor(b.load(digest, typ=I64), word(key, i))
        mixed = b.mul(mixed, const(Known.HASH_FACTOR))
        b.store(b.xor(mixed, b.lshr(mixed, const(32))), digest)
    own = b.load(digest, typ=I64)
    set_slot(b, found, Found.DIGEST, own)
    set_slot(b, found, Found.LENGTH, length)
    last, always = slot(b, known, 0), ir.Constant(I1, 1)
    place = variable(b, own)
    with while_holds(b, lambda: always):
        here = b.and_(b.load(place, typ=I64), last)
        number = slot(b, record_at(b, known, here), 1)
        with b.if_then(b.icmp_signed("==", number, const(0))):
            b.ret(const(0))
        entry = b.inttoptr(number, PTR)
        alike = b.icmp_signed("==", slot(b, entry, Entry.DIGEST), own)
        alike = b.and_(alike, b.icmp_signed("==", slot(b, entry, Entry.LENGTH), length))
        with b.if_then(alike):
            differ = variable(b, const(0))
            with counted_loop(b, 0, length) as i:
                other = slot(b, record_at(b, entry, i), Entry.KEY)
                both = b.xor(other, word(key, i))
                b.store(b.or_(b.load(differ, typ=I64), both), differ)
            with b.if_then(b.icmp_signed("==", b.load(differ, typ=I64), const(0))):
                b.ret(number)
        b.store(b.add(here, const(1)), place)
    b.unreachable()
    return b.function


def _emit_decide(module: ir.Module, place: ir.Function) -> None:
    kind = ir.FunctionType(I64, [PTR, PTR, PTR, I64, PTR])
    builder, (sharing, words, sources, most, later) = begun(module, kind, DECIDE_SYMBOL)
    steps, buffers, pairs = (
        slot(builder, sharing, n) for n in (Sharing.STEPS, Sharing.BUFFERS, Sharing.PAIRS)
    )

    def area(number: int) -> ir.Value:
        return record_at(builder, words, slot(builder, sharing, number))

    shares, shared, sizes = (area(n) for n in (Sharing.SHARES, Sharing.SHARED, Sharing.SIZES))

    def element(index: ir.Value, array: int, record: ir.Value = sharing) -> ir.Value:
        """An element of an array of a record."""
        return slot(builder, record_at(builder, pointer_slot(builder, record, array), index), 0)

    def deal(target: ir.Value, idle: bool) -> None:
        done = variable(builder, const(0))
        with counted_loop(builder, 0, steps) as i:
            row = element(i, Sharing.ROWS)
            share = [slot(builder, record_at(builder, shares, row, 3), n) for n in range(3)]
            count = slot(builder, record_at(builder, words, element(i, Sharing.COUNTS)), 0)
            counted = slot(builder, area(Sharing.WORKERS), 0), minimum(builder, count, most)
            is_counted = builder.icmp_signed("==", row, const(0))
            for n, value in enumerate(counted):
                share[n] = builder.select(is_counted, value, share[n])
            if idle:
                rests = builder.icmp_signed("!=", element(i, Later.IDLE, later), const(0))
                share[1:] = [builder.select(rests, const(0), value) for value in share[1:]]
            ended = builder.load(done, typ=I64)
            stage = element(i, Sharing.STAGES)
            rows = [record_at(builder, target, builder.mul(steps, const(n))) for n in range(4)]
            # The first step of a stage, which may be this one, has its chunks before.
            builder.store(ended, record_at(builder, rows[3], i))
            share.append(builder.load(record_at(builder, rows[3], stage), typ=I64))
            for to, value in zip(rows, share, strict=True):
                builder.store(value, record_at(builder, to, i))
            builder.store(builder.add(ended, share[1]), done)

    has_later = builder.icmp_unsigned("!=", builder.ptrtoint(later, I64), const(0))
    deal(shared, False)
    with builder.if_then(has_later):
        deal(pointer_slot(builder, later, Later.SHARED), True)

    chunks = record_at(builder, shared, steps)
    with counted_loop(builder, 0, buffers) as i:
        builder.store(element(i, Sharing.ALWAYS), record_at(builder, sizes, i))
    with counted_loop(builder, 0, pairs) as i:
        written = record_at(builder, sizes, element(i, Sharing.WRITTEN))
        some = builder.load(record_at(builder, chunks, element(i, Sharing.WRITERS)), typ=I64)
        builder.store(builder.or_(builder.load(written, typ=I64), some), written)
    with builder.if_then(has_later), counted_loop(builder, 0, buffers) as i:
        size = record_at(builder, sizes, i)
        elsewhere = builder.icmp_signed("!=", element(i, Later.ELSEWHERE, later), const(0))
        here = builder.load(size, typ=I64)
        builder.store(builder.select(elsewhere, const(0), here), size)
    with counted_loop(builder, 0, buffers) as i:
        size = record_at(builder, sizes, i)
        elements = slot(builder, record_at(builder, words, element(i, Sharing.ELEMENTS)), 0)
        taken = builder.mul(elements, element(i, Sharing.ITEM_BYTES))
        taken = builder.add(taken, const(SLACK_BYTES + ALIGNMENT_BYTES - 1))
        taken = builder.and_(taken, const(-ALIGNMENT_BYTES))
        absent = builder.icmp_signed("==", builder.load(size, typ=I64), const(0))
        builder.store(builder.select(absent, const(0), taken), size)
    lifetimes = pointer_slot(builder, sharing, Sharing.LIFETIMES)
    offsets = record_at(builder, sources, slot(builder, sharing, Sharing.FIRST_SOURCE))
    builder.ret(builder.call(place, [buffers, lifetimes, sizes, offsets, area(Sharing.LIVING)]))


def _emit_fill(module: ir.Module) -> None:
    kind = ir.FunctionType(VOID, [PTR, I64, PTR, PTR, I64, PTR, PTR])
    builder, (sharing, base, records, fills, count, sources, words) = begun(
        module, kind, FILL_SYMBOL
    )
    image = pointer_slot(builder, sharing, Sharing.IMAGE)
    _copy(builder, image, records, slot(builder, sharing, Sharing.IMAGE_WORDS))
    first = record_at(builder, sources, slot(builder, sharing, Sharing.FIRST_SOURCE))
    with counted_loop(builder, 0, slot(builder, sharing, Sharing.BUFFERS)) as i:
        source = record_at(builder, first, i)
        builder.store(builder.add(builder.load(source, typ=I64), base), source)
    with counted_loop(builder, 0, count) as i:
        row = at(builder, fills, builder.mul(i, const(4 * _FIELD_BYTES)))
        target, source, word, factor = (
            builder.sext(builder.load(at(builder, row, n * _FIELD_BYTES), typ=I32), I64)
            for n in range(4)
        )
        added = slot(builder, record_at(builder, sources, source), 0)
        value = builder.mul(slot(builder, record_at(builder, words, word), 0), factor)
        found = builder.add(slot(builder, record_at(builder, image, target), 0), added)
        set_slot(builder, record_at(builder, records, target), 0, builder.add(found, value))
    builder.ret_void()


class _Placing:
    def __init__(
        self, builder: ir.IRBuilder, count: ir.Value, lifetimes: ir.Value, sizes: ir.Value,
        offsets: ir.Value, living: ir.Value,
    ) -> None:  # fmt: skip
        self._builder, self._living = builder, living
        self._count, self._stage, total = (variable(builder, const(0)) for _ in range(3))
        with counted_loop(builder, 0, count) as i:
            life = record_at(builder, lifetimes, i, 2)
            size = builder.load(record_at(builder, sizes, i), typ=I64)
            first = slot(builder, life, 0)
            later = builder.icmp_signed(">", first, builder.load(self._stage, typ=I64))
            with builder.if_then(later):
                builder.store(first, self._stage)
                self._forget(first)
            offset, place = self._lowest(size)
            end = builder.add(offset, size)
            self._insert(place, offset, end, slot(builder, life, 1))
            builder.store(offset, record_at(builder, offsets, i))
            builder.store(maximum(builder, end, builder.load(total, typ=I64)), total)
        builder.ret(builder.load(total, typ=I64))

    def _record(self, index: ir.Value) -> ir.Value:
        return record_at(self._builder, self._living, index, Living.SIZE)

    def _forget(self, stage: ir.Value) -> None:
        """Leave out buffers that are read no more from a stage on."""
        builder = self._builder
        count = builder.load(self._count, typ=I64)
        builder.store(const(0), self._count)
        with counted_loop(builder, 0, count) as i:
            record = self._record(i)
            lives = builder.icmp_signed(">=", slot(builder, record, Living.LAST), stage)
            with builder.if_then(lives):
                kept = builder.load(self._count, typ=I64)
                _copy(builder, record, self._record(kept), const(Living.SIZE))
                builder.store(builder.add(kept, const(1)), self._count)

    def _lowest(self, size: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The lowest offset that living buffers leave, and the number of those before it."""
        builder = self._builder
        offset, place = variable(builder, const(0)), variable(builder, const(0))
        with counted_loop(builder, 0, builder.load(self._count, typ=I64)) as i:
            record = self._record(i)
            here, before = builder.load(offset, typ=I64), builder.load(place, typ=I64)
            fits = builder.icmp_signed(
                "<=", builder.add(here, size), slot(builder, record, Living.BEGIN)
            )
            # After the first gap that fits, no more.
            goes_on = builder.icmp_signed("==", before, i)
            with builder.if_then(builder.and_(goes_on, builder.not_(fits))):
                end = slot(builder, record, Living.END)
                builder.store(maximum(builder, here, end), offset)
                builder.store(builder.add(i, const(1)), place)
        return builder.load(offset, typ=I64), builder.load(place, typ=I64)

    def _insert(self, place: ir.Value, begin: ir.Value, end: ir.Value, last: ir.Value) -> None:
        builder = self._builder
        count = builder.load(self._count, typ=I64)
        with counted_loop(builder, 0, builder.sub(count, place)) as i:
            target = builder.sub(count, i)
            before = self._record(builder.sub(target, const(1)))
            _copy(builder, before, self._record(target), const(Living.SIZE))
        for field, value in enumerate((begin, end, last)):
            set_slot(builder, self._record(place), field, value)
        builder.store(builder.add(count, const(1)), self._count)
