"""Memory that lives long and is read often: on huge pages, where the system has them.

A weight of some megabytes on pages of 4 KiB needs more translations than a core keeps, and no
hardware prefetcher crosses such a page. Small pieces share a block, so that nothing is rounded up
to a huge page.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftuner.core.forks import fork_safe_lock
from ftuner.errors import AllocationError
from ftuner.runtime.cpu.arrays import Array

HUGE_PAGE_BYTES = 2 << 20
"""On x86-64, and on AArch64 with base pages of 4 KiB. Elsewhere blocks are merely aligned so."""
BLOCK_BYTES = 16 << 20
"""Pieces up to a quarter of this share a block; larger ones have their own."""
ALIGNMENT_BYTES = 64
RESERVED_BYTES = 4 << 30
"""Of addresses, for each arena. Derived: more than the activations of any model that we know take
on a CPU, and little of the 128 TiB that a process has."""
_NO_RESERVE = 0x4000
"""`MAP_NORESERVE` of Linux, on all of its architectures but a few that we have no code for."""


NO_MEMORY = (MemoryError, ValueError, OverflowError)
"""What NumPy raises where it cannot make an array: by how much too large it is."""


def not_allocated(shape: Sequence[int], dtype: Any, why: object) -> AllocationError:
    """The error of an array that cannot be made."""
    return AllocationError(f"no memory for an array of {tuple(shape)} elements of {dtype}: {why}")


def allocated(shape: Sequence[int], dtype: Any, make: Callable[..., Array] = np.empty) -> Array:
    """An array whose elements are as `make` leaves them: not set.

    Raises:
        AllocationError: the system has not that much memory.
    """
    try:
        return make(shape, dtype)
    except NO_MEMORY as error:
        raise not_allocated(shape, dtype, error) from error


@dataclass
class _Block:
    memory: Array
    used: int = 0


def long_lived(size: int) -> Array:
    """`size` uninitialised bytes, as `uint8`, on a cache line of their own.

    Raises:
        AllocationError: the system has not that much.
    """
    if size > BLOCK_BYTES // 4:
        return _new_block(size).memory[:size]
    global _shared
    with _lock:
        if _shared is None or _shared.used + size > BLOCK_BYTES:
            _shared = _new_block(BLOCK_BYTES)
        begin = _shared.used
        _shared.used = -(-(begin + size) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return _shared.memory[begin : begin + size]


_shared: _Block | None = None
_lock = fork_safe_lock()


class Arena:
    """Memory in one piece that grows, as far as the system lets it, without moving.

    Addresses are reserved far beyond what is used; pages come when they are first written to.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self.address = 0
        """Where it begins, on a huge page; 0 before it has grown."""

    def grown(self, size: int) -> int:
        """The address, with at least `size` bytes from there on.

        Raises:
            AllocationError: the system has not that much.
        """
        if self._memory.nbytes < size:
            reserved = _reserved_bytes()
            try:
                if size > reserved:
                    raise AllocationError
                self._memory = _new_block(reserved, _NO_RESERVE).memory
            except AllocationError:
                # More than there should be, or the system counts what is reserved.
                self._memory = _new_block(size).memory
            self.address = int(self._memory.ctypes.data)
        return self.address


def _reserved_bytes() -> int:
    """What an arena reserves: within what the machine has, so that a size that it can never have is
    refused by the system, and nobody is killed for it later."""
    if sys.platform != "linux":
        return 0
    return min(RESERVED_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _new_block(size: int, flags: int = 0) -> _Block:
    """A block that begins with a huge page. It lives as long as any array that points into it."""
    try:
        # Private, because a forked child must not write to its parent's pages.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags
        pages = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=private)
    except (OSError, ValueError, OverflowError) as error:
        raise AllocationError(f"cannot allocate {size} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses the advice, and nothing is lost.
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    shift = -memory.ctypes.data % HUGE_PAGE_BYTES
    return _Block(memory[shift : shift + size])
