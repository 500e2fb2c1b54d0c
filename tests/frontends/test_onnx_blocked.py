"""Files that onnxruntime has saved at its highest level, whose convolutions are in blocks."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of, parsed

from ftuner.errors import GraphError
from ftuner.frontends.onnx.blocked import NCHWC, channels_of_blocks
from ftuner.frontends.onnx.importer import import_model, read_model
from ftuner.runtime.reference import run_reference

onnxruntime = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(0)


def weight(*shape: int) -> Any:
    return (RANDOM.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)


def saved(nodes: str, folder: Path, x: Any, **constants: Any) -> tuple[Any, Any]:
    """The file that onnxruntime saves, and what it gives."""
    dims = ", ".join(["n", str(x.shape[1]), *"hwd"[: x.ndim - 2]])
    model = parsed(f"(float[{dims}] x) => (y) {{ {nodes} }}", **constants)
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
    nodes = f"""
        a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, stem, bias)
        b = Sigmoid(a)
        c = Conv<pads=[1, 1, 1, 1], group={c}>(b, depthwise)
        d = Clip(c, low, high)
        e = Conv<pads=[1, 1, 1, 1]>(d, square)
        f = Add(e, b)
        g = Relu(f)
        h = Concat<axis=1>(g, b)
        i = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(h)
        j = AveragePool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(h)
        k = Add(i, j)
        l = Resize<mode="linear">(k, "", scales)
        m = GlobalAveragePool(l)
        {"o" if last else "y"} = Mul(l, m)
        {"y = Transpose<perm=[0, 2, 3, 1]>(o)" if last else ""}
    """
    constants = {
        "stem": weight(c, inputs, 3, 3), "bias": weight(c), "depthwise": weight(c, 1, 3, 3),
        "low": np.float32(-0.2), "high": np.float32(0.3), "square": weight(c, c, 3, 3),
        "scales": np.float32([1, 1, 2, 2]),
    }  # fmt: skip
    x = RANDOM.standard_normal((2, inputs, 13, 18), np.float32)
    file, expected = saved(nodes, tmp_path, x, **constants)
    assert any(node.domain == NCHWC for node in file.graph.node)
    assert_agrees(file, x, expected)


@pytest.mark.parametrize(
    "activation",
    ["Elu<alpha=0.7>", "Selu", "Softplus", "Softsign", "ThresholdedRelu<alpha=0.3>", "LeakyRelu",
     "HardSigmoid<alpha=0.3>"],
)  # fmt: skip
def test_activations_of_products(activation: str, tmp_path: Path) -> None:
    nodes = f"g = Gemm(x, w, c) y = {activation}(g)"
    x = RANDOM.standard_normal((5, 16), np.float32)
    file, expected = saved(nodes, tmp_path, x, w=weight(16, 9), c=weight(9))
    assert [node.op_type for node in file.graph.node] == ["FusedGemm"]
    assert_agrees(file, x, expected)


def test_hard_swish_of_a_convolution(tmp_path: Path) -> None:
    nodes = "a = Conv(x, w) s = HardSigmoid<alpha=0.16666667, beta=0.5>(a) y = Mul(a, s)"
    x = RANDOM.standard_normal((2, 16, 9, 5), np.float32)
    file, expected = saved(nodes, tmp_path, x, w=weight(32, 16, 1, 1))
    assert_agrees(file, x, expected)


def graph_with(*shapes: tuple[int, ...]) -> Any:
    """A file with a convolution in blocks by a weight of each shape."""
    convolution = partial(helper.make_node, "Conv", domain=NCHWC)
    nodes = [convolution(["x", f"w{i}"], [f"y{i}"]) for i in range(len(shapes))]
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
