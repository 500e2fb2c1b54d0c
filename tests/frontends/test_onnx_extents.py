"""Files that compute extents from extents, as exporters write it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ftuner.errors import ShapeError
from ftuner.inference import load
from ftuner.runtime.specialization import SpecializedModel


def node(op: str, *inputs: str, y: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [y], **attributes)


def model_of(nodes: list[onnx.NodeProto], outputs: dict[str, int], **constants: Any) -> bytes:
    """A model of float32 `x` with the axes n and m, and float32 outputs of some ranks."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    found = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
        for name, rank in outputs.items()
    ]
    given = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], found, given)
    opset = [helper.make_opsetid("", 17)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return data


COUNT = [
    node("Shape", "x", y="count", start=1, end=2),
    node("Add", "count", "less", y="room"),
    node("Div", "room", "stride", y="windows"),
]
"""(m + less) / stride."""


def agrees(data: bytes, *shapes: tuple[int, int]) -> None:
    model = load(data)
    assert not isinstance(model, SpecializedModel)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for shape in shapes:
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        for own, wanted in zip(model.run({"x": x}), peer.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(own, wanted)


@pytest.mark.parametrize(("less", "stride"), [(-3, 2), (-7, 4), (-1, 4)])
def test_quotients_of_windows_are_extents(less: int, stride: int) -> None:
    """A dividend that may be below zero: no call waits for a model of its own."""
    data = model_of(
        [
            *COUNT, node("Add", "windows", "one", y="extent"),
            node("ConstantOfShape", "extent", y="zeros"),
            node("Slice", "x", "zero", "extent", "one", y="part"),
            node("Add", "zeros", "part", y="y"),
        ],
        {"y": 2}, less=np.array([less]), stride=np.array([stride]), one=np.array([1]),
        zero=np.array([0]),
    )  # fmt: skip
    agrees(data, *((2, m) for m in range(max(-less, 1), 20)))
    if less < -1:
        with pytest.raises(ShapeError, match="a division of extents"):
            load(data).run({"x": np.zeros((2, -less - 1), np.float32)})


def test_quotients_that_are_data_round_towards_zero() -> None:
    data = model_of(
        [*COUNT, node("Cast", "windows", y="y", to=TensorProto.FLOAT)], {"y": 1},
        less=np.array([-5]), stride=np.array([2]),
    )  # fmt: skip
    agrees(data, *((1, m) for m in range(12)))


def test_negated_extents_are_divided_towards_zero() -> None:
    """-(-m // 3), as Python rounds up, is -(-m / 3) in ONNX, which rounds down."""
    data = model_of(
        [
            node("Shape", "x", y="count", start=1, end=2), node("Neg", "count", y="below"),
            node("Div", "below", "stride", y="quotient"), node("Neg", "quotient", y="extent"),
            node("ConstantOfShape", "extent", y="y"),
        ],
        {"y": 1}, stride=np.array([3]),
    )  # fmt: skip
    agrees(data, *((1, m) for m in range(10)))


@pytest.mark.parametrize("first", [0.5, 0.0, -1.25, 2.0])
def test_ranges_of_floats_to_an_extent(first: float) -> None:
    data = model_of(
        [
            *COUNT, node("Squeeze", "windows", y="scalar"),
            node("Cast", "scalar", y="limit", to=TensorProto.FLOAT),
            node("Range", "first", "limit", "step", y="y"),
        ],
        {"y": 1}, less=np.array([0]), stride=np.array([2]), first=np.float32(first),
        step=np.float32(1),
    )  # fmt: skip
    agrees(data, *((1, m) for m in range(9)))


@pytest.mark.parametrize("step", [-1, -2, -3])
@pytest.mark.parametrize("less", [0, -1])
def test_ranges_of_floats_between_extents(less: int, step: int) -> None:
    """The distances of positions, as a Conformer counts them: from t - 1 down to 1 - t."""
    data = model_of(
        [
            *COUNT, node("Squeeze", "windows", y="scalar"),
            node("Cast", "scalar", y="t", to=TensorProto.FLOAT),
            node("Sub", "t", "one", y="first"), node("Neg", "t", y="limit"),
            node("Range", "first", "limit", "step", y="y"),
        ],
        {"y": 1}, less=np.array([less]), stride=np.array([2]), one=np.float32(1),
        step=np.float32(step),
    )  # fmt: skip
    agrees(data, *((1, m) for m in range(-less, 9)))


def test_padding_that_is_computed_in_floats() -> None:
    """As much as TensorFlow pads before a window of 3 and stride 2: max(2 * (ceil(m / 2) - 1) + 3 -
    m, 0), half of it at the beginning."""
    floating = [("Div", "t", "two"), ("Ceil", "0"), ("Sub", "1", "one"), ("Mul", "2", "two"),
                ("Add", "3", "three"), ("Sub", "4", "t"), ("Max", "5", "zero")]  # fmt: skip
    data = model_of(
        [
            node("Shape", "x", y="shape", start=1, end=2), node("Squeeze", "shape", y="scalar"),
            node("Cast", "scalar", y="t", to=TensorProto.FLOAT),
            *(node(*step, y=str(n)) for n, step in enumerate(floating)),
            node("Div", "6", "two", y="half"), node("Cast", "half", y="low", to=TensorProto.INT64),
            node("Cast", "low", y="begin", to=TensorProto.FLOAT),
            node("Sub", "6", "begin", y="end"),
            node("Unsqueeze", "begin", "axis", y="begins"),
            node("Unsqueeze", "end", "axis", y="ends"),
            node("Concat", "none", "begins", "none", "ends", y="widths", axis=0),
            node("Cast", "widths", y="pads", to=TensorProto.INT64), node("Pad", "x", "pads", y="y"),
        ],
        {"y": 2}, zero=np.float32(0), one=np.float32(1), two=np.float32(2), three=np.float32(3),
        none=np.zeros(1, np.float32), axis=np.array([0]),
    )  # fmt: skip
    agrees(data, *((2, m) for m in range(1, 12)))


@pytest.mark.parametrize("language", [0.0, 1.0, 2.0])
def test_rows_are_chosen_by_a_number_that_all_have(language: float) -> None:
    """Rows of x of either language, changed and written back, as torch exports
    `y[of == 1] = f(x[of == 1])`: all rows, or none, and no call waits for a model of its own."""
    nodes = [
        node("Shape", "x", y="shape"), node("Shape", "x", y="rows", end=1),
        node("Expand", "one", "rows", y="ones"), node("Mul", "ones", "language", y="of"),
        node("Expand", "zero", "shape", y="y_0"),
    ]  # fmt: skip
    for number, function in enumerate(("Abs", "Neg")):
        i = str(number)
        nodes += [
            node("Equal", "of", f"is_{i}", y=f"holds_{i}"),
            node("NonZero", f"holds_{i}", y=f"row_{i}"),
            node("Transpose", f"row_{i}", y=f"at_{i}", perm=[1, 0]),
            node("GatherND", "x", f"at_{i}", y=f"rows_{i}"),
            node(function, f"rows_{i}", y=f"found_{i}"),
            node("Cast", f"holds_{i}", y=f"number_{i}", to=TensorProto.INT64),
            node("ReduceSum", f"number_{i}", y=f"count_{i}"),
            node("Shape", "x", y=f"width_{i}", start=1),
            node("Concat", f"count_{i}", f"width_{i}", y=f"extents_{i}", axis=0),
            node("Expand", f"found_{i}", f"extents_{i}", y=f"whole_{i}"),
            node("Reshape", f"whole_{i}", "flat", y=f"updates_{i}"),
            node("Unsqueeze", f"holds_{i}", "last", y=f"column_{i}"),
            node("Expand", f"column_{i}", "shape", y=f"everywhere_{i}"),
            node("NonZero", f"everywhere_{i}", y=f"element_{i}"),
            node("Transpose", f"element_{i}", y=f"to_{i}", perm=[1, 0]),
            node("ScatterND", f"y_{i}", f"to_{i}", f"updates_{i}", y=f"y_{number + 1}"),
        ]  # fmt: skip
    data = model_of(
        [*nodes, node("Identity", "y_2", y="y")], {"y": 2}, one=np.float32(1), zero=np.float32(0),
        language=np.float32(language), is_0=np.float32(1), is_1=np.float32(2),
        flat=np.array([-1]), last=np.array([1]),
    )  # fmt: skip
    agrees(data, (3, 4), (1, 5), (2, 1), (4, 4))


@pytest.mark.parametrize("narrow", [False, True])
def test_rows_are_chosen_by_a_condition(narrow: bool) -> None:
    """`y[holds] = exp(x[holds])`: room is made for as many rows as the condition holds for."""
    integers = TensorProto.INT32 if narrow else TensorProto.INT64
    nodes = [
        node("NonZero", "holds", y="row"), node("Transpose", "row", y="at", perm=[1, 0]),
        node("GatherND", "x", "at", y="rows"), node("Abs", "rows", y="found"),
        node("Reshape", "holds", "flat", y="flat_holds"),
        node("Cast", "flat_holds", y="number", to=integers),
        node("ReduceSum", "number", y="sum"), node("Cast", "sum", y="count", to=TensorProto.INT64),
        node("Shape", "x", y="width", start=1), node("Concat", "count", "width", y="whole", axis=0),
        node("Expand", "found", "whole", y="updates"),
        node("Reshape", "updates", "flat", y="elements"),
        node("Shape", "x", y="shape"), node("Unsqueeze", "holds", "last", y="column"),
        node("Expand", "column", "shape", y="everywhere"),
        node("NonZero", "everywhere", y="element"),
        node("Transpose", "element", y="to", perm=[1, 0]),
        node("ScatterND", "x", "to", "elements", y="y"),
    ]  # fmt: skip
    holds = [
        node("ReduceSum", "x", "last", y="sums", keepdims=0), node("Greater", "sums", "zero",
        y="holds"),
    ]  # fmt: skip
    data = model_of(
        [*holds, *nodes], {"y": 2}, flat=np.array([-1]), last=np.array([1]), zero=np.float32(0),
    )  # fmt: skip
    agrees(data, *((n, m) for n in (0, 1, 2, 5) for m in (1, 4)))


def test_sums_that_are_no_numbers_of_elements_are_data() -> None:
    """Along one axis, and of integers."""
    nodes = [
        node("Greater", "x", "zero", y="holds"), node("Cast", "holds", y="ones", to=7),
        node("ReduceSum", "ones", "first", y="sums", keepdims=0),
        node("Add", "ones", "ones", y="twos"), node("ReduceSum", "twos", y="sum"),
        node("Cast", "sums", y="y", to=1), node("Cast", "sum", y="z", to=1),
    ]  # fmt: skip
    data = model_of(nodes, {"y": 1, "z": 2}, zero=np.float32(0), first=np.array([0]))
    agrees(data, (3, 4), (1, 2))


def split_model(count: int) -> bytes:
    """Rows of x by as many numbers as there are: how many of its first row are 0, 1, ..."""
    nodes = [
        node("Gather", "x", "zero", y="row", axis=0), node("Unsqueeze", "row", "one", y="column"),
        node("Equal", "column", "kinds", y="is"), node("Cast", "is", y="ones", to=7),
        node("ReduceSum", "ones", "zero_axis", y="counts", keepdims=0),
        helper.make_node("Split", ["x", "counts"], [f"y{i}" for i in range(count)], axis=1),
    ]  # fmt: skip
    return model_of(
        nodes, {f"y{i}": 2 for i in range(count)}, zero=np.array(0), one=np.array([1]),
        kinds=np.arange(count, dtype=np.float32)[None], zero_axis=np.array([0]),
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 3])
def test_pieces_of_a_split_that_data_decides(count: int) -> None:
    data = split_model(count)
    model, peer = load(data), onnxruntime.InferenceSession(data)
    assert not isinstance(model, SpecializedModel)
    for seed, m in enumerate((1, 2, 5, 9)):
        x = np.random.default_rng(seed).integers(0, count, (2, m)).astype(np.float32)
        for own, wanted in zip(model.run({"x": x}), peer.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(own, wanted)
    with pytest.raises(ShapeError, match=r"Split node .* pieces of"):
        model.run({"x": np.full((2, 3), 7, np.float32)})


def test_pieces_below_zero_are_refused() -> None:
    nodes = [
        node("Cast", "x", y="numbers", to=7), node("Reshape", "numbers", "two", y="sizes"),
        helper.make_node("Split", ["range", "sizes"], ["a", "b"], axis=0),
        node("Identity", "a", y="y"), node("Identity", "b", y="z"),
    ]  # fmt: skip
    data = model_of(
        nodes, {"y": 1, "z": 1}, two=np.array([2]), range=np.arange(3, dtype=np.float32)
    )
    model = load(data)
    own = model.run({"x": np.array([[1, 2]], np.float32)})
    assert [y.tolist() for y in own] == [[0], [1, 2]]
    with pytest.raises(ShapeError, match=r"extents of \[-1, 4\]"):
        model.run({"x": np.array([[-1, 4]], np.float32)})
