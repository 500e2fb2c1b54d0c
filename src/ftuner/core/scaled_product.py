"""Products of floats whose mantissas and exponents are kept apart.

The product of many floats may be representable although the product of some of them is not:
1e30 * 1e30 * 1e-30 * 1e-30 in float32. Lanes and blocks multiply factors in another order than
they are written in, so that one partial product may be infinite and another zero, whose product is
NaN. Here a partial product is a mantissa m with 0.5 <= |m| < 1 and an integer exponent e, and
stands for m 2^e, as in C's `frexp`; mantissas that are zero, infinite or NaN stay as they are. A
result therefore overflows or underflows only if the exact product does, and a subnormal result is
rounded once more at most. NaN, and zero together with an infinity, give NaN, as IEEE 754 has it.

A step multiplies two mantissas and brings the product back to [0.5, 1). A factor is the mantissa
of a step as it is, with the exponent zero: |m| < 1, so that its product does not overflow. Factors
that the mantissa could make subnormal are multiplied by `lift` first, which is exact.
"""

from __future__ import annotations

from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.core.frozen import dataclass

UNIT_MANTISSA, UNIT_EXPONENT = 0.5, 1
"""The product of nothing."""


@dataclass(frozen=True)
class ScaledFormat:
    """Constants of the steps in one IEEE 754 binary format."""

    bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        return (1 << (self.bits - self.fraction_bits - 2)) - 1

    @property
    def exponent_mask(self) -> int:
        """The exponent field of an element, at its place; all ones: infinite or NaN."""
        return (2 * self.bias + 1) << self.fraction_bits

    @property
    def half(self) -> int:
        """The exponent field of 0.5, at its place."""
        return (self.bias - 1) << self.fraction_bits

    @property
    def least(self) -> float:
        """Factors below it are lifted: half of it is the smallest normal number."""
        return float(2.0 ** (2 - self.bias))

    @property
    def lift_bits(self) -> int:
        """Brings the smallest subnormal to `least`."""
        return self.fraction_bits + 1

    @property
    def lift(self) -> float:
        return float(2.0**self.lift_bits)

    @property
    def limit(self) -> int | None:
        """Exponents of partial products of float32 are clamped to it, so that no sum of two
        overflows: what is beyond has millions of factors at one end of the format. For float64,
        none: there is no memory for 2^52 factors."""
        return 1 << 29 if self.bits == 32 else None

    @property
    def end(self) -> int:
        """Exponents of results are clamped to it: beyond, all mantissas overflow or underflow.
        2^(end / 2) and its reciprocal are normal numbers."""
        return 2 * (self.bias - 1)


SCALED_FORMATS = {FLOAT32: ScaledFormat(32, 23), FLOAT64: ScaledFormat(64, 52)}


def is_scaled(kind: str, dtype: DType) -> bool:
    """Whether a reduction of elements of a dtype keeps mantissas and exponents apart."""
    return kind == "product" and dtype.kind == "float"
