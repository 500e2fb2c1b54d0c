"""Layouts of arrays that are not there yet."""

from __future__ import annotations

from typing import NamedTuple


class StridedArray(NamedTuple):
    """A layout under the names that NumPy gives it; strides in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def ndim(self) -> int:
        return len(self.shape)
