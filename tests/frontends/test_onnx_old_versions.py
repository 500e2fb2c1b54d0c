"""Files of operator sets before 7, which onnx converts."""

import logging
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ftuner.errors import GraphError
from ftuner.inference import load

onnxruntime = pytest.importorskip("onnxruntime")

Dims = list[int | str]


def model_of(op: str, opset: int, inputs: dict[str, Dims], **attributes: Any) -> bytes:
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), ["y"], **attributes)], "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    found: bytes = model.SerializeToString()
    return found


CASES: dict[str, bytes] = {
    "Relu": model_of("Relu", 1, {"x": ["a", "b"]}, consumed_inputs=[0]),
    "Add": model_of("Add", 6, {"x": [2, 3], "z": [3]}, broadcast=1),
    "Gemm": model_of("Gemm", 6, {"x": [2, 3], "w": [3, 4], "c": [4]}, broadcast=1),
    "Concat": model_of("Concat", 4, {"x": ["a", "b"], "z": ["a", "b"]}, axis=1),
    "MaxPool": model_of("MaxPool", 1, {"x": ["n", 3, "h", "w"]}, kernel_shape=[2, 2]),
    "Reshape": model_of("Reshape", 1, {"x": ["a", "b"]}, shape=[-1]),
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
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    new = onnx.version_converter.convert_version(onnx.load_from_string(data), 7)
    peer = onnxruntime.InferenceSession(new.SerializeToString(), options)
    (wanted,) = peer.run(None, feeds)
    np.testing.assert_allclose(model(**feeds)["y"], wanted, rtol=1e-6, atol=1e-6)


def test_what_onnx_cannot_convert() -> None:
    data = model_of("Add", 6, {"x": ["a", "b"], "z": ["a", "b"]})
    with pytest.raises(GraphError, match="of opset 6, and onnx cannot convert it to 7: "):
        load(data)
