"""Random numbers from counters: pure functions of a key and of the position of an element.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011). It has no state, so any worker can compute any element, in any order and again. These
are the NumPy references; code generators must give the same words.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.core.dtype import FLOAT32, DType
from ftuner.core.random_constants import ANGLE_BITS, INCREMENTS, MULTIPLIERS, RADIUS_BITS, ROUNDS

Array = npt.NDArray[Any]
Words = tuple[Any, Any, Any, Any]


def philox4x32(counter: Words, key: tuple[Any, Any]) -> Words:
    """The four 32-bit words of a counter and a key, all in uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    multipliers, increments = (tuple(map(np.uint64, x)) for x in (MULTIPLIERS, INCREMENTS))
    (a, b, c, d), (k, m) = counter, key
    for _ in range(ROUNDS):
        x, y = multipliers[0] * a, multipliers[1] * c
        a, b, c, d = (y >> half) ^ b ^ k, y & low, (x >> half) ^ d ^ m, x & low
        k, m = (k + increments[0]) & low, (m + increments[1]) & low
    return a, b, c, d


def philox(counter: Array, key: Array) -> Array:
    """64 random bits: the first two words for a counter of 64 bits, the other 64 being zero, and a
    key of 64 bits. Operands are of uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    zero = np.uint64(0)
    first, second, *_ = philox4x32(
        (counter & low, counter >> half, zero, zero), (key & low, key >> half)
    )
    found: Array = first | second << half
    return found


def uniform(bits: Array, digits: int, dtype: DType) -> Array:
    """Multiples of `2 ** -digits` from 0 below 1, all equally likely, of the upper bits."""
    whole: Array = (bits >> np.uint64(64 - digits)).astype(dtype.name)
    found: Array = whole * whole.dtype.type(2.0**-digits)
    return found


def drawn(bits: Array, others: Array, dtype: DType) -> tuple[Array, Array]:
    """(u, v) of which a normal number is made, in its dtype: u is above 0 and at most 1, v between
    -1 and 1. `others`: the bits of v, the same as those of u in float32."""
    width, number = RADIUS_BITS[dtype.name], np.dtype(dtype.name).type
    u = (bits >> np.uint64(64 - width)).astype(dtype.name)
    integers = np.int32 if dtype == FLOAT32 else np.int64
    v = others.astype(integers).astype(dtype.name)
    scale = number(2.0 ** (1 - ANGLE_BITS[dtype.name]))
    return (u + number(0.5)) * number(2.0**-width), v * scale


def normal(bits: Array, others: Array, dtype: DType) -> Array:
    """Normal numbers of mean 0 and deviation 1: sqrt(-2 log u) cos(pi v) of what is `drawn` (Box
    and Muller, "A note on the generation of random normal deviates", 1958)."""
    u, v = (x.astype(np.longdouble) for x in drawn(bits, others, dtype))
    # The sine of what is left to a half is exact about the zeros of the cosine.
    turned = np.sin(np.longdouble(math.pi) * (np.longdouble(0.5) - np.abs(v)))
    found: Array = (np.sqrt(-2 * np.log(u)) * turned).astype(dtype.name)
    return found
