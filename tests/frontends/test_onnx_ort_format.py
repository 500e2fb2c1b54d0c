"""Models in onnxruntime's own format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed

import ftuner.ort
from ftuner.errors import FTunerError, ParseError
from ftuner.frontends.onnx.reading import load as read
from ftuner.inference import load

onnxruntime = pytest.importorskip("onnxruntime")

LEVELS = onnxruntime.GraphOptimizationLevel


def model() -> Any:
    """Nodes with attributes of every kind: numbers, lists, strings, tensors and graphs."""
    text = """(float[n, 4] x, string[m] k) => (y, z)
            <int64[1] axes = {1}, float zero = {0}, int64 zeroth = {0}> {
        h = Gemm<alpha=0.5, transB=1>(x, w)
        m = ReduceMax<keepdims=0>(h, axes)
        hits = Less(zero, m)
        b = Gather(hits, zeroth)
        y = If(b) <then_branch = t () => (t) { t = Relu(h) },
                   else_branch = e () => (e) { e = Neg(h) }>
        z = ai.onnx.ml.LabelEncoder<keys_strings=["a", "\u00e9"], values_floats=[1.5, 2.0]>(k)
    }"""
    found = parsed(text, w=np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32))
    entry = found.metadata_props.add()
    entry.key, entry.value = "words", "some"
    return found


def saved(path: Path, level: Any) -> bytes:
    """The model as onnxruntime writes it."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = level
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model().SerializeToString(), options)
    return path.read_bytes()


@pytest.mark.parametrize("level", [LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_BASIC])
def test_what_onnxruntime_saves(tmp_path: Path, level: Any) -> None:
    path = tmp_path / "model.ort"
    data = saved(path, level)
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    feeds = {"x": x, "k": np.array(["\u00e9", "b", "a"], object)}
    peer = onnxruntime.InferenceSession(str(path))
    for session in (ftuner.ort.InferenceSession(str(path)), ftuner.ort.InferenceSession(data)):
        for one, other in zip(peer.get_inputs(), session.get_inputs(), strict=True):
            assert (one.name, one.type, one.shape) == (other.name, other.type, other.shape)
        assert session.get_modelmeta().custom_metadata_map["words"] == "some"
        for one, other in zip(peer.run(None, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    assert set(load(path).run(feeds)[1]) == set(peer.run(None, feeds)[1])


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    data = saved(tmp_path / "model.ort", LEVELS.ORT_ENABLE_BASIC)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        for at in rng.integers(8, len(data), rng.integers(1, 5)):
            damaged[at] = rng.choice((0, 255, damaged[at] ^ 1 << int(rng.integers(8))))
        try:
            read(bytes(damaged[: rng.choice((len(data), rng.integers(8, len(data))))]))
        except FTunerError:
            refused += 1
    assert refused > 200
    with pytest.raises(ParseError, match=r"ORT format.*give the ONNX file"):
        read(data[:-200])
