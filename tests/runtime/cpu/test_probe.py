"""The probe measures something plausible, in time, on whatever machine runs the tests."""

import dataclasses
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.errors import ConfigurationError, HardwareError
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.system import SystemFacts, isas_of, read_system
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu import probe as probe_module
from ftuner.runtime.cpu.probe import _on_threads, probe

pytestmark = pytest.mark.alone
TUNING = CpuTuning()
SECONDS = 60.0


@pytest.fixture(scope="module")
def facts() -> SystemFacts:
    return read_system()


@pytest.fixture(scope="module")
def timed_probe(facts: SystemFacts) -> tuple[CpuHardware, float]:
    begin = time.perf_counter()
    hardware = probe(facts, facts.cores)
    return hardware, time.perf_counter() - begin


@pytest.fixture(scope="module")
def hardware(timed_probe: tuple[CpuHardware, float]) -> CpuHardware:
    return timed_probe[0]


def test_takes_little_time(timed_probe: tuple[CpuHardware, float]) -> None:
    assert timed_probe[1] < 3.0


def test_keeps_what_the_system_told(facts: SystemFacts, hardware: CpuHardware) -> None:
    assert hardware.architecture == facts.architecture
    assert hardware.cores == facts.cores
    assert hardware.tuning == TUNING
    *caches, dram = hardware.levels
    assert [c.capacity_bytes for c in caches] == [c.capacity_bytes for c in facts.caches]
    assert (dram.name, dram.capacity_bytes) == ("DRAM", facts.memory_bytes)
    for told, level in zip(facts.caches, caches, strict=True):
        assert level.provenance["capacity_bytes"] == told.provenance


def test_isas(facts: SystemFacts, hardware: CpuHardware) -> None:
    names = [isa.name for isa in hardware.isas]
    assert names
    if facts.features:
        assert names == [n for n in isas_of(facts) if n in names]
    widths = [isa.vector_bytes for isa in hardware.isas]
    assert widths == sorted(widths)


def test_rates_are_plausible(hardware: CpuHardware) -> None:
    assert 0.2e9 < hardware.clock_hz < 8e9
    for isa in hardware.isas:
        assert 0.25 <= isa.fma_per_cycle <= 4.5
        assert 2 <= isa.fma_latency_cycles <= 12
        assert 0.4 <= isa.load_per_cycle <= 4.5
        assert isa.store_per_cycle > 0


def test_bandwidths_fall_outwards(hardware: CpuHardware) -> None:
    one = [m.bandwidth_bytes_per_s for m in hardware.levels]
    together = [m.bandwidth_all_bytes_per_s for m in hardware.levels]
    assert one == sorted(one, reverse=True)
    assert together == sorted(together, reverse=True)
    assert min(one) > 0
    for single, all_ in zip(one, together, strict=True):
        assert single <= all_ <= hardware.cores * single


def test_every_number_has_a_provenance(hardware: CpuHardware) -> None:
    for part in (hardware, *hardware.isas, *hardware.levels):
        numbers = {
            field.name
            for field in dataclasses.fields(part)
            if isinstance(getattr(part, field.name), int | float)
        }
        assert numbers <= set(part.provenance)
        assert set(part.provenance.values()) <= {"system", "probed", "datasheet", "assumed"}


def test_two_probes_agree(facts: SystemFacts, hardware: CpuHardware) -> None:
    # The better of each pair: other tenants of the machine only ever slow a probe down.
    probes = [hardware, *(probe(facts, 1) for _ in range(3))]
    peaks = [h.peak_flops_per_s(h.widest, product_types(FLOAT32)) for h in probes]
    first, second = max(peaks[:2]), max(peaks[2:])
    assert 1 / 1.5 < first / second < 1.5


def test_one_thread(facts: SystemFacts) -> None:
    hardware = probe(facts, 1)
    assert hardware.cores == 1
    for level in hardware.levels:
        assert level.shared_by_cores == 1
        assert level.bandwidth_all_bytes_per_s == level.bandwidth_bytes_per_s


def test_hidden_features_are_asked_of_the_cpu(facts: SystemFacts, hardware: CpuHardware) -> None:
    hidden = dataclasses.replace(facts, features=frozenset())
    assert [i.name for i in probe(hidden, 1).isas] == [i.name for i in hardware.isas]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads cannot be kept to a CPU")
def test_threads_keep_to_cpus_of_their_own() -> None:
    before = os.sched_getaffinity(0)
    found: dict[int, set[int]] = {}
    _on_threads(len(before), lambda thread: found.update({thread: os.sched_getaffinity(0)}))
    assert set().union(*found.values()) == before
    assert all(len(cpus) == 1 for cpus in found.values())
    _on_threads(len(before) + 1, lambda thread: found.update({thread: os.sched_getaffinity(0)}))
    assert all(cpus == before for cpus in found.values())
    assert os.sched_getaffinity(0) == before


def test_leaves_no_thread_behind(facts: SystemFacts, hardware: CpuHardware) -> None:
    before = {*threading.enumerate()}
    probe(facts, facts.cores)
    # One of an earlier test may end meanwhile.
    assert {*threading.enumerate()} <= before


def test_implausible_rates_are_replaced() -> None:
    neon = instruction_set("neon")
    # An emulator: integer code at 1 GHz, vectors a hundred times slower.
    emulated = probe_module._Rates(1e7, 1e9, 1e7, 1e7)
    isa = probe_module._isa(neon, emulated, TUNING)
    assert (isa.fma_per_cycle, isa.fma_latency_cycles, isa.load_per_cycle) == (1.0, 4.0, 1.0)
    assert isa.provenance["fma_per_cycle"] == "assumed"
    assert probe_module._clock(neon, emulated, TUNING) == (1e9, "probed")
    stopped = probe_module._Rates(1e3, 1e3, 1e3, 1e3)
    assert probe_module._clock(neon, stopped, TUNING) == (TUNING.unknown_clock_hz, "assumed")


@pytest.mark.parametrize(
    ("measured", "rate"),
    [(0.01, 0.01), (0.49, 0.5), (0.9, 1.0), (1.05, 1.0), (1.5, 2.0), (2.43, 3.0), (9.0, 9.0)],
)
def test_a_rate_stands_for_the_next_whole_one(measured: float, rate: float) -> None:
    assert probe_module._issue_rate(measured, TUNING.issue_rate_tolerance, TUNING) == rate


@pytest.mark.parametrize(
    ("isa", "per_cycle", "stands_for"),
    [("avx512", 1.97, 2.0), ("avx2", 1.57, 2.0), ("avx512", 1.04, 1.0), ("sse2", 1.5, 1.5)],
)
def test_multiply_adds_of_whole_units(isa: str, per_cycle: float, stands_for: float) -> None:
    assert probe_module._multiply_adds(instruction_set(isa), per_cycle, TUNING) == stands_for


@pytest.mark.parametrize(
    ("multiply_adds", "scalar", "loads", "clock"),
    [
        (5.34e9, 3.4e9, 3.7e9, 2.67e9),  # Ice Lake: the clock falls while wide vectors compute
        (5.34e9, 3.4e9, 6.8e9, 2.67e9),
        (4.1e9, 3.4e9, 3.7e9, 2.05e9),  # beside a busy neighbour: the peak stays what was measured
        (5.2e9, 2.7e9, 5.2e9, 2.7e9),
        (5.6e9, 2.7e9, 3.0e9, 2.8e9),
    ],
)
def test_units_kept_full_tell_the_clock(
    multiply_adds: float, scalar: float, loads: float, clock: float
) -> None:
    wide = instruction_set("avx512")
    rates = probe_module._Rates(multiply_adds, scalar, scalar / 4, loads)
    assert probe_module._clock(wide, rates, TUNING) == (clock, "probed")
    isa = probe_module._isa(wide, rates, TUNING)
    assert (isa.fma_per_cycle, isa.fma_latency_cycles, isa.load_per_cycle) == (2.0, 4.0, 2.0)


def test_no_threads(facts: SystemFacts) -> None:
    with pytest.raises(ConfigurationError, match="threads is 0"):
        probe(facts, 0)


def test_unsupported_architecture(facts: SystemFacts) -> None:
    with pytest.raises(HardwareError, match="s390x"):
        probe(dataclasses.replace(facts, architecture="s390x"), 1)


def test_rounds_end_when_nothing_shorter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first load waits for them."""
    times: list[float] = []
    monkeypatch.setattr(probe_module, "_timed", lambda _: times.pop(0))
    monkeypatch.setattr(probe_module, "_ROUNDS_S", SECONDS)
    least, settled = probe_module._LEAST_ROUNDS, probe_module._SETTLED_ROUNDS
    for last, rounds in ((0, least), (least - 1, least - 1 + settled), (300, 220)):
        shorter = [0.95 ** min(i, last) for i in range(300)]
        times[:] = shorter
        found = probe_module._shortest_of_rounds([int], [int])
        assert found == [shorter[rounds - 1]]
        assert times == shorter[rounds:]


def test_disturbed_rounds_are_repeated(monkeypatch: pytest.MonkeyPatch, facts: SystemFacts) -> None:
    """Threads that read together no faster than one alone were preempted."""
    shared = dataclasses.replace(facts.caches[-1], shared_by_cores=2)
    one_core = 1e10
    shares = iter((0.6, 0.9, 1.9, 1.5))
    taken = []

    def together(_: object, buffer: Any, __: object, size: int, repeats: int) -> float:
        taken.append(next(shares))
        return buffer.threads * size * repeats / (taken[-1] * one_core)

    monkeypatch.setattr(probe_module, "_shortest_together", together)
    buffer: Any = SimpleNamespace(threads=2, resident=lambda _: 0)
    caches = dataclasses.replace(facts, caches=(shared,))
    monkeypatch.setattr(probe_module, "_working_set_bytes", lambda *_: 1 << 20)
    monkeypatch.setattr(probe_module, "_windows", lambda *_: iter(()))
    buffer.stream, buffer.stream_bytes = (lambda _: 0), 1 << 20
    kernel: Any = None
    cache, _ = probe_module._measure_together(caches, kernel, buffer, [one_core, one_core])
    assert cache == pytest.approx(1.9e10)
    assert taken == [0.6, 0.9, 1.9, 1.5]
