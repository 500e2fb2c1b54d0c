"""Options at the boundary: arguments that are not arrays."""

from __future__ import annotations

import numpy as np

from ftuner.errors import ConfigurationError


def checked_flag(value: object, name: str) -> bool:
    """`value`, if it is a boolean; 0 and 1 are.

    Raises:
        ConfigurationError: anything else, such as an array.
    """
    if isinstance(value, bool | int | np.bool_) and value in (0, 1):
        return bool(value)
    raise ConfigurationError(f"{name} is {value!r}; expected True or False")
