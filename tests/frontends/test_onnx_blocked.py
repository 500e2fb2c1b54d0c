"""Files that onnxruntime has saved at its highest level, whose convolutions are in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of

from ftuner.errors import GraphError
from ftuner.frontends.onnx import import_model
from ftuner.frontends.onnx.blocked import NCHWC, channels_of_blocks
from ftuner.frontends.onnx.importer import read_model
from ftuner.runtime.reference import run_reference

onnxruntime = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(0)
NODE = helper.make_node


def weight(*shape: int) -> Any:
    return (RANDOM.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)


def saved(nodes: list[Any], constants: dict[str, Any], folder: Path, x: Any) -> tuple[Any, Any]:
    """The file that onnxruntime saves, and what it gives."""
    dims = ["n", x.shape[1], *"hwd"[: x.ndim - 2]]
    model = model_of(nodes, {"x": ("float32", dims)}, ["y"], constants)
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "saved.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return onnx.load(options.optimized_model_filepath), session.run(None, {"x": x})[0]


def assert_agrees(file: Any, x: Any, expected: Any) -> None:
    (found,) = run_reference(import_model(file).graph, [x])
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize("inputs", [3, 16])
@pytest.mark.parametrize("channels", [32, 20])
@pytest.mark.parametrize("last", [False, True])
def test_networks(inputs: int, channels: int, last: bool, tmp_path: Path) -> None:
    """Convolutions of pictures, of each channel alone and of all; pools, sums, concatenations."""
    c = channels
    nodes = [
        NODE("Conv", ["x", "stem", "bias"], ["a"], pads=[1] * 4, strides=[2, 2]),
        NODE("Sigmoid", ["a"], ["b"]),
        NODE("Conv", ["b", "depthwise"], ["c"], pads=[1] * 4, group=c),
        NODE("Clip", ["c", "low", "high"], ["d"]),
        NODE("Conv", ["d", "square"], ["e"], pads=[1] * 4),
        NODE("Add", ["e", "b"], ["f"]),
        NODE("Relu", ["f"], ["g"]),
        NODE("Concat", ["g", "b"], ["h"], axis=1),
        NODE("MaxPool", ["h"], ["i"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        NODE("AveragePool", ["h"], ["j"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        NODE("Add", ["i", "j"], ["k"]),
        NODE("Resize", ["k", "", "scales"], ["l"], mode="linear"),
        NODE("GlobalAveragePool", ["l"], ["m"]),
        NODE("Mul", ["l", "m"], ["y" if not last else "o"]),
        *([NODE("Transpose", ["o"], ["y"], perm=[0, 2, 3, 1])] if last else []),
    ]
    constants = {
        "stem": weight(c, inputs, 3, 3), "bias": weight(c), "depthwise": weight(c, 1, 3, 3),
        "low": np.float32(-0.2), "high": np.float32(0.3), "square": weight(c, c, 3, 3),
        "scales": np.float32([1, 1, 2, 2]),
    }  # fmt: skip
    x = RANDOM.standard_normal((2, inputs, 13, 18), np.float32)
    file, expected = saved(nodes, constants, tmp_path, x)
    assert any(node.domain == NCHWC for node in file.graph.node)
    assert_agrees(file, x, expected)


@pytest.mark.parametrize(
    ("activation", "attributes"),
    [("Elu", {"alpha": 0.7}), ("Selu", {}), ("Softplus", {}), ("Softsign", {}),
     ("ThresholdedRelu", {"alpha": 0.3}), ("LeakyRelu", {}), ("HardSigmoid", {"alpha": 0.3})],
)  # fmt: skip
def test_activations_of_products(
    activation: str, attributes: dict[str, float], tmp_path: Path
) -> None:
    nodes = [NODE("Gemm", ["x", "w", "c"], ["g"]), NODE(activation, ["g"], ["y"], **attributes)]
    x = RANDOM.standard_normal((5, 16), np.float32)
    file, expected = saved(nodes, {"w": weight(16, 9), "c": weight(9)}, tmp_path, x)
    assert [node.op_type for node in file.graph.node] == ["FusedGemm"]
    assert_agrees(file, x, expected)


def test_hard_swish_of_a_convolution(tmp_path: Path) -> None:
    nodes = [
        NODE("Conv", ["x", "w"], ["a"]),
        NODE("HardSigmoid", ["a"], ["s"], alpha=1 / 6, beta=0.5),
        NODE("Mul", ["a", "s"], ["y"]),
    ]
    x = RANDOM.standard_normal((2, 16, 9, 5), np.float32)
    file, expected = saved(nodes, {"w": weight(32, 16, 1, 1)}, tmp_path, x)
    assert_agrees(file, x, expected)


def graph_with(*shapes: tuple[int, ...]) -> Any:
    """A file with a convolution in blocks by a weight of each shape."""
    nodes = [NODE("Conv", ["x", f"w{i}"], [f"y{i}"], domain=NCHWC) for i in range(len(shapes))]
    model = model_of(
        nodes, {"x": ("float32", ["n", 3, "h", "w"])}, [f"y{i}" for i in range(len(shapes))],
        {f"w{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)},
    )  # fmt: skip
    model.opset_import.append(helper.make_opsetid(NCHWC, 1))
    return model


def test_blocks_that_extents_tell() -> None:
    for shapes, channels in (
        ([(32, 3, 3, 3), (24, 32, 1, 1)], 8), ([(32, 24, 1, 1)], 8), ([(32, 12, 3, 3)], 16)
    ):  # fmt: skip
        assert channels_of_blocks(read_model(graph_with(*shapes)).graph) == channels
    for bad in (((24, 3, 3, 3), (32, 12, 3, 3)), ((36, 3, 3, 3),), ((32, 3, 3),)):
        with pytest.raises(GraphError, match="blocks"):
            import_model(graph_with(*bad))
