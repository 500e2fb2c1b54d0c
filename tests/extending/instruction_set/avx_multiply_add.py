from llvmlite import ir


def multiply_add(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, sums: ir.Value) -> ir.Value:
    return builder.fadd(sums, builder.fmul(b, a))
