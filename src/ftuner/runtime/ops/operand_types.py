"""The types of operands, as type checkers and editors see them. Values are checked at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Float = TypeVar("Float", np.float32, np.float64)
"""Elements that are multiplied on a CPU."""
Offsets = Sequence[int] | npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Where requests begin, on the host."""


class Tensor(Protocol):
    """A torch tensor, in the memory of the CPU or of a GPU."""

    @property
    def is_cuda(self) -> bool: ...

    def data_ptr(self) -> int: ...


class Foreign(Protocol):
    """An object that NumPy views without a copy; arrays are such objects."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


AnyTensor = TypeVar("AnyTensor", bound=Tensor)
