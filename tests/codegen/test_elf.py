"""Objects as read: what is in them, and that damage has a name."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.objects import TARGETS, object_of

from ftuner.codegen.llvm.elf import parse
from ftuner.codegen.llvm.linking import MACHINES, Linked
from ftuner.errors import ObjectFileError

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
@settings(max_examples=400, deadline=None)
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
