"""Element types at the boundary: by name, or as NumPy's or torch's types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import numpy as np

if TYPE_CHECKING:
    import torch

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
