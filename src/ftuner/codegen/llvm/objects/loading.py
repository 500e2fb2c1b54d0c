"""Loads object files into this process, without LLVM where possible.

Memory is written before it becomes executable, and never afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from ftuner.codegen.llvm.objects.elf import MAGIC, parse
from ftuner.codegen.llvm.objects.linking import Image, Linked
from ftuner.errors import ObjectFileError
from ftuner.hardware.system import ARCHITECTURES

_COMPILER = "ftuner.codegen.llvm.objects.jit"
"""Imported by name: it loads LLVM's library, which ELF objects do not need."""
_FORMAT: tuple[bytes, ...] | None = {
    "darwin": (b"\xcf\xfa\xed\xfe",),
    "win32": (b"\x64\x86", b"\x64\xaa"),
}.get(sys.platform)
"""Magic bytes of objects other than ELF: 64-bit Mach-O, COFF for x86-64 and for AArch64."""

_ADDRESS = struct.Struct("<Q")


class LoadedObject:
    """Machine code in this process, mapped as long as this value exists."""

    def __init__(self, objects: Sequence[bytes], symbols: Sequence[str]) -> None:
        """Load objects that may refer to each other and to functions of the C library.

        Raises:
            ObjectFileError: an object is damaged, is for another machine or has content that the
                loader does not know; or no object defines a symbol.
            MemoryError: the system refuses memory, or refuses to make it executable.
        """
        self.addresses: dict[str, int] = {}
        self._others: list[LoadedObject] = []
        if not objects:
            pass
        elif _FORMAT is not None:
            self._let_llvm_place(objects, symbols, _FORMAT)
        elif _instruction_flush() is None:
            for data in objects:
                parse(data)
            self._let_llvm_place(objects, symbols, (MAGIC,))
        else:
            self._place(Linked([parse(data) for data in objects], mmap.PAGESIZE).image())
        missing = [s for s in symbols if s not in self.addresses]
        if missing:
            raise ObjectFileError(f"no object defines {', '.join(missing)}")

    @classmethod
    def of_image(cls, image: Image) -> LoadedObject:
        """Load a block that was linked before.

        Raises:
            ObjectFileError, MemoryError: as of objects.
        """
        found = cls((), ())
        found._place(image)
        return found

    def add(self, other: LoadedObject) -> None:
        """Take over the symbols that this one lacks, with their code."""
        self._others.append(other)
        self.addresses = {**other.addresses, **self.addresses}

    def _let_llvm_place(
        self, objects: Sequence[bytes], symbols: Sequence[str], magic: tuple[bytes, ...]
    ) -> None:
        """Load objects with LLVM's own loader: Mach-O, COFF, or without a cache flush."""
        # LLVM aborts the process if it is given anything but an object.
        if not all(data.startswith(magic) for data in objects):
            raise ObjectFileError("no object of this system's format")
        try:
            self._engine = import_module(_COMPILER).Engine(objects)
            self.addresses = {s: a for s in symbols if (a := self._engine.address(s))}
        except RuntimeError as error:
            raise ObjectFileError(f"LLVM cannot load an object: {error}") from error

    def _place(self, image: Image) -> None:
        """Load an image without LLVM."""
        machine, data, code_bytes, functions, entries = image
        flush = _instruction_flush()
        if machine != _machine() or flush is None:
            raise ObjectFileError(f"an object for {machine}: another machine")
        size, last = len(data), code_bytes - _ADDRESS.size
        places = *functions.values(), *entries.values()
        if code_bytes % mmap.PAGESIZE or not all(0 <= at <= last for at in places) or last >= size:
            raise ObjectFileError(f"a block of {size} bytes, {code_bytes} of them code")
        addresses = {at: _ADDRESS.pack(_function(name)) for name, at in functions.items()}
        base = _map(size)
        # Not unmapped at exit: a daemon thread may still run this code.
        weakref.finalize(self, _libc().munmap, base, size).atexit = False
        ctypes.memmove(base, bytes(data), size)
        for at, address in addresses.items():
            ctypes.memmove(base + at, address, len(address))
        _protect(base, code_bytes, mmap.PROT_READ | mmap.PROT_EXEC)
        _protect(base + code_bytes, size - code_bytes, mmap.PROT_READ)
        flush(base, base + code_bytes)
        self.addresses = {name: base + at for name, at in entries.items()}


def _machine() -> str | None:
    return ARCHITECTURES.get(platform.machine().lower())


@cache
def _libc() -> Any:
    """The C library, through the global symbols of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _function(name: str) -> int:
    """The address of a function of a library that this process has loaded."""
    try:
        found = ctypes.cast(_libc()[name], ctypes.c_void_p).value
    except AttributeError:
        raise ObjectFileError(f"no library of this process has the function {name!r}") from None
    if found is None:
        raise ObjectFileError(f"the function {name!r} is nowhere in this process")
    return found


def _map(size: int) -> int:
    # Not Python's mmap, which unmaps at exit.
    base = _libc().mmap(
        None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    if base in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"cannot map {size} bytes for code: errno {ctypes.get_errno()}")
    return int(base)


def _protect(begin: int, size: int, protection: int) -> None:
    if size and _libc().mprotect(begin, size, protection):
        raise MemoryError(
            f"the system does not let memory become executable: errno {ctypes.get_errno()}"
        )


@cache
def _instruction_flush() -> Callable[[int, int], object] | None:
    """The function to call with the begin and end of new code, which flushes the instruction cache;
    None if it is not available."""
    if _machine() == "x86_64":
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
