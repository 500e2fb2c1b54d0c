from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import begun
from ftuner.codegen.llvm.ir.functions import memory_type
from ftuner.codegen.llvm.ir.vector_arithmetic import intrinsic
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType


def emit(module: ir.Module, symbol: str, dtype: DType) -> None:
    builder, (buffers, dims, _, _, begin, end) = begun(module, STEP_KERNEL_TYPE, symbol)
    x, y = builder.pointer_slots(buffers, 0, 1)
    count, offset = builder.slots(dims, 0, 1)
    element = memory_type(dtype)
    x = builder.gep(x, [offset], source_etype=element)
    largest = builder.reserve(element)
    with builder.counted_loop(begin, end) as row:
        builder.store(ir.Constant(element, float("-inf")), largest)
        with builder.counted_loop(0, count) as i:
            at = builder.add(builder.mul(row, count), i)
            value = builder.load(builder.gep(x, [at], source_etype=element), typ=element)
            value = intrinsic(builder, "maximum", builder.load(largest, typ=element), value)
            builder.store(value, largest)
            builder.store(value, builder.gep(y, [at], source_etype=element))
    builder.ret_void()
