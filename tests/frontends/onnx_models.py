"""Small models to import."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from ftuner.frontends.onnx.importer import import_model
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
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def parsed(graph: str, opset: int = 18, /, **constants: Any) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form, `(inputs) => (outputs) {nodes}`, with further
    constants by name."""
    versions = f'"": {opset}, "com.microsoft": 1, "ai.onnx.ml": 4'
    model = onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{versions}]> test {graph}")
    arrays = {name: np.asarray(x) for name, x in constants.items()}
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in arrays.items())
    return model


def run_node(
    op: str,
    inputs: Sequence[Any],
    opset: int = 18,
    domain: str = "",
    fixed: Sequence[int] = (),
    outputs: int = 1,
    symbolic: bool = True,
    **attributes: Any,
) -> list[Any]:
    """What a model of one node gives: its inputs have symbols for extents, or are constants if
    they are `fixed`. None is an input that is left out."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    free = [i for i, x in enumerate(inputs) if x is not None and i not in fixed]
    model = model_of(
        [helper.make_node(op, names, results, domain=domain, **attributes)],
        {
            names[i]: (
                inputs[i].dtype.name,
                [None] * inputs[i].ndim if symbolic else inputs[i].shape,
            )
            for i in free
        },
        results,
        {names[i]: inputs[i] for i in fixed},
        opset,
    )
    return run_reference(import_model(model).graph, [inputs[i] for i in free])
