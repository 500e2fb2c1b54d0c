"""Memory of large outputs, which is used again once the caller has dropped them.

The system maps, clears and unmaps the memory of a large array each time; clearing alone takes about
as long as writing it. So a model keeps the pages of outputs that were freed, for later ones. An
output is lent as long as any array, view or other object refers to it: a caller who keeps all
outputs never sees one written again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.core.forks import fork_safe_lock
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.memory import Pages, SparePages
from ftuner.runtime.kept_memory import Keeper, KeptMemory

MAX_SPARE_BYTES = 256 << 20
"""Most bytes of freed outputs that a model keeps, and the largest output that is used again; as
those of a workspace."""


class _Lent(weakref.ref[Array]):
    """An output. Its views refer to it, because its memory is that of no other array."""

    __slots__ = ("pages",)

    pages: Pages


class OutputPool(Keeper):
    """Keeps at most as many bytes of freed outputs as callers had at once, and at most
    `MAX_SPARE_BYTES`. Safe to use from several threads."""

    def __init__(self, kept: KeptMemory) -> None:
        """`kept`: whose limit is kept."""
        self._kept = kept
        kept.add(self)
        self._spare = SparePages()
        # A finalizer that runs within may free outputs: sums are taken of what is known before.
        self._lock = fork_safe_lock()
        self._lent: dict[int, _Lent] = {}
        self._lent_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of freed outputs."""
        return self._spare.bytes

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array of numbers, whose elements are not set. Its base is a `Pages`, so that it does
        not own its memory.

        Raises:
            AllocationError: the system does not have as much.
        """
        size = math.prod(shape) * dtype.itemsize
        pages = self._spare.take(size) or Pages.new(size)
        found: Array = np.ndarray(shape, dtype, pages, pages.begin)
        lent = _Lent(found, self._returned)
        lent.pages = pages
        taken = pages.capacity
        with self._lock:
            self._lent[id(lent)] = lent
            self._lent_bytes += taken
            if self._lent_bytes > self._spare.limit:
                self._spare.limit = min(self._lent_bytes, MAX_SPARE_BYTES)
        return found

    def _returned(self, lent: _Lent) -> None:
        """Nothing refers to an output any more."""
        returned = lent.pages.capacity
        with self._lock:
            del self._lent[id(lent)]
            self._lent_bytes -= returned
        if self._kept.has_room(returned):
            self._spare.add(lent.pages)

    def trim(self) -> None:
        self._spare.limit = 0
        self._spare.shrink()
