"""BitCast: elements with the same bits in another dtype."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of

import ftuner
from ftuner.core.dtype import ELEMENT_DTYPES, FLOAT32, INT32, STRING, DType
from ftuner.errors import GraphError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.precision import held_types
from ftuner.graph.splitting import split

OPSET = 26


def numpy_of(dtype: DType) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype.name, dtype.name))


def element(dtype: DType) -> int:
    return helper.np_dtype_to_tensor_dtype(numpy_of(dtype))


def bits_of(dtype: DType, *shape: int) -> Any:
    """Any bits, but those of a NaN that signals, or of a bool that is neither 0 nor 1."""
    random = np.random.default_rng(0)
    if dtype.kind == "bool":
        return random.random(shape) < 0.5
    words = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    found = words.view(numpy_of(dtype))[..., 0]
    if dtype.kind != "float":
        return found
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(found), found.dtype.type(1), found)


PAIRS = [
    (of, to) for of in ELEMENT_DTYPES.values() for to in ELEMENT_DTYPES.values()
    if of.itemsize == to.itemsize and STRING not in (of, to)
]  # fmt: skip


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=str)
def test_same_bits(of: DType, to: DType) -> None:
    """Compiled, with symbols; as constants, by the reference."""
    x = bits_of(of, 5, 37)
    node = helper.make_node("BitCast", ["x"], ["y"], to=element(to))
    expected = x.view(np.uint8) != 0 if to.kind == "bool" else x.view(numpy_of(to))
    given = {"x": (numpy_of(of), ["n", "m"])}
    (found,) = ftuner.load(model_of([node], given, ["y"], opset=OPSET)).run({"x": x})
    (folded,) = ftuner.load(model_of([node], {}, ["y"], {"x": x}, opset=OPSET)).run({})
    for y in (found, folded):
        assert y.dtype == expected.dtype
        # NaN of half precision loses its payload.
        y, wanted = (z.astype(np.float32) if to.bits == 16 and to.kind == "float" else z
                     for z in (y, expected))  # fmt: skip
        np.testing.assert_array_equal(y, wanted)


def test_within_one_kernel() -> None:
    """No program ends at it: the exponent of a number, by its bits."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("BitCast", ["square"], ["bits"], to=element(ELEMENT_DTYPES["uint32"])),
        helper.make_node("BitShift", ["bits", "places"], ["exponent"], direction="RIGHT"),
        helper.make_node("Cast", ["exponent"], ["wide"], to=element(FLOAT32)),
        helper.make_node("Sub", ["wide", "bias"], ["y"]),
    ]
    constants = {"places": np.uint32(23), "bias": np.float32(127)}
    model = model_of(nodes, {"x": ("float32", ["n"])}, ["y"], constants, opset=OPSET)
    assert len(split(import_model(model).graph)) == 1
    loaded = ftuner.load(model)
    assert len(loaded.steps) == 1
    x = np.random.default_rng(0).uniform(0.1, 1e6, 1000).astype(np.float32)
    (found,) = loaded.run({"x": x})
    np.testing.assert_array_equal(found, np.floor(np.log2(x.astype(np.float64) ** 2)))


def test_after_a_product() -> None:
    """The bits are of the sum, rounded once."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]),
             helper.make_node("BitCast", ["z"], ["y"], to=element(INT32))]  # fmt: skip
    w = np.eye(8, dtype=np.float32)
    model = ftuner.load(model_of(nodes, {"x": ("float32", ["n", 8])}, ["y"], {"w": w}, OPSET))
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_array_equal(model.run({"x": x})[0], x.view(np.int32))


def test_what_is_read_by_its_bits_is_not_held_in_half_precision() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]),
             helper.make_node("Mul", ["z", "z"], ["square"]),
             helper.make_node("BitCast", ["square"], ["y"], to=element(INT32))]  # fmt: skip
    w = np.eye(8, dtype=np.float32)
    model = model_of(nodes, {"x": ("float32", ["n", 8])}, ["y"], {"w": w}, OPSET)
    graph = import_model(model).graph
    held = held_types(graph, ELEMENT_DTYPES["bfloat16"])
    product, square, _ = graph.nodes
    assert product.output in held
    assert square.output not in held


@pytest.mark.parametrize(
    ("of", "to", "words"),
    [
        ("float32", "int64", "32 bits and 64"),
        ("int64", "int32", "64 bits and 32"),
        ("uint8", "float16", "8 bits and 16"),
    ],
)
def test_another_width(of: str, to: str, words: str) -> None:
    node = helper.make_node("BitCast", ["x"], ["y"], to=element(ELEMENT_DTYPES[to]))
    with pytest.raises(GraphError, match=words):
        import_model(model_of([node], {"x": (of, [3])}, ["y"], opset=OPSET))


def test_strings_have_no_bits() -> None:
    node = helper.make_node("BitCast", ["x"], ["y"], to=helper.TensorProto.STRING)
    with pytest.raises(GraphError, match="strings have no bits"):
        import_model(model_of([node], {"x": ("uint64", [3])}, ["y"], opset=OPSET))
