"""Sampling this machine: competing plans of products, appended product by product."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import HOST_ISAS
from tests.runtime.cpu.test_correction import doubling

from ftuner.errors import DatasetError
from ftuner.learn import sampling
from ftuner.learn.features import table_of
from ftuner.learn.samples import Dataset, read
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.known_hardware import corrected, keep

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> CpuBackend:
    return CpuBackend(Cache(tmp_path_factory.mktemp("cache")), HOST_ISAS[-1])


def test_samples_are_of_plans_that_compete(backend: CpuBackend, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    shown: list[tuple[str, int, int]] = []
    taken = sampling.sample(backend, path, 0.5, lambda *args: shown.append(args))
    first = read(path)
    assert len(first.samples) == taken > 0
    assert {what for what, _, _ in shown} == {"sample"}
    levels = {level.name for level in backend.hardware.levels[1:]}
    for sample in first.samples:
        assert sum(mr * tiles for mr, tiles in sample.plan.segments) <= sample.problem.m
        assert sample.level in levels
        assert sample.seconds > 0
    assert any(sample.chosen for sample in first.samples)
    # The planner of this version repeats them all.
    assert len(table_of(first)) == taken
    # Another run goes on with other products.
    sampling.sample(backend, path, 0.2)
    more = read(path).samples
    assert more[:taken] == first.samples
    assert {s.problem for s in more[taken:]}.isdisjoint({s.problem for s in first.samples})


def test_an_interrupt_keeps_what_was_measured(backend: CpuBackend, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    calls = []

    def interrupt(*args: object) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampling.sample(backend, path, 60.0, interrupt)
    assert len({s.problem for s in read(path).samples}) == 2


def test_what_is_learned_is_kept(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where estimates are wrong in a way that samples tell, and where they are not."""
    wrong: list[Dataset] = []

    def distorted(path: Path) -> Dataset:
        found = read(path)
        samples = tuple(
            replace(s, seconds=s.seconds * (1.5 if len(s.plan.segments) > 1 else 1.0), spread=0.0)
            for s in found.samples
        )
        wrong.append(replace(found, samples=samples))
        return wrong[-1]

    monkeypatch.setattr(sampling, "read", distorted)
    learned = sampling.improve(backend, 3.0)
    assert learned.kept or learned.why
    assert learned.samples > 0
    again = CpuBackend(backend.cache, HOST_ISAS[-1])
    assert (again.hardware.correction is not None) == learned.kept


def test_a_correction_that_the_samples_do_not_support_is_removed(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise DatasetError("a tie")

    keep(backend.cache, backend.hardware, doubling(backend.hardware))
    monkeypatch.setattr(sampling, "learn", refused)
    learned = sampling.improve(backend, 1.0)
    assert (learned.kept, learned.why) == (False, "a tie")
    assert learned.samples > 0
    assert corrected(backend.cache, replace(backend.hardware, correction=None)).correction is None


def test_a_damaged_dataset_is_told(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> int:
        raise DatasetError("samples.jsonl: line 3 is not JSON")

    monkeypatch.setattr(sampling, "sample", damaged)
    learned = sampling.improve(backend, 0.1)
    assert learned == sampling.Learned(0, False, "samples.jsonl: line 3 is not JSON")
