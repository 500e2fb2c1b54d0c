"""Operators on quantised integers, beside onnxruntime's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx_models import both_ways, by_onnxruntime, model_of, node_model

import ftuner
from ftuner.errors import FTunerError
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.runtime.reference import run_reference

onnxruntime = pytest.importorskip("onnxruntime")

RANDOM = np.random.default_rng(0)
BEGINNING = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def from_the_beginning() -> None:
    """A level may be rounded otherwise in onnxruntime where it is as near to another: which numbers
    a test has does not depend on the tests before it."""
    RANDOM.bit_generator.state = BEGINNING


MAX_TIES = 0.01
"""Share of the levels that may be one off: both sides round float32 products that are nearly half
a level."""


def levels(*shape: int, dtype: str = "uint8") -> Any:
    """Levels of 8 bits, or 7 where they have signs: two products of larger ones saturate the 16
    bits in which onnxruntime adds them on CPUs without VNNI."""
    low, high = (-64, 64) if dtype == "int8" else (0, 256)
    return RANDOM.integers(low, high, shape).astype(dtype)


def scale(*shape: int, size: float = 0.02) -> Any:
    return np.asarray(size * (0.5 + RANDOM.random(shape)), np.float32)


def zero(value: int, dtype: str = "uint8") -> Any:
    return np.asarray(value, dtype)


def zeros_around(value: int, *shape: int, dtype: str = "int8") -> Any:
    return (value + RANDOM.integers(-5, 6, shape)).astype(dtype)


def agrees(op: str, inputs: Sequence[Any], fixed: Sequence[int] = (), domain: str = "",
           opset: int = 18, **attributes: Any) -> None:  # fmt: skip
    """The references and compiled code give what onnxruntime gives, `fixed` inputs being constants
    and the others of any extents."""
    model, feeds = node_model(op, inputs, opset, domain, fixed, **attributes)
    (expected,) = by_onnxruntime(model, feeds)
    for found in both_ways(model, feeds):
        assert (found[0].dtype, found[0].shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found[0], expected, 1e-4, 1e-4 * np.abs(expected).max())
            continue
        off = np.abs(found[0].astype(np.int64) - expected)
        assert off.max(initial=0) <= (expected.dtype.itemsize == 1)
        assert np.mean(off > 0) <= MAX_TIES


X = levels(2, 6, 9, 8)
CONVOLUTIONS = (
    ((8, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((8, 6, 1, 1), {}),
    ((6, 1, 3, 3), {"group": 6, "strides": [2, 2]}),
    ((12, 1, 1, 1), {"group": 6}),  # Sums of one element, of channels that are looked up.
    ((4, 3, 2, 3), {"group": 2, "dilations": [2, 1], "pads": [0, 1, 2, 0]}),
)


@pytest.mark.parametrize("fixed", [(), (1, 3)], ids=["weight is data", "constant weight"])
@pytest.mark.parametrize(("shape", "attributes"), CONVOLUTIONS, ids=str)
def test_conv_integer(shape: Any, attributes: Any, fixed: Sequence[int]) -> None:
    agrees("ConvInteger", [X, levels(*shape), zero(120), zero(130)], fixed, **attributes)
    agrees("ConvInteger", [X, levels(*shape)], [i for i in fixed if i < 2], **attributes)


@pytest.mark.parametrize(
    ("channels", "shape", "attributes"),
    [
        (1, (8, 1, 3, 3), {"pads": [1, 1, 1, 1]}),
        (64, (1, 64, 3, 3), {}),
        (512, (16, 512, 3, 3), {}),
        (64, (16, 64, 4, 4), {"strides": [2, 2]}),
        (64, (64, 16, 3, 3), {"group": 4}),
    ],
    ids=str,
)
def test_sums_of_integers_are_exact(channels: int, shape: Any, attributes: Any) -> None:
    """By Winograd's products, whose fractions are not, they would be cut to a smaller integer."""
    x = levels(1, channels, 32, 34)
    agrees("ConvInteger", [x, levels(*shape)], [1], **attributes)
    agrees("ConvInteger", [x, levels(*shape, dtype="int8")], [1], **attributes)


@pytest.mark.each_value
@pytest.mark.parametrize("w_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("shape", "attributes"), CONVOLUTIONS, ids=str)
def test_qlinear_conv(shape: Any, attributes: Any, per_channel: bool, w_dtype: str) -> None:
    count = (shape[0],) if per_channel else ()
    # onnxruntime has one zero point for uint8.
    w_zero = zero(3 if w_dtype == "int8" else 127, w_dtype)
    if per_channel and w_dtype == "int8":
        w_zero = np.zeros(count, w_dtype)
    bias = RANDOM.integers(-5000, 5000, shape[0]).astype(np.int32)
    inputs = [X, scale(), zero(120), levels(*shape, dtype=w_dtype), scale(*count), w_zero,
              scale(size=0.4), zero(100), bias]  # fmt: skip
    for given in (inputs, inputs[:-1]):
        agrees("QLinearConv", given, range(1, len(given)), **attributes)
        last = [np.ascontiguousarray(X.transpose(0, 2, 3, 1)), *given[1:]]
        agrees("QLinearConv", last, range(1, len(given)), MICROSOFT, channels_last=1, **attributes)


@pytest.mark.parametrize("fixed", [(), (1, 2, 3)], ids=["weight is data", "constant weight"])
@pytest.mark.parametrize("k", [5, 300])
def test_matmul_integer(k: int, fixed: Sequence[int]) -> None:
    for w_dtype, value in (("int8", -3), ("uint8", 128)):
        a, b = levels(2, 7, k), levels(k, 9, dtype=w_dtype)
        agrees("MatMulInteger", [a, b], [i for i in fixed if i < 2])
        agrees("MatMulInteger", [a, b, zero(99), zero(value, w_dtype)], fixed)
        columns = zeros_around(value, 9, dtype=w_dtype)
        agrees("MatMulInteger", [a, b, zero(99), columns], fixed)
        floats = [a, b, scale(), scale(9), zero(99), columns, scale(9)]
        agrees("MatMulIntegerToFloat", floats, [i for i in fixed if i < 2], MICROSOFT)
        x = RANDOM.standard_normal((2, 7, k)).astype(np.float32)
        dynamic = [x, b, scale(9), columns, scale(9)]
        agrees("DynamicQuantizeMatMul", dynamic, [i for i in fixed if i < 3], MICROSOFT)


def test_sums_that_float32_does_not_hold_are_exact() -> None:
    a, b = np.full((1, 2000), 255, np.uint8), np.full((2000, 3), 255, np.uint8)
    b[:, 1] = 254
    agrees("MatMulInteger", [a, b])
    agrees("MatMulInteger", [a, b], [1])
    x, w = np.full((1, 300, 3, 3), 255, np.uint8), np.full((2, 300, 3, 3), 255, np.uint8)
    w[1] = 253
    agrees("ConvInteger", [x, w], [1])


def test_qlinear_matmul() -> None:
    b = levels(30, 9, dtype="int8")
    for columns in ((), (9,)):
        agrees("QLinearMatMul", [
            levels(2, 7, 30), scale(), zero(120), b, scale(*columns), zeros_around(2, *columns),
            scale(size=0.3), zero(100),
        ], range(1, 8), opset=10)  # fmt: skip


def test_qgemm() -> None:
    a, b = levels(5, 30), levels(30, 9, dtype="int8")
    bias = RANDOM.integers(-5000, 5000, 9).astype(np.int32)
    given = [a, scale(), zero(120), b, scale(), zero(2, "int8"), bias]
    turned = [*given[:3], np.ascontiguousarray(b.T), *given[4:]]
    agrees("QGemm", given, range(1, 7), MICROSOFT)
    agrees("QGemm", [*turned, scale(size=0.3), zero(100)], range(1, 9), MICROSOFT, transB=1)
    agrees("QGemm", [*turned[:6], None, scale(size=0.3), zero(9)], (), MICROSOFT, transB=1)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_functions_of_levels(dtype: str) -> None:
    x, y = levels(2, 3, 6, 5, dtype=dtype), levels(3, 1, 5, dtype=dtype)
    first, second, third = (
        [scale(size=size), zero(value, dtype)] for size, value in ((0.02, 9), (0.03, 3), (0.05, 8))
    )
    one = [x, *first, *third]
    for op in ("QLinearAdd", "QLinearMul"):
        agrees(op, [x, *first, y, *second, *third], (), MICROSOFT)
    agrees(
        "QLinearSigmoid", [x, *first, scale(size=0.006), zero(0, dtype)], (1, 2, 3, 4), MICROSOFT
    )
    agrees("QLinearLeakyRelu", one, (1, 2, 3, 4), MICROSOFT, alpha=0.3)
    agrees("QLinearConcat", [*third, x, *first, x, *second], (0, 1, 3, 4, 6, 7), MICROSOFT, axis=1)
    agrees("QLinearGlobalAveragePool", one, (), MICROSOFT)
    agrees("QLinearGlobalAveragePool", one, (), MICROSOFT, channels_last=1)
    condition = RANDOM.random((6, 1)) < 0.5
    agrees(
        "QLinearWhere", [condition, x, *first, y, *second, *third], (2, 3, 5, 6, 7, 8), MICROSOFT
    )


def test_a_scale_is_one_element_of_any_rank() -> None:
    x = levels(3, 6)
    given = {
        "s": scale(1, 1),
        "z": zeros_around(9, 1, 1, dtype="uint8"),
        "ys": scale(),
        "yz": zero(0),
    }
    node = helper.make_node(
        "QLinearSoftmax", ["x", *given], ["y"], domain=MICROSOFT, axis=1, opset=13
    )
    model = model_of([node], {"x": ("uint8", [None, None])}, ["y"], given, 18)
    (expected,) = by_onnxruntime(model, {"x": x})
    (found,) = run_reference(import_model(model).graph, [x])
    assert np.abs(found.astype(np.int64) - expected).max() <= 1


def test_a_scale_and_its_zero_point_have_one_shape() -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1)
    given = {"s": scale(), "z": zeros_around(9, 3, dtype="uint8")}
    model = model_of([node], {"x": ("float32", [None, 3])}, ["y"], given, 18)
    with pytest.raises(FTunerError, match="other shapes"):
        import_model(model)


def test_a_softmax_of_levels_says_its_version() -> None:
    given = {"s": scale(), "z": zero(9)}
    node = helper.make_node("QLinearSoftmax", ["x", *"szsz"], ["y"], domain=MICROSOFT, axis=1)
    model = model_of([node], {"x": ("uint8", [None, 3])}, ["y"], given, 18)
    with pytest.raises(FTunerError, match="opset is missing"):
        import_model(model)


def test_pools_of_levels() -> None:
    x = levels(1, 4, 7, 6)
    for padding in (0, 1):
        agrees("QLinearAveragePool", [x, scale(), zero(9), scale(), zero(8)], (1, 2, 3, 4),
               MICROSOFT, kernel_shape=[3, 2], pads=[1, 0, 1, 1],
               count_include_pad=padding)  # fmt: skip
    for dtype in ("uint8", "int8"):
        agrees("NhwcMaxPool", [levels(1, 7, 6, 4, dtype=dtype)], (), MICROSOFT,
               kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])  # fmt: skip


def test_dynamic_quantisation() -> None:
    x = RANDOM.standard_normal((3, 5)).astype(np.float32)
    for given in (x, np.abs(x) + 1, -np.abs(x) - 1, np.zeros((2, 2), np.float32)):
        model, feeds = node_model("DynamicQuantizeLinear", [given], outputs=3)
        expected = by_onnxruntime(model, feeds)
        for found in both_ways(model, feeds):
            for result, wanted in zip(found, expected, strict=True):
                assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
                np.testing.assert_allclose(result.astype(float), wanted, 1e-6)


def test_requests_of_a_batch_have_ranges_of_their_own() -> None:
    """One with large numbers leaves the levels of the others as they are."""
    w = RANDOM.integers(-90, 90, (32, 48)).astype(np.int8)
    mixing = RANDOM.standard_normal((32, 32)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "mixing"], ["mixed"]),
        helper.make_node("DynamicQuantizeLinear", ["mixed"], ["y", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["y", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["z"]),
    ]
    given = {"w": w, "mixing": mixing}
    made = model_of(nodes, {"x": ("float32", ["batch", "length", 32])}, ["z"], given)
    model = ftuner.load(made.SerializeToString())
    assert any(not why for _, why in model.ragged)
    sizes = [(1, 5, 1.0), (1, 20, 1e3), (2, 9, 1e-3), (1, 30, 1.0)]
    batch = [
        {"x": (most * RANDOM.standard_normal((rows, n, 32))).astype(np.float32)}
        for rows, n, most in sizes
    ]
    alone = [model.run(feeds)[0].tobytes() for feeds in batch]
    assert [z.tobytes() for (z,) in model.run_batch(batch)] == alone


def test_a_network_between_quantisation_and_dequantisation() -> None:
    """Convolutions as quantising exporters write them, with levels around each."""
    constants: dict[str, Any] = {}
    nodes = []

    def levels_and_back(name: str, size: float) -> str:
        constants[f"{name}_scale"], constants[f"{name}_zero"] = np.float32(size), np.uint8(110)
        parameters = [f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"]))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_f"])
        )
        return f"{name}_f"

    def convolution(x: str, name: str, shape: tuple[int, ...], **attributes: Any) -> None:
        weight = levels(*shape, dtype="int8")
        constants.update({f"{name}_w": weight, f"{name}_ws": scale(shape[0], size=0.01),
                          f"{name}_wz": np.zeros(shape[0], np.int8),
                          f"{name}_b": scale(shape[0], size=0.5)})  # fmt: skip
        operands = [f"{name}_w", f"{name}_ws", f"{name}_wz"]
        nodes.append(helper.make_node("DequantizeLinear", operands, [f"{name}_wf"], axis=0))
        inputs = [x, f"{name}_wf", f"{name}_b"]
        nodes.append(helper.make_node("Conv", inputs, [name], **attributes))

    convolution(levels_and_back("x", 0.03), "first", (8, 3, 3, 3), pads=[1] * 4, strides=[2, 2])
    nodes.append(helper.make_node("Relu", ["first"], ["active"]))
    convolution(levels_and_back("active", 0.1), "second", (8, 1, 3, 3), pads=[1] * 4, group=8)
    convolution(levels_and_back("second", 0.2), "third", (5, 8, 1, 1))
    nodes.append(helper.make_node("Identity", [levels_and_back("third", 1.0)], ["y"]))
    dims = ["n", 3, "height", "width"]
    model = model_of(nodes, {"x": ("float32", dims)}, ["y"], constants)
    for shape in ((1, 3, 16, 12), (2, 3, 9, 31)):
        x = RANDOM.standard_normal(shape).astype(np.float32)
        (expected,) = by_onnxruntime(model, {"x": x})
        for (found,) in both_ways(model, {"x": x}):
            off = np.abs(found - expected)
            # A level of the last step is 1.0; one of an earlier step moves several later ones.
            assert off.max() <= 1.001
            assert np.mean(off > 0.5) <= 5 * MAX_TIES


@pytest.mark.each_value
@pytest.mark.parametrize("w_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamic_quantize_lstm(direction: str, per_column: bool, w_dtype: str) -> None:
    """onnxruntime's products of signed levels add two in 16 bits on CPUs without VNNI, where they
    saturate, unless it is asked to be precise; its threads round the states of their sequences
    apart."""
    count, k, hidden = 1 if direction == "forward" else 2, 9, 13
    of = (count, 4 * hidden) if per_column else (count,)
    value = 0 if w_dtype == "int8" else 100
    parameters = [
        scale(*of, size=0.005), np.full(of, value, w_dtype),
        scale(*of, size=0.005), np.full(of, value, w_dtype),
    ]  # fmt: skip
    weights = [levels(count, n, 4 * hidden, dtype=w_dtype) for n in (k, hidden)]
    bias = scale(count, 8 * hidden, size=0.1)
    names = ["x", "w", "r", "b", "", "", "", "p", "ws", "wz", "rs", "rz"]
    constants = [*weights, bias, scale(count, 3 * hidden, size=0.5), *parameters]
    attributes = {"hidden_size": hidden, "direction": direction}
    results = ["y", "h", "c"]
    types = {"x": ("float32", ["steps", "batch", k])}
    node = helper.make_node("DynamicQuantizeLSTM", names, results, domain=MICROSOFT, **attributes)
    given = dict(zip(filter(None, names[1:]), constants, strict=True))
    model = model_of([node], types, results, given)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    for steps, batch in ((1, 1), (5, 3), (17, 6)):
        x = RANDOM.standard_normal((steps, batch, k)).astype(np.float32)
        wanted = session.run(None, {"x": x})
        for found in both_ways(model, {"x": x}):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "what"),
    [
        ("QLinearConv", [X, scale(2), zero(1), levels(4, 6, 3, 3), scale(), zero(1), scale(),
                         zero(1)], {}, "2 and 1"),
        ("QLinearConv", [X, scale(), zero(1, "int8"), levels(4, 6, 3, 3), scale(), zero(1),
                         scale(), zero(1)], {}, "input 0 is of uint8 and input 2 of int8"),
        ("QLinearConv", [X, scale(), zero(1), levels(4, 6, 3, 3), scale(3), zero(1), scale(),
                         zero(1)], {}, "a scale"),
        ("ConvInteger", [X, levels(4, 6, 3, 3), zero(1), zeros_around(9, 3, dtype="uint8")], {},
         "a zero point"),
        ("ConvInteger", [X.astype(np.int32), levels(4, 6, 3, 3)], {}, "8 bits"),
        ("MatMulInteger", [levels(3, 4), levels(4, 5), zero(1), zeros_around(9, 4)], {}, "uint8"),
        ("MatMulInteger", [levels(3, 4), levels(3, 5)], {}, "4 and 3"),
        ("QLinearMatMul", [levels(3, 4), scale(), zero(1), levels(4, 5), scale(1, 1, 1), zero(1),
                           scale(), zero(1)], {}, "the scale of B"),
        ("DynamicQuantizeLinear", [X.astype(np.float64)], {}, "float32"),
    ],
)  # fmt: skip
def test_wrong_operands(op: str, inputs: list[Any], attributes: Any, what: str) -> None:
    model, _ = node_model(op, inputs, symbolic=False, **attributes)
    with pytest.raises(FTunerError, match=what):
        import_model(model)
