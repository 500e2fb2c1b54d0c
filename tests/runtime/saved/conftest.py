"""The fixtures of tests of saved models, and of models that the cache keeps. What they make needs
onnx, without which these tests are skipped."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ftuner
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.saved import kept

if TYPE_CHECKING:
    from tests.runtime.saved.keeping import Loads


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    """The file of `dense`."""
    path = tmp_path_factory.mktemp("saved") / "dense.ftuner"
    from tests.runtime.saved.files import dense

    ftuner.save(ftuner.load(dense()[0]), path)
    return path


@pytest.fixture
def loads(as_default: CpuBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    from tests.runtime.saved.keeping import Loads

    found, compiler = Loads(Cache(tmp_path / "cache")), import_module("ftuner.compiler")
    compile_file = compiler.compile_file

    def counted(*arguments: Any) -> Any:
        found.compiled += 1
        return compile_file(*arguments)

    monkeypatch.setattr(compiler, "compile_file", counted)
    monkeypatch.setattr(as_default, "cache", found.cache)
    # Other tests register rules, and keep none of their models.
    monkeypatch.setattr(kept, "EXTENSIONS", set())
    monkeypatch.setattr(kept, "MODEL_SHARE", 0.5)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of `dense`."""
    from tests.runtime.saved.files import dense
    from tests.runtime.saved.keeping import written

    return written(tmp_path / "model.onnx", dense()[0])
