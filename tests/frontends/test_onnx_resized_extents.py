"""Resize by scales that a file computes from extents: one model for all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ftuner.errors import GraphError
from ftuner.inference import load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.specialization import SpecializedModel

SIZES = (((8, 10), (13, 17)), ((7, 9), (7, 18)), ((5, 6), (20, 24)), ((3, 1), (4, 5)))
SMALLER = (((16, 4), (4, 3)), ((12, 9), (30, 3)), ((6, 6), (1, 7)))


def node(op: str, *inputs: str, y: str, **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), [y], **attributes)


def extents(x: str, y: str) -> list[Any]:
    """The extents of a picture as floats, as TensorFlow's converter has them."""
    return [
        node("Shape", x, y=f"{y}_shape"),
        node("Gather", f"{y}_shape", "last", y=f"{y}_extents"),
        node("Cast", f"{y}_extents", y=y, to=TensorProto.FLOAT),
    ]


def one_by_one(x: str, y: str) -> list[Any]:
    """The same, one after the other, as PyTorch's older exporter does."""
    found = [node("Shape", x, y=f"{y}_shape")]
    for axis in ("two", "three"):
        found += [
            node("Gather", f"{y}_shape", axis, y=f"{y}_{axis}", axis=0),
            node("Cast", f"{y}_{axis}", y=f"{y}_{axis}_float", to=TensorProto.FLOAT),
        ]
    return [*found, node("Concat", f"{y}_two_float", f"{y}_three_float", y=y, axis=0)]


def model_of(scales: list[Any], opset: int, op: str = "Resize", **attributes: Any) -> bytes:
    """A model that resizes pictures `x` to the `scales` that nodes give, of pictures `y`."""
    resize = node(op, "x", *(() if opset < 11 else ("nothing",)), "scales", y="z", **attributes)
    pictures = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, *axes])
        for name, axes in (("x", ("h", "w")), ("y", ("k", "l")))
    ]
    constants = {
        "two": [2], "three": [3], "last": [2, 3], "nothing": np.zeros(0, np.float32),
        "one": np.ones(2, np.float32), "double": np.float32([2, 1.5]),
        "negative": np.float32([1, -2]), "none": np.float32([0, 1]),
    }  # fmt: skip
    graph = helper.make_graph(
        [*scales, resize], "g", pictures,
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 3, "p", "q"])],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=min(opset - 3, 9)
    )
    found: bytes = model.SerializeToString()
    return found


SCALES = {
    "of another picture": [
        *extents("y", "to"), *extents("x", "from"),
        node("Div", "to", "from", y="scale"), node("Concat", "one", "scale", y="scales", axis=0),
    ],
    "one axis after the other": [
        *one_by_one("y", "to"), *one_by_one("x", "from"),
        node("Div", "to", "from", y="scale"), node("Concat", "one", "scale", y="scales", axis=0),
    ],
    "of all axes": [
        node("Shape", "y", y="to_shape"), node("Shape", "x", y="from_shape"),
        node("Cast", "to_shape", y="to", to=TensorProto.FLOAT),
        node("Cast", "from_shape", y="from", to=TensorProto.FLOAT),
        node("Div", "to", "from", y="scales"),
    ],
    "of a multiple": [
        *extents("x", "from"), node("Mul", "from", "double", y="more"),
        node("Floor", "more", y="to"),
        node("Div", "to", "from", y="scale"), node("Concat", "one", "scale", y="scales", axis=0),
    ],
    "in float64": [
        node("Shape", "y", y="to_shape"), node("Shape", "x", y="from_shape"),
        node("Cast", "to_shape", y="to", to=TensorProto.DOUBLE),
        node("Cast", "from_shape", y="from", to=TensorProto.DOUBLE),
        node("Div", "to", "from", y="wide"), node("Cast", "wide", y="scales", to=TensorProto.FLOAT),
    ],
}  # fmt: skip
NODES = {
    "upsample": (9, "Upsample", {"mode": "nearest"}),
    "linear upsample": (9, "Upsample", {"mode": "linear"}),
    "old": (10, "Resize", {"mode": "nearest"}),
    "old linear": (10, "Resize", {"mode": "linear"}),
    "nearest": (13, "Resize", {
        "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor",
    }),
    "linear": (13, "Resize", {"mode": "linear"}),
    "corners": (11, "Resize", {
        "mode": "linear", "coordinate_transformation_mode": "align_corners",
    }),
    "cubic": (18, "Resize", {"mode": "cubic"}),
}  # fmt: skip


def pictures(own: tuple[int, int], other: tuple[int, int]) -> dict[str, Any]:
    random = np.random.default_rng(sum(own))
    return {
        name: random.standard_normal((2, 3, *sizes)).astype(np.float32)
        for name, sizes in (("x", own), ("y", other))
    }


@pytest.mark.each_value
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("name", NODES)
def test_scales_of_extents(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, name: str, scales: str
) -> None:
    opset, op, attributes = NODES[name]
    data = model_of(SCALES[scales], opset, op, **attributes)
    model = load(data)
    assert not isinstance(model, SpecializedModel)
    # Calls compile nothing.
    monkeypatch.setattr(CpuBackend, "compile", None)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    sizes = SIZES if op == "Upsample" else SIZES + SMALLER
    for own, other in sizes:
        feeds = pictures(own, other)
        (wanted,) = peer.run(None, feeds)
        found = model(**feeds)["z"]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


def test_the_size_is_the_extent_that_was_divided(widest: CpuBackend) -> None:
    """In float32, 27 / 49 * 49 is less than 27: the size that the file means is 27. A constant
    scale has the size that onnxruntime gives."""
    linear = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    feeds = pictures((49, 5), (27, 12))
    found = load(model_of(SCALES["of another picture"], 13, **linear))(**feeds)["z"]
    assert found.shape == (2, 3, 27, 12)
    constant = node(
        "Constant", y="scales", value=numpy_helper.from_array(np.float32([1, 1, 27 / 49, 12 / 5]))
    )
    file = model_of([constant], 13, **linear)
    (expected,) = onnxruntime.InferenceSession(file).run(None, feeds)
    assert expected.shape == (2, 3, 26, 12)
    np.testing.assert_allclose(load(file)(**feeds)["z"], expected, 1e-5, 1e-5)


@pytest.mark.parametrize("factor", ["negative", "none"])
def test_scales_below_zero_are_refused_when_loaded(widest: CpuBackend, factor: str) -> None:
    nodes = [
        *extents("y", "to"), *extents("x", "from"),
        node("Mul", "to", factor, y="less"), node("Div", "less", "from", y="scale"),
        node("Concat", "one", "scale", y="scales", axis=0),
    ]  # fmt: skip
    with pytest.raises(GraphError, match=r"a scale of .*; expected a positive number"):
        load(model_of(nodes, 13, mode="nearest"))


def test_scales_that_data_decides_make_a_model(widest: CpuBackend) -> None:
    nodes = [
        node("ReduceMax", "y", y="most", keepdims=0),
        node("Ceil", "most", y="whole"), node("Mul", "whole", "one", y="scale"),
        node("Concat", "one", "scale", y="scales", axis=0),
    ]  # fmt: skip
    data = model_of(nodes, 13, mode="nearest")
    model = load(data)
    assert isinstance(model, SpecializedModel)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for own, other in SIZES:
        feeds = pictures(own, other)
        np.testing.assert_array_equal(model(**feeds)["z"], peer.run(None, feeds)[0])
