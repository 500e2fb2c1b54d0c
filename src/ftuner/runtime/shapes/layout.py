"""Layouts: strides of arrays that are not there yet, and places of buffers in one arena."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Lifetime(NamedTuple):
    """The first and the last stage that touches a buffer."""

    first: int
    last: int


Words = npt.NDArray[np.int64]
Place = Callable[[Words], "tuple[Sequence[int] | Words, int]"]
"""From the sizes of all buffers, the offset of each, such that those that live together are apart,
and the bytes of all. Sizes are rounded up to what buffers begin at multiples of."""


def first_fit(lifetimes: Sequence[Lifetime], sizes: Sequence[int]) -> tuple[list[int], int]:
    """A `Place` of buffers of some lifetimes, in the order of their first stages. Buffers are
    placed one after the other, each as low as those that live leave it."""
    offsets: list[int] = []
    living: list[tuple[int, int, int]] = []
    """Begin, end and last stage of each buffer that lives, by its begin."""
    total = 0
    for size, (first, last) in zip(sizes, lifetimes, strict=True):
        living = [found for found in living if found[2] >= first]
        offset = 0
        for begin, end, _ in living:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        insort(living, (offset, offset + size, last))
        offsets.append(offset)
        total = max(total, offset + size)
    return offsets, total


class Areas:
    """Areas of an array of words, one after the other."""

    def __init__(self, size: int) -> None:
        """`size`: the words before the first area."""
        self.size = size

    def add(self, words: int) -> int:
        """An area of as many words: the number of its first one."""
        first = self.size
        self.size += words
        return first


class StridedArray(NamedTuple):
    """A layout under the names that NumPy gives it; strides in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def ndim(self) -> int:
        return len(self.shape)
