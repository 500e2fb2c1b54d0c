"""`ftuner.quantize`: files with ranges from samples, beside float64 and onnxruntime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.frontends.onnx_models import parsed

import ftuner
from ftuner.errors import ConfigurationError, GraphError, InputError, MissingFileError

RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


WEIGHT, SECOND, BIAS = numbers(37, 23), numbers(5, 23), numbers(23)


FILTERS = {
    "a": numbers(7, 3, 3, 3), "b": numbers(7), "c": numbers(7, 7, 1, 1), "d": numbers(7, 1, 1, 1)
}  # fmt: skip


def layers() -> onnx.ModelProto:
    """Two products, one of a transposed weight, that a third value also reads."""
    text = """(float[batch, 37] x) => (y, most) {
        [first] product = MatMul(x, weight)
        sum = Add(product, bias)
        hidden = Relu(sum)
        [last] y = Gemm<transB=1>(hidden, second)
        most = ReduceMax<keepdims=0>(hidden)
    }"""
    return parsed(text, weight=WEIGHT, second=SECOND, bias=BIAS)


def convolutions() -> onnx.ModelProto:
    """A residual block, and a convolution in groups."""
    text = """(float[n, 3, h, w] x) => (y) {
        [first] first = Conv<pads=[1, 1, 1, 1]>(x, a, b)
        hidden = Relu(first)
        [second] second = Conv<strides=[1, 1]>(hidden, c)
        sum = Add(second, hidden)
        [apart] y = Conv<group=7>(sum, d)
    }"""
    return parsed(text, **FILTERS)


def levels(x: Array, low: float, high: float) -> Array:
    """What levels of uint8 stand for, in float64."""
    scale = np.float64(np.float32((max(high, 0) - min(low, 0)) / 255))
    zero = np.rint(-min(low, 0) / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def weight_levels(weight: Array, axis: int) -> Array:
    scale = np.abs(weight).max(axis, keepdims=True) / np.float32(127)
    return np.rint(weight / scale).astype(np.float64) * scale


def onnxruntime_results(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString())
    return list(session.run(None, dict(feeds)))


@pytest.mark.parametrize("rows", [1, 13, 64])
def test_products_are_those_of_the_levels(rows: int) -> None:
    x = numbers(rows, 37)
    found = ftuner.quantize(layers(), [{"x": x}])
    assert found.layers == ("first", "last")
    assert not found.left
    hidden = np.maximum(levels(x, x.min(), x.max()) @ weight_levels(WEIGHT, 0) + BIAS, 0)
    exact = np.maximum(x.astype(np.float64) @ WEIGHT + BIAS, 0)
    y = levels(hidden, 0, exact.max()) @ weight_levels(SECOND, 1).T
    results = ftuner.load(found.model).run({"x": x})
    # A level that is a tie in float32 may be the next one.
    step = exact.max() / 255 * np.abs(SECOND).max()
    assert np.abs(results[0] - y).max() <= 1.01 * step
    assert np.mean(np.abs(results[0] - y) > 1e-3 * step) < 0.05
    np.testing.assert_allclose(results[1], hidden.max(), rtol=1e-5)
    for ours, theirs in zip(results, onnxruntime_results(found.model, {"x": x}), strict=True):
        assert np.abs(ours - theirs).max() <= 1.01 * step


def test_convolutions() -> None:
    samples = [{"x": numbers(1, 3, 11, 9)}, {"x": numbers(2, 3, 5, 7)}]
    found = ftuner.quantize(convolutions(), samples)
    assert found.layers == ("first", "second")
    assert found.left == {"apart": "7 groups"}
    # The sum reads the levels that the second convolution reads.
    read = {node.name or node.op_type: list(node.input) for node in found.model.graph.node}
    assert read["Add"][1] == read["second"][0]
    exact, model = ftuner.load(convolutions()), ftuner.load(found.model)
    for feeds in (*samples, {"x": numbers(3, 3, 1, 13)}, {"x": numbers(0, 3, 4, 4)}):
        (y,), (expected,) = model.run(feeds), exact.run(feeds)
        assert y.shape == expected.shape
        if y.size:
            error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
            assert 1e-4 < error < 0.05
            (theirs,) = onnxruntime_results(found.model, feeds)
            np.testing.assert_allclose(y, theirs, atol=0.02 * np.abs(expected).max())


def scale_of(found: ftuner.Quantized, name: str) -> float:
    tensors = {x.name: numpy_helper.to_array(x) for x in found.model.graph.initializer}
    return float(tensors[f"{name}_scale"])


def test_ranges() -> None:
    x = numbers(1000, 37)
    x[0, 0] = 40
    scales = {
        how: scale_of(ftuner.quantize(layers(), iter([{"x": x}]), ranges=how), "x")
        for how in ("minmax", "percentile", "mse")
    }
    assert scales["minmax"] == pytest.approx((40 - x.min()) / 255, rel=1e-6)
    low, high = np.percentile(x, [0.005, 99.995])
    assert scales["percentile"] == pytest.approx((high - low) / 255, rel=0.05)

    def error(scale: float) -> float:
        zero = np.rint(-x.min() / scale)
        return float(((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale - x).var())

    assert scales["mse"] < scales["minmax"]
    assert error(scales["mse"]) <= error(scales["minmax"])
    all_of_it = ftuner.quantize(layers(), [{"x": x}], ranges="percentile", percentile=100)
    assert scale_of(all_of_it, "x") == pytest.approx(scales["minmax"], rel=1e-3)


def test_kept_layers_stay() -> None:
    x = numbers(3, 37)
    by_node = ftuner.quantize(layers(), [{"x": x}], keep=["last"])
    by_output = ftuner.quantize(layers(), [{"x": x}], keep=["y"])
    assert by_node.layers == by_output.layers == ("first",)
    assert by_node.left == {"last": "kept"}
    assert by_node.model == by_output.model


def test_zeros_have_the_scale_1() -> None:
    x = np.zeros((2, 37), np.float32)
    model = layers()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(WEIGHT * 0, "weight"))
    found = ftuner.quantize(model, [{"x": x}])
    assert scale_of(found, "x") == 1
    np.testing.assert_array_equal(
        ftuner.load(found.model).run({"x": x})[1], np.maximum(BIAS, 0).max()
    )


def test_weights_beside_the_file(tmp_path: Path) -> None:
    x = numbers(2, 37)
    onnx.save(
        layers(), tmp_path / "layers.onnx", save_as_external_data=True, location="weights",
        size_threshold=0,
    )  # fmt: skip
    found = ftuner.quantize(tmp_path / "layers.onnx", [{"x": x}], tmp_path / "out.onnx")
    assert found.model == ftuner.quantize(layers(), [{"x": x}]).model
    (tmp_path / "weights").unlink()
    for ours, theirs in zip(
        ftuner.load(tmp_path / "out.onnx").run({"x": x}),
        ftuner.load(found.model).run({"x": x}), strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(ours, theirs)


X = {"x": numbers(2, 37)}


def test_names_that_are_taken() -> None:
    model = layers()
    model.graph.node[2].output[0] = model.graph.node[3].input[0] = "x_levels"
    model.graph.node[4].input[0] = "x_levels"
    found, expected = (ftuner.quantize(x, [X]).model for x in (model, layers()))
    np.testing.assert_array_equal(ftuner.load(found).run(X)[0], ftuner.load(expected).run(X)[0])


def old() -> onnx.ModelProto:
    model = layers()
    model.opset_import[0].version = 12
    return model


def without_layers() -> onnx.ModelProto:
    return parsed("(float[3, 3] x) => (y) { y = MatMul(x, x) }")


@pytest.mark.parametrize(
    ("model", "samples", "options", "error", "message"),
    [
        (layers, [X], {"keep": ["head"]}, ConfigurationError, "no node head"),
        (layers, [X], {"ranges": "entropy"}, ConfigurationError, "'entropy'"),
        (layers, [X], {"percentile": 50}, ConfigurationError, "percentile is 50"),
        (layers, [X], {"output": "no/such/folder.onnx"}, ConfigurationError, "cannot write"),
        (old, [X], {}, ConfigurationError, "opset 12"),
        (lambda: "missing.onnx", [X], {}, MissingFileError, "missing.onnx"),
        (without_layers, [], {}, GraphError, "no product or convolution"),
        (layers, [], {}, InputError, "no sample has elements of x, hidden"),
        (layers, [{"x": numbers(0, 37)}], {"ranges": "mse"}, InputError, "no sample"),
        (layers, [{"x": X["x"] * np.nan}], {}, InputError, "not finite"),
        (layers, [{"z": X["x"]}], {}, InputError, "x"),
    ],
)
def test_bad_input(
    model: Any, samples: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ftuner.quantize(model(), samples, **options)
