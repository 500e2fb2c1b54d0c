"""`ftuner demo`, where its extra is installed."""

import re
import sys
from pathlib import Path

import pytest
from tests.cli.invoking import document, run
from tests.tools.demo.demo_extra import needs_extra

from ftuner_tools.demo.sentences import ENCODER

LINES = (
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
    "markers = np.zeros_like(coins)",
)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blingfire", None)
    result = run("demo")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("ftuner: ConfigurationError: ")
    assert "pip install 'ftuner-tools[demo]'" in line


def test_the_extra_has_all_that_is_imported() -> None:
    project = (Path(__file__).parents[3] / "tools" / "pyproject.toml").read_text(encoding="utf-8")
    (extra,) = re.findall(r"^demo = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    listed = {re.split("[=<>]", entry)[0] for entry in re.findall(r'"(.*?)"', extra)}
    assert listed == {"onnx", "blingfire", ENCODER, "rapidocr", "scikit-image"}


@needs_extra
def test_document() -> None:
    found = document("demo", "--query", "delete a folder and everything in it")
    ((best, *_),) = found["matches"].values()
    assert best["name"] == "shutil.rmtree"
    assert len(found["latencies"]) > 10
    assert tuple(found["page"]["lines"]) == LINES
    shapes = {(row["model"], *row["shape"][:3]) for row in found["page"]["latencies"]}
    assert shapes == {
        ("detection", 1, 3, 736), ("angle", 6, 3, 48), ("angle", 1, 3, 48),
        ("recognition", 6, 3, 48), ("recognition", 1, 3, 48),
    }  # fmt: skip


@needs_extra
def test_shown() -> None:
    shown = run("demo")
    assert shown.exit_code == 0
    for part in ("shutil.rmtree", "latency by shape", "first call", "What to do next", *LINES):
        assert part in shown.stdout
    machine = run("hardware").stdout + run("tune", "--no-calibration").stdout
    assert len((machine + shown.stdout).splitlines()) <= 75, "three screens"
