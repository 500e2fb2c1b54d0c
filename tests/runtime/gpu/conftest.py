"""Kernels run in Triton's interpreter, which must be chosen before triton is imported."""

from __future__ import annotations

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.codegen.triton.interpreting import complete  # noqa: E402

from ftuner.hardware.model import GpuHardware  # noqa: E402
from ftuner.hardware.recorded import load_recorded  # noqa: E402
from ftuner.runtime.gpu.session import GpuSession  # noqa: E402


def interpreted(name: str) -> GpuSession:
    """A recorded chip whose kernels are interpreted, on tensors in the CPU's memory."""
    complete()
    hardware = load_recorded(name)
    assert isinstance(hardware, GpuHardware)
    return GpuSession(torch.device("cpu"), hardware, None)


@pytest.fixture(scope="session", params=["h200", "rtx3090"])
def session(request: pytest.FixtureRequest) -> GpuSession:
    """With a copy engine, and without."""
    return interpreted(request.param)


@pytest.fixture(scope="session")
def h200() -> GpuSession:
    return interpreted("h200")
