"""Calibration: what is fitted follows from the times of trials, also beside other load."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import HOST_ISAS

from ftuner import api
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.cost.cpu.tile import overlapped, reading
from ftuner.errors import ConfigurationError
from ftuner.hardware.constants import Fitted, constants
from ftuner.hardware.intake_tuning import Intake
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.calibration import stand
from ftuner.runtime.cpu.calibration.calibrate import FITS
from ftuner.runtime.cpu.calibration.stand import Stand
from ftuner.runtime.cpu.calibration.steps import Ring, Run, fit_steps
from ftuner.runtime.cpu.trials import Pace, Trial, timed


class Machine:
    """A clock that calls advance, in place of `time.perf_counter`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("ftuner.runtime.cpu.trials.time.perf_counter", lambda: self.now)

    def call(self, seconds: float, factor: Iterator[float] | None = None) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds * (1.0 if factor is None else next(factor))

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def bursts(slow: float, quiet: int, busy: int) -> Iterator[float]:
    """Some calls at full speed, then some that take `slow` times as long, without end."""
    while True:
        yield from [1.0] * quiet
        yield from [slow] * busy


def test_times_are_those_of_one_call(machine: Machine) -> None:
    trials = [Trial(machine.call(seconds)) for seconds in (3e-6, 200e-6)]
    found = timed(trials, 4)
    assert [t.seconds for t in found] == pytest.approx([3e-6, 200e-6])
    assert all(t.spread < 1e-6 and t.rounds == 4 for t in found)
    assert trials[0].calls > trials[1].calls == 1


def test_bursts_beside_other_load_do_not_count(machine: Machine) -> None:
    load = bursts(1.7, 40, 200)
    level = [1.0]

    def shared(seconds: float) -> Callable[[], None]:
        def run() -> None:
            level[0] = next(load)
            machine.now += seconds * level[0]

        return run

    pace = Pace(Trial(shared(1e-6)))
    found = timed([Trial(shared(150e-6))], 60, pace=pace)
    assert found[0].seconds == pytest.approx(150e-6)
    assert 0.3 < pace.slow_share < 1.0


def test_a_machine_that_is_always_busy_is_measured_as_it_is(machine: Machine) -> None:
    pace = Pace(Trial(machine.call(1e-6)))
    pace.seconds = 0.1e-6
    (found,) = timed([Trial(machine.call(100e-6))], 6, pace=pace)
    assert found.seconds == pytest.approx(100e-6)
    assert pace.slow_share == 1.0


def test_rounds_go_on_until_times_are_steady(machine: Machine) -> None:
    unsteady = (1.0 + 0.5 / (1 + i) for i in range(10_000))
    trial = Trial(machine.call(1e-3, unsteady))
    (few,) = timed([trial], 4)
    (more,) = timed([trial], 4, deadline=machine.now + 0.5, spread=1e-3)
    assert few.rounds == 4 < more.rounds


def test_a_clock_that_jumps_back_is_no_time(machine: Machine) -> None:
    def back() -> None:
        machine.now -= 5e-6

    (found,) = timed([Trial(back)], 4)
    assert math.isfinite(found.seconds)


def test_the_closest() -> None:
    true = (0.8, 3.0)
    own = [4.0, 16.0, 40.0]

    def modelled(share: float, overlap: float) -> list[float]:
        return [overlapped(c, 12.0 / share, overlap) for c in own]

    ways = [(s, p) for s in (0.4, 0.6, 0.8, 1.0) for p in (1.0, 2.0, 3.0, 8.0)]
    found, error = stand.closest(ways, modelled, modelled(*true), (0.4, 1.0), 1e-3)
    assert found == true
    assert error < 1e-9


def test_noise_keeps_the_prior() -> None:
    scores = {"usual": 0.05, "other": 0.0}
    assert stand.preferred(scores, "usual", 0.01) == "other"
    assert stand.preferred(scores, "usual", 0.1) == "usual"
    assert stand.preferred({"usual": 0.019, "other": 0.0}, "usual", 0.0) == "usual"
    assert stand.between(2.0, 1.0, 0.0) == 2.0
    assert stand.between(2.0, 1.0, 10.0) == pytest.approx(1.0, abs=0.01)
    assert stand.confidence(0.2) == pytest.approx(0.5)


WRONG = {
    "default": CpuTuning(),
    "slow": CpuTuning(
        low_l3=Intake(8, 1024, 0.2, 1.0), tall_l3=Intake(8, 1024, 0.2, 1.0),
        several_l3=Intake(8, 1024, 0.2, 1.0), tile_cycles=200.0,
    ),
}  # fmt: skip


@pytest.mark.alone
@pytest.mark.parametrize("prior", WRONG)
def test_this_machine(prior: str, tmp_path: Path) -> None:
    """From any prior, in seconds; each value within what a document may hold."""
    backend = CpuBackend(Cache(tmp_path), HOST_ISAS[-1])
    backend._hardware = replace(backend.hardware, tuning=WRONG[prior])
    shown: list[tuple[str, int, int]] = []
    found = backend.calibrate(0.3, lambda *args: shown.append(args))
    assert shown[0] == ("calibrate", 0, len(FITS))
    assert shown[-1] == ("calibrate", len(FITS), len(FITS))
    assert found.before == WRONG[prior]
    assert found.seconds < 20
    known = constants(CpuTuning)
    for name, fitted in found.found.items():
        assert getattr(found.tuning, name) == fitted.value
        assert known[name].expectation(fitted.value) is None
        assert found.tuning.provenance[name] == "fitted"
        assert 0 <= found.tuning.confidence[name] <= 1
    assert {"low_l3", "low_dram", "several_dram", "tile_cycles", "steps_per_prefetch"} <= {
        *found.found
    }
    # A weight is read in one way, wherever it comes from.
    for name in (name for name in found.found if "_l3" in name):
        near, far = (getattr(found.tuning, name.replace("l3", level)) for level in ("l3", "dram"))
        assert reading(near) == reading(far)
    # Processes that follow have it; one that is told none does not calibrate again.
    again = CpuBackend(Cache(tmp_path), HOST_ISAS[-1])
    assert again.hardware.tuning == found.tuning
    assert again.hardware.tuning.confidence == found.tuning.confidence
    assert again.calibrated("default") is again
    assert again.calibration is None
    assert again.hardware.tuning.is_calibrated


STEP_FIELDS = {
    "winograd_share_of_l2", "winograd_weight_share_of_l2", "winograd_transform_ratio",
    "stripes_share_of_l2", "scores_share_of_l2", "max_block_row_tiles", "causal_blocks",
    *(["team_phase_s"] if (os.cpu_count() or 1) > 1 else []),
}  # fmt: skip


def steps_fitted(backend: CpuBackend, samples: Callable[[int], list[float]]) -> dict[str, Fitted]:
    """What is found if run i of those that compete takes `samples(i)`."""
    kernels = backend.kernels
    stand = Stand(backend.products(product_types(FLOAT32)), 0.0, backend.with_tuning)

    def timed(ring: Ring, runs: list[Run], rounds: int) -> list[list[float]]:
        for run in runs:
            run()
        return [samples(number) for number in range(len(runs))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ring, "timed", timed)
        return fit_steps(stand, kernels.hardware.tuning)


def test_values_that_cut_steps_compete(tmp_path: Path) -> None:
    backend = CpuBackend(Cache(tmp_path), HOST_ISAS[0])
    prior = backend.hardware.tuning
    alike = steps_fitted(backend, lambda number: [1e-3] * 12)
    assert alike.keys() == STEP_FIELDS
    # None is faster than another, so that all stay.
    for name, fitted in alike.items():
        if name not in ("winograd_transform_ratio", "team_phase_s"):
            assert fitted.value == getattr(prior, name)
    # A convolution that takes longer than estimated has slower transforms.
    slow = steps_fitted(backend, lambda number: [1.0] * 12)["winograd_transform_ratio"]
    fast = steps_fitted(backend, lambda number: [1e-9] * 12)["winograd_transform_ratio"]
    assert slow.value >= prior.winograd_transform_ratio >= fast.value
    # The least value is fastest.
    least = steps_fitted(backend, lambda number: [1e-3 * (1 + number)] * 12)
    assert least["scores_share_of_l2"].value == 0.12
    assert least["causal_blocks"].value == 4
    # The same, but noise is larger than what it gains.
    noisy = steps_fitted(backend, lambda number: [1e-3 * (1 + 0.05 * number), 1.2e-3] * 6)
    assert noisy["causal_blocks"].value == prior.causal_blocks


@pytest.mark.alone
def test_steps_of_this_machine(tmp_path: Path) -> None:
    backend = CpuBackend(Cache(tmp_path), HOST_ISAS[-1])
    found = backend.calibrate(0.1, steps=True)
    known = constants(CpuTuning)
    for name in STEP_FIELDS:
        assert known[name].expectation(found.found[name].value) is None
        assert found.tuning.provenance[name] == "fitted"


def test_a_stand_has_what_it_runs(tmp_path: Path) -> None:
    backend = CpuBackend(Cache(tmp_path), HOST_ISAS[0])
    stand = Stand(backend.products(product_types(FLOAT32)), 0.0, backend.with_tuning)
    assert stand.pace.seconds < 1e-3
    levels = backend.hardware.levels
    sizes = []
    for level in levels:
        weights = stand.weights(level)
        sizes.append(len(weights.copies) * weights.copies[0].nbytes)
        assert weights.n % stand.family.nr == 0
    assert sizes[1] <= levels[1].capacity_bytes
    assert sizes[-1] >= 2 * levels[-2].capacity_bytes or sizes[-1] >= 512 << 20


def test_an_unknown_effort() -> None:
    with pytest.raises(ConfigurationError, match="calibrate is 'much'; expected default, thorough"):
        api.tune(calibrate="much")  # type: ignore[arg-type]
