"""Operators that are imported as the functions by which ONNX defines them."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tests.frontends.node_cases import PASSED, cases, run
from tests.frontends.onnx_models import model_of, node_model, run_node

from ftuner.errors import GraphError, ShapeError, UnsupportedOperatorError
from ftuner.frontends.onnx.definitions import is_defined
from ftuner.frontends.onnx.importer import SUPPORTED, import_model

LATEST = onnx.defs.onnx_opset_version()
BY_DEFINITION = {
    "BlackmanWindow", "CausalConvWithState", "HammingWindow", "HannWindow", "LinearAttention",
    "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "SwiGLU",
}  # fmt: skip


def test_operators_without_importer_are_defined() -> None:
    found = set()
    for case in cases():
        nodes = list(case.model.graph.node)
        op, opset = nodes[0].op_type, case.model.opset_import[0].version
        if len(nodes) > 1 or ("", op) in SUPPORTED or not is_defined("", op, opset):
            continue
        if run(case).kind == PASSED:
            found.add(op)
    assert found == {op for op in BY_DEFINITION if is_defined("", op, LATEST)}


def test_versions() -> None:
    assert not is_defined("", "SoftmaxCrossEntropyLoss", 11)
    assert is_defined("", "SoftmaxCrossEntropyLoss", 12)
    assert is_defined("", "SoftmaxCrossEntropyLoss", 21)
    assert not is_defined("", "SoftmaxCrossEntropyLoss", 1 << 40)
    assert not is_defined("com.example", "SoftmaxCrossEntropyLoss", 12)
    assert not is_defined("", "Loop", 21)


@pytest.mark.each_value
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("opset", [12, 13, 22])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (1, 7, 2, 3), (1, 2)])
def test_losses(shape: tuple[int, ...], opset: int, reduction: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    weight = rng.random(shape[1], np.float32)
    for op, outputs in (("NegativeLogLikelihoodLoss", 1), ("SoftmaxCrossEntropyLoss", 2)):
        given = {"outputs": outputs, "reduction": reduction, "ignore_index": shape[1] - 1}
        model, feeds = node_model(op, [x, target, weight], opset, symbolic=False, **given)
        wanted = ReferenceEvaluator(model).run(None, feeds)
        found = run_node(op, [x, target, weight], opset, **given)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
            assert a.shape == np.shape(b)


def _loss(inputs: list[str], shapes: tuple[tuple[int, ...], ...], **attributes: object) -> None:
    node = helper.make_node("NegativeLogLikelihoodLoss", inputs, ["y"], name="loss", **attributes)
    dtypes = ("float32", "int64", "float32")
    given = {n: (d, s) for n, d, s in zip(inputs, dtypes, shapes, strict=False)}
    import_model(model_of([node], given, ["y"]))


def test_errors_name_the_node() -> None:
    with pytest.raises(GraphError, match="node 'loss': 1 input; at least 2"):
        _loss(["x"], ((2, 3),))
    with pytest.raises(ShapeError, match="'loss/expanded_target'"):
        _loss(["x", "t"], ((3,), ()))
    with pytest.raises(GraphError, match="reduction is 'median'; expected one of"):
        _loss(["x", "t"], ((2, 3), (2,)), reduction="median")
    with pytest.raises(GraphError, match="no attribute is called 'axis'"):
        _loss(["x", "t"], ((2, 3), (2,)), axis=1)


def test_a_definition_that_needs_extents() -> None:
    if not is_defined("", "CausalConvWithState", LATEST):
        pytest.skip("this onnx does not have the operator")
    node = helper.make_node("CausalConvWithState", ["x", "w"], ["y", "state"])
    model = model_of(
        [node], {"x": ("float32", [2, "C", "N"]), "w": ("float32", ["C", 1, "K"])}, ["y"], opset=27
    )
    with pytest.raises(UnsupportedOperatorError, match="only for extents that are known"):
        import_model(model)
