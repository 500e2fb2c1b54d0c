from llvmlite import ir

from ftuner.codegen.llvm.ir.vector_arithmetic import Body, intrinsic, shared


@shared
def rsqrt(body: Body, x: ir.Value) -> ir.Value:
    return body.builder.fdiv(body.number(1.0), intrinsic(body.builder, "sqrt", x))
