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

Coefficients: minimax fits by Remez exchange in 150 bits or more, made for this file, rounded to
the format. Each table says the interval, the function fitted and the largest relative error after
rounding, relative to the elementary function that the table serves. Lowest power first.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir

from ftuner.codegen.llvm.build import type_suffix


def _table(text: str) -> tuple[float, ...]:
    return tuple(float.fromhex(word) for word in text.split())


@dataclass(frozen=True)
class _Format:
    """One IEEE 754 binary format and the constants that the functions need in it."""

    bits: int
    fraction_bits: int
    bias: int
    exp_low: float
    """exp rounds to zero below; derived: less than ln of half the smallest subnormal."""
    exp_high: float
    """exp overflows above; derived: more than (bias + 1) ln 2, by less than ln 2 / 2."""
    tanh_high: float
    """tanh rounds to one above; derived: more than atanh(1 - 2**-(fraction_bits + 2))."""
    erfc_high: float
    """erfc rounds to zero above; derived: solves erfc(x) < half the smallest subnormal."""
    ln2_high: float
    """ln 2 cut so that its product with any exponent of the format is exact."""
    ln2_low: float
    """ln 2 - ln2_high."""
    erfcx_scale: float
    erfcx_shift: float
    """The argument of the fit of erfcx is (shift - scale a) / (shift + scale a). Chosen for little
    error among those where its first coefficient is one."""
    exp_table: tuple[float, ...]
    exp2_table: tuple[float, ...]
    log_table: tuple[float, ...]
    erf_table: tuple[float, ...]
    erfcx_table: tuple[float, ...]


_FLOAT32 = _Format(
    bits=32,
    fraction_bits=23,
    bias=127,
    exp_low=-104.5,
    exp_high=89.0,
    tanh_high=9.25,
    erfc_high=10.125,
    ln2_high=float.fromhex("0x1.62e4p-1"),
    ln2_low=float.fromhex("0x1.7f7d1cp-20"),
    erfcx_scale=float.fromhex("0x1.00aa6ap+0"),
    erfcx_shift=float.fromhex("0x1.c12c5ap+0"),
    # (expm1(r) - r) / r^2 on |r| <= 0.35: expm1 to 2^-28.7
    exp_table=_table("""
        0x1.000000p-1 0x1.555554p-3 0x1.5554aap-5 0x1.11118ep-7 0x1.6d78d8p-10 0x1.a0332ep-13"""),
    # (2^r - 1) / r on |r| <= 0.5: 2^r to 2^-27.5
    exp2_table=_table("""
        0x1.62e430p-1 0x1.ebfbdap-3 0x1.c6af2cp-5 0x1.3b2e28p-7 0x1.5f3ef2p-10 0x1.41fca6p-13"""),
    # (log((1 + s) / (1 - s)) / s - 2) / z, z = s^2, on z <= 0.02947: log to 2^-30.1
    log_table=_table("0x1.55557ap-1 0x1.995eb0p-2 0x1.31e464p-2"),
    # erf(x) / x - 1 in z = x^2 on z <= 1: erf to 2^-28.6
    erf_table=_table("""
        0x1.06eba8p-3 -0x1.81273ep-2 0x1.ce2cf8p-4 -0x1.b7f90ep-6 0x1.5405b2p-8 -0x1.a3f702p-11
        0x1.496a3ap-14"""),
    # ((shift + scale a) erfcx(a) - 1) / q on 0 <= a <= 10.2: erfcx to 2^-27.4
    erfcx_table=_table("""
        0x1.37a0a4p-1 0x1.704986p-3 -0x1.0a78f8p-6 -0x1.74e88cp-6 0x1.8537c4p-9 0x1.c5ef2ep-9
        -0x1.352738p-10 -0x1.aed55ep-12 0x1.559364p-12 -0x1.2e4bd8p-18 -0x1.064958p-15"""),
)

_FLOAT64 = _Format(
    bits=64,
    fraction_bits=52,
    bias=1023,
    exp_low=-746.0,
    exp_high=710.0,
    tanh_high=19.25,
    erfc_high=27.3125,
    ln2_high=float.fromhex("0x1.62e42fefa3p-1"),
    ln2_low=float.fromhex("0x1.3de6af278ece6p-42"),
    erfcx_scale=float.fromhex("0x1.ec5bc7235ed3cp-1"),
    erfcx_shift=float.fromhex("0x1.14f3a003e5574p+1"),
    # As for float32: expm1 to 2^-59.4
    exp_table=_table("""
        0x1.0000000000000p-1 0x1.5555555555559p-3 0x1.555555555553cp-5 0x1.111111110f4b4p-7
        0x1.6c16c16c1fb4bp-10 0x1.a01a01b0c8c9fp-13 0x1.a01a017992632p-16 0x1.71ddf5d9b3a96p-19
        0x1.27e538842ca0ep-22 0x1.af636ef8a86bcp-26 0x1.1ee873df96857p-29"""),
    # As for float32: 2^r to 2^-56.4
    exp2_table=_table("""
        0x1.62e42fefa39efp-1 0x1.ebfbdff82c5a4p-3 0x1.c6b08d704a002p-5 0x1.3b2ab6fba011ap-7
        0x1.5d87fe78cd725p-10 0x1.4309130ed9966p-13 0x1.ffcbfba96e3b9p-17 0x1.62bfc79b91b93p-20
        0x1.b5267d0291420p-24 0x1.e61b5243174dep-28 0x1.e79b878fcb7a5p-32"""),
    # As for float32: log to 2^-58.8
    log_table=_table("""
        0x1.5555555555593p-1 0x1.999999997fc66p-2 0x1.249249420718bp-2 0x1.c71c51f50117ap-3
        0x1.746643932cbf3p-3 0x1.39a1364384c03p-3 0x1.2f0b0df67e727p-3"""),
    # As for float32: erf to 2^-54.8
    erf_table=_table("""
        0x1.06eba8214db68p-3 -0x1.812746b0379bdp-2 0x1.ce2f21a040d16p-4 -0x1.b82ce311fa948p-6
        0x1.565bccf92b40cp-8 -0x1.c02db03dd9404p-11 0x1.f9a2baa92930bp-14 -0x1.f4ca4d7157c71p-17
        0x1.b97fd3eaabcc5p-20 -0x1.5c07274683743p-23 0x1.d71b11045784bp-27 -0x1.abae4dc4327cdp-31
        """),
    # As for float32, on 0 <= a <= 27.3: erfcx to 2^-54.9
    erfcx_table=_table("""
        0x1.723bc16147c33p-1 0x1.6dd6ee88f3c9fp-2 0x1.8ea7880422788p-4 -0x1.c72202d7a5521p-9
        -0x1.6f60488269858p-7 -0x1.91dfabcae5c5bp-11 0x1.9c54e680e0210p-10 0x1.459d1deb766c5p-14
        -0x1.201a48e05cbd5p-12 0x1.7d3e3e1dffddfp-16 0x1.9c7372272dd0bp-15 -0x1.0537151d03fe8p-16
        -0x1.b14fcf749172ap-18 0x1.69ca68548c109p-18 -0x1.2e2b5f501a1d3p-22 -0x1.433320d1b6bbfp-20
        0x1.213fe48d66ef3p-21 0x1.bb3f5220fd57dp-24 -0x1.9429e3c6cc897p-23 0x1.535b6b98a3d8fp-25
        0x1.27da06e35e153p-25 -0x1.1685a44abbfb0p-26 -0x1.5f937ab6e2873p-29 0x1.098e9d3f2798fp-29
        """),
)

_ERF_SMALL = 1.0
"""Above, erf is 1 - erfc. Derived: erfc is under 0.16 there, so that its error hardly counts."""


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
    format: _Format
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
            constants = _FLOAT32 if type_suffix(x.type).endswith("f32") else _FLOAT64
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
    return body.where("<", magnitude, _ERF_SMALL, _erf_near_zero(body, x), tail)


@_shared
def erfc(body: _Body, x: ir.Value) -> ir.Value:
    """1 - erf(x), relatively accurate for positive x down to underflow."""
    builder = body.builder
    magnitude = intrinsic(builder, "fabs", x)
    tail = _erfc_tail(body, magnitude)
    return body.where("<", x, 0.0, builder.fsub(body.number(2.0), tail), tail)
