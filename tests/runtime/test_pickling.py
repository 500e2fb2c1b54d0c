"""Layers and models are pickled by what they were made from, or say how to move them."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.child import printed

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.builder import Builder
from ftuner.runtime.cpu.backend import default_backend

RNG = np.random.default_rng(7)


def clipped(value: Any) -> Any:
    return value * 2.0 + 1.0


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(64, 32), (77, 5), (1, 1), (200, 300), (0, 4), (5, 0)])
@pytest.mark.parametrize(
    ("biased", "activation", "residual"),
    [(False, None, False), (True, "gelu", True), (False, clipped, True), (True, None, False)],
)
def test_a_layer_is_pickled_as_its_weights(
    dtype: Any, shape: tuple[int, int], biased: bool, activation: Any, residual: bool
) -> None:
    weight = RNG.standard_normal(shape).astype(dtype)
    bias = RNG.standard_normal(shape[0]).astype(dtype) if biased else None
    layer = ftuner.Dense(weight, bias, activation, residual)
    unpacked, kept = layer.weights()
    np.testing.assert_array_equal(unpacked, weight)
    assert (kept is None) == (bias is None)
    again = pickle.loads(pickle.dumps(layer))
    assert isinstance(again, ftuner.Dense)
    assert repr(again) == repr(layer)
    assert again.epilogue == layer.epilogue
    x = RNG.standard_normal((7, shape[1])).astype(dtype)
    given = (x, RNG.standard_normal((7, shape[0])).astype(dtype)) if residual else (x,)
    np.testing.assert_array_equal(again(*given), layer(*given))
    # What was pickled once is pickled like the first.
    assert pickle.loads(pickle.dumps(again)).epilogue == layer.epilogue


def test_a_layer_with_a_function_of_the_moment_is_pickled() -> None:
    layer = ftuner.Dense(np.ones((4, 3), np.float32), None, lambda value: value + 1.0)
    again = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(again(np.ones((2, 3), np.float32)), 4.0)


def test_a_copy_of_a_layer_is_the_layer() -> None:
    layer = ftuner.Dense(np.ones((4, 3), np.float32))
    assert copy.copy(layer) is layer
    assert copy.deepcopy({"layer": layer})["layer"] is layer


def test_a_layer_of_a_back_end_says_how_to_move_it() -> None:
    layer = default_backend().dense(np.ones((4, 3), np.float32), None, None, False, None)
    with pytest.raises(ftuner.PickleError, match=r"ftuner\.Dense"):
        pickle.dumps(layer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    parsed = pytest.importorskip("tests.frontends.onnx_models").parsed
    found = tmp_path / "small.onnx"
    made = parsed("(float[n] x) => (float[n] y) { y = Relu(x) }")
    found.write_bytes(made.SerializeToString())
    return found


def test_a_model_is_pickled_as_its_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    for source in (str(path), path, path.name):
        model = ftuner.load(source, threads=1)
        again = pickle.loads(pickle.dumps(model))
        assert isinstance(again, ftuner.Model)
        assert again.threads == 1
        assert again.inputs == model.inputs
        x = RNG.standard_normal(5).astype(np.float32)
        np.testing.assert_array_equal(again(x=x)["y"], model(x=x)["y"])


def test_another_process_loads_a_pickled_model(path: Path) -> None:
    text = pickle.dumps(ftuner.load(path))
    script = (
        f"import numpy, pickle; model = pickle.loads({text!r}); "
        "print(float(model(x=numpy.ones(3, 'float32'))['y'].sum()))"
    )
    done = printed("-c", script)
    assert done.split() == ["3.0"]


def test_a_pickled_model_whose_file_is_gone_is_a_named_error(path: Path) -> None:
    text = pickle.dumps(ftuner.load(path))
    path.unlink()
    with pytest.raises(ftuner.MissingFileError, match=r"small\.onnx"):
        pickle.loads(text)


def test_models_without_a_path_say_how_to_move_them(path: Path) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("n"),))
    compiled = ftuner.compile(builder.graph([x], [("y", builder.add("negative", x))]))
    for model in (compiled, ftuner.load(path.read_bytes())):
        with pytest.raises(ftuner.PickleError, match="send the path, bytes or graph"):
            pickle.dumps(model)
        assert copy.deepcopy(model) is model


def test_a_missing_file_is_the_errors_that_callers_expect(tmp_path: Path) -> None:
    for kind in (ftuner.MissingFileError, ftuner.GraphError, FileNotFoundError):
        with pytest.raises(kind, match=r"cannot read .*nowhere\.onnx: there is no such file"):
            ftuner.load(tmp_path / "nowhere.onnx")
    for kind in (ftuner.MissingMachineError, ftuner.HardwareError, FileNotFoundError):
        with pytest.raises(kind, match=r"cannot read .*nowhere\.toml: No such file"):
            ftuner.explain(1, 2, 3, hardware=tmp_path / "nowhere.toml")
    with pytest.raises(ftuner.MissingMachineError, match="No such file"):
        ftuner.tune(prior=tmp_path / "nowhere.json")


@pytest.mark.parametrize("content", [b"", b"# A page of text\n" * 9, b"\x89PNG\r\n\x1a\n" * 9])
def test_what_is_no_model_is_a_named_error(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("onnx")
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    with pytest.raises(ftuner.GraphError, match=r"other\.onnx: not an ONNX model"):
        ftuner.load(path)
    with pytest.raises(ftuner.GraphError, match="cannot read"):
        ftuner.load(tmp_path)
