"""Files of operator sets before 7, which onnx converts."""

import logging
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx_models import by_onnxruntime, model_of

from ftuner.errors import GraphError
from ftuner.inference import load

Dims = list[int | str]


def of(op: str, opset: int, inputs: dict[str, Dims], **attributes: Any) -> bytes:
    node = helper.make_node(op, list(inputs), ["y"], **attributes)
    model = model_of([node], {n: ("float32", d) for n, d in inputs.items()}, ["y"], opset=opset)
    model.ir_version = 3
    return bytes(model.SerializeToString())


CASES: dict[str, bytes] = {
    "Relu": of("Relu", 1, {"x": ["a", "b"]}, consumed_inputs=[0]),
    "Add": of("Add", 6, {"x": [2, 3], "z": [3]}, broadcast=1),
    "Gemm": of("Gemm", 6, {"x": [2, 3], "w": [3, 4], "c": [4]}, broadcast=1),
    "Concat": of("Concat", 4, {"x": ["a", "b"], "z": ["a", "b"]}, axis=1),
    "MaxPool": of("MaxPool", 1, {"x": ["n", 3, "h", "w"]}, kernel_shape=[2, 2]),
    "Reshape": of("Reshape", 1, {"x": ["a", "b"]}, shape=[-1]),
}
SIZES = {"a": 2, "b": 3, "n": 2, "h": 5, "w": 7}


@pytest.mark.parametrize("name", CASES)
def test_old_files_are_converted(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftuner")
    data = CASES[name]
    model = load(data)
    assert len([r for r in caplog.records if "onnx has converted it to 7" in r.message]) == 1
    rng = np.random.default_rng(0)
    feeds = {
        spec.name: rng.standard_normal([SIZES.get(str(n), n) for n in spec.shape], np.float32)
        for spec in model.inputs
    }
    new = onnx.version_converter.convert_version(onnx.load_from_string(data), 7)
    (wanted,) = by_onnxruntime(new, feeds)
    np.testing.assert_allclose(model(**feeds)["y"], wanted, rtol=1e-6, atol=1e-6)


def test_what_onnx_cannot_convert() -> None:
    data = of("Add", 6, {"x": ["a", "b"], "z": ["a", "b"]})
    with pytest.raises(GraphError, match="of opset 6, and onnx cannot convert it to 7: "):
        load(data)
