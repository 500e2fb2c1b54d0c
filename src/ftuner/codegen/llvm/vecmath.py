"""Elementary functions as LLVM IR, on scalars and vectors of float32 or float64 of any length.

Each elementary function takes a builder and an SSA value and returns the SSA value of a call to
an internal, never inlined function, which is added to the builder's module on first use: an
epilogue applies one activation to a dozen vectors, and the kernel stays small. The bodies are free
of branches and of calls to a C library. `fused` says whether the target has a fused multiply-add;
without it, a product and a sum are rounded apart. Never pass `fused` for a target that lacks it:
LLVM would call `fma` of the C library.

Every function is within 4 ulp for every finite argument, subnormal results rounded and not flushed.
Largest errors seen: erfc 3.95 (every float32 argument tried), tanh and sigmoid 2.5, others 1.3. NaN
gives NaN; infinities, signed zeros and overflow are as in C's Annex F. The floating-point
environment is the default one: round to nearest, subnormals honoured.

The coefficients are those of `codegen/coefficients.py`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir

from ftuner.codegen.coefficients import ERF_SMALL, FLOAT32, FLOAT64, Format
from ftuner.codegen.llvm.build import type_suffix


def splat(type_: ir.Type, value: float) -> ir.Constant:
    """`value` in every lane of a scalar or vector type."""
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [ir.Constant(type_.element, value)] * type_.count)
    return ir.Constant(type_, value)


def intrinsic(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    """Call the elementwise intrinsic `llvm.<name>`, all arguments and the result of one type."""
    type_ = arguments[0].type
    symbol = f"llvm.{name}.{type_suffix(type_)}"
    module = builder.module
    function = module.globals.get(symbol)
    if function is None:
        signature = ir.FunctionType(type_, [type_] * len(arguments))
        function = ir.Function(module, signature, symbol)
    return builder.call(function, arguments)


@dataclass(frozen=True)
class _Body:
    """The builder of one function's body, with the arithmetic of its floating type."""

    builder: ir.IRBuilder
    type: ir.Type
    format: Format
    fused: bool

    @property
    def integers(self) -> ir.Type:
        scalar, vector = ir.IntType(self.format.bits), isinstance(self.type, ir.VectorType)
        return ir.VectorType(scalar, self.type.count) if vector else scalar

    def number(self, value: float) -> ir.Constant:
        return splat(self.type, value)

    def integer(self, value: int) -> ir.Constant:
        return splat(self.integers, value % 2**self.format.bits)

    def pattern(self, value: float) -> int:
        """The bits of `value` in the format, as an integer."""
        float_code, integer_code = ("<f", "<I") if self.format.bits == 32 else ("<d", "<Q")
        return int(struct.unpack(integer_code, struct.pack(float_code, value))[0])

    def to_bits(self, x: ir.Value) -> ir.Value:
        return self.builder.bitcast(x, self.integers)

    def from_bits(self, bits: ir.Value) -> ir.Value:
        return self.builder.bitcast(bits, self.type)

    def madd(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x * y + z."""
        if self.fused:
            return intrinsic(self.builder, "fma", x, y, z)
        return self.builder.fadd(self.builder.fmul(x, y), z)

    def polynomial(self, x: ir.Value, table: Sequence[float]) -> ir.Value:
        total: ir.Value = self.number(table[-1])
        for coefficient in reversed(table[:-1]):
            total = self.madd(total, x, self.number(coefficient))
        return total

    def where(self, test: str, x: ir.Value, limit: float, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a` where x compares (ordered) with `limit`, otherwise `b`."""
        condition = self.builder.fcmp_ordered(test, x, self.number(limit))
        return self.builder.select(condition, a, b)

    def at_most(self, x: ir.Value, limit: float) -> ir.Value:
        """The smaller of x and `limit`; NaN stays NaN."""
        return self.where(">", x, limit, self.number(limit), x)

    def at_least(self, x: ir.Value, limit: float) -> ir.Value:
        return self.where("<", x, limit, self.number(limit), x)


class VectorFunction(Protocol):
    """An elementary function: writes a call on an SSA value of any supported type."""

    def __call__(self, builder: ir.IRBuilder, x: ir.Value, fused: bool) -> ir.Value: ...


def _shared(emit_body: Callable[[_Body, ir.Value], ir.Value]) -> VectorFunction:
    """From what writes a body, make what calls the module's one function with that body."""
    name = emit_body.__name__

    def call(builder: ir.IRBuilder, x: ir.Value, fused: bool) -> ir.Value:
        symbol = f"ftuner_{name}_{type_suffix(x.type)}" + ("" if fused else "_unfused")
        function = builder.module.globals.get(symbol)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(x.type, [x.type]), symbol)
            function.linkage = "internal"
            function.attributes.add("noinline")
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            constants = FLOAT32 if type_suffix(x.type).endswith("f32") else FLOAT64
            inner.ret(emit_body(_Body(inner, x.type, constants, fused), function.args[0]))
        return builder.call(function, [x])

    call.__name__, call.__doc__ = name, emit_body.__doc__
    return call


def _reduce(
    body: _Body, x: ir.Value, plus: Callable[[ir.Value], ir.Value] | None = None
) -> tuple[ir.Value, ir.Value]:
    """Write x as n ln 2 + r with |r| <= 0.35: returns (n, expm1(r)), n an integer. `plus(y)` is
    x + y, where x itself is rounded and its error counts.

    Cody and Waite's reduction. n is rounded by adding 1.5 * 2**fraction_bits, whose last bit is
    worth one: portable, and the integer lies ready in the low bits of the sum.
    """
    builder, constants = body.builder, body.format
    magic = 1.5 * 2.0**constants.fraction_bits
    shifted = body.madd(x, body.number(1.0 / math.log(2.0)), body.number(magic))
    n = builder.fsub(shifted, body.number(magic))
    ln2_high = body.number(-constants.ln2_high)
    r = body.madd(n, ln2_high, x) if plus is None else plus(builder.fmul(n, ln2_high))
    r = body.madd(n, body.number(-constants.ln2_low), r)
    squared = builder.fmul(r, r)
    expm1 = body.madd(squared, body.polynomial(r, constants.exp_table), r)
    return builder.sub(body.to_bits(shifted), body.integer(body.pattern(magic))), expm1


def _power_of_two(body: _Body, biased: ir.Value) -> ir.Value:
    return body.from_bits(body.builder.shl(biased, body.integer(body.format.fraction_bits)))


def _scale(body: _Body, x: ir.Value, n: ir.Value) -> ir.Value:
    """x * 2**n. In two steps, as 2**n may be subnormal or infinite; the first is exact, so that a
    subnormal result is rounded once. Before AVX-512, x86 shifts 64-bit lanes logically only."""
    builder = body.builder
    biased_twice = builder.add(n, body.integer(2 * body.format.bias))
    first = builder.lshr(biased_twice, body.integer(1))
    second = builder.sub(biased_twice, first)
    once = builder.fmul(x, _power_of_two(body, first))
    return builder.fmul(once, _power_of_two(body, second))


def _scale_down(body: _Body, x: ir.Value, n: ir.Value) -> ir.Value:
    """x * 2**n for n <= 0: first by a power that is surely normal, which is exact, so that a
    subnormal result is rounded once."""
    builder, lift = body.builder, (body.format.bias + 1) // 2
    once = builder.fmul(
        x, _power_of_two(body, builder.add(n, body.integer(body.format.bias + lift)))
    )
    return builder.fmul(once, body.number(2.0**-lift))


def _exp_in_range(body: _Body, x: ir.Value) -> ir.Value:
    n, expm1 = _reduce(body, x)
    return _scale(body, body.builder.fadd(expm1, body.number(1.0)), n)


@_shared
def exp(body: _Body, x: ir.Value) -> ir.Value:
    """e**x."""
    builder, zero = body.builder, body.number(0.0)
    # What rounds to zero is zero without a product that underflows, which takes x86 some hundred
    # cycles: most scores of a padded sentence are of that kind.
    vanishes = builder.fcmp_ordered("<", x, body.number(body.format.exp_low))
    argument = builder.select(vanishes, zero, body.at_most(x, body.format.exp_high))
    return builder.select(vanishes, zero, _exp_in_range(body, argument))


@_shared
def exp2_flushed(body: _Body, x: ir.Value) -> ir.Value:
    """2**x for x <= 0, zero where that is less than the smallest normal number: what the weights of
    a softmax need, at two thirds of the instructions of `exp`."""
    builder, constants = body.builder, body.format
    zero, magic = body.number(0.0), 1.5 * 2.0**constants.fraction_bits
    vanishes = builder.fcmp_ordered("<", x, body.number(1.0 - constants.bias))
    argument = builder.select(vanishes, zero, x)
    shifted = builder.fadd(argument, body.number(magic))
    r = builder.fsub(argument, builder.fsub(shifted, body.number(magic)))
    fraction = body.madd(r, body.polynomial(r, constants.exp2_table), body.number(1.0))
    biased = body.integer(constants.bias - body.pattern(magic))
    power = _power_of_two(body, builder.add(body.to_bits(shifted), biased))
    return builder.select(vanishes, zero, builder.fmul(fraction, power))


@_shared
def log(body: _Body, x: ir.Value) -> ir.Value:
    """The natural logarithm; NaN below zero, -inf at both zeros.

    log(m 2**k) with m in [sqrt 1/2, sqrt 2), put together as in fdlibm's e_log.c.
    """
    builder, constants = body.builder, body.format
    fraction_bits = constants.fraction_bits
    smallest_normal = 2.0 ** (1 - constants.bias)
    lift = fraction_bits + 1
    normal = body.where("<", x, smallest_normal, builder.fmul(x, body.number(2.0**lift)), x)

    lowest = body.pattern(math.sqrt(0.5))
    moved = builder.add(body.to_bits(normal), body.integer(body.pattern(1.0) - lowest))
    exponent = builder.lshr(moved, body.integer(fraction_bits))
    fraction = builder.and_(moved, body.integer(2**fraction_bits - 1))
    m = body.from_bits(builder.add(fraction, body.integer(lowest)))
    # An integer becomes a float as the fraction of `anchor`: no 64-bit conversion before AVX-512.
    anchor = 2.0**fraction_bits
    k = body.from_bits(builder.or_(exponent, body.integer(body.pattern(anchor))))
    bias = anchor + constants.bias
    offset = body.where("<", x, smallest_normal, body.number(bias + lift), body.number(bias))
    k = builder.fsub(k, offset)

    f = builder.fsub(m, body.number(1.0))
    s = builder.fdiv(f, builder.fadd(f, body.number(2.0)))
    z = builder.fmul(s, s)
    half_square = builder.fmul(builder.fmul(f, body.number(0.5)), f)
    series = body.madd(z, body.polynomial(z, constants.log_table), half_square)
    rest = body.madd(s, series, builder.fmul(k, body.number(constants.ln2_low)))
    small = builder.fsub(builder.fsub(half_square, rest), f)
    result = builder.fsub(builder.fmul(k, body.number(constants.ln2_high)), small)

    result = body.where("<", x, math.inf, result, x)
    result = body.where("<", x, 0.0, body.number(math.nan), result)
    return body.where("==", x, 0.0, body.number(-math.inf), result)


@_shared
def tanh(body: _Body, x: ir.Value) -> ir.Value:
    """The hyperbolic tangent, expm1(2|x|) / (expm1(2|x|) + 2) with the sign of x."""
    builder = body.builder
    magnitude = body.at_most(intrinsic(builder, "fabs", x), body.format.tanh_high)
    n, expm1 = _reduce(body, builder.fadd(magnitude, magnitude))
    power = _power_of_two(body, builder.add(n, body.integer(body.format.bias)))
    expm1 = body.madd(power, expm1, builder.fsub(power, body.number(1.0)))
    quotient = builder.fdiv(expm1, builder.fadd(expm1, body.number(2.0)))
    return intrinsic(builder, "copysign", quotient, x)


@_shared
def sigmoid(body: _Body, x: ir.Value) -> ir.Value:
    """1 / (1 + e**-x); for negative x as e**x / (1 + e**x), accurate down to underflow."""
    builder = body.builder
    z = _exp_in_range(
        body, body.at_least(builder.fneg(intrinsic(builder, "fabs", x)), body.format.exp_low)
    )
    one = body.number(1.0)
    return builder.fdiv(body.where(">=", x, 0.0, one, z), builder.fadd(one, z))


def _erf_near_zero(body: _Body, x: ir.Value) -> ir.Value:
    series = body.polynomial(body.builder.fmul(x, x), body.format.erf_table)
    return body.madd(x, series, x)


def _erfc_tail(body: _Body, magnitude: ir.Value) -> ir.Value:
    """erfc of `magnitude` >= 0 as exp(-a^2) erfcx(a).

    An error of a^2 is an absolute error of the exponent, so the square is not rounded. erfcx is a
    slowly varying function of (K - a) / (K + a) over K + a, a form like that of Shepherd and
    Laframboise (Mathematics of Computation 36, 1981, 249-253) but with one K, and so one division.
    """
    builder, constants = body.builder, body.format
    a = body.at_most(magnitude, constants.erfc_high)
    square = builder.fmul(a, a)

    def less_square(y: ir.Value) -> ir.Value:
        if body.fused:
            return body.madd(builder.fneg(a), a, y)
        # The leading half of the significand has an exact square.
        cleared = (constants.fraction_bits + 2) // 2
        head = body.from_bits(builder.and_(body.to_bits(a), body.integer(-(2**cleared))))
        rest = builder.fmul(builder.fsub(a, head), builder.fadd(head, a))
        return builder.fsub(builder.fsub(y, builder.fmul(head, head)), rest)

    n, expm1 = _reduce(body, builder.fneg(square), less_square)
    scale, shift = constants.erfcx_scale, body.number(constants.erfcx_shift)
    t = builder.fdiv(body.number(1.0), body.madd(a, body.number(scale), shift))
    q = builder.fmul(body.madd(a, body.number(-scale), shift), t)
    # exp(-a^2) and the numerator are near one: multiplying by what they have above one saves the
    # rounding of either sum.
    above_one = builder.fmul(q, body.polynomial(q, constants.erfcx_table))
    erfcx = body.madd(t, above_one, t)
    return _scale_down(body, body.madd(erfcx, expm1, erfcx), n)


@_shared
def erf(body: _Body, x: ir.Value) -> ir.Value:
    """The error function, relatively accurate about zero."""
    builder = body.builder
    magnitude = intrinsic(builder, "fabs", x)
    tail = builder.fsub(body.number(1.0), _erfc_tail(body, magnitude))
    tail = intrinsic(builder, "copysign", tail, x)
    return body.where("<", magnitude, ERF_SMALL, _erf_near_zero(body, x), tail)


@_shared
def erfc(body: _Body, x: ir.Value) -> ir.Value:
    """1 - erf(x), relatively accurate for positive x down to underflow."""
    builder = body.builder
    magnitude = intrinsic(builder, "fabs", x)
    tail = _erfc_tail(body, magnitude)
    return body.where("<", x, 0.0, builder.fsub(body.number(2.0), tail), tail)
