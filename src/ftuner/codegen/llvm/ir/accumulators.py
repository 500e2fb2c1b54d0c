"""Accumulators of reductions in LLVM IR, on scalars and vectors.

An accumulator is one value or several: its elements so far, and for products of floats the
mantissas and the exponents of `core.scaled_product`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I32, IRBuilder, scalar_type
from ftuner.codegen.llvm.ir.vector_arithmetic import intrinsic
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.core.scaled_product import (
    SCALED_FORMATS,
    UNIT_EXPONENT,
    UNIT_MANTISSA,
    ScaledFormat,
    is_scaled,
)

Parts = Sequence[ir.Value]
"""The values of an accumulator."""


class Accumulator(Protocol):
    """How one kind of reduction combines elements of one type."""

    def start(self) -> Sequence[ir.Constant]:
        """The initial parts."""

    def neutral_element(self) -> ir.Constant:
        """The neutral element."""

    def gathered(self, builder: IRBuilder, parts: Parts, element: ir.Value) -> Parts:
        """The parts after one more element in each lane."""

    def combined(self, builder: IRBuilder, x: Parts, y: Parts) -> Parts:
        """Combine the parts of two accumulators, of any number of lanes."""

    def result(self, builder: IRBuilder, parts: Parts) -> ir.Value:
        """The reduction of all elements, of any number of lanes."""


def accumulator_of(kind: str, dtype: DType, lanes: int) -> Accumulator:
    """The accumulator of a reduction on vectors of `lanes` elements; on scalars if that is zero."""
    type_ = scalar_type(dtype)
    if lanes:
        type_ = ir.VectorType(type_, lanes)
    if is_scaled(kind, dtype):
        return _ScaledProduct(SCALED_FORMATS[dtype], type_)
    return _Plain(kind, dtype, type_)


def reduced_lanes(builder: IRBuilder, accumulator: Accumulator, parts: Parts) -> Parts:
    """Combine all lanes to scalars, by halves."""
    while elements.lanes_of(parts[0]) > 1:
        pairs = [elements.halves(builder, part) for part in parts]
        first, second = zip(*pairs, strict=True)
        parts = accumulator.combined(builder, first, second)
    return [builder.extract_element(part, ir.Constant(I32, 0)) for part in parts]


def across(builder: IRBuilder, kind: str, x: ir.Value, dtype: DType) -> ir.Value:
    """The sum, maximum or minimum of the lanes of a vector."""
    (total,) = reduced_lanes(builder, accumulator_of(kind, dtype, elements.lanes_of(x)), (x,))
    return total


@dataclass(frozen=True)
class _Plain:
    """One value, combined by the function of elements that the reduction is named for."""

    kind: str
    dtype: DType
    type: ir.Type

    def start(self) -> Sequence[ir.Constant]:
        return (self.neutral_element(),)

    def neutral_element(self) -> ir.Constant:
        return elements.neutral(self.kind, self.type, self.dtype)

    def gathered(self, builder: IRBuilder, parts: Parts, element: ir.Value) -> Parts:
        return self.combined(builder, parts, (element,))

    def combined(self, builder: IRBuilder, x: Parts, y: Parts) -> Parts:
        return (elements.combine(builder, self.kind, x[0], y[0], self.dtype),)

    def result(self, builder: IRBuilder, parts: Parts) -> ir.Value:
        (total,) = parts
        return total


@dataclass(frozen=True)
class _ScaledProduct:
    """Mantissas and exponents of products of floats."""

    format: ScaledFormat
    type: ir.Type

    def start(self) -> Sequence[ir.Constant]:
        integers = elements.like(self.type, ir.IntType(self.format.bits))
        return (elements.number(self.type, UNIT_MANTISSA), elements.number(integers, UNIT_EXPONENT))

    def neutral_element(self) -> ir.Constant:
        return elements.number(self.type, 1.0)

    def gathered(self, builder: IRBuilder, parts: Parts, element: ir.Value) -> Parts:
        f = self.format
        integers = parts[1].type
        magnitude = intrinsic(builder, "fabs", element)
        small = builder.fcmp_ordered("<", magnitude, elements.number(element.type, f.least))
        lifted = builder.fmul(element, elements.number(element.type, f.lift))
        factor = builder.select(small, lifted, element)
        shift = builder.select(
            small, elements.number(integers, -f.lift_bits), elements.zero(integers)
        )
        return self.combined(builder, parts, (factor, shift))

    def combined(self, builder: IRBuilder, x: Parts, y: Parts) -> Parts:
        f = self.format
        integers = x[1].type

        def integer(value: int) -> ir.Constant:
            return elements.number(integers, value)

        product = builder.fmul(x[0], y[0])
        bits = builder.bitcast(product, integers)
        # Without the sign, an exponent field of zeros or ones is at an end of the unsigned
        # integers: adding one to the field brings both below two.
        apart = builder.shl(bits, integer(1))
        field = builder.lshr(apart, integer(f.fraction_bits + 1))
        one = 1 << (f.fraction_bits + 1)
        special = builder.icmp_unsigned("<", builder.add(apart, integer(one)), integer(2 * one))
        fraction = builder.and_(bits, integer(~f.exponent_mask))
        normal = builder.bitcast(builder.or_(fraction, integer(f.half)), product.type)
        mantissa = builder.select(special, product, normal)
        exponent = builder.add(builder.add(x[1], y[1]), builder.sub(field, integer(f.bias - 1)))
        return mantissa, exponent if f.limit is None else _clamped(builder, exponent, f.limit)

    def result(self, builder: IRBuilder, parts: Parts) -> ir.Value:
        f = self.format
        mantissa, exponent = parts
        integers = exponent.type
        # In two steps, as 2^exponent may be subnormal or infinite. The first is exact, so that a
        # subnormal result is rounded once.
        exponent = _clamped(builder, exponent, f.end)
        half = builder.ashr(exponent, elements.number(integers, 1))
        for power in (half, builder.sub(exponent, half)):
            biased = builder.add(power, elements.number(integers, f.bias))
            bits = builder.shl(biased, elements.number(integers, f.fraction_bits))
            mantissa = builder.fmul(mantissa, builder.bitcast(bits, mantissa.type))
        return mantissa


def _clamped(builder: IRBuilder, x: ir.Value, end: int) -> ir.Value:
    """An integer clamped to `-end` and `end`."""
    low, high = elements.number(x.type, -end), elements.number(x.type, end)
    x = builder.select(builder.icmp_signed("<", x, low), low, x)
    return builder.select(builder.icmp_signed(">", x, high), high, x)
