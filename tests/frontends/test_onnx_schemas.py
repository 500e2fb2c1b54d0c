"""Nodes are held against what ONNX says of their operators."""

from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, helper
from tests.frontends.onnx_models import model_of

from ftuner.errors import GraphError
from ftuner.frontends.onnx import import_model

X = {"x": ("float32", ["n", 3])}


def attribute(name: str, kind: str, **value: Any) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind), **value)


ATTRIBUTES = {
    "none of that name": (attribute("keep_dims", "INT", i=1), "no attribute is called 'keep_dims'"),
    "a float": (attribute("keepdims", "FLOAT", f=1.0), "keepdims is 1.0; expected int"),
    "a text": (attribute("keepdims", "STRING", s=b"1"), "keepdims is '1'; expected int"),
    "a list": (attribute("keepdims", "INTS", ints=[1]), r"keepdims is \(1,\); expected int"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name: str) -> None:
    given, text = ATTRIBUTES[name]
    node = helper.make_node("ReduceMax", ["x"], ["y"])
    node.attribute.append(given)
    with pytest.raises(GraphError, match=f"^ReduceMax node that gives 'y': .*{text}"):
        import_model(model_of([node], X, ["y"]))


def test_members_of_lists() -> None:
    node = helper.make_node("Transpose", ["x"], ["y"])
    node.attribute.append(attribute("perm", "FLOATS", floats=[1.0, 0.0]))
    with pytest.raises(GraphError, match=r"perm is \(1\.0, 0\.0\); expected ints"):
        import_model(model_of([node], X, ["y"]))


def test_what_an_importer_does_not_read() -> None:
    node = helper.make_node("Dropout", ["x"], ["y"], seed="soon")
    with pytest.raises(GraphError, match="seed is 'soon'; expected int"):
        import_model(model_of([node], X, ["y"]))


def test_inputs() -> None:
    node = helper.make_node("Erf", ["x", "x"], ["y"])
    with pytest.raises(GraphError, match="2 inputs; at most 1"):
        import_model(model_of([node], X, ["y"]))
    import_model(model_of([helper.make_node("Max", ["x"] * 9, ["y"])], X, ["y"]))


def test_versions_differ() -> None:
    """Axes of a sum were an attribute before they were an input."""
    node = helper.make_node("ReduceSum", ["x"], ["y"], axes=[1])
    import_model(model_of([node], X, ["y"], opset=12))
    with pytest.raises(GraphError, match="no attribute is called 'axes'; there are: keepdims"):
        import_model(model_of([node], X, ["y"], opset=13))


def test_what_onnx_does_not_know() -> None:
    """Norms had no version of their own before 17, where exporters wrote them all the same."""
    node = helper.make_node("LayerNormalization", ["x", "w"], ["y"], axis=-1, stash_type=1)
    import_model(model_of([node], X, ["y"], {"w": np.ones(3, np.float32)}, opset=13))
    gelu = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=1.0)
    import_model(model_of([gelu], X, ["y"]))


@pytest.mark.parametrize("opset", [99, 2**31 - 1, 2**31, 2**62])
def test_versions_that_are_yet_to_come(opset: int) -> None:
    """They have what the latest one has."""
    import_model(model_of([helper.make_node("Erf", ["x"], ["y"])], X, ["y"], opset=opset))
