"""Calibration of a GPU, with a simulated device in place of one."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from math import log
from statistics import mean

import pytest
from benchmarks.gpu_simulated import SimulatedClock
from tests.child import printed
from tests.recorded_gpus import GPUS, gpu

from ftuner.core.dtype import BFLOAT16
from ftuner.errors import HardwareError
from ftuner.hardware.gpu_tuning import GpuTuning, RateTuning
from ftuner.hardware.recorded import from_document, to_document
from ftuner.planner.gpu.plan import ProductProblem
from ftuner.planner.gpu.planner import estimate_plan, product_planner_for
from ftuner.runtime.gpu.calibration.calibrate import DeviceCalibration, calibrate
from ftuner.runtime.gpu.calibration.table import HOST_FIELDS, KEPT, TABLE, designed, with_values
from ftuner.runtime.gpu.calibration.trials import Trial, near_square
from ftuner.runtime.shown_progress import Progress
from ftuner.ukernels.gpu.library import build_gpu_library

TRUTHS: tuple[dict[str, float], ...] = (
    {
        "sustained_matrix_share": 0.7, "sustained_vector_share": 0.6, "sustained_dram_share": 0.8,
        "overlap_exponent": 5.0, "loaded_latency_ratio": 2.2, "step_cycles": 70,
        "reduce_latencies": 3.5, "l2_share": 0.7, "exponentials_per_cycle": 12.0,
        "last_unit_share": 0.8, "host_launch_s": 9e-6, "replay_s": 6e-6,
        "l2_rate_ratio": 1.2, "synchronous_step_cycles": 200, "ramp_latencies": 3.0,
        "part_rate_share": 0.6, "split_matrix_share": 0.6,
    },
    {
        "sustained_matrix_share": 0.97, "sustained_vector_share": 0.9, "sustained_dram_share": 0.96,
        "overlap_exponent": 4.0, "loaded_latency_ratio": 1.1, "step_cycles": 100,
        "reduce_latencies": 5.0, "l2_share": 0.3, "exponentials_per_cycle": 8.0,
        "last_unit_share": 0.3, "host_launch_s": 3e-6, "replay_s": 2e-5,
        "l2_rate_ratio": 0.9, "synchronous_step_cycles": 300, "ramp_latencies": 0.5,
        "part_rate_share": 0.4, "split_matrix_share": 0.9,
    },
)  # fmt: skip
FAR_OFF: dict[str, float] = {
    "sustained_matrix_share": 0.5, "sustained_vector_share": 0.5, "sustained_dram_share": 0.5,
    "overlap_exponent": 16.0, "loaded_latency_ratio": 3.0, "step_cycles": 20,
    "reduce_latencies": 1.0, "l2_share": 0.9, "exponentials_per_cycle": 32.0,
    "last_unit_share": 1.0, "l2_rate_ratio": 0.7, "synchronous_step_cycles": 40,
    "ramp_latencies": 1.0, "part_rate_share": 1.0, "split_matrix_share": 0.4,
}  # fmt: skip
"""A wrong prior."""
MARGIN = 1.5
"""Times the 95% interval that a constant may be off here: three standard errors."""
ALLOWED = 0.05
"""What it may be off anyway: a constant that is not settled, and far off, moves others a little."""


@cache
def found_with(
    name: str, number: int = 0, far_off: bool = False, noise: float = 0.01
) -> DeviceCalibration:
    """A calibration that finds `TRUTHS[number]`; tests share it, as it takes seconds."""
    clock = SimulatedClock(with_values(gpu(name), TRUTHS[number]), noise)
    return calibrate(with_values(gpu(name), FAR_OFF if far_off else {}), clock)


CASES = [
    pytest.param("h200", 0, False, id="h200"),
    pytest.param("rtx4090", 0, True, id="rtx4090-far-off", marks=pytest.mark.full),
    pytest.param("rtx4090", 1, False, id="rtx4090", marks=pytest.mark.full),
    pytest.param("v100", 0, True, id="v100-far-off", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("name", "number", "far_off"), CASES)
def test_constants_are_recovered(name: str, number: int, far_off: bool) -> None:
    truth, prior = TRUTHS[number], FAR_OFF if far_off else {}
    found = found_with(name, number, far_off)
    assert found.condition == "steady"
    before = with_values(gpu(name), prior).tuning
    assert {x.field for x in found.settled} == set(truth)
    # No trial depends on what the chip does not have.
    tried = [x for x in found.settled if x.trials]
    assert sum(x.is_settled for x in tried) >= len(tried) - 2
    for x in found.settled:
        error = abs(log(x.value / truth[x.field]))
        if x.is_settled:
            assert error <= max(MARGIN * log(1.0 + x.error), ALLOWED), x
        else:
            # It stays, or moves to where trials allow it.
            assert error <= abs(log(getattr(before, x.field) / truth[x.field])) + ALLOWED, x
        assert getattr(found.hardware.tuning, x.field) == pytest.approx(x.value, rel=0.03)


LAYERS = [
    ProductProblem(m, n, k)
    for m in (1, 17, 48, 128, 333, 777, 4096)
    for n, k in ((4096, 4096), (28672, 4096), (4096, 14336))
]


@pytest.mark.full
def test_estimates_are_closer_on_a_device_that_differs_elsewhere() -> None:
    """Its L2, its latency and its launches are not what the model says, so no constants explain it:
    estimates of layers that are no trials are closer nevertheless, and plans cost less."""
    chip = gpu("h200")
    other = replace(
        chip,
        l2_bandwidth_bytes_per_s=0.75 * chip.l2_bandwidth_bytes_per_s,
        dram_latency_s=1.3 * chip.dram_latency_s,
        launch_s=1.3 * chip.launch_s,
    )
    truth = with_values(other, TRUTHS[0])
    found = calibrate(chip, SimulatedClock(truth)).hardware
    errors, seconds = [], []
    for hardware in (chip, found):
        planner = product_planner_for(build_gpu_library(hardware, BFLOAT16))
        chosen = [planner.plan(problem) for problem in LAYERS]
        took = [estimate_plan(truth, plan).seconds for plan in chosen]
        expected = [estimate_plan(hardware, plan).seconds for plan in chosen]
        errors.append(mean(abs(log(e / t)) for e, t in zip(expected, took, strict=True)))
        seconds.append(took)
    assert errors[1] < errors[0] / 2
    # No layer by much more, and all together by less.
    assert max(t / b for b, t in zip(*seconds, strict=True)) < 1.1
    assert mean(log(t / b) for b, t in zip(*seconds, strict=True)) < 0.0


@pytest.mark.full
def test_noise_widens_the_intervals() -> None:
    """And what is not settled any more is kept."""
    quiet, loud = (found_with("h200", noise=noise) for noise in (0.01, 0.2))
    assert (quiet.condition, loud.condition) == ("steady", "noisy")
    assert "noisy" in str(loud)
    for one, other in zip(quiet.settled, loud.settled, strict=True):
        assert one.field == other.field
        # Of a step function, the interval is that between two trials.
        assert one.error <= other.error or one.field == "l2_share"
        assert other.error > 0
    assert sum(x.is_settled for x in loud.settled) <= sum(x.is_settled for x in quiet.settled)


def test_a_throttled_device_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    found = calibrate(gpu("h200"), SimulatedClock(gpu("h200"), slower=0.5))
    assert found.condition == "throttled"
    assert "throttled" in caplog.text
    assert found.drift > 0.03


@pytest.mark.full
def test_thorough_calibration_takes_longer_and_knows_more() -> None:
    truth = with_values(gpu("rtx4090"), TRUTHS[0])
    short, long = (
        calibrate(gpu("rtx4090"), SimulatedClock(truth, noise=0.03), effort)
        for effort in ("default", "thorough")
    )
    assert long.summary.seconds > short.summary.seconds
    wide, narrow = ({x.field: x.error for x in c.settled} for c in (short, long))
    assert narrow["sustained_matrix_share"] < wide["sustained_matrix_share"]


def test_what_is_known_well_ends_early() -> None:
    found = calibrate(gpu("h200"), SimulatedClock(gpu("h200"), noise=1e-4, outliers=0.0))
    assert found.summary.seconds < 7.0
    # Warpgroups wait for loads, not between steps; float32 is multiplied on matrix units.
    unsettled = {x.field for x in found.settled if not x.is_settled}
    assert unsettled <= {"step_cycles", "sustained_vector_share"}


def test_results_are_kept_with_the_model() -> None:
    found = found_with("h200").hardware
    tuning = found.tuning
    assert found.tuning.is_calibrated
    assert not gpu("h200").tuning.is_calibrated
    assert tuning.provenance["sustained_matrix_share"] == "fitted"
    assert tuning.provenance["host_launch_s"] == "probed"
    assumed = {name for name, how in tuning.provenance.items() if how == "assumed"}
    assert set(tuning.confidence) == set(tuning.provenance) - assumed
    assert isinstance(tuning.step_cycles, int)
    again = from_document(to_document(found))
    assert again == found
    assert again.tuning.confidence == tuning.confidence  # type: ignore[union-attr]
    # Everything that is not calibrated is as before.
    kept = replace(
        gpu("h200").tuning, **{name: getattr(tuning, name) for name in tuning.confidence}
    )
    assert kept == tuning


def test_every_rate_is_calibrated_or_kept_for_a_reason() -> None:
    rates = {field.name for field in fields(RateTuning)}
    rows = [row.field for row in TABLE]
    assert {*rows, *KEPT} == rates
    assert not set(rows) & set(KEPT)
    assert len(set(rows)) == len(rows)
    assert set(HOST_FIELDS) <= {field.name for field in fields(GpuTuning)} - rates
    assert all({*KEPT.values(), *(row.why for row in TABLE)})


@pytest.mark.parametrize("name", GPUS)
def test_trials_fit_the_chip(name: str) -> None:
    """They are plans that the chip can run, few kernels, and short."""
    chip = gpu(name)
    trials = {trial for own in designed(chip).values() for trial in own}
    assert len({trial.plan.kernel for trial in trials}) <= 36
    for trial in trials:
        assert trial.bytes < min(chip.dram_bytes / 8, 2 << 30)
        estimate = trial.estimate(chip)
        assert 1e-6 < estimate.seconds < 5e-3
        assert estimate.seconds == pytest.approx(
            estimate.busiest_s, rel=1.0, abs=sum(estimate.terms().values())
        )


class Refusing(SimulatedClock):
    """A device that runs no attention, or nothing."""

    everything = False

    def prepare(
        self, trials: Sequence[Trial], progress: Progress | None = None
    ) -> Mapping[Trial, str]:
        refused = {t: "ptxas failed" for t in trials if self.everything or "attention" in str(t)}
        super().prepare([trial for trial in trials if trial not in refused])
        return refused


def test_kernels_that_do_not_run_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = Refusing(with_values(gpu("h200"), TRUTHS[0]))
    found = calibrate(gpu("h200"), clock)
    assert set(found.failed.values()) == {"ptxas failed"}
    settled = {x.field for x in found.settled if x.is_settled}
    assert not settled & {"exponentials_per_cycle", "last_unit_share"}
    assert "sustained_matrix_share" in settled
    assert "ptxas failed" in caplog.text
    clock.everything = True
    with pytest.raises(HardwareError, match="no kernel runs on h200: ptxas failed"):
        calibrate(gpu("h200"), clock)


def test_factors() -> None:
    assert [near_square(n) for n in (1, 132, 148, 7, 64)] == [
        (1, 1), (11, 12), (4, 37), (1, 7), (8, 8)
    ]  # fmt: skip


def test_the_arithmetic_needs_neither_torch_nor_triton() -> None:
    script = (
        "import sys; import ftuner.runtime.gpu.calibration.calibrate; "
        "print([m for m in ('torch', 'triton') if m in sys.modules])"
    )
    done = printed("-c", script)
    assert done.strip() == "[]"
