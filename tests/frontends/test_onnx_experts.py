"""A mixture of experts as a file, as exporters write it and by Einsum: what onnxruntime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ftuner

EXPERTS, CHOSEN, K, HIDDEN = 4, 2, 24, 40


def mixture(einsum: bool) -> bytes:
    """Tokens (T, K): softmax of a router, its best experts, a gated layer, a second one, and the
    sum by scores."""
    random = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        array = random.standard_normal(shape) / shape[-1] ** 0.5
        return numpy_helper.from_array(array.astype(np.float32), name)

    def integers(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: str, outputs: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, inputs.split(), outputs.split(), **attributes))

    node("MatMul", "x router", "logits")
    node("Softmax", "logits", "shares", axis=-1)
    node("TopK", "shares chosen", "scores index", axis=-1)
    if einsum:
        node("Gather", "up index", "ups", axis=0)
        node("Einsum", "x ups", "wide", equation="tk,tshk->tsh")
    else:
        node("Unsqueeze", "x one", "single")
        node("Expand", "single spread", "repeated")
        node("Unsqueeze", "repeated last", "columns")
        node("Gather", "up index", "ups", axis=0)
        node("MatMul", "ups columns", "tall")
        node("Squeeze", "tall last", "wide")
    node("Gather", "up_bias index", "ups_bias", axis=0)
    node("Add", "wide ups_bias", "biased")
    node("Split", "biased", "gate value", axis=-1, num_outputs=2)
    node("Sigmoid", "gate", "open")
    node("Mul", "open value", "gated")
    node("Gather", "down index", "downs", axis=0)
    if einsum:
        node("Einsum", "gated downs", "results", equation="tsh,tshk->tsk")
    else:
        node("Unsqueeze", "gated before", "rows")
        node("MatMul", "rows downs", "products")
        node("Squeeze", "products before", "results")
    node("Unsqueeze", "scores last", "weights")
    node("Mul", "results weights", "weighted")
    node("ReduceSum", "weighted one", "y", keepdims=0)
    constants = [
        weight("router", K, EXPERTS), weight("up", EXPERTS, 2 * HIDDEN, K),
        weight("up_bias", EXPERTS, 2 * HIDDEN), weight("down", EXPERTS, HIDDEN, K),
        integers("chosen", CHOSEN), integers("one", 1), integers("last", -1), integers("before", 2),
        integers("spread", 1, CHOSEN, 1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "mixture", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", K])], constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model.SerializeToString()


@pytest.mark.parametrize("einsum", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_as_onnxruntime(einsum: bool, threads: int) -> None:
    file = mixture(einsum)
    peer = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    model = ftuner.load(file, threads=threads)
    assert [step.kind for step in model.steps].count("experts") == 2
    # onnxruntime 1.31's Einsum divides by zero where there are no tokens.
    for tokens in (1, 2, 9, 100):
        x = np.random.default_rng(tokens).standard_normal((tokens, K)).astype(np.float32)
        (expected,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(model.run({"x": x})[0], expected, rtol=1e-4, atol=1e-5)
    assert model.run({"x": np.zeros((0, K), np.float32)})[0].shape == (0, K)


def test_nan_in_the_scores_of_a_token() -> None:
    """Other tokens are what they were."""
    model = ftuner.load(mixture(False))
    x = np.random.default_rng(1).standard_normal((9, K)).astype(np.float32)
    expected = model.run({"x": x})[0].copy()
    x[4, 3] = np.nan
    found = model.run({"x": x})[0]
    assert np.isnan(found[4]).all()
    np.testing.assert_allclose(np.delete(found, 4, 0), np.delete(expected, 4, 0), 1e-5, 1e-6)
