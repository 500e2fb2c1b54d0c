"""A start that finds everything in the cache: LLVM is neither imported nor in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ftuner.runtime.cache import CACHE_VARIABLE

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="LLVM loads objects other than ELF"
)
PRODUCT = """
import numpy as np, ftuner
x = np.ones((3, 40), np.float32)
assert np.array_equal(ftuner.matmul(x, x.T), np.full((3, 3), 40, np.float32))
"""
MODEL = """
import sys, numpy as np, ftuner
model = ftuner.load(sys.argv[1])
(found,) = model.run({"x": np.ones((5, 24), np.float32)})
assert np.allclose(found, 1 / 16)
"""
LOADED = """
import sys
from pathlib import Path
print(*{"llvmlite.binding", "llvmlite.ir"} & sys.modules.keys(), end=" ")
print("libllvmlite" in Path("/proc/self/maps").read_text())
"""


def run(script: str, cache_folder: Path, *arguments: str) -> str:
    """What a process says of LLVM after a script: modules of llvmlite but the one that tells its
    version, and whether the library is mapped."""
    command = [sys.executable, "-c", script + LOADED, *arguments]
    environment = {**os.environ, CACHE_VARIABLE: str(cache_folder)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.strip()


def test_products_start_without_llvm(cache_folder: Path) -> None:
    run(PRODUCT, cache_folder)
    assert run(PRODUCT, cache_folder) == "False"


def test_models_start_without_llvm(cache_folder: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    tensors = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", columns])
        for name, columns in (("x", 24), ("y", 16))
    ]
    weight = onnx.numpy_helper.from_array(np.ones((24, 16), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "small", tensors[:1], tensors[1:], [weight])
    path = tmp_path / "small.onnx"
    opsets = [helper.make_opsetid("", 18)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    run(MODEL, cache_folder, str(path))
    assert run(MODEL, cache_folder, str(path)) == "False"
