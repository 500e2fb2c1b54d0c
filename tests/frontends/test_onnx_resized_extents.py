"""Resize by scales that a file computes from extents: one model for all sizes."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx_models import parsed

from ftuner.errors import GraphError
from ftuner.inference import load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.specialization import SpecializedModel

onnxruntime = pytest.importorskip("onnxruntime")

SIZES = (((8, 10), (13, 17)), ((7, 9), (7, 18)), ((5, 6), (20, 24)), ((3, 1), (4, 5)))
SMALLER = (((16, 4), (4, 3)), ((12, 9), (30, 3)), ((6, 6), (1, 7)))


EXTENTS = """
    Y_shape = Shape(X)
    Y_extents = Gather(Y_shape, last)
    Y = Cast<to=1>(Y_extents)
"""
"""The extents of a picture as floats, as TensorFlow's converter has them."""
ONE_BY_ONE = """
    Y_shape = Shape(X)
    Y_two = Gather<axis=0>(Y_shape, two)
    Y_two_float = Cast<to=1>(Y_two)
    Y_three = Gather<axis=0>(Y_shape, three)
    Y_three_float = Cast<to=1>(Y_three)
    Y = Concat<axis=0>(Y_two_float, Y_three_float)
"""
"""The same, one after the other, as PyTorch's older exporter does."""


def of(extents: str, x: str, y: str) -> str:
    return extents.replace("X", x).replace("Y", y)


def model_of(scales: str, opset: int, op: str = "Resize", **attributes: Any) -> bytes:
    """A model that resizes pictures `x` to the `scales` that nodes give, of pictures `y`."""
    model = parsed(f"""(float[n, 3, h, w] x, float[n, 3, k, l] y) => (float[n, 3, p, q] z)
            <int64[1] two = {{2}}, int64[1] three = {{3}}, int64[2] last = {{2, 3}},
             float[0] nothing = {{}}, float[2] one = {{1, 1}}, float[2] double = {{2, 1.5}},
             float[2] negative = {{1, -2}}, float[2] none = {{0, 1}}> {{
        {scales}
        z = {op}(x, {"" if opset < 11 else "nothing, "}scales)
    }}""", opset)  # fmt: skip
    model.ir_version = min(opset - 3, 9)
    model.graph.node[-1].attribute.extend(helper.make_attribute(*a) for a in attributes.items())
    return model.SerializeToString()


DIVIDED = "scale = Div(to, from) scales = Concat<axis=0>(one, scale)"
SHAPES = "to_shape = Shape(y) from_shape = Shape(x)"
SCALES = {
    "of another picture": of(EXTENTS, "y", "to") + of(EXTENTS, "x", "from") + DIVIDED,
    "one axis after the other": of(ONE_BY_ONE, "y", "to") + of(ONE_BY_ONE, "x", "from") + DIVIDED,
    "of all axes": SHAPES
    + " to = Cast<to=1>(to_shape) from = Cast<to=1>(from_shape) scales = Div(to, from)",
    "of a multiple": of(EXTENTS, "x", "from")
    + f"more = Mul(from, double) to = Floor(more) {DIVIDED}",
    "in float64": f"""{SHAPES}
        to = Cast<to=11>(to_shape)
        from = Cast<to=11>(from_shape)
        wide = Div(to, from)
        scales = Cast<to=1>(wide)
    """,
}
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
    constant = f"scales = Constant<value = float[4] {{1, 1, {27 / 49}, {12 / 5}}}>()"
    file = model_of(constant, 13, **linear)
    (expected,) = onnxruntime.InferenceSession(file).run(None, feeds)
    assert expected.shape == (2, 3, 26, 12)
    np.testing.assert_allclose(load(file)(**feeds)["z"], expected, 1e-5, 1e-5)


@pytest.mark.parametrize("factor", ["negative", "none"])
def test_scales_below_zero_are_refused_when_loaded(widest: CpuBackend, factor: str) -> None:
    nodes = f"""{of(EXTENTS, "y", "to")} {of(EXTENTS, "x", "from")}
        less = Mul(to, {factor})
        scale = Div(less, from)
        scales = Concat<axis=0>(one, scale)
    """
    with pytest.raises(GraphError, match=r"a scale of .*; expected a positive number"):
        load(model_of(nodes, 13, mode="nearest"))


def test_scales_that_data_decides_make_a_model(widest: CpuBackend) -> None:
    nodes = """
        most = ReduceMax<keepdims=0>(y)
        whole = Ceil(most)
        scale = Mul(whole, one)
        scales = Concat<axis=0>(one, scale)
    """
    data = model_of(nodes, 13, mode="nearest")
    model = load(data)
    assert isinstance(model, SpecializedModel)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for own, other in SIZES:
        feeds = pictures(own, other)
        np.testing.assert_array_equal(model(**feeds)["z"], peer.run(None, feeds)[0])
