"""Places of buffers for ranges of extents: a text that grows by a token keeps its places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import le
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.errors import ShapeError
from ftuner.runtime.shapes.arena import Place

RANGE = 64
"""Values of a growing symbol that share places. Assumed: few enough that the memory is used."""
MAX_SHARE, MAX_BYTES = 0.25, 256 << 10
"""Bytes that places for the upper end of a range may take beyond those for the extents themselves:
a share of them, and a number. Assumed: memory that no step writes takes no cache."""


class Places(NamedTuple):
    """Places for buffers of at most some sizes."""

    sizes: list[int]
    """Bytes by number of size."""
    offsets: Sequence[int] | npt.NDArray[np.int64]
    """Of each buffer."""
    total: int
    """Bytes of all together."""

    def addresses(self, base: int) -> npt.NDArray[np.int64]:
        """The address of each buffer in an arena at `base`."""
        return np.asarray(self.offsets, np.int64) + base

    def hold(self, sizes: Sequence[int]) -> bool:
        return all(map(le, sizes, self.sizes))


class GrowingPlaces:
    """Places buffers in an arena. Extents that change from one shape to the next are expected to
    change again, within a range: its upper end decides the places. Safe to use from several
    threads."""

    def __init__(
        self, place: Place, size_of: Sequence[int],
        sizes_at: Callable[[Sequence[int]], list[int]],
    ) -> None:  # fmt: skip
        """`size_of`: for each buffer, the number of its size; `sizes_at`: the bytes of all sizes at
        values of the symbols."""
        self._place, self._size_of, self._sizes_at = place, size_of, sizes_at
        self._last: tuple[int, ...] | None = None
        """The symbols of the shape before."""

    def upper_end(self, symbols: Sequence[int]) -> tuple[int, ...]:
        """The upper end of the range of a new shape."""
        values = tuple(symbols)
        last = self._last or values
        self._last = values
        return tuple([
            now if now == before else now + -now % RANGE
            for now, before in zip(values, last, strict=True)
        ])  # fmt: skip

    def __call__(self, sizes: list[int], upper: tuple[int, ...], absent: Sequence[int]) -> Places:
        """Places for all shapes up to the upper end of a range, or for one shape if these would
        take too much. `sizes`: of that shape; `absent`: the numbers of buffers without bytes."""
        enough = self._enough(sizes, upper, absent)
        return Places(enough, *self._place(self._of_buffers(enough, absent)))

    def _enough(self, sizes: list[int], upper: tuple[int, ...], absent: Sequence[int]) -> list[int]:
        """The sizes at the upper end of a range, none smaller than needed now; those needed now if
        these would take too much."""
        try:
            most = [*map(max, sizes, self._sizes_at(upper))]
        except (ShapeError, ZeroDivisionError):
            return sizes
        needed, taken = sum(self._of_buffers(sizes, absent)), sum(self._of_buffers(most, absent))
        return most if taken - needed <= max(MAX_SHARE * needed, MAX_BYTES) else sizes

    def _of_buffers(self, sizes: Sequence[int], absent: Sequence[int]) -> list[int]:
        found = [sizes[number] for number in self._size_of]
        for place in absent:
            found[place] = 0
        return found
