"""The kernel of a step that one of some programs computes: that of the lowest price.

The programs have the same extents and arrays. The kernel's tasks are equal shares of the virtual
workers; its dims are the price of each program, the address of memory for panels and the bytes of
it that are each worker's, the value of `workers`, and the extents.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, const, pointer_slot, slot
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.hardware.isa import InstructionSet
from ftuner.tasks.llvm import Emitter
from ftuner.tasks.program import WORKERS, Program


def emit(
    module: ir.Module, symbol_name: str, programs: Sequence[Program], isa: InstructionSet
) -> None:
    """Add the kernel of a step to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol_name)
    buffers, dims, _, worker, begin, end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    least, chosen = slot(builder, dims, 0), const(0)
    for number in range(1, len(programs)):
        price = slot(builder, dims, number)
        less = builder.icmp_signed("<", price, least)
        least = builder.select(less, price, least)
        chosen = builder.select(less, const(number), chosen)
    memory, size = (slot(builder, dims, len(programs) + i) for i in range(2))
    memory = builder.inttoptr(builder.add(memory, builder.mul(size, worker)), PTR)
    done = builder.append_basic_block("done")
    kind = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64])
    switch = builder.switch(chosen, done)
    for number, program in enumerate(programs):
        one = ir.Function(module, kind, f"{symbol_name}_{number}")
        one.linkage = "internal"
        builder.position_at_end(builder.append_basic_block(f"program{number}"))
        builder.call(one, [buffers, dims, memory, begin, end])
        builder.branch(done)
        switch.add_case(const(number), builder.block)
        inner = ir.IRBuilder(one.append_basic_block("entry"))
        its_buffers, its_dims, its_memory, *shares = one.args
        names = (WORKERS, *program.extents)
        env = {n: slot(inner, its_dims, i) for i, n in enumerate(names, len(programs) + 2)}
        places = {a.name: pointer_slot(inner, its_buffers, i) for i, a in enumerate(program.arrays)}
        Emitter(inner, program, isa, env, places, its_memory).shares(*shares)
        inner.ret_void()
    builder.position_at_end(done)
    builder.ret_void()
