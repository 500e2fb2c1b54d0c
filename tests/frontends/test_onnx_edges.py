"""Operators at the edges of what ONNX says of them: by the specification, else by onnxruntime and
NumPy where these agree."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx_models import both_ways, by_onnxruntime, model_of, node_model, run_node

from ftuner.errors import FTunerError, GraphError, ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.records import MICROSOFT


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def all_ways(op: str, inputs: list[Any], opset: int = 20, **attributes: Any) -> Iterator[Any]:
    """What a node gives: with a symbol for every extent, by references and compiled, and of
    constants."""
    model, feeds = node_model(op, inputs, opset, **attributes)
    for (found,) in both_ways(model, feeds):
        yield found
    yield from run_node(op, inputs, opset, fixed=range(len(inputs)), **attributes)


# Indices and diagonals.


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [-(2**63), -(2**62) - 1, -4, 0, 4, 2**62 + 1, 2**63 - 1])
def test_diagonals_beyond_a_matrix(diagonal: int, upper: int) -> None:
    x = floats(3, 4)
    (found,) = run_node("Trilu", [x, np.int64(diagonal)], fixed=[1], upper=upper)
    cut = np.triu if upper else np.tril
    np.testing.assert_array_equal(found, cut(x, max(min(diagonal, 10), -10)))


@pytest.mark.parametrize(
    ("indices", "hot"),
    [
        (np.array([0, -1, 4, -5, 2**63 - 1, -(2**63)]), [0, 3, None, None, None, None]),
        (np.array([3, 255], np.uint8), [3, None]),
        (np.array([0, 2**64 - 1, 2**63], np.uint64), [0, None, None]),
        # Cast to int64 before use, as the specification says; NaN is no index.
        (np.array([1.9, -1.5, np.nan, np.inf, -np.inf, 1e30], np.float32),
         [1, 3, None, None, None, None]),
    ],
)  # fmt: skip
def test_indices_that_are_not_hot(indices: Any, hot: list[int | None]) -> None:
    wanted = np.full((len(hot), 4), 7, np.float32)
    for row, column in enumerate(hot):
        if column is not None:
            wanted[row, column] = 9
    operands = [indices, np.int64(4), np.array([7, 9], np.float32)]
    (found,) = run_node("OneHot", operands, fixed=[1], symbolic=False)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("x", [0.0, -0.0, 3.0, np.nan])
def test_elements_of_scalars_that_are_not_zero(x: float) -> None:
    """A scalar has no axes to index, so that its one index has no elements."""
    wanted = np.zeros((0, int(x != 0)), np.int64)
    given = np.array(x, np.float32)
    for found in all_ways("NonZero", [given]):
        np.testing.assert_array_equal(found, wanted)
        assert found.shape == wanted.shape


# Conversions.


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"])
def test_floats_that_no_integer_holds(dtype: str) -> None:
    """Compiled, by references, and of constants. onnxruntime's vectors and single elements differ
    for uint32."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**63, 2.0**64, -2.5, 127.9, 300, -1,
                  -300, 70000, 3e9, -3e9, 1e19], np.float32)  # fmt: skip
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    (wanted,) = by_onnxruntime(*node_model("Cast", [x], to=to))
    for found in all_ways("Cast", [x], to=to):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("reduction", ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min",
                                       "Prod", "Sum", "SumSquare"])  # fmt: skip
@pytest.mark.parametrize("axes", [(0,), (1,), ()])
def test_reductions_of_nothing(axes: tuple[int, ...], reduction: str) -> None:
    """The mean of no element is zero, as in onnxruntime."""
    op, given = f"Reduce{reduction}", {"axes": axes} if axes else {}
    for shape in ((0, 4), (3, 0), (2, 3)):
        x = floats(*shape)
        (wanted,) = by_onnxruntime(*node_model(op, [x], 12, **given))
        for found in all_ways(op, [x], 12, **given):
            np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_negative_exponents_of_integers(dtype: str) -> None:
    """Fractions, rounded towards zero, as onnxruntime has them; of zero, zero."""
    x = np.array([2, 1, -1, -1, 0, 3, -2, 7, np.iinfo(dtype).min, 0], dtype)
    y = np.array([-1, -5, -1, -2, -1, 0, -3, 2, -1, 0], dtype)
    wanted = np.array([0, 1, -1, 1, 0, 1, 0, 49, 0, 1], dtype)
    for found in all_ways("Pow", [x, y]):
        np.testing.assert_array_equal(found, wanted)


# What is refused.

Node = tuple[str, list[Any], Mapping[str, Any]]
REFUSED: dict[str, Node] = {
    "the largest of nothing": ("ArgMax", [floats(2, 0)], {"axis": 1}),
    "the least of nothing": ("ArgMin", [floats(0, 2)], {"axis": 0, "keepdims": 0}),
    "an axis that is sliced twice": (
        "Slice", [floats(5), ints(0, 1), ints(4, 3), ints(0, -1)], {"fixed": (1, 2, 3)}),
    "a bias that widens a product": ("Gemm", [floats(3, 2), floats(2, 1), floats(4)], {}),
    "a bias that lengthens a product": ("Gemm", [floats(1, 2), floats(2, 4), floats(3, 1)], {}),
    "a bias of three axes": ("Gemm", [floats(1, 2), floats(2, 4), floats(1, 1, 4)], {}),
    "one scale for all channels": (
        "BatchNormalization", [floats(2, 3, 4), *(floats(1) for _ in range(4))], {}),
    "a scale for more channels": (
        "BatchNormalization", [floats(2, 1, 4), *(floats(3) for _ in range(4))], {}),
    "scales of two axes": (
        "BatchNormalization", [floats(2, 3, 4), *(floats(3, 1) for _ in range(4))], {}),
    "blocks for another tensor": (
        "DequantizeLinear", [np.zeros((2, 4), np.uint8), floats(1, 2)],
        {"axis": 1, "block_size": 2}),
    "cosines for fewer pairs": (
        "RotaryEmbedding", [floats(2, 3, 4, 8), floats(2, 4, 1), floats(2, 4, 4)],
        {"opset": 23}),
    "cosines for fewer positions": (
        "RotaryEmbedding", [floats(2, 3, 4, 8), floats(2, 1, 4), floats(2, 1, 4)],
        {"opset": 23}),
    "fewer sines than cosines": (
        "RotaryEmbedding",
        [floats(2, 3, 4, 8), floats(9, 4), floats(8, 4), np.zeros((2, 4), np.int64)],
        {"opset": 23}),
    "heads that are not there": (
        "Attention", [floats(2, 3, 4, 8)] * 3, {"opset": 23, "q_num_heads": 2}),
    "a scale below zero": ("Attention", [floats(2, 3, 4, 8)] * 3, {"opset": 23, "scale": -1.0}),
    "a scale that is no number": (
        "Attention", [floats(2, 3, 4, 8)] * 3, {"opset": 23, "scale": float("nan")}),
    "a softcap below zero": ("Attention", [floats(2, 3, 4, 8)] * 3, {"opset": 23, "softcap": -1.0}),
    "a scale with more axes than what it scales": (
        "LayerNormalization", [floats(2, 3), floats(1, 1, 3)], {}),
    "a depth of nothing": ("OneHot", [ints(0), np.int64(0), ints(0, 1)], {"fixed": (1,)}),
    "a matrix for a shape": ("Expand", [floats(1), ints(2, 3)[None]], {"fixed": (1,)}),
    "a scalar for a shape": ("ConstantOfShape", [np.int64(2)], {"fixed": (0,)}),
    "floats for a shape": ("Reshape", [floats(6), floats(2)], {"fixed": (1,)}),
    "half of an integer": ("HardSigmoid", [np.zeros(3, np.int32)], {}),
    "levels of floats": ("DequantizeLinear", [floats(4), floats(1)], {}),
    "integers of levels": (
        "DequantizeLinear", [np.zeros(4, np.uint8), floats(1)], {"output_dtype": 2, "opset": 23}),
    "two types of levels": (
        "QuantizeLinear", [floats(4), floats(1), np.zeros(1, np.uint8)],
        {"output_dtype": 3, "opset": 21}),
    "blocks of less than nothing": (
        "QuantizeLinear", [floats(2, 4), floats(2, 2)], {"block_size": -2, "opset": 21}),
    "a scalar for the number of largest": ("TopK", [floats(3), np.int64(1)], {"fixed": (1,)}),
    "two ratios": ("Dropout", [floats(3), floats(2)], {"fixed": (1,)}),
    "an infinite slope": ("Selu", [floats(3)], {"alpha": float("inf")}),
    "a slope that is no number": ("Celu", [floats(3)], {"alpha": float("nan")}),
    "less than nothing under a root": (
        "LayerNormalization", [floats(2, 3), floats(3)], {"epsilon": -1.0}),
    "integers to compute a norm in": (
        "LayerNormalization", [floats(2, 3), floats(3)], {"stash_type": 7}),
    "no bias": ("BiasGelu", [floats(2, 3)], {"domain": MICROSOFT}),
    "a bias for fewer columns": ("BiasGelu", [floats(2, 3), floats(1)], {"domain": MICROSOFT}),
    "one column for a bias": ("FastGelu", [floats(2, 1), floats(3)], {"domain": MICROSOFT}),
    "a matrix for a bias": ("FastGelu", [floats(2, 3), floats(2, 3)], {"domain": MICROSOFT}),
    "a bias for a scalar": (
        "BiasGelu", [np.float32(1), np.float32(1)], {"domain": MICROSOFT}),
    "an attribute of ONNX's own operator": (
        "DequantizeLinear", [np.zeros((2, 4), np.uint8), floats(4)],
        {"domain": MICROSOFT, "axis": 1, "block_size": 0}),
    "a triangle of a vector": ("Trilu", [floats(4), np.int64(0)], {}),
    "a window of less than nothing": (
        "MaxUnpool", [floats(1, 1, 2), np.zeros((1, 1, 2), np.int64), ints(1, 1, 4)],
        {"kernel_shape": [-3]}),
    "frames that do not move": (
        "STFT", [floats(1, 8, 1), np.int64(0), floats(4), np.int64(4)], {"fixed": (1,)}),
    "one row that is skipped": (
        "SkipLayerNormalization", [floats(2, 3, 4), floats(2, 1, 4), floats(4)],
        {"domain": MICROSOFT}),
    "an attribute that onnxruntime lacks": (
        "QuickGelu", [floats(3)], {"domain": MICROSOFT, "beta": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_do_not_fit(name: str, symbolic: bool) -> None:
    op, inputs, attributes = REFUSED[name]
    with pytest.raises((ShapeError, GraphError)):
        run_node(op, inputs, symbolic=symbolic, **{"opset": 20, **attributes})


FLAGS: dict[str, Callable[[int], Node]] = {
    "keepdims": lambda n: ("ReduceSum", [floats(2, 3)], {"keepdims": n}),
    "noop_with_empty_axes": lambda n: ("ReduceMax", [floats(2)], {"noop_with_empty_axes": n}),
    "select_last_index": lambda n: ("ArgMin", [floats(2)], {"select_last_index": n}),
    "exclusive": lambda n: ("CumSum", [floats(2), np.int64(0)], {"exclusive": n, "fixed": (1,)}),
    "transA": lambda n: ("Gemm", [floats(2, 2), floats(2, 2)], {"transA": n}),
    "allowzero": lambda n: ("Reshape", [floats(2), ints(2)], {"allowzero": n, "fixed": (1,)}),
    "upper": lambda n: ("Trilu", [floats(2, 2)], {"upper": n}),
    "fmod": lambda n: ("Mod", [ints(7), ints(-3)], {"fmod": n}),
}


@pytest.mark.parametrize("name", FLAGS)
def test_attributes_that_say_yes_or_no(name: str) -> None:
    for right in (0, 1):
        op, inputs, attributes = FLAGS[name](right)
        run_node(op, inputs, **attributes)
    for wrong in (64, 2, -1, -(2**63)):
        op, inputs, attributes = FLAGS[name](wrong)
        with pytest.raises(GraphError, match=f"attribute {name} is {wrong}; expected 0 or 1"):
            run_node(op, inputs, **attributes)


def test_all_that_is_refused_says_where() -> None:
    for op, inputs, attributes in REFUSED.values():
        with pytest.raises(FTunerError, match=f"^{op} node that gives 'y0': "):
            run_node(op, inputs, symbolic=False, **{"opset": 20, **attributes})


def test_indices_are_integers() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    for number in (math.nan, math.inf, 0.0):
        indices = {"i": np.array([number], np.float32)}
        with pytest.raises(GraphError):
            import_model(model_of([node], {"x": ("float32", [3, 2])}, ["y"], indices))
