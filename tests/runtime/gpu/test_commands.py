"""Model commands on a device, which is interpreted."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from tests.cli.invoking import document, run
from tests.frontends.onnx_models import parsed

from ftuner.cli.main import EXIT_USAGE
from ftuner.runtime.gpu.backend import GpuBackend

WEIGHT = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


@pytest.fixture
def layer(tmp_path: Path) -> str:
    nodes = "product = MatMul(x, weight) y = Relu(product)"
    model = parsed(f"(float[batch, 8] x) => (y) {{ {nodes} }}", weight=WEIGHT)
    onnx.save(model, tmp_path / "layer.onnx")
    return str(tmp_path / "layer.onnx")


def test_run_and_compare(
    layer: str, tmp_path: Path, h200: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftuner.runtime.request.backend_of", lambda device: h200)
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    given = (layer, "--input", f"x={tmp_path / 'x.npy'}", "--device", "cuda")
    found = document("run", *given, "--output-dir", str(tmp_path))
    assert (found["device"], found["threads"]) == ("cuda", 1)
    expected = np.maximum(x @ WEIGHT, 0.0)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5, atol=1e-5)
    # Halves are told from floats by their errors.
    document("run", *given, "--dtype", "bfloat16", "--output-dir", str(tmp_path))
    error = np.abs(np.load(tmp_path / "y.npy") - expected).max()
    assert 1e-4 < error < 0.1
    pytest.importorskip("onnxruntime")
    assert document("compare", *given)["within"]
    assert not document("compare", *given, "--dtype", "bfloat16", exit_code=1)["within"]


def test_explain_measures_steps(
    layer: str, h200: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftuner.runtime.request.backend_of", lambda device: h200)
    found = document("explain", layer, "--shape", "x=3x8", "--device", "cuda")
    (group,) = found["groups"]
    assert group["measured_s"] > 0
    assert group["estimate_s"] is None
    assert found["memory"]["outputs_bytes"] == 4 * 3 * 5
    assert found["measured"]["device"] == "cuda"
    shown = run("explain", layer, "--shape", "x=3x8", "--device", "cuda")
    assert "on cuda with 1 thread" in " ".join(shown.stdout.split())


def test_halves_are_for_a_gpu(layer: str) -> None:
    result = run("run", layer, "--shape", "x=3x8", "--dtype", "bfloat16")
    assert result.exit_code == EXIT_USAGE
    assert "which only a GPU multiplies here" in result.stderr


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
def test_explain_measures_the_steps_of_convolutions(
    tmp_path: Path, h200: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are others than those of a CPU."""
    monkeypatch.setattr("ftuner.runtime.request.backend_of", lambda device: h200)
    text = """(float[n, 8, h, w_] x) => (y) {
        a = Conv<pads=[1, 1, 1, 1]>(x, w)
        y = Conv<pads=[1, 1, 1, 1], group=2>(a, g)
    }"""
    random = np.random.default_rng(0)
    w, g = (random.standard_normal((32, n, 3, 3), np.float32) for n in (8, 16))
    model = parsed(text, w=w, g=g)
    onnx.save(model, tmp_path / "layers.onnx")
    found = document(
        "explain", str(tmp_path / "layers.onnx"), "--shape", "x=1x8x4x5", "--device", "cuda"
    )
    titles = [group["title"] for group in found["groups"]]
    assert titles.count("convolution") == 2
