"""Objects from a cache that are sound files and no objects: they are made again, never run."""

import os
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.codegen.llvm.objects import object_of
from tests.conftest import HOST_ISAS

from ftuner.codegen.llvm.objects.bundle import Bundle, family_bundle
from ftuner.codegen.llvm.objects.jit import compile_object, host_target
from ftuner.codegen.llvm.objects.keys import bundle_key
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.errors import CacheWarning, CompileError, ObjectFileError
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import KLoopTuning
from ftuner.runtime.cache import OBJECTS, Cache
from ftuner.runtime.cpu.compilation import Compiler

ELF = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other objects than ELF")
TARGET = host_target(HOST_ISAS[0])


def bundles() -> list[Bundle]:
    row, types = instruction_set(HOST_ISAS[0]), product_types(FLOAT32)
    kernels = (UKernel(RegisterTile(rows, 1, 1), types, row.name, 4) for rows in (1, 2))
    return [family_bundle((kernel,), row, KLoopTuning(), 64) for kernel in kernels]


def loaded(cache: Cache) -> LoadedObject:
    """The bundles in this process, by way of a cache."""
    wanted, compiler = bundles(), Compiler(TARGET, cache, 3)
    return compiler.load(wanted, compiler.compile_missing(wanted, None))


def patched(data: bytes, place: int, value: bytes) -> bytes:
    return data[:place] + value + data[place + len(value) :]


def section_table(data: bytes) -> int:
    (place,) = struct.unpack_from("<Q", data, 40)
    assert isinstance(place, int)
    return place


WRONG: dict[str, Callable[[bytes, bytes], bytes]] = {
    "nothing": lambda own, other: b"",
    "another bundle": lambda own, other: other,
    "no object": lambda own, other: b"MZ" + own,
    "32 bits": lambda own, other: patched(own, 4, b"\x01"),
    "another machine": lambda own, other: patched(own, 18, b"\xf3"),
    "an executable": lambda own, other: patched(own, 16, b"\x02"),
    "no sections": lambda own, other: patched(own, 60, b"\0\0"),
    "sections beyond the end": lambda own, other: patched(own, 40, b"\xff" * 8),
    "half of it": lambda own, other: own[: len(own) // 2],
    "no symbols": lambda own, other: own.replace(b"gemm", b"nemm"),
    "other functions": lambda own, other: object_of("triple", "x86_64"),
    "all sections alike": lambda own, other: patched(
        own, section_table(own), own[section_table(own) :][:64] * 3
    ),
}


@ELF
@pytest.mark.filterwarnings("ignore:cannot")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kept", [True, False], ids=["writable", "read-only"])
def test_what_is_no_object_of_its_bundle_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, kept: bool
) -> None:
    cache = Cache(tmp_path)
    sound = Compiler(TARGET, cache, 3).compile_missing(bundles(), None)
    keys = [bundle_key(bundle, TARGET) for bundle in bundles()]
    own, other = (sound[bundle].data for bundle in bundles())
    spoiled = WRONG[wrong](own, other)
    assert spoiled != own
    cache.write(OBJECTS, keys[0], spoiled)
    if not kept:
        for call in ("unlink", "replace"):
            refuse = Mock(side_effect=PermissionError("a read-only file system"))
            monkeypatch.setattr(os, call, refuse)
    with pytest.warns(CacheWarning, match=f"{keys[0]} is damaged or not ours"):
        found = loaded(cache)
    assert all(found.addresses[s] for bundle in bundles() for s in bundle.symbols)
    monkeypatch.undo()
    if kept:
        assert cache.read(OBJECTS, keys[0]) == own
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded(cache)
    assert cache.read(OBJECTS, keys[1]) == other


@ELF
def test_objects_that_do_not_go_together_are_all_compiled_again(tmp_path: Path) -> None:
    """Each has what its bundle asks for; both have more."""
    cache = Cache(tmp_path)
    Compiler(TARGET, cache, 3).compile_missing(bundles(), None)
    whole = LARGER.format(*(symbol for bundle in bundles() for symbol in bundle.symbols))
    data = compile_object(whole, TARGET)
    for bundle in bundles():
        cache.write(OBJECTS, bundle_key(bundle, TARGET), data)
    with pytest.warns(CacheWarning, match="several objects define") as caught:
        loaded(cache)
    assert len(caught) == 2


LARGER = """
define void @{}() {{
  ret void
}}
define void @{}() {{
  ret void
}}
"""


@ELF
def test_what_was_compiled_just_now_is_no_matter_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ftuner.codegen.llvm.objects.compile.compile_bundle", lambda *_: b"no object"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ObjectFileError):
            loaded(Cache(tmp_path))


def test_a_compiler_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=RuntimeError("LLVM ERROR: out of registers"))
    monkeypatch.setattr("ftuner.codegen.llvm.objects.compile.compile_bundle", fail)
    with pytest.raises(CompileError, match=r"cannot compile gemm_\S+: RuntimeError: LLVM ERROR"):
        loaded(Cache(tmp_path))
    monkeypatch.undo()
    assert loaded(Cache(tmp_path)).addresses
