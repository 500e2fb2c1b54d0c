"""Tests of front ends need the libraries whose models they read."""

from importlib.util import find_spec
from typing import Any

import pytest

from ftuner.runtime.cpu.backend import CpuBackend

collect_ignore_glob = [] if find_spec("onnx") else ["test_onnx_*.py"]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled from now on."""
    found = []
    compile_ = CpuBackend.compile

    def counted(self: CpuBackend, *args: Any) -> Any:
        found.append(args[0])
        return compile_(self, *args)

    monkeypatch.setattr(CpuBackend, "compile", counted)
    return found
