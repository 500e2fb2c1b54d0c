"""Factors of wild magnitudes, and their exact products."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from tests.codegen.llvm.nest_running import Array

ROUNDINGS = 0.75
"""Unit roundoffs for each factor: half an ulp is at most one of them, and errors add up; beside one
of the result."""


BITS = 256
"""Of mantissas of products: what is dropped below them is no part of a rounding."""
FAR = 4000


def exact(row: Array) -> float | Fraction:
    """The product of floats, to `BITS` bits: a fraction where all are finite."""
    if not np.isfinite(row).all():
        # Signs make neither zero nor infinity of what is not.
        with np.errstate(all="ignore"):
            return float(np.multiply.reduce(np.where(np.isfinite(row), np.sign(row), row)))
    mantissa, exponent = 1, 0
    for value in row.tolist():
        factor, shift = math.frexp(value)
        mantissa *= int(factor * 2.0**53)
        exponent += shift - 53
        dropped = max(mantissa.bit_length() - BITS, 0)
        mantissa, exponent = mantissa >> dropped, exponent + dropped
    # Beyond, it is infinite or zero for any format.
    exponent = min(max(exponent, -FAR), FAR)
    return mantissa * (Fraction(2) ** exponent)


def exact_products(x: Array, axes: Sequence[int]) -> Array:
    """The products of float64 over some axes, rounded once."""
    kept = [n for i, n in enumerate(x.shape) if i not in axes]
    count = math.prod(x.shape[a] for a in axes)
    rows = np.moveaxis(x, axes, range(-len(axes), 0)).reshape((math.prod(kept), count))
    found = np.array([_rounded(exact(row)) for row in rows], np.float64)
    return found.reshape(kept)


def _rounded(value: float | Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def assert_product(found: float, row: Array) -> None:
    """A product is the exact one, to within a rounding for each factor."""
    wanted = exact(row)
    info = np.finfo(row.dtype)
    if isinstance(wanted, float):
        assert found == wanted or (math.isnan(found) and math.isnan(wanted)), (found, wanted)
        return
    roundoff = Fraction(float(info.eps)) / 2
    allowed = roundoff * (len(row) + 1) * Fraction(ROUNDINGS) * abs(wanted)
    allowed += Fraction(float(info.smallest_subnormal)) / 2
    most = Fraction(float(info.max)) * (1 + roundoff)
    if math.isinf(found):
        assert abs(wanted) + allowed >= most, wanted
        assert (found > 0) == (wanted > 0)
        return
    assert not math.isnan(found)
    assert abs(Fraction(found) - wanted) <= allowed, (found, float(wanted))
    if wanted:
        negative = wanted < 0
        assert math.copysign(1.0, found) == (-1.0 if negative else 1.0), (found, float(wanted))


def wild_rows(dtype: str, length: int) -> Iterator[Array]:
    """Rows of factors whose partial products overflow and underflow in some order."""
    random = np.random.default_rng(length)
    info = np.finfo(dtype)
    huge, tiny, smallest = float(info.max), float(info.tiny), float(info.smallest_subnormal)
    big, little = (1e30, 1e-30) if dtype == "float32" else (1e300, 1e-300)
    half = length // 2
    yield np.array([big] * half + [little] * (length - half), dtype)
    yield np.array([little] * (length - half) + [big] * half, dtype)
    yield np.resize(np.array([big, big, little, little], dtype), length)
    yield np.resize(np.array([huge, -1 / huge], dtype), length)
    yield np.resize(np.array([smallest, 0.75 / smallest if dtype == "float64" else huge], dtype),
                    length)  # fmt: skip
    # What follows from most of these is near one, subnormal, or neither zero nor infinite.
    for scale in (0.0, math.log2(tiny) - 5, math.log2(tiny), math.log2(huge) - 2):
        exponents = random.integers(info.minexp // 2, info.maxexp // 2, length).astype(float)
        if length > 1:
            exponents[1::2] = -exponents[: 2 * half : 2]
        exponents[-1] = scale if length % 2 else exponents[-1]
        signs = random.choice([-1.0, 1.0], length)
        mantissas = 1 + (random.random(length) - 0.5) / length
        yield (signs * mantissas * 2.0**exponents).astype(dtype)
    for specials in ((np.inf,), (np.nan,), (0.0,), (np.inf, 0.0), (np.nan, 0.0), (-np.inf, np.nan),
                     (-np.inf,), (-0.0,)):  # fmt: skip
        row = np.resize(np.array([big, -big, little, little], dtype), length)
        row[random.choice(length, min(len(specials), length), False)] = specials[:length]
        yield row
    yield np.full(length, smallest, dtype)
    yield np.full(length, huge, dtype)
    yield np.ones(length, dtype)


def wild_matrix(dtype: str, length: int) -> Array:
    """The rows above as one array."""
    with np.errstate(all="ignore"):
        return np.stack(list(wild_rows(dtype, length)))
