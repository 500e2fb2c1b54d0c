"""Random numbers as Triton text: `core.random_numbers` has the definitions."""

from __future__ import annotations

import math

from ftuner.codegen.triton import vector_math as elementary
from ftuner.core.dtype import FLOAT32, DType
from ftuner.core.random_numbers import (
    ANGLE_BITS,
    INCREMENTS,
    MULTIPLIERS,
    RADIUS_BITS,
    ROUNDS,
)

PHILOX = f"""\
x, y = tl.broadcast(x, y)
a, b, k, m = x & 0xFFFFFFFF, x >> 32, y & 0xFFFFFFFF, y >> 32
c, d = x * 0, x * 0
for _ in tl.static_range({ROUNDS}):
    first, second = a * {MULTIPLIERS[0]}, c * {MULTIPLIERS[1]}
    a, b = (second >> 32) ^ b ^ k, second & 0xFFFFFFFF
    c, d = (first >> 32) ^ d ^ m, first & 0xFFFFFFFF
    k, m = (k + {INCREMENTS[0]}) & 0xFFFFFFFF, (m + {INCREMENTS[1]}) & 0xFFFFFFFF
return a | (b << 32)"""
"""The body of a function of counters `x` and keys `y`."""


def normal(dtype: DType) -> str:
    """Returns the body of a function of two words `x` and `y`."""
    integer = "tl.int32" if dtype == FLOAT32 else "tl.int64"
    width, turn = RADIUS_BITS[dtype.name], 2.0 ** (1 - ANGLE_BITS[dtype.name])
    log, sine, root = (
        elementary.call(name, argument, dtype=dtype.name)
        for name, argument in (("log", "u"), ("sin", "angle"), ("sqrt", "square"))
    )
    return f"""\
u = ((x >> {64 - width}).to({integer}).to(tl.{dtype}) + 0.5) * {2.0**-width!r}
v = y.to({integer}).to(tl.{dtype}) * {turn!r}
angle = (0.5 - tl.abs(v)) * {math.pi!r}
square = {log} * -2.0
return {root} * {sine}"""
