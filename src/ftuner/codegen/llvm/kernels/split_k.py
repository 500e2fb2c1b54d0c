"""Adding up partial products, where a plan has cut the reduction axis.

Signature of the compiled function::

    void reduce(call, first_row, last_row)

For the rows given: the sum of all partial products in ascending order, plus C if the plan
accumulates, through the epilogue, to C.
"""

from __future__ import annotations

from dataclasses import replace

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    at,
    begun,
    const,
    pointer_slot,
    reserve,
    scalar_type,
    set_slot,
    slot,
)
from ftuner.codegen.llvm.ir.loops import Rows, copy_rows, counted_loop
from ftuner.codegen.llvm.kernels.product import finish_stored, finish_tile
from ftuner.codegen.llvm.native.driver import REDUCE_TYPE, take_operands
from ftuner.codegen.llvm.native.records import Call, Context, Plan
from ftuner.codegen.llvm.native.symbols import reduce_symbol
from ftuner.core.cpu.common_epilogue import has_shared_code
from ftuner.core.cpu.tile import RegisterTile, UKernel


def emit(module: ir.Module, like: UKernel, fused: bool) -> None:
    """Add the reduction of the dtypes, ISA and epilogue of `like` to a module."""
    # Parts of k are never of a product that rounds sums to levels: those are whole.
    of_floats = replace(like.types, c=like.types.finished)
    kernel = replace(like, tile=RegisterTile(1, 1, 1), tail=True, types=of_floats)
    builder, (call, first_row, last_row) = begun(module, REDUCE_TYPE, reduce_symbol(like))
    dtype = kernel.types.c
    size = dtype.itemsize
    vector = ir.VectorType(scalar_type(dtype), kernel.lanes)
    plan = pointer_slot(builder, call, Call.PLAN)
    context = reserve(builder, ir.ArrayType(I64, int(Context.SIZE)))
    scratch, total = reserve(builder, vector), reserve(builder, vector)
    set_slot(builder, context, Context.ACCUMULATE, slot(builder, plan, Plan.ACCUMULATE))
    set_slot(builder, context, Context.FINISH, slot(builder, plan, Plan.FINISH))
    take_operands(builder, call, plan, context)
    parts, n = slot(builder, plan, Plan.PARTS), slot(builder, plan, Plan.N)
    part_bytes = slot(builder, plan, Plan.PARTIAL_BYTES)
    workspace = pointer_slot(builder, call, Call.WORKSPACE)
    first_part = at(builder, workspace, slot(builder, plan, Plan.PARTIAL_OFFSET))
    c = pointer_slot(builder, call, Call.C)
    c_stride = slot(builder, plan, Plan.C_ROW_STRIDE)
    set_slot(builder, context, Context.C_ROW_STRIDE, c_stride)
    row_bytes = builder.mul(n, const(size))

    with (
        counted_loop(builder, first_row, last_row) as row,
        counted_loop(builder, const(0), n, const(kernel.lanes)) as column,
    ):
        left = builder.sub(n, column)
        whole = builder.icmp_signed("<", const(kernel.lanes), left)
        valid = builder.select(whole, const(kernel.lanes), left)
        offset = builder.add(builder.mul(row, row_bytes), builder.mul(column, const(size)))
        here = at(builder, first_part, offset)
        builder.store(ir.Constant(vector, [0.0] * kernel.lanes), total)
        with counted_loop(builder, const(0), parts) as part:
            # The last row of the last part may read beyond it: the workspace has room for that.
            place = at(builder, here, builder.mul(part, part_bytes))
            value = builder.load(place, typ=vector, align=size)
            builder.store(builder.fadd(builder.load(total, typ=vector), value), total)
        target = at(builder, c, builder.mul(row, c_stride))
        target = at(builder, target, builder.mul(column, const(size)))
        width = const(kernel.lanes * size)
        given, own, types = Rows(target, width), Rows(scratch, width), (dtype, kernel.lanes)
        copy_rows(builder, types, given, own, const(1), valid)
        sums = [[builder.load(total, typ=vector)]]
        finish_tile(builder, kernel, fused, context, sums, own, (row, column), valid)
        copy_rows(builder, types, own, given, const(1), valid)
    if has_shared_code(kernel.types, kernel.epilogue):
        done = at(builder, c, builder.mul(first_row, c_stride))
        rows = builder.sub(last_row, first_row)
        finish_stored(builder, context, done, (first_row, const(0)), rows, n)
    builder.ret_void()
