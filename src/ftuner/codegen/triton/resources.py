"""What a compiled kernel takes of a multiprocessor, read back from its machine code.

For NVIDIA: the cubin, an ELF file of 64 bits whose `.nv.info` section holds attributes, and for
each function its registers and stack (CUDA Binary Utilities; the numbers of attributes are those
that `cuobjdump -elf` prints). For AMD: the metadata at the end of the assembly, as LLVM's
AMDGPUUsage describes it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from ftuner.core.gpu.tile import ProductKernel
from ftuner.errors import ObjectFileError

_ELF_MAGIC = b"\x7fELF\x02\x01"
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_INFO = ".nv.info"
_SIZED = 4
"""Format of an attribute that tells its own size; all others are four bytes."""
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F
MOST_REGISTERS = {32: 255, 64: 256}
"""Of a thread, by threads of a warp: by the instruction set of NVIDIA's chips; of AMD's where two
waves share what there is."""
FEW_SPILLED_BYTES = 32
"""What ptxas spills now and then of threads that take far fewer registers than there are: numbers
of the walk over tiles."""
_ACCUMULATES_IN_REGISTERS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
"""The others have memory of their own for that, or registers that are counted apart."""
_SLACK_BYTES = 512
"""Of shared memory: barriers, and rows or columns on their way from one layout to another."""
_HANDED_BYTES = 2048
"""Likewise, and what specialised warps hand on."""


@dataclass(frozen=True)
class Resources:
    """Of one block of threads, or one of its threads."""

    threads: int
    """Launched in a block; more than asked for where warps are specialised."""
    registers: int
    """Of a thread, of 32 bits."""
    spilled_bytes: int
    """Of a thread, in local memory."""
    shared_bytes: int
    """Of a block, static and dynamic."""


def nvidia_resources(cubin: bytes, ptx: str, shared_bytes: int, threads: int) -> Resources:
    """Of the one function in a cubin that was assembled from `ptx` and needs so much dynamic
    shared memory. A stack holds spilled registers and what the text itself keeps in local memory.

    Raises ObjectFileError if the cubin is damaged or tells nothing of a function.
    """
    values = _attributes(cubin)
    local = sum(int(size) for size in re.findall(r"\.local\b[^;]*\[(\d+)\];", ptx))
    return Resources(
        threads, values[_REGISTER_COUNT], max(values[_FRAME_SIZE] - local, 0), shared_bytes
    )


def _attributes(cubin: bytes) -> dict[int, int]:
    """Of the attributes of a function: the largest value of each."""
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
    """(attribute, words) of those attributes that have any."""
    entries, place = [], 0
    while place + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        if form == _SIZED:
            entries.append((attribute, struct.unpack_from(f"<{size // 4}I", data, place)))
            place += size
    return entries


def amd_resources(assembly: str, shared_bytes: int, threads: int) -> Resources:
    """Of the one kernel in an AMD assembly.

    Raises ObjectFileError if the text has no such metadata.
    """

    def number(key: str) -> int:
        match = re.search(rf"^\s*(?:- )?\.{key}:\s+(\d+)\s*$", assembly, re.MULTILINE)
        if match is None:
            raise ObjectFileError(f"an assembly without {key}")
        return int(match.group(1))

    # Of a wavefront of 64, each vector register spilled takes four bytes of every thread; scalar
    # ones go to lanes of vector registers.
    registers = number("vgpr_count")
    return Resources(threads, registers, 4 * number("vgpr_spill_count"), shared_bytes)


def disagreements(
    kernel: ProductKernel, architecture: str, warp_threads: int, compiled: Resources
) -> tuple[str, ...]:
    """Where a compiled product kernel is not what its model says: spills, more registers than there
    are or fewer than its accumulators, more shared memory. Empty if it is; less shared memory than
    modelled is no disagreement."""
    accumulators = kernel.main.accumulators_per_thread(warp_threads)
    modelled = kernel.shared_bytes(architecture)
    found = []
    if compiled.spilled_bytes > FEW_SPILLED_BYTES:
        found.append(f"spills {compiled.spilled_bytes} bytes of a thread's registers")
    if compiled.registers > MOST_REGISTERS[warp_threads]:
        found.append(f"takes {compiled.registers} registers of a thread")
    if compiled.registers < accumulators and architecture in _ACCUMULATES_IN_REGISTERS:
        found.append(f"has {compiled.registers} registers for {accumulators} accumulators")
    slack = _HANDED_BYTES if kernel.specialised else _SLACK_BYTES
    if compiled.shared_bytes > modelled + slack:
        found.append(f"takes {compiled.shared_bytes} bytes of shared memory, modelled {modelled}")
    return tuple(found)
