"""The function type of a step's kernel.

`void kernel(buffers, dims, status, worker, begin, end)` computes the tasks `begin` to `end` of a
step. `buffers` holds the address of each buffer that the step reads, then of each that it writes;
`dims` the values that the kernel reads at run time; `status` is where a failed check writes its
number, an index and an extent; `worker` is the number of the worker that calls it.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I64, PTR, VOID, const, intrinsic, slot_address
from ftuner.codegen.llvm.ir.functions import lanes_of, widened
from ftuner.codegen.llvm.native.records import Status

STEP_KERNEL_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])


def fail(
    builder: ir.IRBuilder, status: ir.Value, number: int, wrong: ir.Value, index: ir.Value,
    extent: ir.Value,
) -> None:  # fmt: skip
    """Write the number of a check that failed, the index in the first lane that is `wrong`, and the
    extent that it is outside of. Of several failures, of any workers, the first is written."""
    wrong, index, extent = widened(builder, [wrong, index, extent])
    if count := lanes_of(wrong):
        mask = builder.bitcast(wrong, ir.IntType(count))
        name = f"llvm.cttz.i{count}"
        trailing = intrinsic(builder.module, name, mask.type, [mask.type, I1])
        lane = builder.zext(builder.call(trailing, [mask, ir.Constant(I1, 1)]), I64)
        index, extent = (builder.extract_element(v, lane) for v in (index, extent))
    written = builder.cmpxchg(status, const(0), const(number), "monotonic")
    with builder.if_then(builder.extract_value(written, 1)):
        builder.store(index, slot_address(builder, status, Status.INDEX))
        builder.store(extent, slot_address(builder, status, Status.EXTENT))
