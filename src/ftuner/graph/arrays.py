"""NumPy arrays of the element types of tensors.

NumPy has no bfloat16: arrays of float32 hold its elements, each of which float32 has too. The
references of operators compute float16 and bfloat16 in float32, and what they give is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.dtype import BFLOAT16, HALF_DTYPES, DType
from ftuner.graph.ir import Array

_DROPPED_BITS = 16
"""Of a float32's significand, which end bfloat16 has not."""


def held_in(dtype: DType) -> np.dtype[Any]:
    """What NumPy holds elements of a type in."""
    return np.dtype("float32" if dtype == BFLOAT16 else dtype.name)


def converted(values: Any, dtype: DType) -> Array:
    """An array in row-major order whose elements are of a type; floats are rounded to the nearest
    one, half-way to the even one, and overflow to infinity.

    Raises:
        OverflowError: Python integers that the type does not have.
    """
    with np.errstate(over="ignore"):
        array = np.asarray(values, held_in(dtype), order="C")
    return _rounded_to_bfloat16(array) if dtype == BFLOAT16 else array


def widened(array: Array, dtype: DType) -> Array:
    """An array of a type as references compute with it."""
    return array.astype(np.float32) if dtype.name in HALF_DTYPES else array


def of_bfloat16(bits: Array) -> Array:
    """The numbers that words of 16 bits are."""
    words: Array = bits.astype(np.uint32) << np.uint32(_DROPPED_BITS)
    return words.view(np.float32)


def largest_finite(dtype: DType) -> float:
    """Of a floating type."""
    if dtype == BFLOAT16:
        return float.fromhex("0x1.fep127")
    return float(np.finfo(dtype.name).max)


def _rounded_to_bfloat16(array: Array) -> Array:
    bits = array.view(np.uint32)
    odd = (bits >> np.uint32(_DROPPED_BITS)) & np.uint32(1)
    half = np.uint32((1 << (_DROPPED_BITS - 1)) - 1)
    # NaN is rounded to no other number: a carry could make infinity or zero of it.
    kept = np.where(np.isnan(array), bits, bits + half + odd)
    found: Array = (kept & np.uint32(0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isnan(array), np.float32(np.nan), found)
