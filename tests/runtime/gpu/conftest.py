"""Kernels run in Triton's interpreter, which must be chosen before triton is imported."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ftuner.runtime.gpu.backend import GpuBackend

os.environ["TRITON_INTERPRET"] = "1"
collect_ignore_glob = [] if find_spec("torch") and find_spec("triton") else ["test_*.py"]
BACKENDS = "tests.runtime.gpu.backends"
"""Imported by name: it needs torch and triton."""


@pytest.fixture(scope="session", params=["h200", "rtx3090"])
def backend(request: pytest.FixtureRequest) -> GpuBackend:
    """With a copy engine, and without."""
    found: GpuBackend = import_module(BACKENDS).interpreted(request.param)
    return found


@pytest.fixture(scope="session")
def h200() -> GpuBackend:
    found: GpuBackend = import_module(BACKENDS).interpreted("h200")
    return found
