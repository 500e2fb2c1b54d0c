"""The parts of elementary functions: arithmetic of a floating type, the reduction of exponents and
of angles, and scaling by powers of two.

`shared` makes an elementary function of what writes its body: a call to an internal function, which
is added to the builder's module on first use. `fused` says whether the target has a
fused multiply-add; without it, a product and a sum are rounded apart.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from llvmlite import ir

from ftuner.codegen.coefficients import FLOAT64, FORMATS, Format
from ftuner.codegen.llvm.ir.builder import FLOAT_DTYPES, IRBuilder, type_suffix
from ftuner.core.frozen import dataclass


def splat(type_: ir.Type, value: float) -> ir.Constant:
    """`value` in every lane of a scalar or vector type."""
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [ir.Constant(type_.element, value)] * type_.count)
    return ir.Constant(type_, value)


def like(shape: ir.Type, element: ir.Type) -> ir.Type:
    """A vector of `element` as long as `shape`, or `element` if that is a scalar."""
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def intrinsic(builder: IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    """Call the elementwise intrinsic `llvm.<name>`, all arguments and the result of one type."""
    type_ = arguments[0].type
    return builder.external(f"llvm.{name}.{type_suffix(type_)}", type_, *arguments)


@dataclass(frozen=True)
class Body:
    """The builder of one function's body, with the arithmetic of its floating type."""

    builder: IRBuilder
    type: ir.Type
    format: Format
    fused: bool

    @property
    def integers(self) -> ir.Type:
        return like(self.type, ir.IntType(self.format.bits))

    def lift(self, least: float) -> int:
        """The exponent by which powers of e are lifted while they are factors: e**`least`, below
        which a function rounds to zero, becomes zero, and larger ones normal numbers. A product
        that underflows takes x86 some hundred cycles, so none does where arguments are beyond."""
        return round(-least / math.log(2.0)) - self.format.bias

    @property
    def widened(self) -> Body:
        """The lanes, as float64."""
        return Body(self.builder, like(self.type, ir.DoubleType()), FLOAT64, self.fused)

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

    def product(self, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        """x * y, rounded, and what rounding took away."""
        builder = self.builder
        high = builder.fmul(x, y)
        if self.fused:
            return high, intrinsic(builder, "fma", x, y, builder.fneg(high))
        # Dekker's product of halves: all their products are exact, but for a last bit in float64.
        (x_head, x_rest), (y_head, y_rest) = self.halves(x), self.halves(y)
        low = builder.fsub(builder.fmul(x_head, y_head), high)
        for factors in ((x_head, y_rest), (x_rest, y_head), (x_rest, y_rest)):
            low = builder.fadd(low, builder.fmul(*factors))
        return high, low

    def halves(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The leading half of the significand of x, whose square is exact, and the rest."""
        cleared = (self.format.fraction_bits + 2) // 2
        head = self.from_bits(self.builder.and_(self.to_bits(x), self.integer(-(2**cleared))))
        return head, self.builder.fsub(x, head)

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

    def reduce(
        self, x: ir.Value, plus: Callable[[ir.Value], ir.Value] | None = None
    ) -> tuple[ir.Value, ir.Value]:
        """Write x as n ln 2 + r with |r| <= 0.35: returns (n, expm1(r)), n an integer. `plus(y)` is
        x + y, where x itself is rounded and its error counts.

        Cody and Waite's reduction. n is rounded by adding 1.5 * 2**fraction_bits, whose last bit is
        worth one. This is portable, and the integer is in the low bits of the sum.
        """
        builder, constants = self.builder, self.format
        magic = 1.5 * 2.0**constants.fraction_bits
        shifted = self.madd(x, self.number(1.0 / math.log(2.0)), self.number(magic))
        n = builder.fsub(shifted, self.number(magic))
        ln2_high = self.number(-constants.ln2_high)
        r = self.madd(n, ln2_high, x) if plus is None else plus(builder.fmul(n, ln2_high))
        r = self.madd(n, self.number(-constants.ln2_low), r)
        squared = builder.fmul(r, r)
        expm1 = self.madd(squared, self.polynomial(r, constants.exp_table), r)
        return builder.sub(self.to_bits(shifted), self.integer(self.pattern(magic))), expm1

    def quadrant(self, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Write x, at most `sine_high` in magnitude, as n pi / 2 + r + rest with |r| <= 0.8:
        returns (n, r, rest), n an integer of which the last two bits count. r is relatively
        accurate near multiples of pi / 2 too.

        Cody and Waite's reduction, as in fdlibm's e_rem_pio2.c but with as many parts of pi / 2 for
        any x. Products of n with the leading parts are exact, and so is a difference that cancels.
        """
        builder, constants = self.builder, self.format
        magic = 1.5 * 2.0**constants.fraction_bits
        shifted = self.madd(x, self.number(2.0 / math.pi), self.number(magic))
        n = builder.fsub(shifted, self.number(magic))
        first, second, *others = constants.half_pi
        if constants.bits == 32:
            wide = self.widened
            n, x = (builder.fpext(v, wide.type) for v in (n, x))
            r = wide.madd(n, wide.number(-second), wide.madd(n, wide.number(-first), x))
            return self.to_bits(shifted), builder.fptrunc(r, self.type), self.number(0.0)
        third, last = others
        before = self.madd(n, self.number(-first), x)
        part = builder.fmul(n, self.number(second))
        r = builder.fsub(before, part)
        part = self.madd(n, self.number(third), builder.fadd(builder.fsub(r, before), part))
        high = builder.fsub(r, part)
        rest = self.madd(n, self.number(-last), builder.fsub(builder.fsub(r, high), part))
        return self.to_bits(shifted), high, rest

    def power_of_two(self, biased: ir.Value) -> ir.Value:
        return self.from_bits(self.builder.shl(biased, self.integer(self.format.fraction_bits)))

    def scale(self, x: ir.Value, n: ir.Value) -> ir.Value:
        """x * 2**n. In two steps, as 2**n may be subnormal or infinite; the first is exact, so that
        a subnormal result is rounded once. Before AVX-512, x86 shifts 64-bit lanes logically
        only."""
        builder = self.builder
        biased_twice = builder.add(n, self.integer(2 * self.format.bias))
        first = builder.lshr(biased_twice, self.integer(1))
        second = builder.sub(biased_twice, first)
        once = builder.fmul(x, self.power_of_two(first))
        return builder.fmul(once, self.power_of_two(second))

    def scale_down(self, x: ir.Value, n: ir.Value, lift: int) -> ir.Value:
        """x * 2**n for n <= 0: first by the lifted power, which is exact, so that a subnormal
        result is rounded once."""
        once = self.builder.fmul(x, self.lifted_power(n, lift))
        return self.builder.fmul(once, self.number(2.0**-lift))

    def lifted_power(self, n: ir.Value, lift: int) -> ir.Value:
        """2**(n + lift): zero where n is the least that `lift` allows for."""
        return self.power_of_two(self.builder.add(n, self.integer(self.format.bias + lift)))


class VectorFunction(Protocol):
    """An elementary function: writes a call on SSA values of one supported type."""

    def __call__(self, builder: IRBuilder, *arguments: ir.Value, fused: bool) -> ir.Value: ...


def shared(emit_body: Callable[..., ir.Value], rare: bool = False) -> VectorFunction:
    """Make an elementary function, which calls the module's one function with the body that
    `emit_body` writes. A `rare` function stays a call where a bundle inlines the others."""
    name = emit_body.__name__

    def call(builder: IRBuilder, *arguments: ir.Value, fused: bool) -> ir.Value:
        type_ = arguments[0].type
        symbol = f"ftuner_{name}_{type_suffix(type_)}" + ("" if fused else "_unfused")

        def body(inner: IRBuilder, *given: ir.Value) -> ir.Value:
            constants = FORMATS[FLOAT_DTYPES[type_suffix(type_)[-3:]].name]
            return emit_body(Body(inner, type_, constants, fused), *given)

        attributes = ("cold", "noinline") if rare else ()
        return builder.shared(symbol, type_, arguments, body, *attributes)

    call.__name__, call.__doc__ = name, emit_body.__doc__
    return call
