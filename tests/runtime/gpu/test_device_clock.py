"""Trials as launches, in Triton's interpreter; and tuning that calibrates, with a clock in place of
the device's."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.gpu_simulated import SimulatedClock
from tests.recorded_gpus import gpu

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import BFLOAT16
from ftuner.core.gpu.attention import AttentionForm
from ftuner.cost.gpu.tile import loads_of
from ftuner.planner.gpu.plan import AttentionProblem
from ftuner.report.tuning import calibration_table
from ftuner.runtime.cache import Cache
from ftuner.runtime.gpu import backend as backends
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.calibration.device_clock import (
    DeviceClock,
    PlannedAttentions,
    PlannedProducts,
)
from ftuner.runtime.gpu.calibration.table import with_values
from ftuner.runtime.gpu.calibration.trials import AttentionTrial, ProductTrial, Trial, planned
from ftuner.runtime.gpu.operands import Product
from ftuner.schedules.attention.gpu_binding_launches import How, Operands
from ftuner.schedules.attention.gpu_plan import attention_planner


def product(backend: GpuBackend, split_k: int) -> ProductTrial:
    library = backend.library(BFLOAT16)
    tile = min(library.tiles, key=lambda tile: tile.bm * tile.bn)
    return planned(library, tile, 2, 1, 3 * split_k * tile.bk, split_k)


def attention(backend: GpuBackend, causal: bool) -> AttentionTrial:
    form = AttentionForm.over(
        BFLOAT16, "bfloat16", 16, 16, causal="first" if causal else "none",
        loads=loads_of(backend.hardware, "bfloat16", True),
    )  # fmt: skip
    planner = attention_planner(backend.hardware, form, False)
    return AttentionTrial(planner.plan(AttentionProblem(1, 2, 1, 32, 32, 16, 16)))


TRIALS: dict[str, Callable[[GpuBackend], Trial]] = {
    "product": lambda backend: product(backend, 1),
    "split-k": lambda backend: product(backend, 2),
    "attention": lambda backend: attention(backend, False),
    "causal attention": lambda backend: attention(backend, True),
}


@pytest.mark.parametrize("name", TRIALS)
def test_trials_are_timed(backend: GpuBackend, name: str) -> None:
    clock = DeviceClock(backend)
    trial = TRIALS[name](backend)
    assert clock.prepare([trial]) == {}
    before = clock.now()
    assert 0 < clock.seconds(trial) <= clock.now() - before
    # The host's time of launches is not that of an interpreter.
    assert clock.host_seconds() is None


@pytest.mark.parametrize("split_k", [1, 2])
def test_products_by_a_given_plan(backend: GpuBackend, split_k: int) -> None:
    trial = product(backend, split_k)
    m, n, k = trial.plan.problem[:3]
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16().mT
    c = torch.empty(m, n, dtype=torch.bfloat16)
    launches = PlannedProducts(backend, trial.plan).launch(Product(a, b, c, tf32=False))
    assert launches is not None
    c.zero_()
    for bound in launches:
        bound.launch()
    torch.testing.assert_close(c, (a.double() @ b.double()).bfloat16())


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_a_given_plan(backend: GpuBackend, causal: bool) -> None:
    trial = attention(backend, causal)
    q, k, v = (torch.randn(2, 32, 16).bfloat16() for _ in range(3))
    out = torch.empty_like(q)
    softmax = AttentionSoftmax(1 / math.sqrt(16), safe=True)
    attentions = PlannedAttentions(backend, trial.plan)
    attentions.run(Operands(q, k.mT, v, out), How.of(softmax, 0 if causal else None, tf32=False))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.float() for x in (q, k, v)), is_causal=causal
    )
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


def test_trials_that_cannot_run_say_why(h200: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, trial, other = DeviceClock(h200), product(h200, 1), product(h200, 2)

    def full(number: int) -> Any:
        raise torch.cuda.OutOfMemoryError("of 80 GiB")

    def made(which: Trial) -> Any:
        return full(0) if which == other else make(which)

    make = clock._make
    monkeypatch.setattr(clock, "_make", made)
    assert clock.prepare([trial, other]) == {other: "of 80 GiB"}
    assert clock.seconds(trial) > 0


class Pretending(GpuBackend):
    """A back end of the interpreter that says that it is on a CUDA device."""

    def __init__(self, device: Any, hardware: Any, target: Any) -> None:
        super().__init__(torch.device("cpu"), hardware, None)
        self.device = torch.device("cuda", 0)


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> list[Any]:
    """Calibrations, each with the model that was kept."""
    kept: list[Any] = []
    truth = with_values(gpu("h200"), {"sustained_matrix_share": 0.7, "loaded_latency_ratio": 2.0})
    monkeypatch.setattr(backends, "GpuBackend", Pretending)
    monkeypatch.setattr(backends, "DeviceClock", lambda session: SimulatedClock(truth))
    monkeypatch.setattr(backends, "target_of", lambda device: None)
    monkeypatch.setattr(backends, "default_cache", lambda: Cache(tmp_path))
    monkeypatch.setattr(backends, "_BACKENDS", {})
    monkeypatch.setattr(backends, "keep_calibrated", lambda *given: kept.append(given[-1]))
    return kept


def test_the_first_tuning_calibrates(pretending: list[Any]) -> None:
    first = Pretending(None, gpu("h200"), None)
    assert first.calibrated("none") is first
    assert pretending == []
    second = first.calibrated("default")
    assert second.hardware.tuning.is_calibrated
    assert second.hardware.tuning.sustained_matrix_share == pytest.approx(0.7, rel=0.03)
    assert backends.backend_on(first.device) is second
    assert pretending == [second.hardware]
    assert second.calibration is not None
    assert calibration_table(second.calibration).row_count == len(second.calibration.found)
    assert json.loads(json.dumps(second.calibration.document()))["found"]
    # Models that were made before keep their constants.
    assert first.hardware == gpu("h200")
    assert second.calibrated("default") is second
    again = second.calibrated("thorough")
    assert again is not second
    assert len(pretending) == 2


def test_nothing_is_calibrated_without_a_device(backend: GpuBackend) -> None:
    assert backend.calibrated("thorough") is backend
