"""A program frozen by PyInstaller, without options: it computes what it should, and never starts
itself."""

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import ftuner
from ftuner.runtime.cache import CACHE_VARIABLE

pytest.importorskip("PyInstaller")
onnx = pytest.importorskip("onnx")
ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "frozen_program.py"
FUNCTIONS = ("Relu", "Tanh", "Sigmoid", "Erf", "Exp", "Softplus", "Sin", "Cos")
BUILD_S = 600.0
RUN_S = 120.0


def write_model(path: Path) -> None:
    """A chain with many kernels, so that compiling in several processes pays."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for function in FUNCTIONS:
        weight = random.standard_normal((64, 64), np.float32) / 8
        weights.append(onnx.numpy_helper.from_array(weight, f"w_{function}"))
        for op, more in (("MatMul", [f"w_{function}"]), (function, []), ("Softmax", [])):
            nodes.append(onnx.helper.make_node(op, [x, *more], [f"{op}_{function}"]))
            x = f"{op}_{function}"
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 64])
        for name in ("x", x)
    ]
    graph = onnx.helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def test_the_hook_is_found() -> None:
    """By the entry point that an installation has."""
    project = (ROOT / "pyproject.toml").read_text()
    assert 'hook-dirs = "ftuner.__pyinstaller.folders:get_hook_dirs"' in project
    (folder,) = import_module("ftuner.__pyinstaller.folders").get_hook_dirs()
    assert (Path(folder) / "hook-ftuner.py").is_file()


def test_the_hook_names_what_is_imported_by_name() -> None:
    hook = (Path(ftuner.__file__).parent / "__pyinstaller" / "hook-ftuner.py").read_text()
    for path in Path(ftuner.__file__).parent.rglob("*.py"):
        if path.parent.name == "cli":
            continue
        for name in re.findall(r'import_module\(\s*"([\w.]+)"', path.read_text(encoding="utf-8")):
            root = name.split(".")[0]
            assert root == "ftuner" or f'"{root}' in hook, f"{path} imports {name}"


@pytest.mark.full
def test_a_frozen_program(tmp_path: Path) -> None:
    hooks = Path(ftuner.__file__).parent / "__pyinstaller"
    command = [
        sys.executable, "-m", "PyInstaller", "--onedir", "--noconfirm", "--log-level", "WARN",
        "--additional-hooks-dir", str(hooks), "--distpath", "dist", str(PROGRAM),
    ]  # fmt: skip
    source = str(Path(ftuner.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "PYINSTALLER_CONFIG_DIR": str(tmp_path)}
    built = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BUILD_S,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    folder = tmp_path / "dist" / PROGRAM.stem
    others = [p for name in ("torch", "openvino", "matplotlib") for p in folder.rglob(name)]
    assert not [path for path in others if "ftuner" not in path.parts]
    model, starts = tmp_path / "chain.onnx", tmp_path / "starts"
    write_model(model)
    # It needs nothing of the installation that made it.
    moved = Path(shutil.move(folder, tmp_path / "moved"))
    environment = {CACHE_VARIABLE: str(tmp_path / "cache"), "PATH": "", "FTUNER_PROGRESS": "1"}
    for _ in range(2):
        ran = subprocess.run(
            [moved / PROGRAM.stem, model, starts], cwd=tmp_path, env=environment,
            capture_output=True, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "Error" not in ran.stderr
    assert len(starts.read_text().split()) == 2
    x = np.linspace(-1, 1, 5 * 64, dtype=np.float32).reshape(5, 64)
    (expected,) = ftuner.load(model)(x=x).values()
    assert np.allclose(np.load(f"{starts}.npy"), expected, rtol=1e-5)
