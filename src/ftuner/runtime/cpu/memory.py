"""Long-lived memory, on huge pages where the system has them.

A weight of some megabytes on pages of 4 KiB needs more translations than a core's TLB holds, and no
hardware prefetcher crosses such a page. Small pieces share a block, so that they are not rounded up
to a huge page.

The first access to a page takes the system some ten times as long as a later one, and in a virtual
machine up to some hundred times. So what is loaded is packed into the memory of what was read and
freed (`reuse`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftuner.core.forks import fork_safe_lock, renew_after_fork
from ftuner.errors import AllocationError
from ftuner.runtime.cpu.arrays import Array

HUGE_PAGE_BYTES = 2 << 20
"""Size of a huge page on x86-64, and on AArch64 with base pages of 4 KiB. Elsewhere it is only the
alignment of blocks."""
BLOCK_BYTES = 16 << 20
"""Pieces up to a quarter of this share a block; larger ones have their own."""
ALIGNMENT_BYTES = 64
MOST_SPARED = 1.25
"""Most bytes of freed memory that are given out for one."""
RESERVED_BYTES = 4 << 30
"""Address space reserved for an arena. Derived: more than the activations of any model known to us
take on a CPU, and little of the 128 TiB of a process."""
_NO_RESERVE = 0x4000
"""`MAP_NORESERVE` of Linux, on all architectures that have a code generator."""


NO_MEMORY = (MemoryError, ValueError, OverflowError)
"""What NumPy raises when it cannot allocate an array, depending on how much too large it is."""


def not_allocated(shape: Sequence[int], dtype: Any, why: object) -> AllocationError:
    """The error for an array that cannot be allocated."""
    return AllocationError(f"no memory for an array of {tuple(shape)} elements of {dtype}: {why}")


def allocated(shape: Sequence[int], dtype: Any, make: Callable[..., Array] = np.empty) -> Array:
    """An array made by `make`; its elements are not set.

    Raises:
        AllocationError: the system does not have as much memory.
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
        AllocationError: the system does not have as much.
    """
    if size > BLOCK_BYTES // 4:
        found = _spare.take(size)
        return _aligned(_pages(size), size) if found is None else found
    global _shared
    with _lock:
        if _shared is None or _shared.used + size > BLOCK_BYTES:
            _shared = _Block(_aligned(_pages(BLOCK_BYTES), BLOCK_BYTES))
        begin = _shared.used
        _shared.used = -(-(begin + size) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return _shared.memory[begin : begin + size]


def passing(size: int) -> Array:
    """`size` uninitialised bytes, as `uint8`. Where they are freed within `reuse`, `long_lived`
    gives them out again.

    Raises:
        AllocationError: the system does not have as much.
    """
    if size <= BLOCK_BYTES // 4:
        return allocated((size,), np.uint8)
    # What is packed is a little larger.
    pages = _pages(size + HUGE_PAGE_BYTES)
    found = _aligned(pages, size)
    # All views of these bytes have the array of all pages as their base.
    weakref.finalize(found.base, _spare.add, pages).atexit = False
    return found


def reuse() -> AbstractContextManager[None]:
    """Within it, `long_lived` gives out the memory of `passing` arrays that have been freed."""
    return _spare.used()


class _Spare:
    """Freed memory, as long as someone uses it."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self.renew_in_child()
        renew_after_fork(self)

    def renew_in_child(self) -> None:
        self._users = 0
        self._pages: list[mmap.mmap] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                # None, if this thread has been forked meanwhile.
                self._users = max(self._users - 1, 0)
                if self._users == 0:
                    self._pages.clear()

    def add(self, pages: mmap.mmap) -> None:
        with self._lock:
            if self._users:
                self._pages.append(pages)

    def take(self, size: int) -> Array | None:
        """Memory of `size` bytes, which are most of it; None if there is none."""
        with self._lock:
            fitting = [
                p for p in self._pages if size <= len(p) - HUGE_PAGE_BYTES <= MOST_SPARED * size
            ]
            if not fitting:
                return None
            pages = min(fitting, key=len)
            self._pages.remove(pages)
        return _aligned(pages, size)


_shared: _Block | None = None
_lock = fork_safe_lock()
_spare = _Spare()


class Arena:
    """Contiguous memory that grows in place, as far as the system allows.

    Addresses are reserved far beyond what is used; pages are allocated when first written.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self.address = 0
        """Its address, on a huge page; 0 before it has grown."""

    def grown(self, size: int) -> int:
        """Grow to at least `size` bytes; returns the address.

        Raises:
            AllocationError: the system does not have as much.
        """
        if self._memory.nbytes < size:
            reserved = _reserved_bytes()
            try:
                if size > reserved:
                    raise AllocationError
                self._memory = _aligned(_pages(reserved, _NO_RESERVE), reserved)
            except AllocationError:
                # More than expected, or the system counts reserved addresses as memory.
                self._memory = _aligned(_pages(size), size)
            self.address = int(self._memory.ctypes.data)
        return self.address


def give_back_freed() -> None:
    """Return the pages of freed memory to the system. Reading a model makes and frees several
    copies of its weights, whose pages the C library would keep: 40 MB of MobileNetV2's 14 MB of
    weights. Only glibc has such a function."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _reserved_bytes() -> int:
    """Bytes that an arena reserves: at most the machine's memory, so that the system refuses a
    larger size at once and the out-of-memory killer is not triggered."""
    if sys.platform != "linux":
        return 0
    return min(RESERVED_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _pages(size: int, flags: int = 0) -> mmap.mmap:
    """New pages with `size` bytes from the first huge page on.

    Raises:
        AllocationError: the system does not have as much.
    """
    try:
        # Private: a forked child must not write to its parent's pages.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags
        pages = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=private)
    except (OSError, ValueError, OverflowError) as error:
        raise AllocationError(f"cannot allocate {size} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses the advice, which is harmless.
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _aligned(pages: mmap.mmap, size: int) -> Array:
    """`size` bytes from the first huge page on. The pages live as long as any array that points
    into them."""
    memory = np.frombuffer(pages, np.uint8)
    shift = -memory.ctypes.data % HUGE_PAGE_BYTES
    return memory[shift : shift + size]
