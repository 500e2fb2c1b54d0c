"""Reads relocatable ELF objects of LLVM for x86-64 and AArch64 (System V ABI, chapter 4).

It knows what the code generator's objects contain: code, constants, symbols, relocations with
addends. Any other section that would have to be in memory is an error. Unwinding tables are
skipped, because no exception passes through generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ftuner.core.frozen import dataclass
from ftuner.errors import ObjectFileError

MAGIC = b"\x7fELF"
_IDENTITY = MAGIC + b"\x02\x01\x01"
"""64 bits, little-endian, version 1."""
_RELOCATABLE = 1
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")

_PROGBITS, _SYMTAB, _STRTAB, _RELA, _REL = 1, 2, 3, 4, 9
_WRITABLE, _ALLOCATED, _EXECUTABLE, _THREAD_LOCAL = 1, 2, 4, 0x400
_UNWINDING = ".eh_frame"
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00
_LOCAL = 0
MAX_ALIGNMENT_BYTES = 4096
"""The smallest page, to which memory from the system is always aligned."""
_MAX_SECTIONS = 1024
"""Our objects have a dozen. With the alignment it bounds the memory that a damaged object takes."""
_MAX_NAME_BYTES = 512
"""Our longest symbols have a hundred characters."""


class Symbol(NamedTuple):
    """A place in a section, or (`section` 0) a name that another object or a library defines."""

    name: str
    section: int
    offset: int
    is_global: bool


class Relocation(NamedTuple):
    """A place in a section that is patched when addresses are known."""

    offset: int
    kind: int
    """The relocation type of the machine's ABI supplement."""
    symbol: Symbol
    addend: int


@dataclass(frozen=True)
class Section:
    """Code or constants."""

    data: bytes
    alignment: int
    executable: bool
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True)
class ObjectFile:
    """The parts of an object that must be in memory. Offsets are relative to their sections."""

    machine: int
    """`e_machine`."""
    sections: dict[int, Section]
    """By number."""
    symbols: tuple[Symbol, ...]
    """The global symbols that it defines."""


class _Header(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_bytes: int


def parse(data: bytes) -> ObjectFile:
    """Read an object file.

    Raises:
        ObjectFileError: it is damaged, is no 64-bit relocatable object, or has content that the
            loader does not know.
    """
    if len(data) < _HEADER.size or not data.startswith(_IDENTITY):
        raise ObjectFileError("no little-endian ELF object of 64 bits")
    _, kind, machine, _, _, _, place, _, _, _, _, entry, count, names = _HEADER.unpack_from(data)
    if kind != _RELOCATABLE or entry != _SECTION.size or not names < count <= _MAX_SECTIONS:
        raise ObjectFileError("no relocatable ELF object")
    table = _cut(data, place, count * _SECTION.size)
    headers = [_Header(*fields) for fields in _SECTION.iter_unpack(table)]
    name_table = _content(data, headers, names, _STRTAB)
    kept = {
        number: header
        for number, header in enumerate(headers)
        if _is_kept(header, _text(name_table, header.name))
    }
    if not any(header.size for header in kept.values()):
        raise ObjectFileError("an object without code or constants")
    # Neither sections nor tables overlap, so together they are no larger than the file.
    tables = [h for h in headers if h.kind in (_SYMTAB, _RELA)]
    if max(sum(h.size for h in part) for part in (kept.values(), tables)) > len(data):
        raise ObjectFileError(f"sections of more bytes than the {len(data)} of the object")
    symbols = _symbols(data, headers, kept)
    relocations: dict[int, list[Relocation]] = {number: [] for number in kept}
    for number, header in enumerate(headers):
        if header.kind not in (_RELA, _REL) or header.info not in kept:
            continue
        if header.kind == _REL:
            raise ObjectFileError("relocations without addends")
        size = kept[header.info].size
        for offset, type_, index, addend in _entries(data, headers, number, _RELOCATION):
            if offset >= size or index >= len(symbols):
                raise ObjectFileError(f"a relocation at {offset} of {size} bytes, or its symbol")
            relocations[header.info].append(Relocation(offset, type_, symbols[index], addend))
    sections = {
        number: Section(
            _cut(data, header.offset, header.size),
            max(header.alignment, 1),
            bool(header.flags & _EXECUTABLE),
            tuple(relocations[number]),
        )
        for number, header in kept.items()
    }
    return ObjectFile(machine, sections, tuple(s for s in symbols if s.is_global and s.section))


def _cut(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise ObjectFileError(f"{size} bytes wanted at {offset}; the object has {len(data)}")
    return data[offset : offset + size]


def _content(data: bytes, headers: list[_Header], number: int, kind: int) -> bytes:
    """The bytes of a section, which must have type `kind`."""
    if number >= len(headers) or headers[number].kind != kind:
        raise ObjectFileError(f"section {number} is not of kind {kind}")
    return _cut(data, headers[number].offset, headers[number].size)


def _entries(
    data: bytes, headers: list[_Header], number: int, entry: struct.Struct
) -> Iterator[tuple[int, ...]]:
    """The entries of a table."""
    table = _content(data, headers, number, headers[number].kind)
    if headers[number].entry_bytes != entry.size or len(table) % entry.size:
        raise ObjectFileError(f"section {number} is no table of entries of {entry.size} bytes")
    return entry.iter_unpack(table)


def _text(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset, offset + _MAX_NAME_BYTES)
    if end < 0:
        raise ObjectFileError(f"a name at {offset} of {len(table)} bytes")
    return table[offset:end].decode(errors="replace")


def _is_kept(header: _Header, name: str) -> bool:
    """Whether a section must be in memory."""
    if not header.flags & _ALLOCATED or name == _UNWINDING:
        return False
    if header.kind != _PROGBITS or header.flags & (_WRITABLE | _THREAD_LOCAL):
        raise ObjectFileError(f"section {name} is neither code nor constants")
    alignment = header.alignment
    if alignment > MAX_ALIGNMENT_BYTES or alignment & (alignment - 1):
        raise ObjectFileError(f"section {name} is to be aligned to {alignment} bytes")
    return True


def _symbols(data: bytes, headers: list[_Header], kept: dict[int, _Header]) -> list[Symbol]:
    """All symbols, by number. Symbols of sections that are not kept become undefined symbols with
    an empty name, which nothing can refer to."""
    tables = [number for number, header in enumerate(headers) if header.kind == _SYMTAB]
    if len(tables) != 1:
        raise ObjectFileError(f"{len(tables)} symbol tables")
    names = _content(data, headers, headers[tables[0]].link, _STRTAB)
    found = []
    for name, info, _, section, value, _ in _entries(data, headers, tables[0], _SYMBOL):
        text = _text(names, name)
        if section in kept:
            if value > kept[section].size:
                raise ObjectFileError(f"symbol {text} is outside its section")
        elif section != _UNDEFINED:
            if section < _FIRST_RESERVED and section >= len(headers):
                raise ObjectFileError(f"symbol {text} is in no section")
            section, text = _UNDEFINED, ""
        found.append(Symbol(text, section, value, info >> 4 != _LOCAL))
    return found
