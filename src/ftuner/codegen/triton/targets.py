"""Targets of Triton's compiler, and the resources of a compiled kernel, read back from its code.

NVIDIA: the `.nv.info` section of the cubin, a 64-bit ELF file, has the registers and stack of each
function (CUDA Binary Utilities; `cuobjdump -elf` prints the numbers of attributes). AMD: the
metadata at the end of the assembly (LLVM's AMDGPUUsage).
"""

from __future__ import annotations

import re
import struct

from ftuner.core.frozen import dataclass
from ftuner.errors import ObjectFileError

_ELF_MAGIC = b"\x7fELF\x02\x01"
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_INFO = ".nv.info"
_SIZED = 4
"""Format of an attribute with a size field; all others are four bytes."""
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F


@dataclass(frozen=True)
class Resources:
    """The resources of a block of threads, or of one of its threads."""

    threads: int
    """Threads of a block, including those that Triton adds for specialised warps."""
    registers: int
    """32-bit registers of a thread."""
    spilled_bytes: int
    """Local memory of a thread for spilled registers."""
    shared_bytes: int
    """Shared memory of a block, static and dynamic."""


def nvidia_resources(cubin: bytes, ptx: str, shared_bytes: int, threads: int) -> Resources:
    """Returns the resources of the one function in a cubin that was assembled from `ptx`. Its stack
    holds spilled registers and the local variables of the PTX.

    Args:
        shared_bytes: dynamic shared memory.
        threads: of a block.

    Raises:
        ObjectFileError: the cubin is damaged or does not describe a function.
    """
    values = _attributes(cubin)
    local = sum(int(size) for size in re.findall(r"\.local\b[^;]*\[(\d+)\];", ptx))
    return Resources(
        threads, values[_REGISTER_COUNT], max(values[_FRAME_SIZE] - local, 0), shared_bytes
    )


def _attributes(cubin: bytes) -> dict[int, int]:
    """Returns the largest value of each attribute of a function."""
    if not cubin.startswith(_ELF_MAGIC) or len(cubin) < _ELF_HEADER.size:
        raise ObjectFileError("no little-endian ELF file of 64 bits")
    fields = _ELF_HEADER.unpack_from(cubin)
    place, entry, count, names = fields[6], *fields[11:14]
    if entry != _SECTION_HEADER.size or place + count * entry > len(cubin):
        raise ObjectFileError("a cubin whose table of sections is damaged")
    table = [_SECTION_HEADER.unpack_from(cubin, place + i * entry) for i in range(count)]
    text = cubin[table[names][4] :][: table[names][5]]
    found: dict[int, int] = {}
    for name, _, _, _, offset, size, *_ in table:
        if text[name : text.index(b"\0", name)].decode() == _INFO:
            for attribute, payload in _entries(cubin[offset : offset + size]):
                if attribute in (_FRAME_SIZE, _REGISTER_COUNT):
                    found[attribute] = max(found.get(attribute, 0), payload[1])
    if _REGISTER_COUNT not in found or _FRAME_SIZE not in found:
        raise ObjectFileError("a cubin without the registers and the stack of a function")
    return found


def _entries(data: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """Returns (attribute, words) of the attributes that have words."""
    entries, place = [], 0
    while place + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        if form == _SIZED:
            entries.append((attribute, struct.unpack_from(f"<{size // 4}I", data, place)))
            place += size
    return entries


def amd_resources(assembly: str, shared_bytes: int, threads: int) -> Resources:
    """Returns the resources of the one kernel in an AMD assembly.

    Raises:
        ObjectFileError: the text has no such metadata.
    """

    def number(key: str) -> int:
        match = re.search(rf"^\s*(?:- )?\.{key}:\s+(\d+)\s*$", assembly, re.MULTILINE)
        if match is None:
            raise ObjectFileError(f"an assembly without {key}")
        return int(match.group(1))

    # A spilled vector register takes four bytes of every thread; scalar registers are spilled to
    # lanes of vector registers.
    registers = number("vgpr_count")
    return Resources(threads, registers, 4 * number("vgpr_spill_count"), shared_bytes)


@dataclass(frozen=True)
class Target:
    """One architecture."""

    backend: str
    """`cuda` or `hip`."""
    arch: int | str
    """The compute capability as a number (90), or AMD's name."""
    warp_threads: int

    @property
    def name(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


TARGETS = {
    target.name: target
    for target in (
        *(Target("cuda", arch, 32) for arch in (70, 75, 80, 86, 89, 90, 100, 120)),
        Target("hip", "gfx942", 64),
    )
}
"""By name, as in `GpuHardware.architecture`."""


@dataclass(frozen=True)
class Compiled:
    """One kernel compiled for one target, or the compiler's error."""

    binary: bytes
    """The cubin or hsaco; empty if there is an error."""
    assembly: str
    """The PTX, or AMD's assembly."""
    resources: Resources | None
    error: str = ""
    cached: bool = False
    """Whether Triton's cache had it."""
