"""The part of the demo that reads a page: the engine that rapidocr gets, and what is missing."""

import sys
from pathlib import Path

import numpy as np
import pytest

from ftuner.errors import ConfigurationError
from ftuner_tools.demo import page as demo_page
from ftuner_tools.demo.page import Engine


def write_model(path: Path) -> None:
    """A model whose metadata lists three characters."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    shape = ["n", 3, "height", "width"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "recogniser",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"character": "a\nb\nc"})
    onnx.save(model, path)


def test_engine(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    engine = Engine(tmp_path / "model.onnx", threads=1)
    assert engine.have_key()
    assert not engine.have_key("other")
    assert engine.get_character_list() == ["a", "b", "c"]
    for width in (4, 5, 4):
        x = np.linspace(-1, 1, 3 * 2 * width, dtype=np.float32).reshape(1, 3, 2, width)
        assert np.array_equal(engine(x), np.maximum(x, 0))
    assert {shape: len(seconds) for shape, seconds in engine.timed.items()} == {
        (1, 3, 2, 4): 2, (1, 3, 2, 5): 1,
    }  # fmt: skip


def test_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ftuner-tools\[demo\]'"):
        demo_page.photograph()


def test_missing_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_page, "files", lambda name: [])
    with pytest.raises(ConfigurationError, match=r"rapidocr.*pip install 'ftuner-tools\[demo\]'"):
        demo_page.model_paths()
