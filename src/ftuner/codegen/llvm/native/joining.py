"""Emits what joins the programs of a batch in one table of steps.

`void copy(copies)` writes the records of copies of bound programs, a `Copies`, each with its arena
and its arrays.

`void join(turns, count, copies, table)` writes the steps of all copies to a table. `turns` has
`count` records, and `copies` one for each layout. In a turn each step of a layout is followed by
the same step of the next copy.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, begun
from ftuner.codegen.llvm.native.binding_records import Copies, Copy, Turn
from ftuner.codegen.llvm.native.records import Program, Step
from ftuner.codegen.llvm.native.symbols import COPY_SYMBOL, JOIN_SYMBOL


def emit_joining(module: ir.Module) -> None:
    """Add the functions to a module."""
    _emit_copy(module)
    _emit_join(module)


def _emit_copy(module: ir.Module) -> None:
    builder, (copies,) = begun(module, ir.FunctionType(VOID, [PTR]), COPY_SYMBOL)
    size, row_size = builder.slots(copies, Copies.WORDS, Copies.ROW_WORDS)

    def load(words: ir.Value, index: ir.Value) -> ir.Value:
        return builder.slot(words, index)

    def element(array: int, index: ir.Value) -> ir.Value:
        """An element of an array of the copies."""
        return load(builder.pointer_slot(copies, array), index)

    def count(array: int) -> ir.Value:
        return builder.slot(copies, array)

    with builder.counted_loop(0, count(Copies.COUNT)) as number:
        rows, targets = builder.pointer_slots(copies, Copies.ROWS, Copies.TARGET)
        row = builder.slot_address(rows, builder.mul(number, row_size))
        target = builder.slot_address(targets, builder.mul(number, size))
        source = builder.pointer_slot(row, Copy.RECORDS)
        with builder.counted_loop(0, size) as i:
            builder.set_slot(target, i, load(source, i))

        def move(index: ir.Value, distance: ir.Value, target: ir.Value = target) -> None:
            place = builder.slot_address(target, index)
            builder.store(builder.add(builder.load(place, typ=I64), distance), place)

        moved = builder.sub(builder.ptrtoint(target, I64), builder.slot(row, Copy.RECORDS))
        with builder.counted_loop(0, count(Copies.POINTERS)) as i:
            move(element(Copies.POINTER_SLOTS, i), moved)
        arena, end = builder.slots(row, Copy.ARENA, Copy.ARENA_BYTES)
        with builder.counted_loop(0, count(Copies.PLACES)) as i:
            sources = builder.pointer_slot(row, Copy.SOURCES)
            address = load(sources, element(Copies.PLACE_SOURCES, i))
            inside = builder.icmp_signed("<=", address, end)
            move(element(Copies.PLACE_SLOTS, i), builder.select(inside, arena, 0))
        arrays = builder.slot_address(row, Copy.ARRAYS)
        with builder.counted_loop(0, count(Copies.PATCHES)) as i:
            address = load(arrays, element(Copies.PATCH_ARRAYS, i))
            offset = load(target, element(Copies.PATCH_OFFSETS, i))
            place = builder.slot_address(target, element(Copies.PATCH_SLOTS, i))
            builder.store(builder.add(address, offset), place)
    builder.ret_void()


def _emit_join(module: ir.Module) -> None:
    kind = ir.FunctionType(VOID, [PTR, I64, PTR, PTR])
    builder, (turns, count, all_copies, table) = begun(module, kind, JOIN_SYMBOL)
    done, written = builder.variable(0), builder.variable(0)
    with builder.counted_loop(0, count) as i:
        turn = builder.record_at(turns, i, Turn.SIZE)
        layout = builder.slot(turn, Turn.LAYOUT)
        copies = builder.record_at(all_copies, layout, Copies.SIZE)
        first = builder.slot_address(builder.pointer_slot(copies, Copies.TARGET), Program.SIZE)
        stages = builder.pointer_slot(copies, Copies.STAGES)
        with builder.counted_loop(0, builder.slot(turn, Turn.STEPS)) as j:
            number = builder.add(builder.slot(turn, Turn.FIRST), j)
            step = builder.record_at(first, number, Step.SIZE)
            # The first step of a stage, which may be this one, has its chunks before.
            builder.set_slot(step, Step.BEFORE, builder.load(done, typ=I64))
            stage = builder.slot(stages, number)
            began = builder.slot(builder.record_at(first, stage, Step.SIZE), Step.BEFORE)
            with builder.counted_loop(0, builder.slot(copies, Copies.COUNT)) as copy:
                words = builder.slot(copies, Copies.WORDS)
                source = builder.slot_address(step, builder.mul(copy, words))
                place = builder.load(written, typ=I64)
                target = builder.record_at(table, place, Step.SIZE)
                for field in range(Step.SIZE):
                    builder.set_slot(target, field, builder.slot(source, field))
                # Workers that wait for each other within a step have ended all before it.
                ended = builder.load(done, typ=I64)
                waits = builder.icmp_signed("!=", builder.slot(source, Step.TOGETHER), 0)
                builder.set_slot(target, Step.BEFORE, builder.select(waits, ended, began))
                chunks = builder.slot(source, Step.CHUNKS)
                builder.store(builder.add(ended, chunks), done)
                builder.store(builder.add(place, 1), written)
    builder.ret_void()
