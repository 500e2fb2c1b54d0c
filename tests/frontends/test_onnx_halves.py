"""Models whose tensors are float16 or bfloat16: a CPU computes them in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from tests.conftest import CORE_ISAS
from tests.frontends.onnx_models import model_of, run_node

import ftuner
from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, HALF_DTYPES
from ftuner.errors import ConfigurationError, GraphError, InputError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.arrays import converted
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.arrays import numpy_dtype
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

Array = npt.NDArray[Any]
NODE = helper.make_node
NUMBERS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
WEIGHT = np.random.default_rng(1).standard_normal((4, 3))
HALVES = pytest.mark.parametrize("name", NUMBERS)


def bits(name: str) -> Array:
    """The weight's elements as they lie in a file."""
    array = converted(WEIGHT, HALF_DTYPES[name])
    if name == "float16":
        return array.view(np.uint16)
    return (array.view(np.uint32) >> 16).astype(np.uint16)


def layer(name: str, weight: Any) -> onnx.ModelProto:
    """`x @ w` with an input and a weight of a type, widened."""
    nodes = [NODE("MatMul", ["x", "w"], ["h"]), NODE("Cast", ["h"], ["y"], to=TensorProto.FLOAT)]
    model = model_of(nodes, {"x": ("float32", ["n", 4])}, ["y", "h"])
    model.graph.input[0].type.tensor_type.elem_type = NUMBERS[name]
    model.graph.initializer.append(weight)
    return model


def raw(name: str) -> Any:
    return helper.make_tensor("w", NUMBERS[name], (4, 3), bits(name).tobytes(), raw=True)


def in_words(name: str) -> Any:
    """As other exporters have it: a word for each element."""
    tensor = TensorProto(name="w", data_type=NUMBERS[name], dims=(4, 3))
    tensor.int32_data.extend(int(x) for x in bits(name).ravel())
    return tensor


def assert_read(name: str, source: Any) -> None:
    dtype = HALF_DTYPES[name]
    graph = import_model(source).graph
    assert [v.dtype for v in graph.inputs] == [dtype]
    assert [v.dtype for _, v in graph.outputs] == [FLOAT32, dtype]
    found, product = run_reference(optimised(graph), [np.eye(4, dtype=np.float32)])
    np.testing.assert_array_equal(found, converted(WEIGHT, dtype))
    np.testing.assert_array_equal(product, found)


@HALVES
def test_initialisers(name: str) -> None:
    assert_read(name, layer(name, raw(name)))
    assert_read(name, layer(name, in_words(name)))


@HALVES
def test_external_data(name: str, tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=NUMBERS[name], dims=(4, 3))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "6")):
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(layer(name, tensor).SerializeToString())
    (tmp_path / "w.bin").write_bytes(b"\0" * 6 + bits(name).tobytes())
    assert_read(name, path)
    (tmp_path / "w.bin").write_bytes(bits(name).tobytes())
    with pytest.raises(GraphError, match="24 bytes wanted"):
        import_model(path)


@HALVES
def test_constants_in_nodes(name: str) -> None:
    one = helper.make_tensor("value", NUMBERS[name], (1,), [1.5])
    nodes = [
        NODE("Constant", [], ["c"], value=one),
        NODE("ConstantOfShape", ["s"], ["f"], value=one),
        NODE("Add", ["c", "f"], ["sum"]),
        NODE("CastLike", ["x", "sum"], ["near"]),
        NODE("Add", ["near", "sum"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("float32", [2])}, ["y"], {"s": np.array([2])})
    graph = import_model(model).graph
    assert graph.outputs[0][1].dtype == HALF_DTYPES[name]
    third = converted(1 / 3, HALF_DTYPES[name]).astype(np.float32)
    wanted = converted(np.array([third + 3, 5]), HALF_DTYPES[name])
    np.testing.assert_array_equal(run_reference(graph, [np.array([1 / 3, 2], "f")])[0], wanted)


def test_a_mean_counts_further_than_float16() -> None:
    (found,) = run_node("ReduceMean", [np.full(70001, 2.0, np.float16)], keepdims=0)
    assert found == 2.0


@HALVES
@pytest.mark.parametrize("count", [5, 7])
def test_data_of_another_length(name: str, count: int) -> None:
    tensor = TensorProto(name="w", data_type=NUMBERS[name], dims=(4, 3))
    tensor.raw_data = b"\0" * count
    with pytest.raises(GraphError, match="initialiser 'w' is malformed"):
        import_model(layer(name, tensor))


# On a CPU.


@HALVES
def test_a_cpu_computes_them_in_float32(name: str) -> None:
    model = ftuner.load(layer(name, raw(name)))
    assert [spec.dtype for spec in (*model.inputs, *model.outputs)] == [name, "float32", name]
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(numpy_dtype(HALF_DTYPES[name]))
    wide, half = model.run({"x": x})
    wanted = x.astype(np.float32) @ converted(WEIGHT, HALF_DTYPES[name]).astype(np.float32)
    np.testing.assert_allclose(wide, wanted, rtol=1e-5, atol=1e-6)
    assert half.dtype == x.dtype
    np.testing.assert_array_equal(half, wide.astype(x.dtype))
    with pytest.raises(InputError, match=f"dtype float32; the model takes {name}"):
        model.run({"x": wide})


@HALVES
def test_all_halves_enter_and_leave_a_cpu(name: str) -> None:
    """Each word is widened as NumPy widens it, and each float32 is rounded as NumPy rounds it."""
    dtype = numpy_dtype(HALF_DTYPES[name])
    words = np.arange(1 << 16, dtype=np.uint16)
    every = words.view(dtype)
    casts = {}
    for source, to in ((name, "float32"), ("float32", name)):
        number = NUMBERS.get(to, TensorProto.FLOAT)
        given = model_of([NODE("Cast", ["x"], ["y"], to=number)], {"x": ("float32", ["n"])}, ["y"])
        given.graph.input[0].type.tensor_type.elem_type = NUMBERS.get(source, TensorProto.FLOAT)
        casts[to] = ftuner.load(given)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = every.astype(np.float32)
        between = (wide[:-1] + wide[1:]) / 2
        limits = np.array([65504, 65519.99, 65520, 2**-24, 2**-25, 2.1**-25, 1e-45], np.float32)
        bits = np.random.default_rng(3).integers(0, 1 << 32, 1 << 16, dtype=np.uint64)
        wild = bits.astype(np.uint32).view(np.float32)
        singles = np.concatenate([wide, between, limits, -limits, wild])
        rounded = singles.astype(dtype)
    for count in (1 << 16, 1001):
        (found,) = casts["float32"].run({"x": every[:count]})
        np.testing.assert_array_equal(found, wide[:count])
    (found,) = casts[name].run({"x": singles})
    known = ~np.isnan(singles)
    np.testing.assert_array_equal(found.view(np.uint16)[known], rounded.view(np.uint16)[known])
    assert np.isnan(found[~known].astype(np.float32)).all()


@HALVES
@pytest.mark.parametrize("isa", CORE_ISAS)
def test_casts_of_the_file_round(name: str, isa: str, backend_of: Any) -> None:
    """To nearest, ties to even, also where the tensor between is no output: of floats, of integers,
    of constants, and of dequantized levels."""
    dtype, number = numpy_dtype(HALF_DTYPES[name]), NUMBERS[name]
    x = np.concatenate([
        np.array([2049, 2051, 1e5, 65519.99, 65520, 2**-25, 3e-8, 257, np.inf, -np.inf], "f"),
        np.random.default_rng(0).standard_normal(30).astype(np.float32),
    ])  # fmt: skip
    i = np.array([2049, -100000, 257, 2**24 + 1])
    level = np.arange(40, dtype=np.int8)
    nodes = [
        NODE("Cast", ["x"], ["h"], to=number),
        NODE("Cast", ["h"], ["wide"], to=TensorProto.FLOAT),
        NODE("Cast", ["i"], ["k"], to=number),
        NODE("Cast", ["k"], ["whole"], to=TensorProto.DOUBLE),
        NODE("CastLike", ["c", "h"], ["n"]),
        NODE("Mul", ["x", "x"], ["square"]),
        NODE("CastLike", ["square", "h"], ["m"]),
        NODE("Add", ["n", "m"], ["sum"]),
        NODE("Cast", ["sum"], ["total"], to=TensorProto.FLOAT),
        NODE("Cast", ["scale"], ["s"], to=number),
        NODE("DequantizeLinear", ["l", "s"], ["d"]),
        NODE("Cast", ["d"], ["dequantized"], to=TensorProto.FLOAT),
    ]
    results = ["wide", "whole", "total", "dequantized"]
    types = {"x": ("float32", [None]), "i": ("int64", [None]), "l": ("int8", [None])}
    constants = {"c": x[::-1].copy(), "scale": np.float32(1 / 3)}
    model = model_of(nodes, types, results, constants, opset=19)
    graph = optimised(import_model(model).graph, halves=False)
    found = Model(graph, backend_of(isa)).run({"x": x, "i": i, "l": level})
    with np.errstate(all="ignore"):
        rounded = x.astype(dtype).astype(np.float32)
        square = (x * x).astype(dtype).astype(np.float32)
        step = np.float32(1 / 3).astype(dtype).astype(np.float32)
        wanted = [
            rounded, i.astype(np.float32).astype(dtype).astype(np.float64), rounded[::-1] + square,
            (level * step).astype(dtype).astype(np.float32),
        ]  # fmt: skip
    for y, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(y, expected)


@HALVES
def test_the_casts_around_a_softmax_do_not_hide_attention(name: str) -> None:
    """It is computed in float32, without the rounding of its weights."""
    nodes = [
        NODE("MatMul", ["q", "k"], ["s"]),
        NODE("Cast", ["s"], ["wide"], to=TensorProto.FLOAT),
        NODE("Softmax", ["wide"], ["w"], axis=-1),
        NODE("Cast", ["w"], ["narrow"], to=NUMBERS[name]),
        NODE("MatMul", ["narrow", "v"], ["y"]),
    ]
    model = model_of(nodes, {n: ("float32", [2, 3, 4, 4]) for n in "qkv"}, ["y"])
    for given in model.graph.input:
        given.type.tensor_type.elem_type = NUMBERS[name]
    graph = optimised(import_model(model).graph, halves=False)
    assert [n.op for n in graph.nodes if n.op != "cast"] == ["attention"]


def test_dtype_is_for_a_gpu() -> None:
    data = model_of([NODE("Relu", ["x"], ["y"])], {"x": ("float32", [3])}, ["y"])
    for dtype in (FLOAT16, BFLOAT16):
        with pytest.raises(ConfigurationError, match="only a GPU multiplies here"):
            ftuner.load(data, dtype=dtype.name)
    for device in ("cpu", "cuda"):
        with pytest.raises(ConfigurationError, match="dtype is 'int8'; expected None, float32, fl"):
            ftuner.load(data, device=device, dtype="int8")
    assert ftuner.load(data, dtype="float32").run({"x": np.ones(3, "f")})[0].tolist() == [1, 1, 1]


def test_squares_of_a_response_norm_do_not_overflow() -> None:
    """LRN sums squares in float32: those of 300 are beyond float16."""
    x = (300 * np.random.default_rng(0).standard_normal((1, 6, 4, 4))).astype(np.float16)
    (found,) = run_node("LRN", [x], size=5, alpha=1e-2, beta=0.75)
    squares = x.astype(np.float64) ** 2
    sums = np.stack([squares[:, max(c - 2, 0) : c + 3].sum(1) for c in range(6)], 1)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, x / (1 + 1e-2 / 5 * sums) ** 0.75, 2e-3)
