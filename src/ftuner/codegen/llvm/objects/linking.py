"""Links objects into one block of memory: lays out their sections and applies relocations.

Code comes first, then a stub for each library function, then constants on their own pages. A stub
jumps to the address stored after it, because a library may be out of reach of a call. Nothing here
touches the process's memory, so blocks for another architecture can be made, too.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ftuner.codegen.llvm.objects.elf import ObjectFile, Symbol
from ftuner.core.frozen import dataclass
from ftuner.errors import ObjectFileError

Write = Callable[[bytearray, int, int, int], None]
"""Patches a place: (block, offset, address of that place, target)."""
_STUB_BYTES = 16
_LINE_BYTES = 64
"""Sections begin at a cache line, so that the alignment of loops does not depend on other
sections."""
_ADDRESS = struct.Struct("<Q")
_WORD = struct.Struct("<I")


@dataclass(frozen=True)
class Machine:
    """An architecture that the loader can link for."""

    name: str
    """One of `hardware.system.ARCHITECTURES`."""
    jump: bytes
    """Instructions that jump to the address in the 8 bytes after them."""
    relocations: Mapping[int, Write]
    """The relocation types that generated objects have."""
    calls: frozenset[int]
    """Relocation types whose target may be a stub."""


def _field(value: int, bits: int) -> int:
    """A signed number as a bit field of an instruction."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ObjectFileError(f"a relocation reaches {bits} bits; the distance is {value}")
    return value & ((1 << bits) - 1)


def _relative32(block: bytearray, offset: int, place: int, target: int) -> None:
    _WORD.pack_into(block, offset, _field(target - place, 32))


def _set_bits(block: bytearray, offset: int, mask: int, bits: int) -> None:
    """Replace the bits of `mask` of an instruction of AArch64."""
    (word,) = _WORD.unpack_from(block, offset)
    _WORD.pack_into(block, offset, word & ~mask | bits)


def _branch26(block: bytearray, offset: int, place: int, target: int) -> None:
    if (target - place) % 4:
        raise ObjectFileError("a branch between two instructions")
    _set_bits(block, offset, 0x3FFFFFF, _field((target - place) // 4, 26))


def _page21(block: bytearray, offset: int, place: int, target: int) -> None:
    pages = _field((target >> 12) - (place >> 12), 21)
    _set_bits(block, offset, 0x60FFFFE0, (pages & 3) << 29 | (pages >> 2) << 5)


def _low12(scale: int, block: bytearray, offset: int, place: int, target: int) -> None:
    """The offset within a page, in units of `scale` bytes."""
    if target % scale:
        raise ObjectFileError(f"a load or store of {scale} bytes at {target:#x}")
    _set_bits(block, offset, 0x3FFC00, (target & 0xFFF) // scale << 10)


MACHINES: Mapping[int, Machine] = {
    # jmp *0(%rip)
    62: Machine(
        "x86_64",
        bytes.fromhex("ff2500000000"),
        # R_X86_64_PC32, R_X86_64_PLT32
        {2: _relative32, 4: _relative32},
        frozenset({4}),
    ),
    # ldr x16, #8; br x16
    183: Machine(
        "aarch64",
        bytes.fromhex("5000005800021fd6"),
        {
            # R_AARCH64_PREL32, _ADR_PREL_PG_HI21, _ADD_ABS_LO12_NC, _JUMP26, _CALL26
            261: _relative32,
            275: _page21,
            277: partial(_low12, 1),
            282: _branch26,
            283: _branch26,
            # R_AARCH64_LDST8_ABS_LO12_NC and those of 16, 32, 64 and 128 bits
            278: partial(_low12, 1),
            284: partial(_low12, 2),
            285: partial(_low12, 4),
            286: partial(_low12, 8),
            299: partial(_low12, 16),
        },
        frozenset({282, 283}),
    ),
}
"""By `e_machine`, with the numbers of their supplements to the System V ABI."""


class Image(NamedTuple):
    """A linked block for any page-aligned address, in which the addresses of library functions are
    missing: relocations are relative."""

    machine: str
    data: bytes | memoryview
    code_bytes: int
    functions: Mapping[str, int]
    """Library functions, with the offsets of their addresses."""
    entries: Mapping[str, int]
    """Global symbols of code, with their offsets."""


class Linked:
    """Objects of one architecture, laid out in a block."""

    def __init__(self, objects: Sequence[ObjectFile], page_bytes: int) -> None:
        """Lay objects out.

        Raises:
            ObjectFileError: there are no objects; they are for several or unknown architectures;
                two define one symbol; or one refers to data of a library.
        """
        numbers = {found.machine for found in objects}
        if len(numbers) != 1 or not numbers <= MACHINES.keys():
            raise ObjectFileError(f"objects for the machines {sorted(numbers)}")
        self.machine = MACHINES[numbers.pop()]
        self._objects = objects
        self._places: list[dict[int, int]] = [{} for _ in objects]
        self._stubs = dict.fromkeys(self._undefined(), 0)
        end = self._place(0, executable=True)
        for name in self._stubs:
            self._stubs[name] = end = _rounded(end, _STUB_BYTES)
            end += _STUB_BYTES
        self.code_bytes = _rounded(end, page_bytes)
        """Code and stubs, in whole pages."""
        self.size = _rounded(self._place(self.code_bytes, executable=False), page_bytes)
        """Bytes of the block, in whole pages; what follows the code is constants."""
        self.symbols = {
            symbol.name: places[symbol.section] + symbol.offset
            for places, found in zip(self._places, objects, strict=True)
            for symbol in found.symbols
        }
        """Offsets of the global symbols in the block."""
        self.entries = frozenset(
            symbol.name
            for found in objects
            for symbol in found.symbols
            if found.sections[symbol.section].executable
            and symbol.offset < len(found.sections[symbol.section].data)
        )
        """Global symbols of code."""

    @property
    def functions(self) -> tuple[str, ...]:
        """The library functions that the objects call."""
        return tuple(self._stubs)

    def block(self, base: int, functions: Mapping[str, int]) -> bytearray:
        """The contents of the block at address `base`, which is page-aligned.

        Args:
            functions: the addresses of library functions.

        Raises:
            ObjectFileError: a relocation is unknown or does not reach its target.
        """
        block = bytearray(self.size)
        for name, begin in self._stubs.items():
            stub = self.machine.jump + _ADDRESS.pack(functions[name])
            block[begin : begin + len(stub)] = stub
        for places, found in zip(self._places, self._objects, strict=True):
            for number, section in found.sections.items():
                begin = places[number]
                block[begin : begin + len(section.data)] = section.data
                for offset, kind, symbol, addend in section.relocations:
                    write = self.machine.relocations.get(kind)
                    if write is None or offset + _WORD.size > len(section.data):
                        raise ObjectFileError(
                            f"relocation {kind} at {offset} of {len(section.data)} bytes"
                        )
                    target = base + self._target(places, symbol) + addend
                    write(block, begin + offset, base + begin + offset, target)
        return block

    def image(self) -> Image:
        """The block as it can be kept.

        Raises:
            ObjectFileError: as `block`.
        """
        jump = len(self.machine.jump)
        return Image(
            self.machine.name,
            bytes(self.block(0, dict.fromkeys(self._stubs, 0))),
            self.code_bytes,
            {name: begin + jump for name, begin in self._stubs.items()},
            {name: self.symbols[name] for name in sorted(self.entries)},
        )

    def _undefined(self) -> Iterator[str]:
        """The names that relocations refer to and no object defines."""
        defined = Counter(s.name for found in self._objects for s in found.symbols)
        twice = [name for name, count in defined.items() if count > 1]
        if twice:
            raise ObjectFileError(f"several objects define {', '.join(twice)}")
        for found in self._objects:
            for section in found.sections.values():
                for _, kind, symbol, _ in section.relocations:
                    if symbol.section or symbol.name in defined:
                        continue
                    if kind not in self.machine.calls:
                        raise ObjectFileError(f"{symbol.name!r} is not defined, nor called")
                    yield symbol.name

    def _place(self, end: int, executable: bool) -> int:
        """Lay out the sections of code, or of constants, from offset `end` on; returns their
        end."""
        for places, found in zip(self._places, self._objects, strict=True):
            for number, section in found.sections.items():
                if section.executable == executable:
                    places[number] = _rounded(end, max(section.alignment, _LINE_BYTES))
                    end = places[number] + len(section.data)
        return end

    def _target(self, places: Mapping[int, int], symbol: Symbol) -> int:
        if symbol.section:
            return places[symbol.section] + symbol.offset
        found = self.symbols.get(symbol.name)
        return self._stubs[symbol.name] if found is None else found


def _rounded(size: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-size // unit) * unit
