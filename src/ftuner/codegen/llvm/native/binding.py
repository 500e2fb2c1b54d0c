"""Emits what binding does for each new shape over all buffers and slots of a program.

`i64 place(count, lifetimes, sizes, offsets, living)` places buffers in an arena, as
`runtime.shapes.arena.first_fit` does, and returns the bytes of all. `lifetimes` has the first and
the last stage of each buffer, in the order of the first ones; `living` is memory for `Living`
records of all.

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
    at,
    const,
    maximum,
    reserve,
    set_slot,
    slot,
)
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Living
from ftuner.codegen.llvm.native.symbols import FILL_SYMBOL, PLACE_SYMBOL


def emit_binding(module: ir.Module) -> None:
    """Add both functions to a module."""
    _emit_fill(module)
    _Placing(ir.Function(module, ir.FunctionType(I64, [I64, PTR, PTR, PTR, PTR]), PLACE_SYMBOL))


def _word(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, size: int = 1) -> ir.Value:
    """The address of a record of `size` words."""
    return at(builder, words, builder.mul(index, const(size * SLOT_BYTES)))


def _emit_fill(module: ir.Module) -> None:
    kind = ir.FunctionType(VOID, [PTR, PTR, I64, PTR, PTR])
    function = ir.Function(module, kind, FILL_SYMBOL)
    records, fills, count, addresses, values = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    columns = [_word(builder, fills, builder.mul(const(i), count)) for i in range(5)]
    with counted_loop(builder, 0, count) as i:
        target, fixed, address, value, factor = (
            builder.load(_word(builder, column, i), typ=I64) for column in columns
        )
        address = builder.load(_word(builder, addresses, address), typ=I64)
        value = builder.load(_word(builder, values, value), typ=I64)
        found = builder.add(builder.add(fixed, address), builder.mul(value, factor))
        builder.store(found, _word(builder, records, target))
    builder.ret_void()


class _Placing:
    def __init__(self, function: ir.Function) -> None:
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        count, lifetimes, sizes, offsets, self._living = function.args
        self._count, self._stage, total = (reserve(builder, I64, SLOT_BYTES) for _ in range(3))
        for variable in (self._count, self._stage, total):
            builder.store(const(0), variable)
        with counted_loop(builder, 0, count) as i:
            life, size = (
                _word(builder, lifetimes, i, 2),
                builder.load(_word(builder, sizes, i), typ=I64),
            )
            first = slot(builder, life, 0)
            later = builder.icmp_signed(">", first, builder.load(self._stage, typ=I64))
            with builder.if_then(later):
                builder.store(first, self._stage)
                self._forget(first)
            offset, place = self._lowest(size)
            end = builder.add(offset, size)
            self._insert(place, offset, end, slot(builder, life, 1))
            builder.store(offset, _word(builder, offsets, i))
            builder.store(maximum(builder, end, builder.load(total, typ=I64)), total)
        builder.ret(builder.load(total, typ=I64))

    def _record(self, index: ir.Value) -> ir.Value:
        return _word(self._builder, self._living, index, Living.SIZE)

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
        offset, place = (reserve(builder, I64, SLOT_BYTES) for _ in range(2))
        for variable in (offset, place):
            builder.store(const(0), variable)
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
