"""The kernel of a step that one of some programs computes: that of the lowest price.

The programs have the same extents and arrays. The kernel's tasks are equal shares of the virtual
workers; its dims are the price of each program, the address of memory for panels and the bytes of
it that are each worker's, the value of `workers`, and the extents.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, begun, const
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.hardware.isa import InstructionSet
from ftuner.tasks.llvm import Emitter
from ftuner.tasks.program import WORKERS, Program


def emit(
    module: ir.Module, symbol_name: str, programs: Sequence[Program], isa: InstructionSet
) -> None:
    """Add the kernel of a step to a module."""
    builder, given = begun(module, STEP_KERNEL_TYPE, symbol_name)
    buffers, dims, _, worker, begin, end = given
    least, chosen = builder.slot(dims, 0), const(0)
    for number in range(1, len(programs)):
        price = builder.slot(dims, number)
        less = builder.icmp_signed("<", price, least)
        least = builder.select(less, price, least)
        chosen = builder.select(less, number, chosen)
    memory, size = (builder.slot(dims, len(programs) + i) for i in range(2))
    memory = builder.inttoptr(builder.add(memory, builder.mul(size, worker)), PTR)
    done = builder.append_basic_block("done")
    kind = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64])
    switch = builder.switch(chosen, done)
    for number, program in enumerate(programs):
        inner, given = begun(module, kind, f"{symbol_name}_{number}", internal=True)
        builder.position_at_end(builder.append_basic_block(f"program{number}"))
        builder.call(inner.function, [buffers, dims, memory, begin, end])
        builder.branch(done)
        switch.add_case(const(number), builder.block)
        its_buffers, its_dims, its_memory, *shares = given
        names = (WORKERS, *program.extents)
        env = {n: inner.slot(its_dims, i) for i, n in enumerate(names, len(programs) + 2)}
        places = {a.name: inner.pointer_slot(its_buffers, i) for i, a in enumerate(program.arrays)}
        Emitter(inner, program, isa, env, places, its_memory).shares(*shares)
        inner.ret_void()
    builder.position_at_end(done)
    builder.ret_void()
