"""Models explain themselves: by shapes, by arrays, and with named errors."""

from typing import Any

import numpy as np
import pytest

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import ELEMENT_DTYPES, FLOAT32
from ftuner.graph.builder import Builder
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.report.model import explain_model


@pytest.fixture(scope="module")
def model() -> ftuner.Model:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("batch"), symbol("rows"), 64))
    y = builder.input("y", FLOAT32, (symbol("batch"), symbol("rows"), 32))
    weight = builder.constant(np.ones((64, 32), np.float32))
    product = builder.add("add", builder.add("matmul", x, weight), y)
    softmax = builder.add("softmax", product, axis=2, log=False)
    return ftuner.compile(builder.graph([x, y], [("z", softmax)]))


def test_steps_alone(model: ftuner.Model) -> None:
    found = model.explain()
    assert [g.kind for g in found.groups] == ["product", "nest"]
    assert found.extents == {}
    assert all(g.estimate_s is None and g.measured_s is None for g in found.groups)
    assert found.weight_bytes == model.weights_bytes >= 64 * 32 * 4


def test_shapes_give_estimates_and_arrays_measurements(model: ftuner.Model) -> None:
    shapes = {"x": (3, 5, 64), "y": (3, 5, 32)}
    estimated = model.explain(shapes)
    assert estimated.extents == {"batch": 3, "rows": 5}
    assert all(g.estimate_s and g.measured_s is None for g in estimated.groups)
    assert estimated.memory is None
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    measured = model.explain(**arrays)
    assert all(g.estimate_s and g.measured_s for g in measured.groups)
    assert measured.memory == model.memory(arrays)
    assert measured.title == "model, x=3x5x64, y=3x5x32"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_packed_weights_are_explained_as_the_graph_with_its_arrays(dtype: str) -> None:
    """The steps of a loaded model have no arrays of packed weights; estimates are the same."""
    builder = Builder()
    held = ELEMENT_DTYPES[dtype]
    op, given = ("narrow_matmul", FLOAT32) if dtype == "int8" else ("matmul", held)
    x = builder.input("x", given, (symbol("rows"), 256))
    weight = builder.constant(np.ones((256, 128)), held)
    graph = builder.graph([x], [("y", builder.add(op, x, weight))])
    machine = ftuner.compile(graph, threads=1)._machine()
    with_arrays = explain_model([lower(optimised(graph, halves=False))], {"rows": 33}, machine)
    found = ftuner.compile(graph, threads=1).explain(x=(33, 256))
    assert [g.plan for g in found.groups] == [g.plan for g in with_arrays.groups]
    assert found.estimate_s == with_arrays.estimate_s > 0


def test_inputs_that_are_not_given_follow_where_they_can(model: ftuner.Model) -> None:
    found = model.explain(x=[np.int64(3), np.int32(5), 64])
    assert found.extents == {"batch": 3, "rows": 5}
    assert all(g.estimate_s for g in found.groups)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"q": (1, 2, 3)}, ftuner.InputError, "no input q; there are x, y"),
        ({"x": (1, 64)}, ftuner.InputError, "expected 3 axes"),
        ({"x": "1x2x3"}, ftuner.InputError, "expected a shape or an array"),
        ({"x": 3}, ftuner.InputError, "expected a shape or an array"),
        ({"x": (1, 2, 65)}, ftuner.ShapeError, "x"),
        ({"x": (1, -2, 64)}, ftuner.ShapeError, "an extent of x is -2"),
        ({"x": (1, 2.5, 64)}, ftuner.ShapeError, "an extent of x is 2.5"),
        ({"x": (1, 2, 64), "y": (1, 3, 32)}, ftuner.ShapeError, "elsewhere"),
    ],
)
def test_what_does_not_fit_is_a_named_error(
    model: ftuner.Model, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        model.explain(given)


def test_a_model_that_is_made_late_explains_the_one_that_was_run() -> None:
    parsed = pytest.importorskip("tests.frontends.onnx_models").parsed
    node = "y = ReduceSum<keepdims = 0>(x, axes)"
    model = ftuner.load(parsed(f"(float[n, 4] x, int64[1] axes) => (float[] y) {{ {node} }}"))
    assert isinstance(model, ftuner.Model)
    assert len(repr(model)) <= 400
    assert "axes" in str(model)
    feeds = {"x": np.ones((3, 4), np.float32), "axes": np.array([1])}
    found = model.explain(feeds)
    assert found.measured_s > 0
    assert [g.title for g in found.groups] == ["reduce"]
    assert [g.title for g in model.explain(x=(3, 4)).groups] == ["reduce"]
