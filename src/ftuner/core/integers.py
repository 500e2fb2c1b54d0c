"""Integers at the boundary: Python's, NumPy's, and whatever else is one."""

from __future__ import annotations

from operator import index

import numpy as np

from ftuner.errors import FTunerError, ShapeError


def checked_integer(
    value: object, name: str, least: int, below: int | None = None,
    error: type[FTunerError] = ShapeError, expected: str = "",
) -> int:  # fmt: skip
    """A Python integer of at least `least`.

    Raises:
        ShapeError, or `error`: another value; it names `value` and what was expected.
    """
    try:
        # A boolean is an integer to Python, and a mistake here.
        found = None if isinstance(value, bool | np.bool_) else index(value)  # type: ignore[arg-type]
    except Exception:  # What a foreign object raises.
        found = None
    if found is None or found < least or (below is not None and found >= below):
        raise error(f"{name} is {value!r}; expected {expected or f'an integer from {least} on'}")
    return found
