"""Small models to import."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ir import Graph, RandomKey
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

Dims = Sequence["int | str | None"]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Dims]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model; inputs are (dtype of NumPy, dims) by name."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(dims)
            )
            for name, (dtype, dims) in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in (constants or {}).items()],
    )
    opsets = [
        helper.make_opsetid("", opset),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("ai.onnx.ml", 4),
        *(helper.make_opsetid(f.domain, 1) for f in functions),
    ]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def parsed(graph: str, opset: int = 18, /, **constants: Any) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form, `(inputs) => (outputs) {nodes}`, with further
    constants by name."""
    versions = f'"": {opset}, "com.microsoft": 1, "ai.onnx.ml": 4'
    model = onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{versions}]> test {graph}")
    arrays = {name: np.asarray(x) for name, x in constants.items()}
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in arrays.items())
    return model


def node_model(
    op: str, inputs: Sequence[Any], opset: int = 18, domain: str = "", fixed: Iterable[int] = (),
    outputs: int = 1, symbolic: bool = True, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Any]]:  # fmt: skip
    """A model of one node, and its feeds. Inputs `x0`, ... have symbols for extents, or are
    constants if they are `fixed`; None is one that is left out. Outputs are `y0`, ..."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    constants = {names[i]: inputs[i] for i in fixed if names[i]}
    given = zip(names, inputs, strict=True)
    feeds = {name: x for name, x in given if name and name not in constants}
    types = {n: (x.dtype.name, [None] * x.ndim if symbolic else x.shape) for n, x in feeds.items()}
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    return model_of([node], types, results, constants, opset), feeds


def run_node(op: str, inputs: Sequence[Any], opset: int = 18, **given: Any) -> list[Any]:
    """What references give for a model of one node; see `node_model`."""
    model, feeds = node_model(op, inputs, opset, **given)
    return run_reference(import_model(model).graph, list(feeds.values()))


def by_onnxruntime(model: onnx.ModelProto | bytes, feeds: Mapping[str, Any]) -> list[Any]:
    """What onnxruntime gives, on a CPU."""
    onnxruntime = pytest.importorskip("onnxruntime")
    data = model if isinstance(model, bytes) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def expect_onnxruntime(
    op: str, inputs: Sequence[Any], opset: int = 18, *near: float, **given: Any
) -> None:
    """References give what onnxruntime does for a model of one node; see `node_model`. `near`: how
    far apart they may be, in proportion and beside that."""
    rtol, atol = near or (1e-4, 1e-5)
    model, feeds = node_model(op, inputs, opset, **given)
    found = run_reference(import_model(model).graph, list(feeds.values()))
    for x, expected in zip(found, by_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(x, expected, rtol, atol, err_msg=f"{op} {given}")


def compiled(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a graph compiled for this machine, after all passes."""
    model = Model(optimised(graph, halves=False), default_backend())
    feeds = zip(graph.inputs, inputs, strict=True)
    return model.run({v.name: x for v, x in feeds if not isinstance(v, RandomKey)})


def both_ways(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """What references give, and what compiled code does."""
    graph, inputs = import_model(model).graph, list(feeds.values())
    return run_reference(graph, inputs), compiled(graph, inputs)
