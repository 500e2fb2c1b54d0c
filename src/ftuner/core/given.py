"""What callers and files give: integers, numbers and element types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, SupportsIndex, Union

import numpy as np

from ftuner.errors import FTunerError, ShapeError

if TYPE_CHECKING:
    import torch


BatchAxis = SupportsIndex | Mapping[str, SupportsIndex]
"""The axis of all inputs that counts requests, or of each by name."""


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


ElementType = Union[str, "np.dtype[np.generic]", type[np.generic], "torch.dtype"]
"""An element type by its name, or as NumPy or torch has it."""


def dtype_name(dtype: ElementType | None) -> str | None:
    """The name of an element type that is given as its name, as a NumPy dtype or scalar type, or as
    a torch dtype; None for anything else. The name need not be a known one."""
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        found = np.dtype(dtype)
        # In another byte order it is another type.
        return found.name if found.isnative else None
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    return None
