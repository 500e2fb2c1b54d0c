"""Targets: LLVM is asked once, and again only where what it said cannot be trusted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import HOST_ISAS

from ftuner.codegen.llvm.objects.jit import Target, host_target
from ftuner.errors import CacheWarning
from ftuner.hardware.system import read_system
from ftuner.runtime.cache import TARGETS, Cache
from ftuner.runtime.cpu.targets import known_target

ISA = HOST_ISAS[-1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ISAs that LLVM is asked about."""
    found: list[str] = []

    def ask(isa: str) -> Target:
        found.append(isa)
        return host_target(isa)

    monkeypatch.setattr("ftuner.runtime.cpu.targets.host_target", ask)
    return found


def test_llvm_is_asked_once(tmp_path: Path, asked: list[str]) -> None:
    for isa in HOST_ISAS * 2:
        assert known_target(isa, Cache(tmp_path)) == host_target(isa)
    assert tuple(asked) == HOST_ISAS
    assert {e.kind for e in Cache(tmp_path).entries()} == {TARGETS}


NONSENSE: tuple[object, ...] = (
    [], 7, None, {"cpu": 1, "more": 2}, {"triple": 1, "cpu": 2, "features": 3},
    {"triple": None}, {"triple": "riscv64-unknown-linux-gnu"}, {"triple": ""}, {"features": ""},
    {"features": "+avx513"}, {"llvm": ""}, {"llvm": 22},
)  # fmt: skip
"""In place of a target, or of some of its fields."""


@pytest.mark.parametrize("nonsense", NONSENSE, ids=str)
def test_what_makes_no_sense_is_asked_again(
    tmp_path: Path, asked: list[str], nonsense: object
) -> None:
    cache = Cache(tmp_path)
    sound = vars(known_target(ISA, cache))
    (entry,) = cache.entries()
    document = {**sound, **nonsense} if isinstance(nonsense, dict) else nonsense
    cache.write(TARGETS, entry.key, json.dumps(document).encode())
    with pytest.warns(CacheWarning, match="made again"):
        assert known_target(ISA, cache) == known_target(ISA, cache) == host_target(ISA)
    assert asked == [ISA] * 2


@pytest.mark.parametrize("changed", ["version", "build", "generator", "machine"])
def test_another_compiler_or_machine_is_asked(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    cache, facts = Cache(tmp_path), read_system()
    known_target(ISA, cache)
    if changed == "version":
        monkeypatch.setattr("ftuner.runtime.cpu.targets.compiler_version", lambda: "0.0.1")
    elif changed == "build":
        monkeypatch.setattr("ftuner.runtime.cpu.targets.compiler_build", lambda: "other")
    elif changed == "generator":
        monkeypatch.setattr("ftuner.runtime.cpu.targets.generator_digest", lambda: "other")
    else:
        other = replace(facts, features=facts.features | {"another"})
        monkeypatch.setattr("ftuner.runtime.cpu.targets.read_system", lambda: other)
    known_target(ISA, cache)
    assert asked == [ISA] * 2


def test_machines_without_features_are_not_told_apart(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = replace(read_system(), features=frozenset())
    monkeypatch.setattr("ftuner.runtime.cpu.targets.read_system", lambda: hidden)
    cache = Cache(tmp_path)
    assert known_target(ISA, cache) == known_target(ISA, cache) == host_target(ISA)
    assert asked == [ISA] * 2
    assert cache.entries() == []
