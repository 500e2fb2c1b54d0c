"""The largest or smallest elements of rows, in order, in LLVM IR.

A task is one row. Its elements are inserted, one after the other, into the sorted result. Most are
not better than the last one kept, and cost one comparison.

`dims` holds the elements of a row, those wanted, the distance of elements, and the offset of the
first; `buffers` the operand, the elements found, and where they were.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I64, const, pointer_slot, reserve, slot
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType


def emit(module: ir.Module, symbol: str, dtype: DType, largest: bool) -> None:
    """Add the kernel to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    buffers, dims, _, _, begin, end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    operand, values, positions = (pointer_slot(builder, buffers, i) for i in range(3))
    count, wanted, step, offset = (slot(builder, dims, i) for i in range(4))
    element = elements.memory_type(dtype)
    at = reserve(builder, I64)

    def place(base: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
        return builder.gep(base, [index], source_etype=kind)

    def better(x: ir.Value, y: ir.Value) -> ir.Value:
        # NaN counts as larger than all numbers, as in NumPy's order.
        return elements.precedes(builder, x, y, dtype, largest, nan_first=largest)

    with counted_loop(builder, begin, end) as task:
        outer, inner = builder.udiv(task, step), builder.urem(task, step)
        row = builder.add(builder.mul(builder.mul(outer, count), step), inner)
        row = place(operand, builder.add(row, offset), element)
        first = builder.add(builder.mul(builder.mul(outer, wanted), step), inner)
        kept, where = place(values, first, element), place(positions, first, I64)
        # No elements are wanted, so that there is none to compare with.
        looked = builder.select(builder.icmp_signed(">", wanted, const(0)), count, const(0))
        with counted_loop(builder, 0, looked) as index:
            address = place(row, builder.mul(index, step), element)
            value = builder.load(address, typ=element)
            room = builder.icmp_signed("<", index, wanted)
            last = builder.select(room, index, builder.sub(wanted, const(1)))
            builder.store(last, at)
            worst = builder.load(place(kept, builder.mul(last, step), element), typ=element)
            with builder.if_then(builder.or_(room, better(value, worst))):
                _sink(builder, at, value, kept, where, step, element, better)
                slot_ = builder.mul(builder.load(at, typ=I64), step)
                builder.store(value, place(kept, slot_, element))
                builder.store(index, place(where, slot_, I64))
    builder.ret_void()


def _sink(
    builder: ir.IRBuilder, at: ir.Value, value: ir.Value, kept: ir.Value, where: ir.Value,
    step: ir.Value, element: ir.Type, better: object,
) -> None:  # fmt: skip
    """Move all elements that `value` is better than back by one place, from `at` on; ends at the
    place of `value`."""
    assert callable(better)
    look = builder.append_basic_block("sink.look")
    compare = builder.append_basic_block("sink.compare")
    move = builder.append_basic_block("sink.move")
    done = builder.append_basic_block("sink.done")
    builder.branch(look)
    builder.position_at_end(look)
    here = builder.load(at, typ=I64)
    builder.cbranch(builder.icmp_signed(">", here, const(0)), compare, done)
    builder.position_at_end(compare)
    before = builder.sub(here, const(1))
    source, target = builder.mul(before, step), builder.mul(here, step)
    other = builder.load(builder.gep(kept, [source], source_etype=element), typ=element)
    builder.cbranch(better(value, other), move, done)
    builder.position_at_end(move)
    builder.store(other, builder.gep(kept, [target], source_etype=element))
    position = builder.load(builder.gep(where, [source], source_etype=I64), typ=I64)
    builder.store(position, builder.gep(where, [target], source_etype=I64))
    builder.store(before, at)
    builder.branch(look)
    builder.position_at_end(done)
