"""Dims whose names or numbers say that an extent is not known."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx_models import model_of

import ftuner
from ftuner.ort import InferenceSession


@pytest.mark.parametrize("name", ["?", "-1", "None", None, ""])
def test_a_name_for_any_extent_is_no_symbol(name: str | None) -> None:
    """Extents of two such dims are not equal."""
    node = helper.make_node("Shape", ["x"], ["y"])
    model = model_of([node], {"x": ("float32", (name, name, 3))}, ["y"])
    (y,) = ftuner.load(model, threads=1).run({"x": np.zeros((2, 5, 3), np.float32)})
    assert y.tolist() == [2, 5, 3]


@pytest.mark.parametrize("extent", [-1, 0, None, "?", "n"])
def test_an_overridden_initialiser_has_the_extents_that_it_is_given_with(
    extent: int | str | None,
) -> None:
    """Whatever a file writes for an unknown extent."""
    node = helper.make_node("Add", ["x", "w"], ["y"])
    model = model_of([node], {"x": ("float32", ("n", 3))}, ["y"], {"w": np.ones((2, 3), "f")})
    info = helper.make_tensor_value_info("w", TensorProto.FLOAT, [extent, 3])
    model.graph.input.append(info)
    session = InferenceSession(_bytes(model))
    x = np.ones((4, 3), np.float32)
    (own,) = session.run(None, {"x": x[:2]})
    (other,) = session.run(None, {"x": x, "w": 2 * x})
    assert np.array_equal(own, 2 * x[:2])
    assert np.array_equal(other, 3 * x)


def _bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString())
