"""Products of floats by mantissas and exponents (`core.scaled_product`) as Triton text."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.scaled_product import SCALED_FORMATS


class ScaledFunctions(NamedTuple):
    """The names of the functions of a scaled product, on blocks or scalars."""

    factor: str
    """An element as mantissa and exponent, the factors of `product`."""
    product: str
    """The mantissa and exponent of the product of two mantissas and exponents."""
    result: str
    """The number of a mantissa and an exponent."""


def scaled_bodies(dtype: DType) -> tuple[tuple[str, str, str], ...]:
    """Returns the name, arguments and body of each function."""
    f = SCALED_FORMATS[dtype]
    integer, float_ = f"tl.int{f.bits}", f"tl.{dtype}"
    ones = 2 * f.bias + 1
    clamped = "" if f.limit is None else (
        f"exponent = tl.minimum(tl.maximum(exponent, {-f.limit}), {f.limit})\n"
    )  # fmt: skip
    factor = f"""small = tl.abs(x) < {f.least!r}
shift = tl.where(small, {-f.lift_bits}, 0).to({integer})
return tl.where(small, x * {f.lift!r}, x), shift"""
    product = f"""mantissa = x * y
bits = mantissa.to({integer}, bitcast=True)
field = (bits >> {f.fraction_bits}) & {ones}
normal = ((bits & {~f.exponent_mask}) | {f.half}).to({float_}, bitcast=True)
mantissa = tl.where((field == 0) | (field == {ones}), mantissa, normal)
exponent = x_exponent + y_exponent + (field - {f.bias - 1})
{clamped}return mantissa, exponent"""
    # In two steps, because 2^exponent may be subnormal or infinite. The first is exact, so that a
    # subnormal result is rounded once.
    result = f"""exponent = tl.minimum(tl.maximum(exponent, {-f.end}), {f.end})
half = exponent >> 1
x = x * ((half + {f.bias}) << {f.fraction_bits}).to({float_}, bitcast=True)
return x * ((exponent - half + {f.bias}) << {f.fraction_bits}).to({float_}, bitcast=True)"""
    return (
        ("scaled_factor", "x", factor),
        ("scaled_product", "x, x_exponent, y, y_exponent", product),
        ("scaled_result", "x, exponent", result),
    )
