"""What an operating system offers beyond Python's portable library, each with a fall-back.

No other module asks which system this is, or calls the C library. Linux offers all of it; where a
call is missing (macOS, Windows, a sandbox), the fall-back costs time or memory and nothing else.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from typing import Any

FUTEX, GETTID = "futex", "gettid"
_NUMBERS = {"x86_64": {FUTEX: 202, GETTID: 186}, "aarch64": {FUTEX: 98, GETTID: 178}}
"""By architecture, as the kernel's headers have them."""
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
"""Of Linux on x86-64: a system call, what it shall do, and which registers it concerns."""
_PR_SET_PDEATHSIG = 1
_NO_RESERVE = 0x4000
"""`MAP_NORESERVE` of Linux, on all architectures that have a code generator."""

SYSTEM = sys.platform
"""The system that machine code is for: its calls and its calling convention."""
_IS_LINUX = SYSTEM == "linux"
CLOCK: int | None = getattr(time, "CLOCK_MONOTONIC", None)
"""The clock to ask the C library's `clock_gettime` for; None where it does not have the function.
"""


def is_x86() -> bool:
    """Whether this is x86-64."""
    return platform.machine().lower() in ("x86_64", "amd64")


def has_system_calls() -> bool:
    """Whether machine code may make `FUTEX` and `GETTID`, and get and set affinities: on Linux, on
    an architecture whose numbers are known."""
    return _IS_LINUX and platform.machine() in _NUMBERS


def system_call_number(name: str) -> int:
    """The number of a system call; where `has_system_calls`."""
    return _NUMBERS[platform.machine()][name]


def nap(us: int) -> tuple[str, int]:
    """The system's function that makes a thread sleep, and its 32-bit argument for a time."""
    return ("Sleep", max(us // 1000, 1)) if SYSTEM == "win32" else ("usleep", us)


def object_triple(triple: str) -> str:
    """LLVM's triple of this system, for ELF objects: these are linked and loaded everywhere."""
    return triple if _IS_LINUX else f"{triple}-elf"


@cache
def _libc() -> Any:
    """The C library, through the global symbols of this process; None if it cannot be had."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long,
        )  # fmt: skip
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    except (OSError, TypeError, AttributeError):
        return None
    return libc


@cache
def instruction_flush() -> Callable[[int, int], object] | None:
    """The function to call with the begin and end of new code, which flushes the instruction cache;
    None where LLVM has to place code, because this module cannot."""
    if _libc() is None:
        return None
    if is_x86():
        # x86 keeps instruction caches coherent.
        return lambda begin, end: None
    try:
        flush: Any = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except (OSError, AttributeError):
        return None
    flush.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    flush.restype = None
    found: Callable[[int, int], object] = flush
    return found


def function_address(name: str) -> int | None:
    """The address of a function of a library that this process has loaded; None without one. Like
    the next three: where there is an `instruction_flush`."""
    try:
        return ctypes.cast(_libc()[name], ctypes.c_void_p).value
    except AttributeError:
        return None


def map_writable(size: int) -> int:
    """The address of new pages. Not Python's `mmap`, which unmaps at exit.

    Raises:
        MemoryError: the system refuses.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"cannot map {size} bytes for code: errno {ctypes.get_errno()}")
    return int(base)


def make_readonly(begin: int, size: int, executable: bool) -> None:
    """Take the permission to write from pages, and give that to execute.

    Raises:
        MemoryError: the system refuses.
    """
    protection = mmap.PROT_READ | (mmap.PROT_EXEC if executable else 0)
    if size and _libc().mprotect(begin, size, protection):
        raise MemoryError(
            f"the system does not let memory become executable: errno {ctypes.get_errno()}"
        )


def unmap(begin: int, size: int) -> None:
    """Give pages of `map_writable` back."""
    _libc().munmap(begin, size)


def private_pages(reserves_only: bool = False) -> dict[str, int]:
    """Arguments of `mmap.mmap` for memory that a forked child copies. `reserves_only`: pages count
    when they are first written."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return {}
    reserve = _NO_RESERVE if reserves_only and _IS_LINUX else 0
    return {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve}


def ask_for_huge_pages(pages: mmap.mmap) -> None:
    """Advise huge pages, where the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses the advice, which is harmless.
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)


def reservable_bytes() -> int:
    """Half of the machine's memory, if addresses can be reserved without memory; else 0."""
    if not _IS_LINUX:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def give_back_freed() -> None:
    """Return the pages of freed memory to the system. Reading a model makes and frees several
    copies of its weights, whose pages the C library would keep: 40 MB of MobileNetV2's 14 MB of
    weights. Only glibc has such a function."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def glibc_sysconf(number: int) -> int:
    """glibc's `sysconf`, whose numbers would ask other libraries for something else: there 0."""
    return os.sysconf(number) if platform.libc_ver()[0] == "glibc" else 0


def own_affinity() -> Collection[int]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def pin_thread(cpu: int) -> None:
    """Have this thread run on one CPU, where the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        # The CPU may have been removed meanwhile.
        with suppress(OSError):
            os.sched_setaffinity(0, {cpu})


@cache
def permits_matrix_unit() -> bool:
    """Ask Linux for the registers of x86's matrix unit, for all threads of this process and of its
    children; whether it gives them. Without its permission their use ends a process."""
    if not (has_system_calls() and is_x86()) or _libc() is None:
        return False
    return bool(_libc().syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0)


def ends_with_parent() -> bool:
    """Whether the system kills a process that asked for it when its parent ends."""
    return _IS_LINUX and _libc() is not None


def end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, on Linux. Elsewhere
    a child ends when it next reads from its parent."""
    if ends_with_parent():
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
