"""Long-lived memory, on huge pages where the system has them.

A weight of some megabytes on pages of 4 KiB needs more translations than a core's TLB holds, and no
hardware prefetcher crosses such a page. Small pieces share a block, so that they are not rounded up
to a huge page.

The first access to a page takes the system some ten times as long as a later one, and in a virtual
machine up to some hundred times. So freed pages are given out again (`SparePages`): what is loaded
is packed into the memory of what was read and freed (`reuse`), and large outputs of a model take
the memory of earlier ones (`OutputPool`).

The system maps, clears and unmaps the memory of a large array each time; clearing alone takes about
as long as writing it. So a model keeps the pages of outputs that were freed, for later ones. An
output is lent as long as any array, view or other object refers to it: a caller who keeps all
outputs never sees one written again.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ftuner.codegen.llvm.native.records import ALIGNMENT_BYTES
from ftuner.core.fork_safety import fork_safe_lock, renew_after_fork
from ftuner.core.operating_system import ask_for_huge_pages, private_pages, reservable_bytes
from ftuner.errors import AllocationError
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.kept_memory import Keeper, KeptMemory

HUGE_PAGE_BYTES = 2 << 20
"""Size of a huge page on x86-64, and on AArch64 with base pages of 4 KiB. Elsewhere it is only the
alignment of blocks."""
BLOCK_BYTES = 16 << 20
"""Pieces up to a quarter of this share a block; larger ones have their own."""
LENGTHS_TRIED = 3
"""Lengths of freed pages that are given out for a size: the least, and those up to a quarter
longer."""
RESERVED_BYTES = 4 << 30
"""Address space reserved for an arena. Derived: more than the activations of any model known to us
take on a CPU, and little of the 128 TiB of a process."""


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
        return (_spare.take(_lengths(size)) or Pages.new(size)).array(size)
    global _shared
    with _lock:
        if _shared is None or _shared.used + size > BLOCK_BYTES:
            _shared = _Block(Pages.new(BLOCK_BYTES).array(BLOCK_BYTES))
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
    pages = Pages.new(size + HUGE_PAGE_BYTES)
    found = pages.array(size)
    # All views of these bytes have the array of all pages as their base.
    weakref.finalize(found.base, _spare.add, pages).atexit = False
    return found


@contextmanager
def reuse() -> Iterator[None]:
    """Within it, `long_lived` gives out the memory of `passing` arrays that have been freed."""
    with _spare.used():
        yield


class Pages(mmap.mmap):
    """Pages of this process alone."""

    begin = 0
    """The offset of the first byte that is used: with huge pages, the begin of one."""
    capacity = 0
    """The bytes that are used."""
    room = 0
    """The bytes that may be used: addresses beyond `capacity` are reserved."""

    @classmethod
    def new(cls, size: int, reserves_only: bool = False, more: int = 0) -> Pages:
        """Pages that nobody has accessed, for `size` bytes or a few more. From the size of a huge
        page on they are huge where the system has them. `more`: bytes of addresses that are
        reserved after them.

        Raises:
            AllocationError: the system does not have as much.
        """
        huge = HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else 0
        try:
            rounded = _lengths(size).start
            pages = cls(-1, rounded + more + huge, **private_pages(reserves_only or more > 0))
        except (OSError, ValueError, OverflowError) as error:
            raise AllocationError(f"cannot allocate {size} bytes: {error}") from error
        pages.capacity, pages.room = rounded, rounded + more
        if huge:
            pages.begin = -int(np.frombuffer(pages, np.uint8).ctypes.data) % huge
            ask_for_huge_pages(pages)
        return pages

    @classmethod
    def growing(cls, size: int) -> Pages:
        """New pages which may be given out again for up to twice as many bytes, if they are huge:
        these take the system longest. Where the system counts reserved addresses, for no more.

        Raises:
            AllocationError: the system does not have as much.
        """
        if HUGE_PAGE_BYTES <= size <= min(reservable_bytes(), MAX_SPARE_BYTES) // 2:
            with suppress(AllocationError):
                return cls.new(size, more=size)
        return cls.new(size)

    def array(self, size: int) -> Array:
        """The first `size` bytes. The pages live as long as any array that points into them."""
        return np.frombuffer(self, np.uint8)[self.begin : self.begin + size]


class SparePages:
    """Freed pages, which are given out again: at most `limit` bytes, of which those that were not
    used for longest go back to the system first. Safe to use from several threads."""

    def __init__(self) -> None:
        self.limit: float = 0
        # A finalizer that runs within may free pages: every line leaves what the next one needs.
        self._lock = fork_safe_lock()
        self.renew_in_child()
        renew_after_fork(self)

    def renew_in_child(self) -> None:
        self._pages: dict[int, list[Pages]] = {}
        """By size, those that were freed last come last. A size of which all pages were given out
        comes last when some are freed."""
        self.bytes = 0

    def add(self, pages: Pages) -> None:
        size = pages.capacity
        if size > self.limit:
            return
        with self._lock:
            self._pages.setdefault(size, []).append(pages)
            self.bytes += size
            if self.bytes > self.limit:
                self.shrink()

    def take(self, lengths: range, longest: float = 0) -> Pages | None:
        """Pages of one of these lengths, or else shorter ones that can grow, or longer ones of at
        most `longest` bytes; None if there are none."""
        wanted = lengths.start
        with self._lock:
            for length in lengths if self._pages else ():
                if found := self._taken(length, -1):
                    return found
            every = sorted(self._pages, reverse=True)
            for length in [n for n in every if n < wanted <= 2 * n]:
                if found := self._taken(length, -1, room=wanted):
                    found.capacity = wanted
                    return found
            for length in [n for n in reversed(every) if wanted < n <= longest]:
                if found := self._taken(length, -1):
                    return found
        return None

    def shrink(self) -> None:
        """Give pages beyond the limit back to the system."""
        with self._lock:
            while self.bytes > self.limit and self._pages:
                self._taken(next(iter(self._pages)), 0)

    def _taken(self, size: int, number: int, room: int = 0) -> Pages | None:
        """One of the pages of a size, which have as much room; None if there are none."""
        same = self._pages.get(size)
        if not same or same[number].room < room:
            return None
        found = same.pop(number)
        if not same:
            del self._pages[size]
        self.bytes -= size
        return found


class _Loading(SparePages):
    """Freed memory, as long as someone uses it."""

    def renew_in_child(self) -> None:
        super().renew_in_child()
        self._users = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            self.limit = inf
        try:
            yield
        finally:
            with self._lock:
                # None, if this thread has been forked meanwhile.
                self._users = max(self._users - 1, 0)
                if self._users == 0:
                    self.limit = 0
                    self.shrink()


def _lengths(size: int) -> range:
    """Lengths of pages for `size` bytes: multiples of an eighth to a sixteenth of them, so that
    sizes which differ little have the same."""
    shift = max(size.bit_length() - 4, mmap.PAGESIZE.bit_length() - 1)
    first = -(-size >> shift)
    return range(first << shift, (first + LENGTHS_TRIED) << shift, 1 << shift)


_shared: _Block | None = None
_lock = fork_safe_lock()
_spare = _Loading()


class Arena:
    """Contiguous memory that grows in place, as far as the system allows.

    Addresses are reserved far beyond what is used; pages are allocated when first written.
    """

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)
        self.address = 0
        """Its address, on a page; 0 before it has grown."""
        self.size = 0
        """The bytes that were asked for at most."""

    def grown(self, size: int) -> int:
        """Grow to at least `size` bytes; returns the address.

        Raises:
            AllocationError: the system does not have as much.
        """
        if self.memory.nbytes < size:
            # At most the machine's memory, so that the system refuses a larger size at once and the
            # out-of-memory killer is not triggered.
            reserved = min(RESERVED_BYTES, reservable_bytes())
            try:
                if size > reserved:
                    raise AllocationError
                self.memory = Pages.new(reserved, reserves_only=True).array(reserved)
            except AllocationError:
                # More than expected, or the system counts reserved addresses as memory. An arena
                # that grows again and again, as that of a text does, has room for more.
                room = size + min(self.memory.nbytes // 4, BLOCK_BYTES)
                self.memory = Pages.new(room).array(room)
            self.address = int(self.memory.ctypes.data)
        self.size = max(self.size, size)
        return self.address

    def touch(self) -> None:
        """Have the system allocate all pages now."""
        self.memory[: self.size : mmap.PAGESIZE] = 0


MAX_SPARE_BYTES = 256 << 20
"""Most bytes of freed outputs that a model keeps, and the largest output that is used again; as
those of a workspace."""


class _Lent(weakref.ref[Array]):
    """An output. Its views refer to it, because its memory is that of no other array."""

    __slots__ = ("least", "pages")

    pages: Pages
    least: int
    """The capacity that would do."""


class OutputPool(Keeper):
    """Keeps at most as many bytes of freed outputs as callers had at once, and at most
    `MAX_SPARE_BYTES`. A small output has the pages of a large one, as long as no large one misses
    them; then, pages of at most twice its size. Safe to use from several threads."""

    def __init__(self, kept: KeptMemory) -> None:
        """`kept`: whose limit is kept."""
        self._kept = kept
        kept.add(self)
        self._spare = SparePages()
        # A finalizer that runs within may free outputs: sums are taken of what is known before.
        self._lock = fork_safe_lock()
        self._lent: dict[int, _Lent] = {}
        self._lent_bytes = self._least_bytes = 0
        """Bytes of all pages that are lent, and of the least pages that would do."""
        self._missed = False
        """Whether a large output has missed the pages of a small one."""

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
        lengths = _lengths(size)
        room = self._spare.limit - self._lent_bytes
        pages = self._spare.take(lengths, 2 * lengths.start if self._missed else room)
        if pages is None:
            with self._lock:
                every = [*self._lent.values()]
            self._missed |= any(size <= x.pages.room > 2 * x.least for x in every)
            pages = Pages.growing(size)
        found: Array = np.ndarray(shape, dtype, pages, pages.begin)
        lent = _Lent(found, self._returned)
        lent.pages, lent.least = pages, lengths.start
        with self._lock:
            self._lent[id(lent)] = lent
            self._lent_bytes += pages.capacity
            self._least_bytes += lent.least
            if self._least_bytes > self._spare.limit:
                self._spare.limit = min(self._least_bytes, MAX_SPARE_BYTES)
        return found

    def _returned(self, lent: _Lent) -> None:
        """Nothing refers to an output any more."""
        returned = lent.pages.capacity
        with self._lock:
            del self._lent[id(lent)]
            self._lent_bytes -= returned
            self._least_bytes -= lent.least
        if self._kept.has_room(returned):
            self._spare.add(lent.pages)

    def trim(self) -> None:
        self._spare.limit = 0
        self._spare.shrink()
