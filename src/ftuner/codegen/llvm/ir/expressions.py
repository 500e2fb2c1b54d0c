"""Scalar expressions as LLVM IR, on scalars and vectors of float32 or float64."""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from ftuner.codegen.llvm.ir import vector_arithmetic as vecbody
from ftuner.codegen.llvm.ir import vector_math as vecmath
from ftuner.core.expr import Binary, Constant, Expr, Operand, Unary, flatten
from ftuner.errors import ExpressionError


def emit(builder: ir.IRBuilder, expr: Expr, env: Mapping[str, ir.Value], fused: bool) -> ir.Value:
    """The SSA value of `expr`, with `env` giving the SSA value of each operand by name.

    All values are of one type, a float32 or float64 scalar or vector; the result has it too.
    Each distinct sub-expression is emitted once. `fused` says whether the target has a fused
    multiply-add; it is used inside elementary functions only, the expression's own products and
    sums are rounded one by one. Raises ExpressionError if an operand is missing or none is given.
    """
    if not env:
        raise ExpressionError("no operand was given; expected at least one, which sets the type")
    type_ = next(iter(env.values())).type
    values: list[ir.Value] = []
    for step in flatten(expr):
        node = step.node
        arguments = [values[i] for i in step.arguments]
        if isinstance(node, Operand):
            if node.name not in env:
                raise ExpressionError(f"operand {node.name!r} was not given; got {sorted(env)}")
            assert env[node.name].type == type_, (env[node.name].type, type_)
            values.append(env[node.name])
        elif isinstance(node, Constant):
            values.append(vecbody.splat(type_, node.value))
        elif isinstance(node, Unary):
            values.append(_unary(builder, node.op, arguments[0], fused))
        else:
            assert isinstance(node, Binary)
            values.append(_binary(builder, node.op, *arguments, fused=fused))
    return values[-1]


ELEMENTARY: Mapping[str, vecbody.VectorFunction] = {
    "exp": vecmath.exp,
    "expm1": vecmath.expm1,
    "log": vecmath.log,
    "tanh": vecmath.tanh,
    "sigmoid": vecmath.sigmoid,
    "erf": vecmath.erf,
    "erfc": vecmath.erfc,
    "gelu": vecmath.gelu,
    "gelu_tanh": vecmath.gelu_tanh,
    "silu": vecmath.silu,
    "softplus": vecmath.softplus,
    "mish": vecmath.mish,
    "swish": vecmath.swish,
}
"""Under the names that both `core.expr` and `core.functions` have for them."""


def _unary(builder: ir.IRBuilder, op: str, x: ir.Value, fused: bool) -> ir.Value:
    if op in ELEMENTARY:
        return ELEMENTARY[op](builder, x, fused=fused)
    if op == "neg":
        return builder.fneg(x)
    if op == "abs":
        return vecbody.intrinsic(builder, "fabs", x)
    if op == "sqrt":
        return vecbody.intrinsic(builder, "sqrt", x)
    assert op == "reciprocal", op
    return builder.fdiv(vecbody.splat(x.type, 1.0), x)


def _binary(builder: ir.IRBuilder, op: str, x: ir.Value, y: ir.Value, *, fused: bool) -> ir.Value:
    if op in ELEMENTARY:
        return ELEMENTARY[op](builder, x, y, fused=fused)
    if op == "maximum":
        return extremum(builder, "<", x, y)
    if op == "minimum":
        return extremum(builder, ">", x, y)
    instruction = {
        "add": builder.fadd,
        "sub": builder.fsub,
        "mul": builder.fmul,
        "div": builder.fdiv,
    }[op]
    return instruction(x, y)


def extremum(builder: ir.IRBuilder, predicate: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """y where `x predicate y`, otherwise x; NaN if either is.

    A NaN in x fails the comparison and is kept, which is one max or min instruction of x86. Only
    a y that may be NaN needs a second select, and LLVM drops it where y is constant.
    """
    if isinstance(x, ir.Constant):
        x, y = y, x
    chosen = builder.select(builder.fcmp_ordered(predicate, x, y), y, x)
    return builder.select(builder.fcmp_unordered("uno", y, y), y, chosen)
