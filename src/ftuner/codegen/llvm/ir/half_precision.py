"""Half precision in memory: 16-bit words to and from float32, scalars and vectors.

Integer arithmetic that every instruction set has. LLVM would call functions of a runtime library
for these conversions where the target has no instruction for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import IRBuilder
from ftuner.codegen.llvm.ir.vector_arithmetic import like, splat
from ftuner.core.dtype import BFLOAT16, FLOAT16, DType

_SIGN = 0x8000
_SHIFT = 13
"""Bits that the significand of float32 has more than that of float16."""
_REBIASED = 2.0**112
"""Ratio of a float16 to the float32 whose exponent field is the same."""
_INFINITY = 0x7F800000
_INFINITE_FIELD = 0x1F << 23
"""The exponent field of float16's infinities and NaN, at the place of float32's."""
_SMALLEST_NORMAL = 0x38800000
"""2^-14 as float32: the smallest normal number of float16."""
_LARGEST = 0x47800000
"""2^16 as float32: what is as large or larger is infinite in float16."""
_HALF = 0x3F000000
"""0.5 as float32, whose last bit counts units of the smallest float16."""


def _of(x: ir.Type, bits: int) -> ir.Type:
    return like(x, ir.IntType(bits))


def _from_bfloat16(builder: IRBuilder, words: ir.Value) -> ir.Value:
    wide = _of(words.type, 32)
    bits = builder.shl(builder.zext(words, wide), splat(wide, 16))
    return builder.bitcast(bits, like(wide, ir.FloatType()))


def _to_bfloat16(builder: IRBuilder, x: ir.Value) -> ir.Value:
    """Rounded to nearest, ties to even. NaN stays NaN."""
    wide = _of(x.type, 32)
    bits = builder.bitcast(x, wide)
    last = builder.and_(builder.lshr(bits, splat(wide, 16)), splat(wide, 1))
    rounded = builder.add(builder.add(bits, splat(wide, 0x7FFF)), last)
    # The carry of rounding could make an infinity of NaN.
    quiet = builder.or_(bits, splat(wide, 1 << 22))
    chosen = builder.select(builder.fcmp_unordered("uno", x, x), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, splat(wide, 16)), _of(x.type, 16))


def _from_float16(builder: IRBuilder, words: ir.Value) -> ir.Value:
    wide = _of(words.type, 32)
    single = like(wide, ir.FloatType())
    bits = builder.zext(words, wide)
    sign = builder.shl(builder.and_(bits, splat(wide, _SIGN)), splat(wide, 16))
    field = builder.shl(builder.and_(bits, splat(wide, _SIGN - 1)), splat(wide, _SHIFT))
    # A product, which is exact, gives subnormal numbers as well.
    finite = builder.fmul(builder.bitcast(field, single), splat(single, _REBIASED))
    special = builder.or_(field, splat(wide, _INFINITY))
    is_special = builder.icmp_unsigned(">=", field, splat(wide, _INFINITE_FIELD))
    chosen = builder.select(is_special, special, builder.bitcast(finite, wide))
    return builder.bitcast(builder.or_(chosen, sign), single)


def _to_float16(builder: IRBuilder, x: ir.Value) -> ir.Value:
    """Rounded to nearest, ties to even. NaN stays NaN."""
    wide = _of(x.type, 32)
    single = like(wide, ir.FloatType())
    bits = builder.bitcast(x, wide)
    sign = builder.lshr(bits, splat(wide, 16))
    sign = builder.and_(sign, splat(wide, _SIGN))
    size = builder.and_(bits, splat(wide, 0x7FFFFFFF))
    # The exponent is rebiased modulo 2^32; the carry of rounding may make an infinity.
    last = builder.and_(builder.lshr(size, splat(wide, _SHIFT)), splat(wide, 1))
    normal = builder.add(builder.add(size, splat(wide, 0xC8000FFF)), last)
    normal = builder.lshr(normal, splat(wide, _SHIFT))
    # A sum with 0.5 rounds to units of the smallest number.
    half = splat(single, 0.5)
    small = builder.bitcast(builder.fadd(builder.bitcast(size, single), half), wide)
    small = builder.sub(small, splat(wide, _HALF))
    is_nan = builder.icmp_unsigned(">", size, splat(wide, _INFINITY))
    special = builder.select(is_nan, splat(wide, 0x7E00), splat(wide, 0x7C00))
    is_small = builder.icmp_unsigned("<", size, splat(wide, _SMALLEST_NORMAL))
    found = builder.select(is_small, small, normal)
    is_large = builder.icmp_unsigned(">=", size, splat(wide, _LARGEST))
    found = builder.select(is_large, special, found)
    return builder.trunc(builder.or_(found, sign), _of(x.type, 16))


Conversion = Callable[[IRBuilder, ir.Value], ir.Value]
WIDENED: Mapping[DType, Conversion] = {BFLOAT16: _from_bfloat16, FLOAT16: _from_float16}
"""Words in memory as float32."""
ROUNDED: Mapping[DType, Conversion] = {BFLOAT16: _to_bfloat16, FLOAT16: _to_float16}
"""The reverse."""


def rounded(builder: IRBuilder, dtype: DType, x: ir.Value, converts: bool) -> ir.Value:
    """Floats rounded to a half-precision dtype, in their own type. `converts`: whether the target
    has instructions for float16."""
    single = like(x.type, ir.FloatType())
    narrow = x if x.type == single else builder.fptrunc(x, single)
    if dtype == FLOAT16 and converts:
        half = builder.fptrunc(narrow, like(x.type, ir.HalfType()))
        return builder.fpext(half, x.type)
    found = WIDENED[dtype](builder, ROUNDED[dtype](builder, narrow))
    return found if x.type == single else builder.fpext(found, x.type)
