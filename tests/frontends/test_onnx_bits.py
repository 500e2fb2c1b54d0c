"""BitCast: elements with the same bits in another dtype."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx_models import node_model, parsed, run_node

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
    expected = x.view(np.uint8) != 0 if to.kind == "bool" else x.view(numpy_of(to))
    for fixed in ([], [0]):
        model, feeds = node_model("BitCast", [x], OPSET, fixed=fixed, to=element(to))
        (y,) = ftuner.load(model).run(feeds)
        assert y.dtype == expected.dtype
        # NaN of half precision loses its payload.
        y, wanted = (z.astype(np.float32) if to.bits == 16 and to.kind == "float" else z
                     for z in (y, expected))  # fmt: skip
        np.testing.assert_array_equal(y, wanted)


def test_within_one_kernel() -> None:
    """No program ends at it: the exponent of a number, by its bits."""
    text = f"""(float[n] x) => (y) <float bias = {{127}}> {{
        square = Mul(x, x)
        bits = BitCast<to={element(ELEMENT_DTYPES["uint32"])}>(square)
        exponent = BitShift<direction="RIGHT">(bits, places)
        wide = Cast<to={element(FLOAT32)}>(exponent)
        y = Sub(wide, bias)
    }}"""
    model = parsed(text, OPSET, places=np.uint32(23))
    assert len(split(import_model(model).graph)) == 1
    loaded = ftuner.load(model)
    assert len(loaded.steps) == 1
    x = np.random.default_rng(0).uniform(0.1, 1e6, 1000).astype(np.float32)
    (found,) = loaded.run({"x": x})
    np.testing.assert_array_equal(found, np.floor(np.log2(x.astype(np.float64) ** 2)))


def of_product(nodes: str) -> Any:
    """What nodes make of z, the product of x by the identity."""
    text = f"(float[n, 8] x) => (y) {{ z = MatMul(x, w) {nodes} }}"
    return parsed(text, OPSET, w=np.eye(8, dtype=np.float32))


def test_after_a_product() -> None:
    """The bits are of the sum, rounded once."""
    model = ftuner.load(of_product(f"y = BitCast<to={element(INT32)}>(z)"))
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_array_equal(model.run({"x": x})[0], x.view(np.int32))


def test_what_is_read_by_its_bits_is_not_held_in_half_precision() -> None:
    nodes = f"square = Mul(z, z) y = BitCast<to={element(INT32)}>(square)"
    graph = import_model(of_product(nodes)).graph
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
    with pytest.raises(GraphError, match=words):
        run_node("BitCast", [np.zeros(3, of)], OPSET, to=element(ELEMENT_DTYPES[to]))


def test_strings_have_no_bits() -> None:
    with pytest.raises(GraphError, match="strings have no bits"):
        run_node("BitCast", [np.zeros(3, np.uint64)], OPSET, to=helper.TensorProto.STRING)
