"""The correction of a machine is kept beside its hardware model, and read where plans are made."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.cost.cpu.correction_features import COVER_FEATURES, KINDS, SHARE_FEATURES
from ftuner.errors import CacheWarning, DatasetError
from ftuner.hardware.correction import LearnedCorrection, from_document
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded, to_document
from ftuner.planner.cpu.planner import Planner, panel_problem, planner_for
from ftuner.runtime.cache import CORRECTIONS, Cache
from ftuner.runtime.cpu.session import CpuSession, known_hardware
from ftuner.runtime.known_hardware import corrected, forget, keep
from ftuner.ukernels.cpu.library import build_library


def machine() -> CpuHardware:
    hardware = load_recorded("xeon-8375c")
    assert isinstance(hardware, CpuHardware)
    return hardware


def doubling(hardware: CpuHardware, **changes: Any) -> LearnedCorrection:
    """A correction of any product of a weight: twice the estimate."""
    share, cover, kinds = len(SHARE_FEATURES), len(COVER_FEATURES), len(KINDS)
    return from_document(
        {
            "kind": "ftuner-correction",
            "schema": 2,
            "fingerprint": hardware.fingerprint,
            "workers": [2],
            "kinds": list(KINDS),
            "share": {
                "names": list(SHARE_FEATURES), "low": [-1e6] * share, "high": [1e6] * share,
                "weights": [[0.0] * kinds] * share, "intercept": [0.6931471805599453] * kinds,
                "trees": None,
            },
            "cover": {
                "names": list(COVER_FEATURES), "low": [-1e6] * cover, "high": [1e6] * cover,
                "weights": [[0.0]] * cover, "intercept": [0.0], "trees": None,
            },
            "bias": 0.0,
            "uncertainty": {
                "coverage": 0.9, "mean": [0.0] * share, "scale": [1.0] * share,
                "whitening": [[0.0] * (share + 1)] * (share + 1), "spread": [0.01] * kinds,
                "limit": [0.1] * kinds,
            },
            "provenance": {},
            **changes,
        }
    )  # fmt: skip


def test_a_kept_correction_is_read(tmp_path: Path) -> None:
    cache, hardware = Cache(tmp_path), machine()
    assert corrected(cache, hardware) is hardware
    learned = doubling(hardware)
    kept = keep(cache, hardware, learned)
    assert kept.correction == learned
    assert corrected(cache, hardware) == kept
    assert [entry.kind for entry in cache.entries()] == [CORRECTIONS]
    assert forget(cache, kept) == hardware == corrected(cache, kept)


def test_a_correction_is_of_one_tuning(tmp_path: Path) -> None:
    cache, hardware = Cache(tmp_path), machine()
    kept = keep(cache, hardware, doubling(hardware))
    other = replace(kept, tuning=replace(hardware.tuning, synchronise_s=5e-6))
    assert corrected(cache, other).correction is None


def test_corrections_of_others_are_refused(tmp_path: Path) -> None:
    cache, hardware = Cache(tmp_path), machine()
    with pytest.raises(DatasetError, match="of the machine abc"):
        keep(cache, hardware, doubling(hardware, fingerprint="abc"))
    kinds = doubling(hardware).to_document()["kinds"]
    with pytest.raises(DatasetError, match="of other features"):
        keep(cache, hardware, doubling(hardware, kinds=[*kinds[:3], "other"]))
    assert cache.entries() == []


@pytest.mark.parametrize("payload", [b"", b"{}", b"[" * 100_000, b'{"kind": "ftuner-correction"}',
                                     None])  # fmt: skip
def test_a_correction_that_is_damaged_or_of_others_is_dropped(
    tmp_path: Path, payload: bytes | None
) -> None:
    cache, hardware = Cache(tmp_path), machine()
    keep(cache, hardware, doubling(hardware))
    (entry,) = cache.entries()
    other = json.dumps(doubling(hardware, fingerprint="abc").to_document()).encode()
    cache.write(CORRECTIONS, entry.key, other if payload is None else payload)
    message = "of the machine abc" if payload is None else "damaged or not ours"
    with pytest.warns(CacheWarning, match=message):
        assert corrected(cache, hardware) == hardware
    assert cache.entries() == []


def test_the_planner_corrects_its_estimates() -> None:
    """Of weights; other operands are not learned of."""
    hardware = machine()
    types = product_types(FLOAT32)
    plain = planner_for(build_library(hardware, "avx512", types))
    kept = replace(hardware, correction=doubling(hardware))
    doubled = planner_for(build_library(kept, "avx512", types))
    assert doubled is not plain
    assert doubled is planner_for(build_library(replace(hardware, correction=doubling(hardware)),
                                                "avx512", types))  # fmt: skip
    for m in (1, 7, 20, 333, 5000):
        problem = panel_problem(768, 768, 4, m, 2)
        plan = doubled.plan(problem)
        assert plan == plain.plan(problem)._replace(chunks=plan.chunks)
        estimate = doubled.estimate(plan)
        assert estimate.correction == pytest.approx(2.0)
        assert estimate.terms() == plain.estimate(plan).terms()
        assert doubled.least_seconds(problem) == pytest.approx(estimate.seconds)
        assert estimate.seconds == pytest.approx(2.0 * plain.estimate(plan).seconds)
        at_hand = problem._replace(b_source="rows", width=0, b_k_bytes=768 * 4)
        assert doubled.least_seconds(at_hand) == plain.least_seconds(at_hand)


def test_the_planner_corrects_with_the_numbers_of_workers_of_the_correction() -> None:
    """With others it makes the plans that it makes without one."""
    hardware = machine()
    types = product_types(FLOAT32)
    plain = planner_for(build_library(hardware, "avx512", types))
    kept = replace(hardware, correction=doubling(hardware, workers=[1, 4]))
    corrected = planner_for(build_library(kept, "avx512", types))
    for workers in (1, 2, 3, 4, 8):
        for m in (1, 20, 333):
            problem = panel_problem(768, 768, 4, m, workers)
            estimate = corrected.estimate(corrected.plan(problem))
            assert estimate.correction == pytest.approx(2.0 if workers in (1, 4) else 1.0)
            if workers not in (1, 4):
                assert corrected.plan(problem) == plain.plan(problem)
                assert corrected.least_seconds(problem) == plain.least_seconds(problem)


def test_a_session_has_the_correction_of_its_machine(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    hardware = known_hardware(cache)
    keep(cache, hardware, doubling(hardware))
    session = CpuSession(cache)
    assert session.hardware.correction == doubling(hardware)
    # A tuning that is taken over has no correction of the one before.
    tuning = replace(hardware.tuning, synchronise_s=5e-6)
    tuned = replace(session.hardware, tuning=tuning, correction=None)
    session.adopt(tuned)
    assert session.hardware.correction is None
    assert session.hardware.tuning == tuned.tuning


def test_a_machine_is_written_without_its_correction() -> None:
    hardware = machine()
    kept = replace(hardware, correction=doubling(hardware))
    assert to_document(kept) == to_document(hardware)
    assert kept != hardware
    assert hash(kept) == hash(hardware)


@pytest.mark.alone
def test_a_correction_costs_under_a_microsecond_a_candidate() -> None:
    hardware = machine()
    types = product_types(FLOAT32)
    plain = planner_for(build_library(hardware, "avx512", types))
    kept = replace(hardware, correction=doubling(hardware))
    doubled = planner_for(build_library(kept, "avx512", types))
    problems = [panel_problem(768, 768, 4, m, 8) for m in range(1, 200)]
    candidates = len(plain.candidates(problems[0]))

    def seconds(planner: Planner) -> float:
        began = time.perf_counter()
        for problem in problems:
            planner.least_seconds(problem)
        return (time.perf_counter() - began) / len(problems)

    best = [min(seconds(planner) for _ in range(20)) for planner in (plain, doubled)]
    assert best[1] - best[0] < 1e-6 * candidates
