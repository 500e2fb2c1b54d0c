"""The cache: whole entries or none, damage is noticed, and nothing depends on its being there."""

import json
import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import HOST_ISAS

from ftuner.codegen.llvm.objects.bundle import Bundle, family_bundle, reduce_bundle
from ftuner.codegen.llvm.objects.jit import host_target
from ftuner.codegen.llvm.objects.keys import bundle_key
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.errors import CacheWarning
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.recorded import load_recorded, to_document
from ftuner.hardware.tuning import KLoopTuning
from ftuner.runtime.cache import CACHE_VARIABLE, HARDWARE, OBJECTS, Cache, default_cache
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.compilation import Compiler
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.session import known_hardware

PAYLOAD = b"some machine code" * 50


def entry_path(cache: Cache, kind: str = "objects", key: str = "one") -> Path:
    return cache.folder / kind / key


def test_what_is_written_is_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "not" / "yet" / "there")
    assert cache.read("objects", "one") is None
    for payload in (PAYLOAD, b"", bytes(range(256)), b"ftuner-cache-1\n"):
        cache.write("objects", "one", payload)
        assert cache.read("objects", "one") == payload
        assert Cache(cache.folder).read("objects", "one") == payload
    assert cache.read("hardware", "one") is None
    assert cache.read("objects", "two") is None


@given(payload=st.binary(max_size=200))
def test_any_payload(tmp_path_factory: pytest.TempPathFactory, payload: bytes) -> None:
    cache = Cache(tmp_path_factory.getbasetemp() / "any-payload")
    cache.write("objects", "one", payload)
    assert cache.read("objects", "one") == payload


def test_entries_and_clear(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert (cache.entries(), cache.clear()) == ([], 0)
    cache.write("objects", "b", PAYLOAD)
    cache.write("objects", "a", PAYLOAD)
    cache.write("hardware", "c.json", b"{}")
    assert [(e.kind, e.key) for e in cache.entries()] == [
        ("hardware", "c.json"), ("objects", "a"), ("objects", "b"),
    ]  # fmt: skip
    assert all(e.bytes > len(PAYLOAD) for e in cache.entries()[1:])
    assert cache.clear() == 3
    assert cache.entries() == []
    assert cache.read("objects", "a") is None
    cache.drop("objects", "a")


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flip,
    "flipped checksum": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "cut short": lambda data: data[: len(data) // 2],
    "header only": lambda data: data[:15],
    "longer": lambda data: data + b"x",
    "empty": lambda data: b"",
    "foreign": lambda data: b"\x7fELF" + data,
    "of another version": lambda data: data.replace(b"ftuner-cache-1", b"ftuner-cache-0", 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed_and_dropped(tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path)
    cache.write("objects", "one", PAYLOAD)
    path = entry_path(cache)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.warns(CacheWarning, match="damaged or not ours"):
        assert cache.read("objects", "one") is None
    assert not path.exists()
    cache.write("objects", "one", PAYLOAD)
    assert cache.read("objects", "one") == PAYLOAD


def test_temporary_files_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.write("objects", "one", PAYLOAD)
    assert [p.name for p in entry_path(cache).parent.iterdir()] == ["one"]
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError("no space left")))
    with pytest.warns(CacheWarning, match="no space left"):
        cache.write("objects", "two", PAYLOAD)
    assert [p.name for p in entry_path(cache).parent.iterdir()] == ["one"]
    assert cache.read("objects", "one") == PAYLOAD


def test_readers_see_whole_entries_while_writers_write(tmp_path: Path) -> None:
    """Two payloads take turns; a reader sees one or the other and no warning."""
    cache, other = Cache(tmp_path), Cache(tmp_path)
    payloads = {bytes([i]) * 50_000 for i in range(2)}
    for payload in payloads:
        cache.write("objects", "one", payload)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for payload in payloads:
                cache.write("objects", "one", payload)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert all(other.read("objects", "one") in payloads for _ in range(200))
    finally:
        stop.set()
        writer.join()


def test_folder_that_is_no_folder(tmp_path: Path) -> None:
    """One warning for each cache, then silence; nothing is kept and nothing fails."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    cache = Cache(blocked)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert cache.read("objects", "one") is None
            cache.write("objects", "one", PAYLOAD)
            cache.drop("objects", "one")
        assert (cache.entries(), cache.clear()) == ([], 0)
    assert [w.category for w in caught] == [CacheWarning]
    assert blocked.read_text() == "in the way"


def test_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert default_cache().folder == tmp_path
    monkeypatch.delenv(CACHE_VARIABLE)
    assert default_cache().folder.name == "ftuner"


# What is built on it.


def small_bundles() -> list[Bundle]:
    row = instruction_set(HOST_ISAS[0])
    kernel = UKernel(RegisterTile(1, 1, 1), product_types(FLOAT32), row.name, 4)
    return [
        family_bundle((kernel,), row, KLoopTuning(), 64), reduce_bundle(kernel, row.fused)
    ]  # fmt: skip


@pytest.mark.parametrize("damage", ["flipped", "cut short", "empty", "foreign"])
def test_damaged_objects_are_compiled_again(tmp_path: Path, damage: str) -> None:
    target, cache, bundles = host_target(HOST_ISAS[0]), Cache(tmp_path), small_bundles()
    compiler = Compiler(target, cache, 3)
    first = compiler.compile_missing(bundles, None)
    path = entry_path(cache, key=bundle_key(bundles[0], target))
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    counts: list[int] = []
    with pytest.warns(CacheWarning, match="damaged"):
        again = compiler.compile_missing(bundles, lambda _, done, all_: counts.append(all_ - done))
    assert counts == [1, 0]
    assert [again[b].data for b in bundles] == [first[b].data for b in bundles]
    assert [again[b].was_kept for b in bundles] == [False, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(o.was_kept for o in compiler.compile_missing(bundles, None).values())


def test_damaged_runtime_still_multiplies(tmp_path: Path, widest: CpuBackend) -> None:
    hardware, isa = widest.hardware, HOST_ISAS[0]
    cache = Cache(tmp_path)
    Kernels(hardware, isa, cache).runtime.pool.shut_down()
    (entry,) = (e for e in cache.entries() if e.kind == OBJECTS)
    path = entry_path(cache, entry.kind, entry.key)
    path.write_bytes(flip(path.read_bytes()))
    kernels = Kernels(hardware, isa, cache)
    with pytest.warns(CacheWarning, match="damaged"):
        packs = kernels.runtime.packs
    source = np.arange(12, dtype=np.float32).reshape(3, 4)
    target = np.full(12 + 16, np.nan, np.float32)
    packs[FLOAT32](source.ctypes.data, 4, 16, target.ctypes.data, 4, 3, 3)
    assert np.array_equal(target[:12], source.T.ravel())


def test_damaged_hardware_is_probed_again(
    tmp_path: Path, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = []

    def probe(_: object) -> object:
        probes.append(1)
        return widest.hardware

    monkeypatch.setattr("ftuner.runtime.cpu.session.probe_machine", probe)
    cache = Cache(tmp_path)
    assert known_hardware(cache) == known_hardware(cache) == widest.hardware
    assert len(probes) == 1
    (entry,) = cache.entries()
    assert entry.kind == HARDWARE
    known_hardware(cache, again=True)
    assert len(probes) == 2
    path = entry_path(cache, HARDWARE, entry.key)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.warns(CacheWarning, match="damaged"):
        assert known_hardware(cache) == widest.hardware


def nested(document: Any, path: tuple[str | int, ...], value: object) -> Any:
    """A document with another value at a place."""
    if not path:
        return value
    copied = copy(document)
    copied[path[0]] = nested(document[path[0]], path[1:], value)
    return copied


WRONG: dict[str, tuple[tuple[str | int, ...], object]] = {
    "no table": ((), []),
    "no model": ((), {"kind": "cpu"}),
    "a GPU": ((), to_document(load_recorded("h200"))),
    "another CPU": ((), to_document(load_recorded("xeon-8375c"))),
    "text for a number": (("clock_hz",), "fast"),
    "NaN": (("clock_hz",), math.nan),
    "infinity": (("levels", 0, "bandwidth_bytes_per_s"), math.inf),
    "negative": (("isas", 0, "fma_latency_cycles"), -4.0),
    "zero": (("isas", 0, "fma_per_cycle"), 0.0),
    "beyond floats": (("clock_hz",), 10**400),
    "cores": (("cores",), 10**9),
    "capacity": (("levels", 0, "capacity_bytes"), 10**30),
    "no levels": (("levels",), []),
    "vector": (("isas", 0, "vector_bytes"), 7),
    "an ISA that is not": (("isas", 0, "name"), "avx1024"),
    "another page": (("page_bytes",), 12345),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_sound_entries_that_make_no_sense_are_probed_again(
    tmp_path: Path, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr("ftuner.runtime.cpu.session.probe_machine", lambda _: widest.hardware)
    cache = Cache(tmp_path)
    document = to_document(known_hardware(cache))
    (entry,) = cache.entries()
    path, value = WRONG[wrong]
    cache.write(HARDWARE, entry.key, json.dumps(nested(document, path, value)).encode())
    with pytest.warns(CacheWarning, match="HardwareError"):
        assert known_hardware(cache) == widest.hardware
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert known_hardware(cache) == widest.hardware


def test_objects_without_a_folder(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    target = host_target(HOST_ISAS[0])
    with pytest.warns(CacheWarning) as caught:
        objects = Compiler(target, Cache(blocked), 3).compile_missing(small_bundles(), None)
    assert len(caught) == 1
    assert len(objects) == 2


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    """Both begin with nothing and end with the same objects."""
    script = f"""
import hashlib, sys, warnings
warnings.simplefilter("error")
from pathlib import Path
from tests.runtime.test_cache import HOST_ISAS, Cache, Compiler, host_target, small_bundles
sys.stdin.readline()
cache = Cache(Path({str(tmp_path)!r}))
objects = Compiler(host_target(HOST_ISAS[0]), cache, 3).compile_missing(small_bundles(), None)
print(hashlib.sha256(b"".join(objects[b].data for b in small_bundles())).hexdigest())
"""
    root = Path(__file__).parents[2]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script], cwd=root, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    ends = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, error = child.communicate(timeout=60)
        ends.append((child.returncode, out, error))
    assert ends[0] == ends[1]
    assert ends[0][0] == 0, ends[0]
    cache = Cache(tmp_path)
    assert len(cache.entries()) == 2
    assert all(cache.read(e.kind, e.key) is not None for e in cache.entries())
