"""Blocks of memory made of objects: places, stubs, and relocations bit by bit."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.llvm.objects import TARGETS, object_of

from ftuner.codegen.llvm.objects.bundle import kernel_bundle
from ftuner.codegen.llvm.objects.compile import compile_bundle
from ftuner.codegen.llvm.objects.elf import ObjectFile, Relocation, Section, Symbol, parse
from ftuner.codegen.llvm.objects.linking import MACHINES, Linked
from ftuner.core.dtype import FLOAT32
from ftuner.errors import ObjectFileError

X86_64, AARCH64 = 62, 183
PAGE_BYTES = 4096
BASE = 0x10_0000
FOREIGN = (
    "x86_64-pc-windows-msvc", "x86_64-apple-darwin24.0.0", "arm64-apple-darwin24.0.0",
    "aarch64-pc-windows-msvc",
)  # fmt: skip
"""Triples of other systems, which LLVM gives ELF objects, too."""


def code_of(
    machine: int, word: int, kind: int, symbol: Symbol, addend: int = 0, constants: bytes = bytes(8)
) -> ObjectFile:
    """One word of code (section 1) with a relocation, and constants (section 2)."""
    relocation = Relocation(0, kind, symbol, addend)
    code = Section(struct.pack("<I", word), 4, True, (relocation,))
    return ObjectFile(machine, {1: code, 2: Section(constants, 8, False, ())}, ())


def relocated(machine: int, word: int, kind: int, distance: int) -> int:
    """The word at `BASE` when the relocation's target is `distance` bytes from it."""
    linked = Linked([code_of(machine, word, kind, Symbol("", 1, 0, False), distance)], PAGE_BYTES)
    (found,) = struct.unpack_from("<I", linked.block(BASE, {}))
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize(
    ("kind", "word", "distance", "expected"),
    [
        # bl, b: the distance in words
        (283, 0x94000000, 8, 0x94000002),
        (283, 0x94000000, -4, 0x97FFFFFF),
        (283, 0x94000000, (1 << 27) - 4, 0x95FFFFFF),
        (282, 0x14000000, -4, 0x17FFFFFF),
        # adrp x0: the distance in pages, its two low bits apart
        (275, 0x90000000, 0x2010, 0xD0000000),
        (275, 0x90000000, 0x4FFF, 0x90000020),
        (275, 0x90000000, -1, 0xF0FFFFE0),
        # add x0, x0; ldrb, ldrh and ldr of w0, x0, q0: the offset within a page
        (277, 0x91000000, 0x7123, 0x91048C00),
        (278, 0x39400000, 0x7019, 0x39406400),
        (284, 0x79400000, 0x7018, 0x79403000),
        (285, 0xB9400000, 0x7018, 0xB9401800),
        (286, 0xF9400000, 0x7018, 0xF9400C00),
        (299, 0x3DC00000, 0x7120, 0x3DC04800),
        (261, 0, -0x1234, 0xFFFFEDCC),
    ],
)
def test_relocations_of_aarch64(kind: int, word: int, distance: int, expected: int) -> None:
    """Encodings from the Arm Architecture Reference Manual."""
    assert relocated(AARCH64, word, kind, distance) == expected
    # What was there before does not matter: addends are apart.
    assert relocated(AARCH64, expected, kind, distance) == expected


@pytest.mark.parametrize("kind", [2, 4])
@given(distance=st.integers(-(1 << 31), (1 << 31) - 1))
def test_relocations_of_x86_64(kind: int, distance: int) -> None:
    assert relocated(X86_64, 0, kind, distance) == distance & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("machine", "kind", "distance", "message"),
    [
        (X86_64, 2, 1 << 31, "reaches 32 bits"),
        (X86_64, 4, -(1 << 31) - 1, "reaches 32 bits"),
        (X86_64, 9, 0, "relocation 9 at 0"),
        (AARCH64, 283, 1 << 27, "reaches 26 bits"),
        (AARCH64, 282, 6, "between two instructions"),
        (AARCH64, 275, 1 << 32, "reaches 21 bits"),
        (AARCH64, 299, 0x7128, "a load or store of 16 bytes"),
        (AARCH64, 2, 0, "relocation 2 at 0"),
    ],
)
def test_relocations_that_cannot_be(machine: int, kind: int, distance: int, message: str) -> None:
    with pytest.raises(ObjectFileError, match=message):
        relocated(machine, 0, kind, distance)


def test_relocation_at_the_end_of_a_section() -> None:
    code = Section(bytes(8), 4, True, (Relocation(6, 2, Symbol("", 1, 0, False), 0),))
    with pytest.raises(ObjectFileError, match="relocation 2 at 6 of 8 bytes"):
        Linked([ObjectFile(X86_64, {1: code}, ())], PAGE_BYTES).block(BASE, {})


@pytest.mark.parametrize("name", TARGETS)
def test_where_what_lies(name: str) -> None:
    objects = [parse(object_of("scaled", name)), parse(object_of("triple", name))]
    linked = Linked(objects, PAGE_BYTES)
    assert linked.machine.name == name
    assert linked.functions == ("memset",)
    assert set(linked.symbols) == {"plus_one", "scaled", "triple", "wait_for"}
    assert all(0 <= offset < linked.code_bytes for offset in linked.symbols.values())
    assert linked.code_bytes % PAGE_BYTES == linked.size % PAGE_BYTES == 0
    assert linked.code_bytes < linked.size
    address = 0x7F00_DEAD_BEE0
    block = linked.block(BASE, {"memset": address})
    assert len(block) == linked.size
    # A stub is followed by the address.
    stub = block.index(linked.machine.jump + struct.pack("<Q", address))
    assert stub % 16 == 0
    assert stub < linked.code_bytes
    for found in objects:
        for section in found.sections.values():
            if not section.relocations:
                where = block.index(section.data)
                assert where % max(section.alignment, 64) == 0
                assert (where < linked.code_bytes) == section.executable


@pytest.mark.parametrize("name", TARGETS)
def test_only_addresses_change_with_the_base(name: str) -> None:
    """Code is independent of its position, but for the stubs' addresses."""
    objects = [parse(object_of("scaled", name)), parse(object_of("triple", name))]
    linked = Linked(objects, PAGE_BYTES)
    blocks = [linked.block(base, {"memset": 7}) for base in (BASE, 0x7FFF_FFFF_0000)]
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize(
    "triple", [*(t.triple for t in TARGETS.values()), *(f"{t}-elf" for t in FOREIGN)]
)
def test_generated_code_has_known_relocations(triple: str) -> None:
    """Attention calls, reads tables of constants, and is the largest of the kernels of graphs."""
    name = "x86_64" if triple.startswith("x86_64") else "aarch64"
    emitter, fused = "ftuner.schedules.attention.cpu_kernel", name == "aarch64"
    bundle = kernel_bundle(emitter, "attention", FLOAT32, 2, FLOAT32, True, *[False] * 3, 16, fused)
    found = parse(compile_bundle(bundle, replace(TARGETS[name], triple=triple)))
    assert MACHINES[found.machine].name == name
    assert any(section.relocations for section in found.sections.values())
    linked = Linked([found], PAGE_BYTES)
    assert bundle.symbol in linked.symbols
    assert any(linked.block(BASE, dict.fromkeys(linked.functions, BASE)))


def test_objects_that_do_not_go_together() -> None:
    triple = parse(object_of("triple", "x86_64"))
    with pytest.raises(ObjectFileError, match="several objects define triple, wait_for"):
        Linked([triple, triple], PAGE_BYTES)
    with pytest.raises(ObjectFileError, match=r"machines \[62, 183\]"):
        Linked([triple, parse(object_of("triple", "aarch64"))], PAGE_BYTES)
    with pytest.raises(ObjectFileError, match=r"machines \[\]"):
        Linked([], PAGE_BYTES)
    with pytest.raises(ObjectFileError, match=r"machines \[8\]"):
        Linked([ObjectFile(8, triple.sections, triple.symbols)], PAGE_BYTES)


@pytest.mark.parametrize("name", TARGETS)
def test_data_of_libraries_is_refused(name: str) -> None:
    """A stub can be called; it is not what it stands for."""
    number = next(n for n, m in MACHINES.items() if m.name == name)
    kind = {"x86_64": 2, "aarch64": 275}[name]
    with pytest.raises(ObjectFileError, match="'environ' is not defined, nor called"):
        Linked([code_of(number, 0, kind, Symbol("environ", 0, 0, True))], PAGE_BYTES)
