"""Elementary functions as LLVM IR, on scalars and vectors of float32 or float64 of any length.

Each elementary function takes a builder and an SSA value and returns the SSA value of a call to an
internal function, which is added to the builder's module on first use. An epilogue applies one
activation to a dozen vectors: in bundles of uKernels calls are not inlined, so that these stay
small. The bodies are free of branches and of calls to a C library, except that sin and cos call it
where a lane is beyond `sine_high`. `fused` says whether the target has a fused multiply-add;
without it, a product and a sum are rounded apart. Never pass `fused` for a target that lacks it:
LLVM would call `fma` of the C library.

Every function is within 4 ulp for every finite argument, subnormal results rounded and not flushed;
`swish` for slopes from 2**-10 to 2**10. Largest errors seen in float32, with fused multiply-adds
and without (of every 5th to 100th number below 1024): mish 3.6 and 3.8, gelu 3.4 and 3.5, erfc 2.9
and 3.3, gelu_tanh 2.7 and 2.9, softplus and silu 2.8, tanh and sigmoid 2.4, swish 2.3, atan 2.5,
expm1, sin and cos 1.5, erf 1.2, exp and log 1. In float64, of some ten thousand numbers, each is
below its error in float32. NaN gives NaN, an infinity the limit there; signed zeros and
overflow are as in C's Annex F. The floating-point environment is the default one: round to nearest,
subnormals honoured.

The coefficients are those of `codegen/coefficients.py`.
"""

from __future__ import annotations

import math

from llvmlite import ir

from ftuner.codegen.coefficients import ATAN_LARGE, ATAN_SMALL, ERF_SMALL
from ftuner.codegen.llvm.ir.vector_arithmetic import Body, VectorFunction, intrinsic, shared


@shared
def exp(body: Body, x: ir.Value) -> ir.Value:
    """e**x."""
    builder, zero = body.builder, body.number(0.0)
    # What rounds to zero is zero without a product that underflows, which takes x86 some hundred
    # cycles: most scores of a padded sentence are of that kind.
    vanishes = builder.fcmp_ordered("<", x, body.number(body.format.exp_low))
    argument = builder.select(vanishes, zero, body.at_most(x, body.format.exp_high))
    n, expm1 = body.reduce(argument)
    power = body.scale(builder.fadd(expm1, body.number(1.0)), n)
    return builder.select(vanishes, zero, power)


@shared
def exp_flushed(body: Body, x: ir.Value) -> ir.Value:
    """e**x for x <= 0, zero where that is less than the smallest normal number: the powers of a
    softmax, at two thirds of the instructions of `exp`."""
    builder, zero = body.builder, body.number(0.0)
    least = (1 - body.format.bias) * math.log(2.0)
    vanishes = builder.fcmp_ordered("<", x, body.number(least))
    n, expm1 = body.reduce(builder.select(vanishes, zero, x))
    power = body.power_of_two(builder.add(n, body.integer(body.format.bias)))
    return builder.select(vanishes, zero, body.madd(power, expm1, power))


@shared
def exp2_flushed(body: Body, x: ir.Value) -> ir.Value:
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
    power = body.power_of_two(builder.add(body.to_bits(shifted), biased))
    return builder.select(vanishes, zero, builder.fmul(fraction, power))


@shared
def log(body: Body, x: ir.Value) -> ir.Value:
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


@shared
def expm1(body: Body, x: ir.Value) -> ir.Value:
    """e**x - 1, relatively accurate about zero."""
    builder, constants = body.builder, body.format
    within = body.at_most(body.at_least(x, -2.0 * constants.tanh_high), constants.exp_high)
    n, rest = body.reduce(within)
    # Half the result: 2**n may be infinite.
    power = body.power_of_two(builder.add(n, body.integer(constants.bias - 1)))
    half = body.madd(power, rest, builder.fsub(power, body.number(0.5)))
    tiny = 2.0 ** -(constants.fraction_bits + 2)
    return body.where("<", intrinsic(builder, "fabs", x), tiny, x, builder.fadd(half, half))


@shared
def softplus(body: Body, x: ir.Value) -> ir.Value:
    """log(1 + e**x) as max(x, 0) + log1p(z) with z = e**-|x|; log1p(z) is 2 atanh(z / (2 + z)),
    which cancels nowhere."""
    builder, constants = body.builder, body.format
    lift = body.lift(constants.exp_low)
    down, two = body.number(2.0**-lift), body.number(2.0)
    n, rest = body.reduce(body.at_least(_minus_magnitude(body, x), constants.exp_low))
    power = body.lifted_power(n, lift)
    z = body.madd(power, rest, power)
    lifted = builder.fdiv(z, body.madd(z, down, two))
    s = builder.fmul(lifted, down)
    square = builder.fmul(s, s)
    series = builder.fmul(square, body.polynomial(square, constants.atanh_table))
    log1p = body.madd(lifted, series, builder.fadd(lifted, lifted))
    return body.madd(log1p, down, body.at_least(x, 0.0))


@shared
def mish(body: Body, x: ir.Value) -> ir.Value:
    """x tanh(softplus(x)), which is x w / (w + 2) with w = e**x (e**x + 2), for positive x as
    x - 2x / (w + 2), whose quotient is small."""
    builder, constants = body.builder, body.format
    lift = body.lift(constants.silu_low)
    down = body.number(2.0**-lift)
    within = body.at_most(body.at_least(x, constants.silu_low), constants.tanh_high)
    n, rest = body.reduce(within)
    power = body.lifted_power(n, lift)
    exp = builder.fmul(body.madd(power, rest, power), down)
    # The product by a power of two is exact: x e**x is rounded once.
    product = builder.fmul(body.madd(within, rest, within), power)
    product = body.madd(product, exp, builder.fadd(product, product))
    w = body.madd(exp, exp, builder.fadd(exp, exp))
    positive = builder.fcmp_ordered(">", x, body.number(0.0))
    product = builder.select(positive, builder.fmul(within, body.number(-2.0)), product)
    quotient = builder.fdiv(product, builder.fadd(w, body.number(2.0)))
    factor = builder.select(positive, body.number(1.0), down)
    return body.madd(quotient, factor, body.at_least(x, -0.0))


@shared
def tanh(body: Body, x: ir.Value) -> ir.Value:
    """The hyperbolic tangent, expm1(2|x|) / (expm1(2|x|) + 2) with the sign of x."""
    builder = body.builder
    magnitude = body.at_most(intrinsic(builder, "fabs", x), body.format.tanh_high)
    n, expm1 = body.reduce(builder.fadd(magnitude, magnitude))
    power = body.power_of_two(builder.add(n, body.integer(body.format.bias)))
    expm1 = body.madd(power, expm1, builder.fsub(power, body.number(1.0)))
    quotient = builder.fdiv(expm1, builder.fadd(expm1, body.number(2.0)))
    return intrinsic(builder, "copysign", quotient, x)


@shared
def sigmoid(body: Body, x: ir.Value) -> ir.Value:
    """1 / (1 + e**-x); for negative x as e**x / (1 + e**x), accurate down to underflow."""
    builder, low, one = body.builder, body.format.exp_low, body.number(1.0)
    n, expm1 = body.reduce(body.at_least(_minus_magnitude(body, x), low))
    z = body.scale_down(builder.fadd(expm1, one), n, body.lift(low))
    return builder.fdiv(body.where(">=", x, 0.0, one, z), builder.fadd(one, z))


def _minus_magnitude(body: Body, x: ir.Value) -> ir.Value:
    return body.builder.fneg(intrinsic(body.builder, "fabs", x))


def _gated(
    body: Body, x: ir.Value, y: ir.Value, positive: ir.Value, n: ir.Value, rest: ir.Value,
    least: float,
) -> ir.Value:  # fmt: skip
    """x sigmoid(v), where e**-|v| is 2**n (1 + rest), not less than e**`least`, `positive` says
    whether v >= 0 and y is x wherever v is negative and the result not zero. A subnormal result is
    rounded once."""
    lift = body.lift(least)
    builder, one, down = body.builder, body.number(1.0), body.number(2.0**-lift)
    power = body.lifted_power(n, lift)
    below = builder.fmul(body.madd(y, rest, y), power)
    total = body.madd(body.madd(power, rest, power), down, one)
    quotient = builder.fdiv(builder.select(positive, x, below), total)
    return builder.fmul(quotient, builder.select(positive, one, down))


@shared
def silu(body: Body, x: ir.Value) -> ir.Value:
    """x sigmoid(x)."""
    y = body.at_least(_minus_magnitude(body, x), body.format.silu_low)
    positive = body.builder.fcmp_ordered(">=", x, body.number(0.0))
    return _gated(body, x, y, positive, *body.reduce(y), body.format.silu_low)


@shared
def swish(body: Body, x: ir.Value, slope: ir.Value) -> ir.Value:
    """x sigmoid(slope x) for slopes between 2**-10 and 2**10. An error of the product is an
    absolute error of the exponent, so it is not rounded."""
    builder, zero = body.builder, body.number(0.0)
    magnitude = intrinsic(builder, "fabs", slope)
    high, low = body.product(_minus_magnitude(body, x), magnitude)
    limit = body.number(body.format.swish_low)
    vanishes = builder.fcmp_ordered("<", high, limit)
    high = builder.select(vanishes, limit, high)
    low = builder.select(vanishes, zero, low)
    n, rest = body.reduce(high, lambda y: builder.fadd(builder.fadd(high, y), low))
    # Of any number that is not large the result is zero there.
    y = builder.select(vanishes, intrinsic(builder, "copysign", body.number(1.0), x), x)
    positive = builder.fcmp_ordered(">=", builder.fmul(slope, x), zero)
    return _gated(body, x, y, positive, n, rest, body.format.swish_low)


@shared
def gelu_tanh(body: Body, x: ir.Value) -> ir.Value:
    """x sigmoid(v) with v = x (c + d x^2), the coefficients of Hendrycks and Gimpel: see
    `core.references`. An error of v is an absolute error of the exponent, so what rounding takes
    away is carried along; c is so short that its difference from the sum is exact."""
    builder, constants = body.builder, body.format
    c, c_low, d, d_low = map(body.number, constants.gelu_tanh)
    lowest = constants.gelu_tanh_low
    least = lowest * (constants.gelu_tanh[0] + constants.gelu_tanh[2] * lowest**2)
    y = body.at_least(_minus_magnitude(body, x), lowest)
    square, square_low = body.product(y, y)
    low = body.madd(square_low, d, body.madd(square, d_low, c_low))
    if body.fused:
        total = body.madd(square, d, c)
        lost = body.madd(square, d, builder.fsub(c, total))
    else:
        term, term_low = body.product(square, d)
        total = builder.fadd(c, term)
        lost = builder.fadd(builder.fadd(builder.fsub(c, total), term), term_low)
    v, v_low = body.product(y, total)
    v_low = body.madd(y, builder.fadd(lost, low), v_low)
    n, rest = body.reduce(v, lambda part: builder.fadd(builder.fadd(v, part), v_low))
    positive = builder.fcmp_ordered(">=", x, body.number(0.0))
    return _gated(body, x, y, positive, n, rest, least)


@shared
def gelu(body: Body, x: ir.Value) -> ir.Value:
    """x Phi(x) as max(x, 0) - a Phi(-a) with a = |x|. Phi(-a) is erfc(a / sqrt 2) / 2, computed as
    in `erfc`: a itself is the numerator, and a^2 / 2 is not rounded."""
    builder, constants = body.builder, body.format
    a = body.at_most(intrinsic(builder, "fabs", x), constants.gelu_high)
    half_square = builder.fmul(a, builder.fmul(a, body.number(0.5)))
    n, rest = body.reduce(builder.fneg(half_square), lambda y: _less_square(body, y, a, 0.5))
    shift, slope = body.number(constants.gelu_shift), constants.gelu_scale
    t = builder.fdiv(a, body.madd(a, body.number(slope), shift))
    q = body.madd(t, body.number(-2.0 * slope), body.number(1.0))
    above_one = builder.fmul(q, body.polynomial(q, constants.erfcx_table))
    tail = body.madd(t, above_one, t)
    # The factor in what is above one: multiplying by it would be another rounding.
    factor = constants.gelu_factor
    rest = body.madd(rest, body.number(factor), body.number(factor - 1.0))
    lift = body.lift(-0.5 * constants.gelu_high**2)
    tail = builder.fmul(body.madd(tail, rest, tail), body.lifted_power(n, lift))
    # -0.0 is the bound so that zeros keep their sign.
    down = body.number(-(2.0 ** -(lift + 1)))
    return body.madd(tail, down, body.at_least(x, -0.0))


def _less_square(body: Body, y: ir.Value, a: ir.Value, weight: float = 1.0) -> ir.Value:
    """y - weight a^2, where the weight is a power of two and the square is not rounded."""
    builder = body.builder

    def weighted(x: ir.Value) -> ir.Value:
        return x if weight == 1.0 else builder.fmul(x, body.number(weight))

    if body.fused:
        return body.madd(builder.fneg(a), weighted(a), y)
    head, rest = body.halves(a)
    rest = weighted(builder.fmul(rest, builder.fadd(head, a)))
    return builder.fsub(builder.fsub(y, builder.fmul(head, weighted(head))), rest)


def _erfc_tail(body: Body, magnitude: ir.Value, high: float) -> ir.Value:
    """erfc of `magnitude` >= 0, at most `high`, as exp(-a^2) erfcx(a).

    An error of a^2 is an absolute error of the exponent, so the square is not rounded. erfcx is a
    slowly varying function of (K - a) / (K + a) over K + a, a form like that of Shepherd and
    Laframboise (Mathematics of Computation 36, 1981, 249-253) but with one K, and so one division.
    """
    builder, constants = body.builder, body.format
    a = body.at_most(magnitude, high)
    square = builder.fmul(a, a)
    n, expm1 = body.reduce(builder.fneg(square), lambda y: _less_square(body, y, a))
    shift, slope = body.number(constants.erfcx_shift), constants.erfcx_scale
    t = builder.fdiv(body.number(1.0), body.madd(a, body.number(slope), shift))
    # (K - a) / (K + a) as 1 - 2a / (K + a): an error of t does not count where a is small, and
    # would count twice there.
    q = body.madd(builder.fmul(a, t), body.number(-2.0 * slope), body.number(1.0))
    # exp(-a^2) and the numerator are near one: multiplying by what they have above one saves the
    # rounding of either sum.
    above_one = builder.fmul(q, body.polynomial(q, constants.erfcx_table))
    erfcx = body.madd(t, above_one, t)
    lift = body.lift(-(constants.erfc_high**2))
    return body.scale_down(body.madd(erfcx, expm1, erfcx), n, lift)


@shared
def erf(body: Body, x: ir.Value) -> ir.Value:
    """The error function, relatively accurate about zero."""
    builder = body.builder
    magnitude = intrinsic(builder, "fabs", x)
    # It has rounded to one long before.
    tail = _erfc_tail(body, magnitude, body.format.erfc_high / 2)
    tail = builder.fsub(body.number(1.0), tail)
    tail = intrinsic(builder, "copysign", tail, x)
    series = body.polynomial(builder.fmul(x, x), body.format.erf_table)
    return body.where("<", magnitude, ERF_SMALL, body.madd(x, series, x), tail)


@shared
def erfc(body: Body, x: ir.Value) -> ir.Value:
    """1 - erf(x), relatively accurate for positive x down to underflow."""
    builder = body.builder
    magnitude = intrinsic(builder, "fabs", x)
    tail = _erfc_tail(body, magnitude, body.format.erfc_high)
    return body.where("<", x, 0.0, builder.fsub(body.number(2.0), tail), tail)


@shared
def sin(body: Body, x: ir.Value) -> ir.Value:
    """The sine."""
    # The sum would make plus zero of minus zero.
    near = body.where("==", x, 0.0, x, _turned_sine(body, x, 0))
    return _unless_far(body, x, near, _far_sin)


@shared
def cos(body: Body, x: ir.Value) -> ir.Value:
    """The cosine."""
    return _unless_far(body, x, _turned_sine(body, x, 1), _far_cos)


def _turned_sine(body: Body, x: ir.Value, quarters: int) -> ir.Value:
    """sin(x + quarters pi / 2) for |x| <= `sine_high`."""
    builder, constants = body.builder, body.format
    n, r, rest = body.quadrant(x)
    if quarters:
        n = builder.add(n, body.integer(quarters))
    z = builder.fmul(r, r)
    cubic, series = builder.fmul(r, z), body.polynomial(z, constants.sin_table)
    if constants.bits == 32:
        sine = body.madd(cubic, series, r)
    else:
        sine = builder.fadd(r, body.madd(cubic, series, rest))
    cosine = body.madd(z, body.polynomial(z, constants.cos_table), body.number(1.0))
    even = builder.icmp_unsigned("==", builder.and_(n, body.integer(1)), body.integer(0))
    sign = builder.shl(builder.and_(n, body.integer(2)), body.integer(constants.bits - 2))
    result = builder.select(even, sine, cosine)
    return body.from_bits(builder.xor(body.to_bits(result), sign))


def _unless_far(body: Body, x: ir.Value, near: ir.Value, far_function: VectorFunction) -> ir.Value:
    """`near`, but `far_function` in lanes beyond `sine_high`: a branch that is rarely taken."""
    builder = body.builder
    limit = body.number(body.format.sine_high)
    far = builder.fcmp_ordered(">", intrinsic(builder, "fabs", x), limit)
    before = builder.block
    with builder.if_then(builder.any_lane(far), likely=False):
        replaced = builder.select(far, far_function(builder, x, fused=body.fused), near)
        beyond = builder.block
    return builder.joined((near, replaced), (before, beyond))


def _far_sine(name: str) -> VectorFunction:
    def far(body: Body, x: ir.Value) -> ir.Value:
        return intrinsic(body.builder, name, x)

    far.__name__ = f"far_{name}"
    return shared(far, rare=True)


_far_sin, _far_cos = map(_far_sine, ("sin", "cos"))
"""The C library's, lane by lane."""


@shared
def atan(body: Body, x: ir.Value) -> ir.Value:
    """The arc tangent, of an argument that is reduced as `ATAN_SMALL` says."""
    builder, one = body.builder, body.number(1.0)
    a = intrinsic(builder, "fabs", x)
    small = builder.fcmp_ordered("<", a, body.number(ATAN_SMALL))
    large = builder.fcmp_ordered(">", a, body.number(ATAN_LARGE))
    top = builder.select(large, body.number(-1.0), builder.fsub(a, one))
    bottom = builder.select(large, a, builder.fadd(a, one))
    top, bottom = builder.select(small, a, top), builder.select(small, one, bottom)
    q = builder.fdiv(top, bottom)
    z = builder.fmul(q, q)
    r = body.madd(builder.fmul(q, z), body.polynomial(z, body.format.atan_table), q)
    turn = builder.select(large, body.number(math.pi / 2), body.number(math.pi / 4))
    result = builder.select(small, r, builder.fadd(r, turn))
    return intrinsic(builder, "copysign", result, x)
