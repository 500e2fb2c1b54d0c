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

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, const
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
    values = builder.pointer_slot(extents, Extents.VALUES)
    sizes = builder.pointer_slot(extents, Extents.SIZES)
    steps, buffers, pairs = (
        builder.slot(sharing, n) for n in (Sharing.STEPS, Sharing.BUFFERS, Sharing.PAIRS)
    )

    def element(index: ir.Value, array: int, record: ir.Value = sharing) -> ir.Value:
        """An element of an array of a record."""
        words = builder.pointer_slot(record, array)
        return builder.slot(words, index)

    def deal(target: ir.Value, idle: bool) -> None:
        done = builder.variable(0)
        with builder.counted_loop(0, steps) as i:
            row = element(i, Sharing.ROWS)
            shares = builder.pointer_slot(extents, Extents.SHARES)
            share = [builder.slot(builder.record_at(shares, row, 3), n) for n in range(3)]
            count = builder.slot(values, element(i, Sharing.COUNTS))
            most = builder.slot(extents, Extents.MOST_CHUNKS)
            counted = builder.slot(extents, Extents.WORKERS), builder.minimum(count, most)
            is_counted = builder.icmp_signed("==", row, 0)
            for n, value in enumerate(counted):
                share[n] = builder.select(is_counted, value, share[n])
            if idle:
                rests = builder.icmp_signed("!=", element(i, Extents.IDLE, extents), 0)
                share[1:] = [builder.select(rests, 0, value) for value in share[1:]]
            ended = builder.load(done, typ=I64)
            stage = element(i, Sharing.STAGES)
            rows = [builder.slot_address(target, builder.mul(steps, n)) for n in range(4)]
            # The first step of a stage, which may be this one, has its chunks before.
            builder.set_slot(rows[3], i, ended)
            share.append(builder.slot(rows[3], stage))
            for words, value in zip(rows, share, strict=True):
                builder.set_slot(words, i, value)
            builder.store(builder.add(ended, share[1]), done)

    first = builder.pointer_slot(extents, Extents.FIRST)
    deal(first, False)
    with builder.if_then(builder.icmp_signed("!=", builder.slot(extents, Extents.IDLE), 0)):
        deal(builder.pointer_slot(extents, Extents.LATER), True)

    chunks = builder.slot_address(first, steps)
    with builder.counted_loop(0, buffers) as i:
        builder.set_slot(sizes, i, element(i, Sharing.ALWAYS))
    with builder.counted_loop(0, pairs) as i:
        written = builder.slot_address(sizes, element(i, Sharing.WRITTEN))
        some = builder.slot(chunks, element(i, Sharing.WRITERS))
        builder.store(builder.or_(builder.load(written, typ=I64), some), written)
    with builder.counted_loop(0, builder.slot(extents, Extents.ELSEWHERE_COUNT)) as i:
        builder.store(0, builder.slot_address(sizes, element(i, Extents.ELSEWHERE, extents)))
    with builder.counted_loop(0, buffers) as i:
        size = builder.slot_address(sizes, i)
        elements = builder.slot(values, element(i, Sharing.ELEMENTS))
        taken = builder.mul(elements, element(i, Sharing.ITEM_BYTES))
        taken = builder.add(taken, SLACK_BYTES + ALIGNMENT_BYTES - 1)
        taken = builder.and_(taken, -ALIGNMENT_BYTES)
        absent = builder.icmp_signed("==", builder.load(size, typ=I64), 0)
        builder.store(builder.select(absent, 0, taken), size)
    lifetimes = builder.pointer_slot(sharing, Sharing.LIFETIMES)
    rest = [builder.pointer_slot(extents, n) for n in (Extents.OFFSETS, Extents.LIVING)]
    builder.ret(builder.call(place, [buffers, lifetimes, sizes, *rest]))


def _emit_fill(module: ir.Module) -> None:
    kind = ir.FunctionType(VOID, [PTR, PTR, I64, PTR, PTR])
    builder, (records, fills, count, addresses, values) = begun(module, kind, FILL_SYMBOL)
    columns = [builder.slot_address(fills, builder.mul(const(i), count)) for i in range(5)]
    with builder.counted_loop(0, count) as i:
        target, fixed, address, value, factor = (builder.slot(column, i) for column in columns)
        address = builder.slot(addresses, address)
        value = builder.slot(values, value)
        found = builder.add(builder.add(fixed, address), builder.mul(value, factor))
        builder.set_slot(records, target, found)
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

    def _copy(self, source: ir.Value, target: ir.Value) -> None:
        for field in range(Living.SIZE):
            self._builder.set_slot(target, field, self._builder.slot(source, field))

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
                self._copy(record, self._record(kept))
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
            self._copy(self._record(builder.sub(target, 1)), self._record(target))
        for field, value in enumerate((begin, end, last)):
            builder.set_slot(self._record(place), field, value)
        builder.store(builder.add(count, 1), self._count)
