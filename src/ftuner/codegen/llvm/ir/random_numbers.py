"""Random numbers as LLVM IR, on scalars and vectors: `core.random_numbers` has the definitions.

A normal number is computed without fused multiply-adds, so that it has the same bits on each
instruction set. It is within 4 ulp of the exact value.
"""

from __future__ import annotations

import math
from functools import partial

from llvmlite import ir

from ftuner.codegen.coefficients import FORMATS
from ftuner.codegen.llvm.ir import vector_math
from ftuner.codegen.llvm.ir.builder import I32, IRBuilder, scalar_type, type_suffix
from ftuner.codegen.llvm.ir.vector_arithmetic import Body, intrinsic, like, splat
from ftuner.core.dtype import DType
from ftuner.core.random_constants import ANGLE_BITS, INCREMENTS, MULTIPLIERS, RADIUS_BITS, ROUNDS

_LOW = 0xFFFFFFFF


def philox(builder: IRBuilder, counter: ir.Value, key: ir.Value) -> ir.Value:
    """64 random bits in each lane, for counters and keys of 64 bits."""
    symbol = f"ftuner_philox_{type_suffix(counter.type)}"
    return builder.shared(symbol, counter.type, [counter, key], _philox)


def normal(builder: IRBuilder, bits: ir.Value, others: ir.Value, dtype: DType) -> ir.Value:
    """Normal numbers of two words of 64 random bits in each lane."""
    result = like(bits.type, scalar_type(dtype))
    symbol = f"ftuner_normal_{dtype}_{type_suffix(bits.type)}"
    return builder.shared(symbol, result, [bits, others], partial(_normal, dtype=dtype))


def _philox(builder: IRBuilder, counter: ir.Value, key: ir.Value) -> ir.Value:
    """Words of 32 bits are in lanes of 64: a product of two is one instruction of x86, which
    ignores what is above them, so that LLVM drops the masks."""

    def number(value: int) -> ir.Constant:
        return splat(counter.type, value)

    def low(x: ir.Value) -> ir.Value:
        return builder.and_(x, number(_LOW))

    def high(x: ir.Value) -> ir.Value:
        return builder.lshr(x, number(32))

    a, b, c, d = low(counter), high(counter), number(0), number(0)
    k, m = low(key), high(key)
    for _ in range(ROUNDS):
        x = builder.mul(a, number(MULTIPLIERS[0]))
        y = builder.mul(c, number(MULTIPLIERS[1]))
        a, b, c, d = (
            low(builder.xor(builder.xor(high(y), b), k)), y,
            low(builder.xor(builder.xor(high(x), d), m)), x,
        )  # fmt: skip
        k, m = (
            low(builder.add(word, number(increment)))
            for word, increment in zip((k, m), INCREMENTS, strict=True)
        )
    return builder.or_(a, builder.shl(b, number(32)))


def _normal(builder: IRBuilder, bits: ir.Value, others: ir.Value, dtype: DType) -> ir.Value:
    type_ = like(bits.type, scalar_type(dtype))
    body = Body(builder, type_, FORMATS[dtype.name], fused=False)
    width = RADIUS_BITS[dtype.name]
    upper = builder.lshr(bits, splat(bits.type, 64 - width))
    if dtype.bits == 32:
        integers = like(bits.type, I32)
        upper, others = builder.trunc(upper, integers), builder.trunc(others, integers)
    u = builder.fadd(builder.sitofp(upper, type_), body.number(0.5))
    u = builder.fmul(u, body.number(2.0**-width))
    v = builder.fmul(
        builder.sitofp(others, type_), body.number(2.0 ** (1 - ANGLE_BITS[dtype.name]))
    )
    square = builder.fmul(vector_math.log(builder, u, fused=False), body.number(-2.0))
    return builder.fmul(intrinsic(builder, "sqrt", square), _cosine(body, v))


def _cosine(body: Body, v: ir.Value) -> ir.Value:
    """cos(pi v) for |v| <= 1: as sin(pi t) with t = 1/2 - |v|, or beyond a quarter as a cosine.
    Both differences are exact."""
    builder, constants = body.builder, body.format
    size = intrinsic(builder, "fabs", v)
    t = builder.fsub(body.number(0.5), size)
    # cos(pi |v|) is cos(pi |v|) up to 1/4, sin(pi t) up to 3/4, and -cos(pi (1 - |v|)) from there.
    from_one = builder.fsub(body.number(1.0), size)
    middle = builder.fcmp_ordered("<", intrinsic(builder, "fabs", t), body.number(0.25))
    near = body.where(">", t, 0.0, size, from_one)
    r = builder.fmul(builder.select(middle, t, near), body.number(math.pi))
    z = builder.fmul(r, r)
    cubic, series = builder.fmul(r, z), body.polynomial(z, constants.sin_table)
    sine = body.madd(cubic, series, r)
    cosine = body.madd(z, body.polynomial(z, constants.cos_table), body.number(1.0))
    cosine = body.where(">", t, 0.0, cosine, builder.fneg(cosine))
    return builder.select(middle, sine, cosine)
