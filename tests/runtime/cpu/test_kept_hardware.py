"""Kept hardware models: what a change of the recorded machines, of the usable CPUs or of the tuning
does to them, and folders that keep nothing."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import HOST_ISAS
from tests.runtime.cpu.test_correction import doubling

from ftuner.errors import CacheWarning, ConfigurationError, DatasetError, HardwareError
from ftuner.hardware import priors
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.system import SystemFacts, read_system
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cache import HARDWARE, Cache
from ftuner.runtime.cpu import session as module
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.session import ISA_VARIABLE, keep_hardware, known_hardware

DEFAULT = CpuTuning()


@pytest.fixture
def probes(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> list[SystemFacts]:
    """The probes that were made, each of which finds this machine untuned."""
    made: list[SystemFacts] = []

    def probe(facts: SystemFacts) -> CpuHardware:
        made.append(facts)
        return replace(widest.hardware, tuning=DEFAULT)

    monkeypatch.setattr(module, "probe_machine", probe)
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    return made


def lend(monkeypatch: pytest.MonkeyPatch, machine: CpuHardware, digest: str, cycles: float) -> None:
    """Have one recorded machine, which is like this one and tuned."""
    tuning = CpuTuning(tile_cycles=cycles, provenance={"tile_cycles": "probed"})
    recorded = replace(machine, name=f"like-this-{digest}", tuning=tuning)
    monkeypatch.setattr(priors, "recorded_cpus", lambda: (recorded,))
    monkeypatch.setattr(module, "priors_digest", lambda: digest)


def tuned(machine: CpuHardware, **tuning: float) -> CpuHardware:
    """A machine with constants that were measured on it."""
    own = {**machine.tuning.provenance, **dict.fromkeys(tuning, "probed")}
    changed = replace(machine.tuning, provenance=own, **tuning)  # type: ignore[arg-type]
    return replace(machine, tuning=changed)


def test_a_change_of_the_recorded_machines(
    tmp_path: Path, widest: CpuBackend, probes: list[SystemFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured here stays; what they lend is taken over anew, without a probe."""
    cache = Cache(tmp_path)
    lend(monkeypatch, widest.hardware, "a", 25.0)
    first = known_hardware(cache)
    assert first.tuning.tile_cycles == 25.0
    assert first.tuning.provenance == {"tile_cycles": "prior: like-this-a"}
    keep_hardware(cache, tuned(first, cache_share=0.7))
    lend(monkeypatch, widest.hardware, "b", 28.0)
    second = known_hardware(cache)
    assert second.tuning == replace(DEFAULT, tile_cycles=28.0, cache_share=0.7)
    assert second.tuning.provenance == {
        "tile_cycles": "prior: like-this-b",
        "cache_share": "probed",
    }
    keep_hardware(cache, tuned(second, tile_cycles=30.0))
    lend(monkeypatch, widest.hardware, "c", 29.0)
    assert known_hardware(cache).tuning.tile_cycles == 30.0
    assert len(probes) == len(cache.entries()) == 1


@pytest.mark.usefixtures("probes")
@pytest.mark.skipif(len(HOST_ISAS) < 2, reason="this machine has one ISA")
def test_the_tuning_of_a_narrower_isa(
    tmp_path: Path, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept apart from that of the widest, and takes over what is lent as that does."""
    cache, narrow = Cache(tmp_path), HOST_ISAS[0]
    lend(monkeypatch, widest.hardware, "a", 25.0)
    backend = CpuBackend(cache, narrow)
    backend.adopt(tuned(backend.hardware, cache_share=0.7))
    assert len(cache.entries()) == 2
    lend(monkeypatch, widest.hardware, "b", 28.0)
    found = CpuBackend(cache, narrow).hardware.tuning
    assert found == replace(DEFAULT, tile_cycles=28.0, cache_share=0.7)
    assert CpuBackend(cache, HOST_ISAS[-1]).hardware.tuning == replace(DEFAULT, tile_cycles=28.0)


@pytest.mark.skipif(len(HOST_ISAS) < 2, reason="this machine has one ISA")
def test_probing_again_forgets_narrower_isas(tmp_path: Path, probes: list[SystemFacts]) -> None:
    """What was calibrated for one of them is of the rates that the earlier probe found."""
    cache = Cache(tmp_path)
    for isa in HOST_ISAS[:-1]:
        keep_hardware(cache, tuned(known_hardware(cache), cache_share=0.7), isa)
    assert len(cache.entries()) == len(HOST_ISAS)
    assert known_hardware(cache, isa=HOST_ISAS[0]).tuning.cache_share == 0.7
    known_hardware(cache, again=True)
    assert len(probes) == 2
    assert len(cache.entries()) == 1
    assert known_hardware(cache, isa=HOST_ISAS[0]) == known_hardware(cache)


@pytest.mark.usefixtures("probes")
def test_what_was_completed_is_kept(
    tmp_path: Path, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded machines are read once for each change of them."""
    cache = Cache(tmp_path)
    for digest in "ab":
        lend(monkeypatch, widest.hardware, digest, 25.0)
        expected = known_hardware(cache)
        monkeypatch.setattr(priors, "recorded_cpus", lambda: pytest.fail("read again"))
        assert known_hardware(cache) == expected


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("sources", [None, [], {"a": 1}, "unknown", 10**30])
def test_strange_sources_are_other_sources(
    tmp_path: Path, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, sources: object
) -> None:
    cache = Cache(tmp_path)
    lend(monkeypatch, widest.hardware, "a", 25.0)
    expected = known_hardware(cache)
    (entry,) = cache.entries()
    payload = cache.read(HARDWARE, entry.key)
    assert payload is not None
    changed = {**json.loads(payload), "sources": sources}
    cache.write(HARDWARE, entry.key, json.dumps(changed).encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert known_hardware(cache) == expected


def test_the_digest_names_the_recorded_machines() -> None:
    assert priors.priors_digest() == priors.priors_digest.__wrapped__()
    assert len(priors.priors_digest()) == 16


def test_other_usable_cpus(
    tmp_path: Path, probes: list[SystemFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of cores has a model of its own. A model is not kept for another number."""
    cache, facts = Cache(tmp_path), read_system()
    here = known_hardware(cache)
    more = replace(facts, cores=facts.cores + 1)
    monkeypatch.setattr(module, "read_system", lambda: more)
    with pytest.raises(
        HardwareError, match=f"changed while it was tuned.*expected .*, {more.cores}, "
    ):
        keep_hardware(cache, tuned(here, tile_cycles=30.0))
    assert len(cache.entries()) == 1
    monkeypatch.undo()
    assert known_hardware(cache).tuning == here.tuning
    assert len(probes) == 1


def test_adopting_after_the_cpus_changed(
    tmp_path: Path, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, facts = CpuBackend(Cache(tmp_path)), read_system()
    monkeypatch.setattr(module, "probe_machine", lambda _: widest.hardware)
    before = backend.hardware
    monkeypatch.setattr(module, "read_system", lambda: replace(facts, cores=facts.cores + 1))
    with pytest.raises(HardwareError, match="expected"):
        backend.adopt(tuned(before, tile_cycles=30.0))
    assert backend.hardware is before


@pytest.mark.usefixtures("probes")
def test_adopting_is_for_the_whole_process(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    backend = CpuBackend(cache)
    model = tuned(backend.hardware, tile_cycles=30.0)
    backend.adopt(model)
    assert backend.hardware == model == CpuBackend(cache).hardware
    assert backend.kernels.hardware == model
    backend.adopt(replace(model, tuning=replace(model.tuning)))
    with pytest.raises(ConfigurationError, match="computed with another tuning"):
        backend.adopt(tuned(model, tile_cycles=31.0))
    assert backend.hardware == known_hardware(cache) == model


@pytest.mark.usefixtures("probes")
def test_adopting_a_correction(tmp_path: Path) -> None:
    """It is kept with the model, unless it is of features that this version does not have."""
    cache = Cache(tmp_path)
    backend = CpuBackend(cache)
    model = tuned(backend.hardware, tile_cycles=30.0)
    learned = doubling(model)
    strange = replace(learned, kinds=("other",))
    before = len(cache.entries())
    with pytest.raises(DatasetError, match="other features"):
        backend.adopt(replace(model, correction=strange))
    assert len(cache.entries()) == before
    assert backend.hardware.tuning.tile_cycles == DEFAULT.tile_cycles
    backend.adopt(replace(model, correction=learned))
    assert backend.hardware.correction == learned
    assert CpuBackend(cache).hardware == replace(model, correction=learned)


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("max_bytes", [0, None])
def test_folders_that_keep_nothing(tmp_path: Path, max_bytes: int | None) -> None:
    """A cache without room, and one that cannot be written: the process has the tuning, the next
    one has not."""
    if max_bytes is None:
        (tmp_path / "file").write_text("in the way")
        cache = Cache(tmp_path / "file")
    else:
        cache = Cache(tmp_path, max_bytes)
    backend = CpuBackend(cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        model = tuned(backend.hardware, tile_cycles=30.0)
        backend.adopt(model)
        assert backend.hardware == model
        x = np.ones((3, 5), np.float32)
        assert np.array_equal(backend.matmul(x, x.T), np.full((3, 3), 5, np.float32))
        assert CpuBackend(cache).hardware.tuning.tile_cycles == DEFAULT.tile_cycles
    backend.kernels.runtime.pool.shut_down()
