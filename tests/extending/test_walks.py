"""The walks of docs/extending.md: the page shows the files in this folder, and each walk runs."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from tests.child import printed
from tests.conftest import HOST_ISAS

import ftuner

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SOURCES = Path(ftuner.__file__).parents[1]
PATH = ROOT / "docs" / "extending.md"
PAGE = PATH.read_text()
USE = "use.py"
"""What a walk does with its addition; it does not count as one of the files that are added."""
WALKS = {name: int(files) for name, files in re.findall(r"^\| `(\w+)` .*\| (\d) \|$", PAGE, re.M)}
"""The number of files that each walk adds, as the page says."""
SHOWN = re.compile(r"^`tests/extending/([\w/.]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)


def with_text(shown: re.Match[str]) -> str:
    """The part of the page that shows a file, with the file's text."""
    begin, end = (at - shown.start() for at in shown.span(2))
    return shown[0][:begin] + (HERE / shown[1]).read_text() + shown[0][end:]


def files_of(walk: str) -> list[str]:
    return sorted(p.name for p in (HERE / walk).iterdir() if p.is_file())


def test_page_shows_every_file(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PATH.write_text(SHOWN.sub(with_text, PAGE))
    shown = dict(SHOWN.findall(PATH.read_text()))
    assert sorted(shown) == sorted(f"{w}/{name}" for w in WALKS for name in files_of(w))
    for name, text in shown.items():
        assert text == (HERE / name).read_text(), f"{name}: run pytest with --update-golden"


def test_page_has_every_walk() -> None:
    assert set(WALKS) == {p.name for p in HERE.iterdir() if (p / USE).exists()}


ON_A_GPU = """
import runpy, sys, torch
import ftuner.runtime.request
from ftuner.hardware.recorded import load_recorded
from ftuner.runtime.gpu.backend import GpuBackend
backend = GpuBackend(torch.device("cpu"), load_recorded("h200"), None)
ftuner.runtime.request.backend_of = lambda device: backend
sys.path[0] = sys.argv[1]
runpy.run_path(f"{sys.argv[1]}/use.py")
"""
"""Runs a walk with models on a GPU, whose kernels are interpreted."""


def run(*arguments: str, folder: Path, **variables: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **variables}
    printed(*arguments, cwd=folder, env=environment)


@pytest.fixture
def outside(walk: str, tmp_path: Path) -> Path:
    """A copy of a walk, outside the source tree."""
    if "from onnx import" in (HERE / walk / USE).read_text():
        pytest.importorskip("onnx")
    if walk == "instruction_set" and "avx2" not in HOST_ISAS:
        pytest.skip("this machine lacks avx")
    return Path(shutil.copytree(HERE / walk, tmp_path / walk))


@pytest.mark.parametrize(("walk", "files"), WALKS.items())
def test_walk(walk: str, files: int, outside: Path, cache_folder: Path) -> None:
    assert len([name for name in files_of(walk) if name != USE]) == files
    run(str(outside / USE), folder=outside.parent, FTUNER_CACHE_DIR=str(cache_folder))


@pytest.mark.parametrize("walk", ["front_end", "function", "operator"])
def test_walk_on_a_gpu(walk: str, outside: Path) -> None:
    pytest.importorskip("triton")
    run("-c", ON_A_GPU, str(outside), folder=outside.parent, TRITON_INTERPRET="1")
