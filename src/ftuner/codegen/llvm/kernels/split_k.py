"""Adding up partial products, where a plan has cut the reduction axis.

Signature of the compiled function::

    void reduce(call, first_row, last_row)

For the rows given: the sum of all partial products in ascending order, plus C if the plan
accumulates, through the epilogue, to C.
"""

from __future__ import annotations

from dataclasses import replace

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, begun, const, scalar_type
from ftuner.codegen.llvm.ir.rows import Rows, copy_rows
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
    plan = builder.pointer_slot(call, Call.PLAN)
    context = builder.reserve(ir.ArrayType(I64, int(Context.SIZE)))
    scratch, total = builder.reserve(vector), builder.reserve(vector)
    builder.set_slot(context, Context.ACCUMULATE, builder.slot(plan, Plan.ACCUMULATE))
    builder.set_slot(context, Context.FINISH, builder.slot(plan, Plan.FINISH))
    take_operands(builder, call, plan, context)
    parts, n, part_bytes = builder.slots(plan, Plan.PARTS, Plan.N, Plan.PARTIAL_BYTES)
    workspace = builder.pointer_slot(call, Call.WORKSPACE)
    first_part = builder.at(workspace, builder.slot(plan, Plan.PARTIAL_OFFSET))
    c = builder.pointer_slot(call, Call.C)
    c_stride = builder.slot(plan, Plan.C_ROW_STRIDE)
    builder.set_slot(context, Context.C_ROW_STRIDE, c_stride)
    row_bytes = builder.mul(n, size)

    with (
        builder.counted_loop(first_row, last_row) as row,
        builder.counted_loop(0, n, kernel.lanes) as column,
    ):
        left = builder.sub(n, column)
        whole = builder.icmp_signed("<", const(kernel.lanes), left)
        valid = builder.select(whole, kernel.lanes, left)
        offset = builder.add(builder.mul(row, row_bytes), builder.mul(column, size))
        here = builder.at(first_part, offset)
        builder.store(ir.Constant(vector, [0.0] * kernel.lanes), total)
        with builder.counted_loop(0, parts) as part:
            # The last row of the last part may read beyond it: the workspace has room for that.
            place = builder.at(here, part, part_bytes)
            value = builder.load(place, typ=vector, align=size)
            builder.store(builder.fadd(builder.load(total, typ=vector), value), total)
        target = builder.at(c, row, c_stride)
        target = builder.at(target, column, size)
        width = const(kernel.lanes * size)
        given, own, types = Rows(target, width), Rows(scratch, width), (dtype, kernel.lanes)
        copy_rows(builder, types, given, own, const(1), valid)
        sums = [[builder.load(total, typ=vector)]]
        finish_tile(builder, kernel, fused, context, sums, own, (row, column), valid)
        copy_rows(builder, types, own, given, const(1), valid)
    if has_shared_code(kernel.types, kernel.epilogue):
        done = builder.at(c, first_row, c_stride)
        rows = builder.sub(last_row, first_row)
        finish_stored(builder, context, done, (first_row, const(0)), rows, n)
    builder.ret_void()
