"""Objects as read: what is in them, and that damage has a name."""

import platform
import struct
import sys
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.llvm.objects import TARGETS, object_of

from ftuner.codegen.llvm.objects.elf import parse
from ftuner.codegen.llvm.objects.linking import MACHINES, Linked
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.errors import ObjectFileError
from ftuner.hardware.system import ARCHITECTURES

HERE = ARCHITECTURES[platform.machine().lower()]
BASE = 0x7F12_3456_0000


@pytest.mark.parametrize("machine", TARGETS)
def test_what_an_object_holds(machine: str) -> None:
    found = parse(object_of("scaled", machine))
    assert MACHINES[found.machine].name == machine
    assert {s.name for s in found.symbols} == {"plus_one", "scaled"}
    code = [n for n, s in found.sections.items() if s.executable]
    assert len(code) == 1
    assert {s.section for s in found.symbols} == set(code)
    assert {s.executable for s in found.sections.values()} == {True, False}
    constants = b"".join(s.data for s in found.sections.values() if not s.executable)
    assert struct.pack("<4f", 1.5, 2.5, 3.5, 4.25) in constants
    assert struct.pack("<4q", 11, 22, 33, 44) in constants
    wanted = {r.symbol.name for r in found.sections[code[0]].relocations if not r.symbol.section}
    assert wanted == {"memset", "triple"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no little-endian ELF object"),
        (b"\x7fELF", "no little-endian ELF object"),
        (b"MZ" + bytes(100), "no little-endian ELF object"),
        (b"\x7fELF\x01\x01\x01" + bytes(100), "no little-endian ELF object"),
        (b"\x7fELF\x02\x02\x01" + bytes(100), "no little-endian ELF object"),
        (b"\x7fELF\x02\x01\x01" + bytes(100), "no relocatable ELF object"),
    ],
)
def test_what_is_no_object(data: bytes, message: str) -> None:
    with pytest.raises(ObjectFileError, match=message):
        parse(data)


def test_what_has_no_place() -> None:
    with pytest.raises(ObjectFileError, match=r"\.data is neither code nor constants"):
        parse(object_of("writable", "x86_64"))


def place(data: bytes) -> None:
    """Parse and link; nothing runs."""
    linked = Linked([parse(data)], 4096)
    linked.block(BASE, dict.fromkeys(linked.functions, BASE))


@given(st.data())
@settings(max_examples=400)
@pytest.mark.parametrize("machine", TARGETS)
def test_damage_is_an_error_or_harmless(machine: str, data: st.DataObject) -> None:
    """Whatever bytes are others or missing: the named error, or a block of memory."""
    whole = object_of("scaled", machine)
    damaged = bytearray(whole[: data.draw(st.sampled_from([len(whole), len(whole) // 2]))])
    # Tables of sections are at the end, the header is at the beginning: most of what is read.
    places = st.one_of(
        st.integers(0, 63), st.integers(len(whole) // 2, len(whole) - 1),
        st.integers(0, len(whole) - 1),
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(places) % len(damaged)
        damaged[where] = data.draw(st.sampled_from([0, 1, 2, 4, 127, 128, 255]))
    with suppress(ObjectFileError):
        place(bytes(damaged))


# The fields of a file: (offset, format), of its header, of a section, a symbol, a relocation.
HEADER = ((16, "H"), (18, "H"), (40, "Q"), (52, "H"), (58, "H"), (60, "H"), (62, "H"))
SECTION = (
    (0, "I"), (4, "I"), (8, "Q"), (24, "Q"), (32, "Q"), (40, "I"), (44, "I"), (48, "Q"), (56, "Q"),
)  # fmt: skip
SYMBOL = ((0, "I"), (4, "B"), (6, "H"), (8, "Q"), (16, "Q"))
RELOCATION = ((0, "Q"), (8, "I"), (12, "I"), (16, "q"))
EXTREMES = (0, 1, 2, 7, 63, 64, 4095, 4096, 1 << 16, 1 << 31, 1 << 32, 1 << 47, 1 << 63)


def fields_of(data: bytes) -> list[tuple[int, str]]:
    """Where each field is that says what an object holds."""
    (table,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    found = list(HEADER)
    for at in range(table, table + 64 * count, 64):
        found += [(at + offset, kind) for offset, kind in SECTION]
        kind, place, size = struct.unpack_from("<xxxxIxxxxxxxxxxxxxxxxQQ", data, at)
        entry, parts = {2: (24, SYMBOL), 4: (24, RELOCATION)}.get(kind, (size or 1, ()))
        for begin in range(place, place + size, entry):
            found += [(begin + offset, field) for offset, field in parts]
    return found


@given(st.data())
@settings(max_examples=250)
@pytest.mark.parametrize("machine", TARGETS)
def test_fields_that_say_anything(machine: str, data: st.DataObject) -> None:
    """Small or huge, or what another field says: the named error, or a block of bounded size."""
    damaged = bytearray(object_of(data.draw(st.sampled_from(["scaled", "triple"])), machine))
    whole, fields = bytes(damaged), fields_of(damaged)
    for place, kind in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=4)):
        other, other_kind = data.draw(st.sampled_from(fields))
        (copied,) = struct.unpack_from(f"<{other_kind}", whole, other)
        extreme, step = data.draw(st.sampled_from(EXTREMES)), data.draw(st.integers(-1, 1))
        value = data.draw(st.sampled_from([copied, extreme + step, len(whole) - extreme + step]))
        bits = 8 * struct.calcsize(f"<{kind}")
        struct.pack_into(f"<{kind.upper()}", damaged, place, value % (1 << bits))
    with suppress(ObjectFileError):
        linked = Linked([parse(bytes(damaged))], 4096)
        assert linked.size < len(whole) + (4 << 20)
        assert all(0 <= linked.symbols[name] < linked.code_bytes for name in linked.entries)
        linked.block(BASE, dict.fromkeys(linked.functions, BASE))


@given(st.data())
@settings(max_examples=300)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other objects than ELF")
def test_damage_is_never_mapped(data: st.DataObject) -> None:
    """With the functions of this process, in memory of this process."""
    damaged = bytearray(object_of("triple", HERE))
    place, kind = data.draw(st.sampled_from(fields_of(damaged)))
    value = data.draw(st.sampled_from(EXTREMES)) + data.draw(st.integers(-1, 1))
    bits = 8 * struct.calcsize(f"<{kind}")
    struct.pack_into(f"<{kind.upper()}", damaged, place, value % (1 << bits))
    with suppress(ObjectFileError):
        LoadedObject([bytes(damaged)], ["triple"])


def crowded(sections: int, size: int, overlap: bool) -> bytes:
    """An object of many sections of code, of symbols with long names, or both."""
    names = b"\0" + b"x" * 400_000 + b"\0"
    end = 64 + len(names)
    header = struct.pack("<IIQQQQIIQQ", 1, 1, 2 | 4, 0, 64, size, 0, 0, 4096, 0)
    strings = struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    symbols = struct.pack("<IIQQQQIIQQ", 1, 2, 0, 0, 64, 24 * 1000 * overlap, 0, 0, 1, 24)
    table = strings + symbols + header * sections
    return struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, end, 0, 64, 0, 0, 64,
        sections + 2, 0,
    ) + names + table  # fmt: skip


@pytest.mark.parametrize("sections", [1, 1000, 60_000])
@pytest.mark.parametrize("size", [0, 1, 400_000])
@pytest.mark.parametrize("overlap", [False, True])
def test_small_files_take_little_memory(sections: int, size: int, overlap: bool) -> None:
    """Sections that all claim the same bytes, names that all share theirs."""
    tracemalloc.start()
    try:
        with suppress(ObjectFileError):
            place(crowded(sections, size, overlap))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize("machine", TARGETS)
def test_every_byte_matters_or_not(machine: str) -> None:
    """Each byte inverted, one after the other."""
    whole = object_of("triple", machine)
    errors = 0
    for where in range(len(whole)):
        damaged = bytearray(whole)
        damaged[where] ^= 0xFF
        try:
            place(bytes(damaged))
        except ObjectFileError:
            errors += 1
    assert errors > 64


@pytest.mark.parametrize("machine", TARGETS)
def test_objects_cut_short(machine: str) -> None:
    whole = object_of("triple", machine)
    for size in range(len(whole)):
        with pytest.raises(ObjectFileError):
            parse(whole[:size])
