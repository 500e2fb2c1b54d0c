"""The function that applies an epilogue to tiles that uKernels have stored.

Products of one dtype share the code of their k loops, which is most of what a model has compiled,
whatever their epilogues are. A tile is in the L1 cache when it is read again, so an epilogue costs
a load and a store more for each vector.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import begun, const, scalar_type
from ftuner.codegen.llvm.ir.rows import Rows, copy_rows
from ftuner.codegen.llvm.kernels.product import FINISH_TYPE, Access, Place, applied
from ftuner.codegen.llvm.native.records import Context
from ftuner.codegen.llvm.native.symbols import finish_symbol
from ftuner.core.cpu.tile import UKernel
from ftuner.hardware.isa import InstructionSet


def emit(module: ir.Module, kernel: UKernel, isa: InstructionSet) -> None:
    """Add the function of the dtype and epilogue of a uKernel of one vector, a `FINISH_TYPE`."""
    builder, given = begun(module, FINISH_TYPE, finish_symbol(kernel))
    context, c, row, column, rows, columns = given
    for pointer in (context, c):
        pointer.add_attribute("noalias")
    dtype, lanes = kernel.types.c, kernel.lanes
    size, masked = dtype.itemsize, isa.masked
    stride = builder.slot(context, Context.C_ROW_STRIDE)
    operands = builder.slot_address(context, Context.OPERANDS)
    own = Rows(builder.reserve(ir.VectorType(scalar_type(dtype), lanes)), const(0))
    with builder.counted_loop(0, columns, lanes) as first:
        valid = builder.sub(columns, first)
        ragged = builder.icmp_signed("<", valid, lanes)
        access = Access(builder, kernel, valid if masked else None)
        at_column = builder.add(column, first)
        top = builder.at(c, first, size)
        with builder.counted_loop(0, rows) as i:
            there = Rows(builder.at(top, i, stride), const(0))
            place = Place(
                operands, builder.add(row, i), at_column, access, None if masked else valid,
                isa.fused,
            )  # fmt: skip
            here = there.first
            if not masked:
                with builder.if_then(ragged):
                    copy_rows(builder, (dtype, lanes), there, own, const(1), valid)
                here = builder.select(ragged, own.first, here)
            sums = [[access.load(here, 0)]]
            ((result,),) = applied(builder, kernel, kernel.epilogue, place, sums)
            access.store(result, here, 0)
            if not masked:
                with builder.if_then(ragged):
                    copy_rows(builder, (dtype, lanes), own, there, const(1), valid)
    builder.ret_void()
