"""A GPU as a back end: what it is tuned for, and that tuned shapes compile nothing."""

from dataclasses import replace

import pytest
import torch
from tests.runtime.gpu.backends import interpreted

import ftuner
from ftuner import api
from ftuner.codegen.triton.targets import TARGETS, Target
from ftuner.core.dtype import BFLOAT16, FLOAT32, FLOAT64
from ftuner.errors import ConfigurationError, DTypeError, HardwareError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.recorded import load_recorded, to_document
from ftuner.report.tuning import funnel_document, funnel_table
from ftuner.runtime.cache import Cache
from ftuner.runtime.gpu import session
from ftuner.runtime.gpu.arrays import tf32_set
from ftuner.runtime.gpu.backend import GpuBackend, backend_on
from ftuner.runtime.gpu.matmul import Matmul
from ftuner.runtime.gpu.probe import DeviceFacts, Rates
from ftuner.runtime.gpu.session import keep_calibrated, known_gpu


def test_what_is_tuned_compiles_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = interpreted("h200")
    monkeypatch.setattr(api, "backend_of", lambda device: backend)
    told: list[tuple[str, int, int]] = []
    report = api.tune("bfloat16", progress=lambda *x: told.append(x), device="cuda")
    assert (report.isa, report.dtype) == ("sm_90", "bfloat16")
    assert report.compiled + report.cached == len(backend.kernels) > 0
    assert report.funnel == backend.library(BFLOAT16).funnel
    multiply = Matmul(backend.products)
    for m, n, k in ((1, 1, 1), (3, 5, 7), (16, 32, 64), (17, 24, 16)):
        a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
        for right in (b.mT, b.mT.contiguous()):
            assert multiply(a, right).shape == (m, n)
    assert len(backend.kernels) == report.compiled + report.cached


def test_the_funnel_of_a_gpu(h200: GpuBackend) -> None:
    library = h200.library(BFLOAT16)
    found = funnel_document(library.funnel)
    assert found["enumerated"] == sum(p["tiles"] for p in found["pruned"]) + len(found["kept"])
    assert funnel_table(library).row_count == len(found["pruned"]) + 2
    with pytest.raises(DTypeError, match="float64"):
        h200.library(FLOAT64)


def test_hardware_is_probed_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = load_recorded("h200")
    assert isinstance(recorded, GpuHardware)
    probed: list[float] = []

    def measure(device: torch.device, target: Target, like: GpuHardware) -> Rates:
        probed.append(4e12 + len(probed))
        return Rates(probed[-1], 6e12, 1.6e-6, {"bfloat16": 7.9e14})

    facts = DeviceFacts(
        "NVIDIA H200", "sm_90", *(getattr(recorded, name) for name in (
            "multiprocessors", "warp_threads", "registers_per_multiprocessor",
            "threads_per_multiprocessor", "shared_bytes_per_multiprocessor",
            "shared_bytes_per_block", "l2_bytes", "dram_bytes",
        )),
    )  # fmt: skip
    monkeypatch.setattr(session, "read_device", lambda device: facts)
    monkeypatch.setattr(session, "measure", measure)
    monkeypatch.setattr(session, "INTERPRETED", False)
    monkeypatch.setattr(session, "target_of", lambda device: TARGETS["sm_90"])
    device, cache = torch.device("cuda", 0), Cache(tmp_path_factory.mktemp("cache"))
    first = known_gpu(device, cache)
    assert known_gpu(device, cache) == first
    assert len(probed) == 1
    again = known_gpu(device, cache, again=True)
    assert again.dram_bandwidth_bytes_per_s == probed[1]
    assert to_document(known_gpu(device, cache)) == to_document(again)
    # What tuning calibrated is kept in its place, until the device is probed again.
    tuning = GpuTuning(
        step_cycles=55, provenance={"step_cycles": "fitted"}, confidence={"step_cycles": 0.9}
    )
    keep_calibrated(cache, device, replace(again, tuning=tuning))
    calibrated = known_gpu(device, cache)
    assert calibrated.tuning.confidence == {"step_cycles": 0.9}
    assert calibrated.tuning.is_calibrated
    assert not known_gpu(device, cache, again=True).tuning.is_calibrated
    assert len(probed) == 3


def test_devices_without_kernels() -> None:
    with pytest.raises(HardwareError, match="expected a CUDA device"):
        backend_on(torch.device("cpu"))
    with pytest.raises(HardwareError, match="TRITON_INTERPRET is set"):
        backend_on(torch.device("cuda", 0))
    with pytest.raises(ConfigurationError, match="device is 'gpu'"):
        api.hardware("gpu")
    for device in (None, 3.5):
        with pytest.raises(ConfigurationError, match="device is"):
            api.hardware(device)  # type: ignore[arg-type]


def test_a_chip_without_tf32_multiplies_exactly() -> None:
    backend = interpreted("v100")
    with tf32_set(True):
        assert backend.library(FLOAT32).multiply == "float32"
        x = torch.randn(3, 16)
        torch.testing.assert_close(Matmul(backend.products)(x, x.mT), x @ x.mT)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'triton'")

    monkeypatch.setattr("ftuner.runtime.devices.import_module", missing)

    class OnGpu:
        is_cuda = True

    x = OnGpu()
    calls = (
        lambda: ftuner.matmul(x, x), lambda: ftuner.Dense(x),
        lambda: ftuner.grouped_matmul([x], [x]), lambda: ftuner.attention(x, x, x),
        lambda: api.tune(device="cuda"),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ConfigurationError, match="install the extra"):
            call()
