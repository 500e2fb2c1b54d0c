"""Scalar functions of tensors as LLVM IR, on scalars and vectors of every element type.

Values of bool are `i1` in registers and a byte in memory; those of half precision are float32 in
registers. Integers wrap around; division by zero
gives zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import vector_arithmetic, vector_math
from ftuner.codegen.llvm.ir.builder import FLOAT_DTYPES, IRBuilder, scalar_type, type_suffix
from ftuner.codegen.llvm.ir.half_precision import ROUNDED, WIDENED, rounded
from ftuner.core import functions as scalar
from ftuner.core.dtype import BOOL, HALF_DTYPES, UINT64, DType, converted_through
from ftuner.core.expr import Apply, Constant, Expr, Operand, composition, flatten
from ftuner.core.functions import ROUNDINGS, SCALAR_FUNCTIONS, Instructions
from ftuner.errors import ExpressionError

VECTOR_MATH: Mapping[str, vector_arithmetic.VectorFunction] = {
    name: getattr(vector_math, name)
    for name, row in SCALAR_FUNCTIONS.items()
    if isinstance(row.cost, Instructions) and row.llvm is None
}
"""The emitters of `vector_math`, by the names of the rows that count their instructions."""


def memory_type(dtype: DType) -> ir.Type:
    in_bits = dtype == BOOL or dtype.name in HALF_DTYPES
    return ir.IntType(dtype.bits) if in_bits else scalar_type(dtype)


def from_memory(builder: IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    if dtype == BOOL:
        return builder.icmp_unsigned("!=", value, zero(value.type))
    return WIDENED[dtype](builder, value) if dtype in WIDENED else value


def to_memory(builder: IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    if dtype == BOOL:
        return builder.zext(value, like(value.type, ir.IntType(8)))
    return ROUNDED[dtype](builder, value) if dtype in ROUNDED else value


like, number = vector_arithmetic.like, vector_arithmetic.splat


def zero(type_: ir.Type) -> ir.Constant:
    return number(type_, 0)


def lanes_of(value: ir.Value) -> int:
    return value.type.count if isinstance(value.type, ir.VectorType) else 0


def widened(builder: IRBuilder, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Values as long as the longest of them: scalars are repeated."""
    lanes = max((lanes_of(v) for v in values), default=0)
    if not lanes:
        return list(values)
    return [v if lanes_of(v) else builder.splat(v, lanes) for v in values]


def cast(builder: IRBuilder, x: ir.Value, source: DType, target: DType) -> ir.Value:
    type_ = like(x.type, scalar_type(target))
    if target == BOOL:
        if source.kind == "float":
            return builder.fcmp_unordered("!=", x, zero(x.type))
        return builder.icmp_unsigned("!=", x, zero(x.type))
    if source.kind == "float":
        if target.kind == "float":
            if type_ == x.type:
                return x
            wider = scalar_type(target) == ir.DoubleType()
            return builder.fpext(x, type_) if wider else builder.fptrunc(x, type_)
        return _float_to_integer(builder, x, target)
    unsigned = source.kind in ("uint", "bool")
    if target.kind == "float":
        return builder.uitofp(x, type_) if unsigned else builder.sitofp(x, type_)
    source_bits = 1 if source == BOOL else source.bits
    if target.bits == source_bits:
        return x
    if target.bits < source_bits:
        return builder.trunc(x, type_)
    return builder.zext(x, type_) if unsigned else builder.sext(x, type_)


def _float_to_integer(builder: IRBuilder, x: ir.Value, target: DType) -> ir.Value:
    """The conversion that `converted_through` describes."""
    through = converted_through(target)
    wide = like(x.type, scalar_type(through))
    limit = number(x.type, 2.0 ** (through.bits - 1))
    if target == UINT64:
        above = builder.fcmp_ordered(">=", x, limit)
        x = builder.select(above, builder.fsub(x, limit), x)
    inside = builder.fcmp_ordered("<", vector_arithmetic.intrinsic(builder, "fabs", x), limit)
    least = number(x.type, -(2.0 ** (through.bits - 1)))
    whole = builder.fptosi(builder.select(inside, x, least), wide)
    if target == UINT64:
        whole = builder.xor(whole, builder.select(above, number(wide, -1 << 63), zero(wide)))
    narrow = like(x.type, scalar_type(target))
    return whole if target.bits == through.bits else builder.trunc(whole, narrow)


def bit_cast(builder: IRBuilder, x: ir.Value, source: DType, target: DType) -> ir.Value:
    """The element of `target` that memory holds in the bits of an element of `source`."""
    bits = to_memory(builder, x, source)
    same = builder.bitcast(bits, like(bits.type, memory_type(target)))
    return from_memory(builder, same, target)


def apply(
    builder: IRBuilder, name: str, arguments: Sequence[ir.Value], dtype: DType, fused: bool
) -> ir.Value:
    """The scalar function `name` of `core.functions`, or `where`, on arguments of one length and
    of `dtype`."""
    if name == "where":
        return builder.select(*arguments)
    if dtype.kind == "float":
        return _float(builder, name, arguments, fused)
    return _integer(builder, name, arguments, dtype)


def emit(builder: IRBuilder, expr: Expr, env: Mapping[str, ir.Value], fused: bool) -> ir.Value:
    """The SSA value of `expr`, with `env` giving the SSA value of each operand by name.

    All values are of one type, a float32 or float64 scalar or vector; the result has it too.
    Each distinct sub-expression is emitted once. `fused` says whether the target has a fused
    multiply-add; it is used inside vector_math only, the expression's own products and sums are
    rounded one by one. Raises ExpressionError if an operand is missing or none is given.
    """
    if not env:
        raise ExpressionError("no operand was given; expected at least one, which sets the type")
    type_ = next(iter(env.values())).type
    dtype = FLOAT_DTYPES[type_suffix(type_)[-3:]]
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
            values.append(number(type_, node.value))
        else:
            assert isinstance(node, Apply)
            values.append(apply(builder, node.function, arguments, dtype, fused))
    return values[-1]


_INTRINSICS = {"absolute": "fabs", "floor": "floor", "ceil": "ceil", "rint": "rint", "sqrt": "sqrt",
               "power": "pow"}  # fmt: skip
_FLOAT_INSTRUCTIONS = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv",
                       "fmod": "frem", "negative": "fneg"}  # fmt: skip
_COMPARISONS = {"equal": "==", "less": "<", "less_equal": "<="}


def _float(builder: IRBuilder, name: str, arguments: Sequence[ir.Value], fused: bool) -> ir.Value:
    x = arguments[0]
    if name in VECTOR_MATH:
        return VECTOR_MATH[name](builder, *arguments, fused=fused)
    if name in _INTRINSICS:
        return vector_arithmetic.intrinsic(builder, _INTRINSICS[name], *arguments)
    if name in _FLOAT_INSTRUCTIONS:
        instruction: Callable[..., ir.Value] = getattr(builder, _FLOAT_INSTRUCTIONS[name])
        return instruction(*arguments)
    if name in _COMPARISONS:
        return builder.fcmp_ordered(_COMPARISONS[name], *arguments)
    if name == "remainder":
        # With the sign of the divisor: C's has that of the dividend.
        y = arguments[1]
        rest = builder.frem(x, y)
        apart = builder.xor(*(builder.fcmp_ordered("<", v, zero(x.type)) for v in (rest, y)))
        wrong = builder.and_(apart, builder.fcmp_ordered("!=", rest, zero(x.type)))
        return builder.select(wrong, builder.fadd(rest, y), rest)
    row = SCALAR_FUNCTIONS[name]
    if row.composition is not None:
        return emit(builder, composition(name), dict(zip("xy", arguments, strict=False)), fused)
    if row.llvm is not None:
        emitter: vector_arithmetic.VectorFunction = getattr(import_module(row.llvm), name)
        return emitter(builder, *arguments, fused=fused)
    if name in ROUNDINGS:
        # Every instruction set with fused multiply-adds converts float16.
        return rounded(builder, ROUNDINGS[name], x, converts=fused)
    if name == "isnan":
        return builder.fcmp_unordered("uno", x, x)
    if name == "isinf":
        magnitude = vector_arithmetic.intrinsic(builder, "fabs", x)
        return builder.fcmp_ordered("==", magnitude, number(x.type, float("inf")))
    if name == "sign":
        one = vector_arithmetic.intrinsic(builder, "copysign", number(x.type, 1.0), x)
        return builder.select(builder.fcmp_unordered("ueq", x, zero(x.type)), x, one)
    assert name in ("maximum", "minimum"), name
    return extremum(builder, "<" if name == "maximum" else ">", *arguments)


def extremum(builder: IRBuilder, predicate: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """y where `x predicate y`, otherwise x; NaN if either is.

    A NaN in x fails the comparison and is kept, which is one max or min instruction of x86. Only
    a y that may be NaN needs a second select, and LLVM drops it where y is constant. A select of y
    itself would be merged with the first one, which is then no such instruction any more.
    """
    if isinstance(x, ir.Constant):
        x, y = y, x
    chosen = builder.select(builder.fcmp_ordered(predicate, x, y), y, x)
    return builder.select(builder.fcmp_unordered("uno", y, y), number(y.type, math.nan), chosen)


def _integer(
    builder: IRBuilder, name: str, arguments: Sequence[ir.Value], dtype: DType
) -> ir.Value:
    x, y = arguments[0], arguments[-1]
    signed = dtype.kind == "int"
    compare = builder.icmp_signed if signed else builder.icmp_unsigned
    simple = {
        "add": builder.add, "subtract": builder.sub, "multiply": builder.mul,
        "logical_and": builder.and_, "logical_or": builder.or_, "logical_xor": builder.xor,
        "bitwise_and": builder.and_, "bitwise_or": builder.or_, "bitwise_xor": builder.xor,
    }  # fmt: skip
    if name in simple:
        return simple[name](x, y)
    if name in _COMPARISONS:
        return compare(_COMPARISONS[name], x, y)
    if name in ("maximum", "minimum"):
        return builder.select(compare(">" if name == "maximum" else "<", x, y), x, y)
    if name in ("shift_left", "shift_right"):
        inside = builder.icmp_unsigned("<", y, number(y.type, dtype.bits))
        places = builder.select(inside, y, number(y.type, dtype.bits - 1))
        if signed and name == "shift_right":
            return builder.ashr(x, places)
        shift = builder.shl if name == "shift_left" else builder.lshr
        return builder.select(inside, shift(x, places), zero(x.type))
    if name in ("logical_not", "bitwise_not"):
        return builder.not_(x)
    if name == "negative":
        return builder.neg(x)
    if name == "absolute":
        negative = compare("<", x, zero(x.type))
        return builder.select(negative, builder.neg(x), x)
    if name == "sign":
        positive = builder.zext(compare(">", x, zero(x.type)), x.type)
        if not signed:
            return positive
        return builder.sub(positive, builder.zext(compare("<", x, zero(x.type)), x.type))
    if name == "power":
        return _integer_power(builder, x, y, signed)
    assert name in ("divide", "remainder", "fmod"), name
    return _integer_quotient(builder, name, x, y, signed)


def _integer_quotient(
    builder: IRBuilder, name: str, x: ir.Value, y: ir.Value, signed: bool
) -> ir.Value:
    none = zero(x.type)
    nothing = builder.icmp_unsigned("==", y, none)
    if not signed:
        safe = builder.select(nothing, number(x.type, 1), y)
        result = builder.udiv(x, safe) if name == "divide" else builder.urem(x, safe)
        return builder.select(nothing, none, result)
    # The hardware traps on the one quotient that does not fit: divide by one and negate instead.
    minus = builder.icmp_signed("==", y, number(x.type, -1))
    safe = builder.select(builder.or_(nothing, minus), number(x.type, 1), y)
    if name == "divide":
        result = builder.select(minus, builder.neg(x), builder.sdiv(x, safe))
    else:
        result = builder.srem(x, safe)
        if name == "remainder":
            inexact = builder.icmp_signed("!=", result, none)
            apart = builder.icmp_signed("<", builder.xor(result, y), none)
            wrong = builder.and_(inexact, apart)
            result = builder.select(wrong, builder.add(result, y), result)
    return builder.select(nothing, none, result)


def _integer_power(builder: IRBuilder, x: ir.Value, y: ir.Value, signed: bool) -> ir.Value:
    """Powers by squaring, bit by bit of the exponent. Of negative exponents they are fractions,
    rounded towards zero, but for the powers of one and minus one."""
    bits = (x.type.element if isinstance(x.type, ir.VectorType) else x.type).width
    result, square = number(x.type, 1), x
    exponent = y
    if signed:
        negative = builder.icmp_signed("<", y, zero(y.type))
        exponent = builder.select(negative, builder.and_(y, number(y.type, 1)), y)
    for bit in range(bits - signed):
        wanted = builder.and_(exponent, number(y.type, 1 << bit))
        used = builder.icmp_unsigned("!=", wanted, zero(y.type))
        result = builder.select(used, builder.mul(result, square), result)
        square = builder.mul(square, square)
    if signed:
        # Between minus one and one, both included.
        apart = builder.icmp_unsigned("<", builder.add(x, number(x.type, 1)), number(x.type, 3))
        unit = builder.and_(apart, builder.icmp_signed("!=", x, zero(x.type)))
        fraction = builder.and_(negative, builder.not_(unit))
        result = builder.select(fraction, zero(x.type), result)
    return result


def combine(builder: IRBuilder, kind: str, x: ir.Value, y: ir.Value, dtype: DType) -> ir.Value:
    """One step of a reduction."""
    name = {"sum": "add", "product": "multiply"}.get(kind, kind)
    return apply(builder, name, [x, y], dtype, fused=False)


def precedes(
    builder: IRBuilder, x: ir.Value, y: ir.Value, dtype: DType, largest: bool, nan_first: bool
) -> ir.Value:
    """Whether x comes before y, the largest (or smallest) first; all NaN are equal, and before or
    after every number."""
    if dtype.kind != "float":
        return apply(builder, "less", (y, x) if largest else (x, y), dtype, fused=False)
    # True where either is NaN: then the one that must not be decides.
    either = builder.fcmp_unordered(">" if largest else "<", x, y)
    number_ = y if nan_first else x
    return builder.and_(either, builder.fcmp_ordered("ord", number_, number_))


def neutral(kind: str, type_: ir.Type, dtype: DType) -> ir.Constant:
    """What a reduction of nothing gives."""
    return number(type_, scalar.neutral(kind, dtype))


def halves(builder: IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The first and the second half of the lanes of a vector."""
    half, undefined = lanes_of(x) // 2, ir.Constant(x.type, ir.Undefined)
    first, second = (builder.shuffle(x, undefined, range(b, b + half)) for b in (0, half))
    return first, second
