"""Tests of onnxruntime's interface need onnxruntime, and compile with the tests' back end."""

from importlib.util import find_spec

import pytest

from ftuner.runtime.cpu.backend import CpuBackend

collect_ignore_glob = [] if find_spec("onnxruntime") and find_spec("onnx") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _on_widest(as_default: CpuBackend) -> None:
    pass
