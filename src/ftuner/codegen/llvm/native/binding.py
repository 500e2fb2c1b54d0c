"""Emits what binding does for each new shape over all steps, buffers and slots of a program.

`i64 decide(sharing, extents)` decides how workers share the steps, and places the buffers in an
arena as `runtime.shapes.layout.first_fit` does; it returns the bytes of all. The records are
`Sharing` and `Extents`.

`void fill(records, fills, count, addresses, values)` writes `fixed + address + value * factor` to
slots. `fills` has an array of `count` words for each of the slot, `fixed`, and the numbers of the
address and of the value, and the factor.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    PTR,
    VOID,
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
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.native.binding_records import Extents, Living, Sharing
from ftuner.codegen.llvm.native.records import ALIGNMENT_BYTES, SLACK_BYTES
from ftuner.codegen.llvm.native.symbols import DECIDE_SYMBOL, FILL_SYMBOL


def emit_binding(module: ir.Module) -> None:
    """Add the functions to a module."""
    _emit_fill(module)
    kind = ir.FunctionType(I64, [I64, PTR, PTR, PTR, PTR])
    builder, given = begun(module, kind, "ftuner_place_buffers", internal=True)
    _Placing(builder, *given)
    _emit_decide(module, builder.function)


def _emit_decide(module: ir.Module, place: ir.Function) -> None:
    builder, (sharing, extents) = begun(module, ir.FunctionType(I64, [PTR, PTR]), DECIDE_SYMBOL)
    values = pointer_slot(builder, extents, Extents.VALUES)
    sizes = pointer_slot(builder, extents, Extents.SIZES)
    steps, buffers, pairs = (
        slot(builder, sharing, n) for n in (Sharing.STEPS, Sharing.BUFFERS, Sharing.PAIRS)
    )

    def element(index: ir.Value, array: int, record: ir.Value = sharing) -> ir.Value:
        """An element of an array of a record."""
        words = pointer_slot(builder, record, array)
        return builder.load(record_at(builder, words, index), typ=I64)

    def deal(target: ir.Value, idle: bool) -> None:
        done = variable(builder, const(0))
        with counted_loop(builder, 0, steps) as i:
            row = element(i, Sharing.ROWS)
            shares = pointer_slot(builder, extents, Extents.SHARES)
            share = [slot(builder, record_at(builder, shares, row, 3), n) for n in range(3)]
            count = builder.load(record_at(builder, values, element(i, Sharing.COUNTS)), typ=I64)
            most = slot(builder, extents, Extents.MOST_CHUNKS)
            counted = slot(builder, extents, Extents.WORKERS), minimum(builder, count, most)
            is_counted = builder.icmp_signed("==", row, const(0))
            for n, value in enumerate(counted):
                share[n] = builder.select(is_counted, value, share[n])
            if idle:
                rests = builder.icmp_signed("!=", element(i, Extents.IDLE, extents), const(0))
                share[1:] = [builder.select(rests, const(0), value) for value in share[1:]]
            ended = builder.load(done, typ=I64)
            stage = element(i, Sharing.STAGES)
            rows = [record_at(builder, target, builder.mul(steps, const(n))) for n in range(4)]
            # The first step of a stage, which may be this one, has its chunks before.
            builder.store(ended, record_at(builder, rows[3], i))
            share.append(builder.load(record_at(builder, rows[3], stage), typ=I64))
            for words, value in zip(rows, share, strict=True):
                builder.store(value, record_at(builder, words, i))
            builder.store(builder.add(ended, share[1]), done)

    first = pointer_slot(builder, extents, Extents.FIRST)
    deal(first, False)
    with builder.if_then(builder.icmp_signed("!=", slot(builder, extents, Extents.IDLE), const(0))):
        deal(pointer_slot(builder, extents, Extents.LATER), True)

    chunks = record_at(builder, first, steps)
    with counted_loop(builder, 0, buffers) as i:
        builder.store(element(i, Sharing.ALWAYS), record_at(builder, sizes, i))
    with counted_loop(builder, 0, pairs) as i:
        written = record_at(builder, sizes, element(i, Sharing.WRITTEN))
        some = builder.load(record_at(builder, chunks, element(i, Sharing.WRITERS)), typ=I64)
        builder.store(builder.or_(builder.load(written, typ=I64), some), written)
    with counted_loop(builder, 0, slot(builder, extents, Extents.ELSEWHERE_COUNT)) as i:
        builder.store(const(0), record_at(builder, sizes, element(i, Extents.ELSEWHERE, extents)))
    with counted_loop(builder, 0, buffers) as i:
        size = record_at(builder, sizes, i)
        elements = builder.load(record_at(builder, values, element(i, Sharing.ELEMENTS)), typ=I64)
        taken = builder.mul(elements, element(i, Sharing.ITEM_BYTES))
        taken = builder.add(taken, const(SLACK_BYTES + ALIGNMENT_BYTES - 1))
        taken = builder.and_(taken, const(-ALIGNMENT_BYTES))
        absent = builder.icmp_signed("==", builder.load(size, typ=I64), const(0))
        builder.store(builder.select(absent, const(0), taken), size)
    lifetimes = pointer_slot(builder, sharing, Sharing.LIFETIMES)
    rest = [pointer_slot(builder, extents, n) for n in (Extents.OFFSETS, Extents.LIVING)]
    builder.ret(builder.call(place, [buffers, lifetimes, sizes, *rest]))


def _emit_fill(module: ir.Module) -> None:
    kind = ir.FunctionType(VOID, [PTR, PTR, I64, PTR, PTR])
    builder, (records, fills, count, addresses, values) = begun(module, kind, FILL_SYMBOL)
    columns = [record_at(builder, fills, builder.mul(const(i), count)) for i in range(5)]
    with counted_loop(builder, 0, count) as i:
        target, fixed, address, value, factor = (
            builder.load(record_at(builder, column, i), typ=I64) for column in columns
        )
        address = builder.load(record_at(builder, addresses, address), typ=I64)
        value = builder.load(record_at(builder, values, value), typ=I64)
        found = builder.add(builder.add(fixed, address), builder.mul(value, factor))
        builder.store(found, record_at(builder, records, target))
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

    def _copy(self, source: ir.Value, target: ir.Value) -> None:
        for field in range(Living.SIZE):
            set_slot(self._builder, target, field, slot(self._builder, source, field))

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
                self._copy(record, self._record(kept))
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
            self._copy(self._record(builder.sub(target, const(1))), self._record(target))
        for field, value in enumerate((begin, end, last)):
            set_slot(builder, self._record(place), field, value)
        builder.store(builder.add(count, const(1)), self._count)
