from llvmlite import ir

from ftuner.codegen.llvm.ir import builder as words
from ftuner.codegen.llvm.ir.functions import memory_type
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.ir.vector_arithmetic import intrinsic
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType


def emit(module: ir.Module, symbol: str, dtype: DType) -> None:
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    buffers, dims, _, _, begin, end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    x, y = (words.pointer_slot(builder, buffers, i) for i in range(2))
    count, offset = (words.slot(builder, dims, i) for i in range(2))
    element = memory_type(dtype)
    x = builder.gep(x, [offset], source_etype=element)
    largest = words.reserve(builder, element)
    with counted_loop(builder, begin, end) as row:
        builder.store(ir.Constant(element, float("-inf")), largest)
        with counted_loop(builder, 0, count) as i:
            at = builder.add(builder.mul(row, count), i)
            value = builder.load(builder.gep(x, [at], source_etype=element), typ=element)
            value = intrinsic(builder, "maximum", builder.load(largest, typ=element), value)
            builder.store(value, largest)
            builder.store(value, builder.gep(y, [at], source_etype=element))
    builder.ret_void()
