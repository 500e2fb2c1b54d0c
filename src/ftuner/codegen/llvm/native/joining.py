"""Emits what joins the programs of a batch in one table of steps.

`void copy(copies)` writes the records of copies of bound programs, a `Copies`, each with its arena
and its arrays.

`void join(turns, count, copies, table)` writes the steps of all copies to a table. `turns` has
`count` records, and `copies` one for each layout. In a turn each step of a layout is followed by
the same step of the next copy.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    PTR,
    VOID,
    begun,
    const,
    pointer_slot,
    record_at,
    set_slot,
    slot,
    slot_address,
    variable,
)
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.native.binding_records import Copies, Copy, Turn
from ftuner.codegen.llvm.native.records import Program, Step
from ftuner.codegen.llvm.native.symbols import COPY_SYMBOL, JOIN_SYMBOL


def emit_joining(module: ir.Module) -> None:
    """Add the functions to a module."""
    _emit_copy(module)
    _emit_join(module)


def _emit_copy(module: ir.Module) -> None:
    builder, (copies,) = begun(module, ir.FunctionType(VOID, [PTR]), COPY_SYMBOL)
    size, row_size = slot(builder, copies, Copies.WORDS), slot(builder, copies, Copies.ROW_WORDS)

    def load(words: ir.Value, index: ir.Value) -> ir.Value:
        return builder.load(record_at(builder, words, index), typ=I64)

    def element(array: int, index: ir.Value) -> ir.Value:
        """An element of an array of the copies."""
        return load(pointer_slot(builder, copies, array), index)

    def count(array: int) -> ir.Value:
        return slot(builder, copies, array)

    with counted_loop(builder, 0, count(Copies.COUNT)) as number:
        rows, targets = (
            pointer_slot(builder, copies, array) for array in (Copies.ROWS, Copies.TARGET)
        )
        row = record_at(builder, rows, builder.mul(number, row_size))
        target = record_at(builder, targets, builder.mul(number, size))
        source = pointer_slot(builder, row, Copy.RECORDS)
        with counted_loop(builder, 0, size) as i:
            builder.store(load(source, i), record_at(builder, target, i))

        def move(index: ir.Value, distance: ir.Value, target: ir.Value = target) -> None:
            place = record_at(builder, target, index)
            builder.store(builder.add(builder.load(place, typ=I64), distance), place)

        moved = builder.sub(builder.ptrtoint(target, I64), slot(builder, row, Copy.RECORDS))
        with counted_loop(builder, 0, count(Copies.POINTERS)) as i:
            move(element(Copies.POINTER_SLOTS, i), moved)
        arena, end = slot(builder, row, Copy.ARENA), slot(builder, row, Copy.ARENA_BYTES)
        with counted_loop(builder, 0, count(Copies.PLACES)) as i:
            sources = pointer_slot(builder, row, Copy.SOURCES)
            address = load(sources, element(Copies.PLACE_SOURCES, i))
            inside = builder.icmp_signed("<=", address, end)
            move(element(Copies.PLACE_SLOTS, i), builder.select(inside, arena, const(0)))
        arrays = slot_address(builder, row, Copy.ARRAYS)
        with counted_loop(builder, 0, count(Copies.PATCHES)) as i:
            address = load(arrays, element(Copies.PATCH_ARRAYS, i))
            offset = load(target, element(Copies.PATCH_OFFSETS, i))
            place = record_at(builder, target, element(Copies.PATCH_SLOTS, i))
            builder.store(builder.add(address, offset), place)
    builder.ret_void()


def _emit_join(module: ir.Module) -> None:
    kind = ir.FunctionType(VOID, [PTR, I64, PTR, PTR])
    builder, (turns, count, all_copies, table) = begun(module, kind, JOIN_SYMBOL)
    done, written = variable(builder, const(0)), variable(builder, const(0))
    with counted_loop(builder, 0, count) as i:
        turn = record_at(builder, turns, i, Turn.SIZE)
        layout = slot(builder, turn, Turn.LAYOUT)
        copies = record_at(builder, all_copies, layout, Copies.SIZE)
        first = slot_address(builder, pointer_slot(builder, copies, Copies.TARGET), Program.SIZE)
        stages = pointer_slot(builder, copies, Copies.STAGES)
        with counted_loop(builder, 0, slot(builder, turn, Turn.STEPS)) as j:
            number = builder.add(slot(builder, turn, Turn.FIRST), j)
            step = record_at(builder, first, number, Step.SIZE)
            # The first step of a stage, which may be this one, has its chunks before.
            set_slot(builder, step, Step.BEFORE, builder.load(done, typ=I64))
            stage = builder.load(record_at(builder, stages, number), typ=I64)
            began = slot(builder, record_at(builder, first, stage, Step.SIZE), Step.BEFORE)
            with counted_loop(builder, 0, slot(builder, copies, Copies.COUNT)) as copy:
                words = slot(builder, copies, Copies.WORDS)
                source = record_at(builder, step, builder.mul(copy, words))
                place = builder.load(written, typ=I64)
                target = record_at(builder, table, place, Step.SIZE)
                for field in range(Step.SIZE):
                    set_slot(builder, target, field, slot(builder, source, field))
                # Workers that wait for each other within a step have ended all before it.
                ended = builder.load(done, typ=I64)
                waits = builder.icmp_signed("!=", slot(builder, source, Step.TOGETHER), const(0))
                set_slot(builder, target, Step.BEFORE, builder.select(waits, ended, began))
                chunks = slot(builder, source, Step.CHUNKS)
                builder.store(builder.add(ended, chunks), done)
                builder.store(builder.add(place, const(1)), written)
    builder.ret_void()
