"""Models with control flow, and their agreement with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ftuner.frontends.onnx import import_model
from ftuner.inference import Model, load
from ftuner.runtime.reference import run_reference

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
NODE = helper.make_node
RNG = np.random.default_rng(0)


def value(name: str, shape: Sequence[int | str] | None = None, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def stored(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def body_of(
    nodes: Sequence[Any],
    carried: Sequence[Any],
    outputs: Sequence[Any],
    constants: Sequence[Any] = (),
) -> Any:
    """The body of a loop: `i` counts, `go` is the condition."""
    inputs = [value("i", [], INT64), value("go", [], BOOL), *carried]
    return helper.make_graph(list(nodes), "body", inputs, list(outputs), list(constants))


def model_of(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any],
    constants: Sequence[Any] = (), opset: int = 18,
) -> Any:  # fmt: skip
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(constants))
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def expect_agreement(model: Any, *feeds: dict[str, Any]) -> Model:
    """That ftuner, compiled and by references, gives what ONNX Runtime gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    loaded = load(model)
    for given in feeds:
        wanted = peer.run(None, given)
        for found, x in zip(loaded.run(given), wanted, strict=True):
            # Of no iteration, ONNX Runtime has extents of 0 for all that it has no numbers for.
            assert found.shape == x.shape or (found.ndim == x.ndim and len(found) == len(x) == 0)
            assert found.dtype == x.dtype
            np.testing.assert_allclose(found.reshape(x.shape), x, 1e-4, 1e-5)
    if type(loaded) is Model:
        graph = import_model(model).graph
        for found, x in zip(run_reference(graph, [*feeds[-1].values()]), wanted, strict=True):
            np.testing.assert_allclose(found.reshape(x.shape), x, 1e-4, 1e-5)
    return loaded


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def growing() -> Any:
    """A loop that carries a tensor that grows, and stacks the sums of what it has so far."""
    nodes = [
        NODE("Concat", ["c", "w"], ["c_next"], axis=0),
        NODE("ReduceSum", ["c_next"], ["sum"], keepdims=0),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("c_next", ["p", 3]), value("sum", [])]
    body = body_of(nodes, [value("c", ["p", 3])], outputs)
    return model_of(
        [NODE("Loop", ["n", "", "first"], ["last", "sums"], body=body)],
        [value("n", [], INT64), value("first", ["a", 3]), value("w", ["b", 3])],
        [value("last", ["q", 3]), value("sums", ["k"])],
    )
