"""The part of `ftuner demo` that compiles a module of PyTorch."""

from __future__ import annotations

import pytest
from tests.cli.invoking import document
from tests.tools.demo.demo_extra import needs_extra

from ftuner.errors import ConfigurationError
from ftuner_tools.demo import modules


def test_compiled() -> None:
    pytest.importorskip("torch")
    found = modules.compiled(1)
    assert found.difference < 1e-4
    assert "product" in found.steps
    shapes = [(*shape, modules.WIDTH) for shape in sorted(modules.SHAPES)]
    assert [row.shape for row in found.latencies] == shapes


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="install it with: pip install 'ftuner"):
        modules.needs_torch()


@needs_extra
def test_the_rest_runs_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "find_spec", lambda name: None)
    found = document("demo", "--query", "delete a folder and everything in it")
    assert modules.INSTALL in found["module"]["missing"]
    assert found["page"]["lines"]
