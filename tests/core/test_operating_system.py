"""The package where every call is missing that Linux has and another system may not have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ftuner

ROOT = Path(__file__).parents[2]
CORE = """
import sys
import numpy as np, onnx
from onnx import helper, numpy_helper
import ftuner
from ftuner.core import operating_system
from ftuner.runtime.cache import default_cache
from ftuner.runtime.cpu.session import keep_hardware
from tests.emulated import with_rates_of

assert not operating_system.has_system_calls() and operating_system.instruction_flush() is None
keep_hardware(default_cache(), with_rates_of(sys.argv[1]))
rng = np.random.default_rng(1)
for m, n, k in ((1, 64, 32), (77, 50, 64), (400, 300, 200)):
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    np.testing.assert_allclose(ftuner.matmul(a, b), a @ b, rtol=1e-4)

b = rng.random((64, 50), np.float32)
value = lambda name, *shape: helper.make_tensor_value_info(name, 1, shape)
nodes = [helper.make_node("MatMul", ["x", "b"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
graph = helper.make_graph(nodes, "g", [value("x", "m", 64)], [value("y", "m", 50)],
                          [numpy_helper.from_array(b, "b")])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "model.onnx")
for threads in (1, 2):
    model = ftuner.load("model.onnx", threads=threads)
    for m in (1, 77, 300):
        x = rng.standard_normal((m, 64), np.float32)
        np.testing.assert_allclose(model.run({"x": x})[0], np.maximum(x @ b, 0), atol=1e-4)
ftuner.save(model, "model.ftuner")
y = ftuner.load("model.ftuner").run({"x": x})[0]
np.testing.assert_allclose(y, np.maximum(x @ b, 0), atol=1e-4)
print("right")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="takes from Linux what others lack")
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_core_without_linux(tmp_path: Path, system: str) -> None:
    """Products, a model on one and two threads, and a saved model, which is compiled again; twice,
    the second time by the cache."""
    (tmp_path / "sitecustomize.py").write_text("import tests.foreign_system\n")
    recorded = "graviton2" if os.uname().machine == "aarch64" else "xeon-8375c"
    paths = (tmp_path, ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    environment = {
        **os.environ, "FOREIGN_SYSTEM": system, "FTUNER_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([*map(str, paths), str(Path(ftuner.__file__).parents[1])]),
    }  # fmt: skip
    kept = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CORE, recorded], env=environment, cwd=tmp_path, timeout=300,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout == "right\n", done.stderr[-3000:]
        assert "this process cannot place code by itself" in done.stderr
        kept.append({path.name: path.read_bytes() for path in tmp_path.glob("cache/objects/*")})
    assert kept[0]
    assert kept[0] == kept[1]
    native = b"".join(kept[0].values())
    assert [name for name in (b"syscall", b"sched_", b"prctl") if name in native] == []
    assert (b"usleep" in native) == (system == "darwin")
