"""Loads object files into this process, without LLVM where possible.

Memory is written before it becomes executable, and never afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import weakref
from collections.abc import Sequence
from importlib import import_module

from ftuner.codegen.llvm.objects.elf import parse
from ftuner.codegen.llvm.objects.linking import Image, Linked
from ftuner.core.operating_system import (
    function_address,
    instruction_flush,
    make_readonly,
    map_writable,
    unmap,
)
from ftuner.errors import ObjectFileError
from ftuner.hardware.system import ARCHITECTURES

_COMPILER = "ftuner.codegen.llvm.objects.jit"
"""Imported by name: it loads LLVM's library, which ELF objects do not need."""

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
        if not objects:
            pass
        elif instruction_flush() is None:
            self._let_llvm_place(objects, symbols)
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

    def _let_llvm_place(self, objects: Sequence[bytes], symbols: Sequence[str]) -> None:
        """Load objects with LLVM's own loader."""
        # LLVM aborts the process if it is given anything but an object.
        for data in objects:
            parse(data)
        try:
            self._engine = import_module(_COMPILER).Engine(objects)
            self.addresses = {s: a for s in symbols if (a := self._engine.address(s))}
        except RuntimeError as error:
            raise ObjectFileError(f"LLVM cannot load an object: {error}") from error

    def _place(self, image: Image) -> None:
        """Load an image without LLVM."""
        machine, data, code_bytes, functions, entries = image
        flush = instruction_flush()
        if machine != ARCHITECTURES.get(platform.machine().lower()) or flush is None:
            raise ObjectFileError(f"an object for {machine}: another machine")
        size, last = len(data), code_bytes - _ADDRESS.size
        places = *functions.values(), *entries.values()
        if code_bytes % mmap.PAGESIZE or not all(0 <= at <= last for at in places) or last >= size:
            raise ObjectFileError(f"a block of {size} bytes, {code_bytes} of them code")
        addresses = {at: _ADDRESS.pack(_function(name)) for name, at in functions.items()}
        base = map_writable(size)
        # Not unmapped at exit: a daemon thread may still run this code.
        weakref.finalize(self, unmap, base, size).atexit = False
        ctypes.memmove(base, bytes(data), size)
        for at, address in addresses.items():
            ctypes.memmove(base + at, address, len(address))
        make_readonly(base, code_bytes, executable=True)
        make_readonly(base + code_bytes, size - code_bytes, executable=False)
        flush(base, base + code_bytes)
        self.addresses = {name: base + at for name, at in entries.items()}


def _function(name: str) -> int:
    found = function_address(name)
    if found is None:
        raise ObjectFileError(f"no library of this process has the function {name!r}")
    return found
