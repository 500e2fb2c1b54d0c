"""Networks that see, given what does not fit them: an answer as onnxruntime's, or a named error."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx_models import by_onnxruntime, model_of, node_model

import ftuner
from ftuner.errors import AllocationError, FTunerError, GraphError, ShapeError

RANDOM = np.random.default_rng(0)
HUGE = 2**62


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_for(
    op: str, x: Any, constants: Mapping[str, Any], known: bool, **attributes: Any
) -> onnx.ModelProto:
    """A node; the extents of x are `known` when it is loaded or not."""
    inputs = [x, *(None if name.startswith("_") else c for name, c in constants.items())]
    fixed = range(1, len(inputs))
    return node_model(op, inputs, 19, fixed=fixed, symbolic=not known, **attributes)[0]


def run(*given: Any, **attributes: Any) -> list[Any]:
    """What compiled code gives for a node."""
    return ftuner.load(model_for(*given, **attributes), threads=1).run({"x0": given[1]})


W, X, SMALL = floats(2, 3, 3, 3), floats(1, 3, 8, 8), floats(1, 3, 4, 4)
POOL = {"kernel_shape": [2, 2]}
NONE: dict[str, Any] = {}
REFUSED: tuple[tuple[str, Any, dict[str, Any], dict[str, Any], type[FTunerError]], ...] = (
    ("Conv", SMALL, {"w": floats(2, 3, 5, 5)}, {}, ShapeError),
    ("Conv", SMALL, {"w": W}, {"pads": [-1] * 4}, GraphError),
    ("Conv", SMALL, {"w": W}, {"pads": [HUGE, 0, HUGE, 0]}, FTunerError),
    ("Conv", SMALL, {"w": W}, {"pads": [2**20] * 4}, AllocationError),
    ("Conv", SMALL, {"w": W}, {"pads": [HUGE, 1] * 2, "dilations": [2**61, 1]}, FTunerError),
    ("Conv", SMALL, {"w": W}, {"dilations": [HUGE, 1]}, ShapeError),
    ("Conv", floats(1, 4, 4, 4), {"w": floats(3, 2, 3, 3)}, {"group": 2}, GraphError),
    ("Conv", floats(1, 4, 4, 4), {"w": floats(4, 4, 3, 3)}, {"group": 2}, ShapeError),
    ("Conv", floats(1, 4, 4, 4), {"w": floats(4, 4, 3, 3)}, {"group": 0}, GraphError),
    ("ConvTranspose", X, {"w": floats(3, 2, 3, 3)}, {"strides": [HUGE, 1]}, FTunerError),
    ("ConvTranspose", SMALL, {"w": floats(3, 2, 3, 3)}, {"pads": [9] * 4}, FTunerError),
    ("MaxPool", X, NONE, {"kernel_shape": [0, 2]}, GraphError),
    ("MaxPool", X, NONE, {"kernel_shape": [2**40, 2**40]}, ShapeError),
    ("MaxPool", X, NONE, {**POOL, "pads": [HUGE, 0, HUGE, 0]}, FTunerError),
    ("MaxPool", X, NONE, {**POOL, "dilations": [-1, 1]}, GraphError),
    ("MaxPool", X, NONE, {**POOL, "pads": [2, 0, 0, 0]}, GraphError),
    ("AveragePool", X, NONE, {**POOL, "pads": [0, 1, 0, 2]}, GraphError),
    ("AveragePool", X, NONE, {**POOL, "pads": [HUGE, 0, HUGE, 0]}, FTunerError),
    ("Resize", X, {"_": 0, "__": 0, "s": np.array([1, 3, 0, 4])}, {}, FTunerError),
    ("Resize", X, {"_": 0, "__": 0, "s": np.array([1, 3, HUGE, 4])}, {}, FTunerError),
    *(("Resize", X, {"_": 0, "s": floats(4) * 0 + np.float32(s)}, {}, FTunerError)
      for s in (0, -1, np.nan, np.inf, 1e30)),
)  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("op", "x", "constants", "attributes", "error"), REFUSED,
    ids=[f"{r[0]} {r[3] or sorted(r[2])}" for r in REFUSED],
)  # fmt: skip
def test_refused(
    op: str, x: Any, constants: Any, attributes: Any, error: type[FTunerError], known: bool
) -> None:
    with pytest.raises(error):
        run(op, x, constants, known, **attributes)


ANSWERED: tuple[tuple[str, Any, dict[str, Any], dict[str, Any]], ...] = (
    ("Conv", floats(0, 3, 4, 4), {"w": W}, {}),
    ("Conv", X, {"w": W}, {"strides": [HUGE, 2**40]}),
    ("Conv", X, {"w": W}, {"strides": [7, 9], "pads": [0, 2, 1, 0]}),
    ("Conv", X, {"w": floats(2, 3, 1, 1)}, {"dilations": [HUGE, 2**40]}),
    ("ConvTranspose", floats(1, 3, 1, 1), {"w": floats(3, 2, 3, 3)}, {"strides": [HUGE, 1]}),
    ("MaxPool", floats(0, 3, 4, 4), NONE, POOL),
    ("MaxPool", X, NONE, {**POOL, "strides": [HUGE, HUGE]}),
    ("AveragePool", X, NONE, {**POOL, "strides": [HUGE, 3], "ceil_mode": 1}),
    ("AveragePool", X, NONE, {"kernel_shape": [3, 100], "pads": [1, 99, 1, 99]}),
    ("AveragePool", X, NONE, {"kernel_shape": [3, 2], "pads": [2, 1, 0, 1], "strides": [3, 2],
                              "dilations": [2, 1]}),
    ("MaxPool", X, NONE, {"kernel_shape": [100, 70], "pads": [99, 69, 99, 69]}),
)  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("op", "x", "constants", "attributes"), ANSWERED, ids=[f"{a[0]} {a[3]}" for a in ANSWERED]
)
def test_answered(op: str, x: Any, constants: Any, attributes: Any, known: bool) -> None:
    (expected,) = by_onnxruntime(model_for(op, x, constants, known, **attributes), {"x0": x})
    (found,) = run(op, x, constants, known, **attributes)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_extents_that_contradict_each_other_are_named() -> None:
    """A pyramid that adds what was halved twice and doubled once: of odd extents it cannot."""
    half = {"kernel_shape": [1, 1], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["small"], **half),
        helper.make_node("MaxPool", ["small"], ["least"], **half),
        helper.make_node("Resize", ["least", "", "scales"], ["doubled"]),
        helper.make_node("Add", ["small", "doubled"], ["y"], name="sum of levels"),
    ]
    scales = np.array([1, 1, 2, 2], np.float32)
    dims = ["n", 3, "height", "width"]
    model = ftuner.load(model_of(nodes, {"x": ("float32", dims)}, ["y"], {"scales": scales}))
    assert model.run({"x": floats(1, 3, 8, 12)})[0].shape == (1, 3, 4, 6)
    with pytest.raises(ShapeError) as raised:
        model.run({"x": floats(1, 3, 8, 10)})
    message = str(raised.value)
    assert message.startswith("Add node 'sum of levels': add: ")
    assert message.endswith("the operands have the shapes (1, 3, 4, 5) and (1, 3, 4, 6)")
    with pytest.raises(ShapeError, match=r"input x: .* was given \(1, 2, 8, 8\)$"):
        model.run({"x": floats(1, 2, 8, 8)})
