"""Numbers in documents that others wrote."""

from __future__ import annotations

import math


def to_float(value: float) -> float:
    """The value as a float; an integer beyond the floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def expected_range(number: float, zero: bool) -> str | None:
    """What a number was expected to be, or None if it is accepted: finite and positive, or zero if
    `zero`."""
    if math.isfinite(number) and (number > 0 or (zero and number == 0)):
        return None
    return "finite and not negative" if zero else "finite and positive"
