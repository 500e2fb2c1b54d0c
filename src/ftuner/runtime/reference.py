"""The reference interpreter: runs a graph with the NumPy references of its operators. Compiled
schedules must agree with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ftuner.core.dim import Symbolic
from ftuner.core.evaluation import evaluate
from ftuner.graph.arrays import converted, widened
from ftuner.graph.ir import Array, Graph, Value
from ftuner.graph.operator import reference_result
from ftuner.graph.operators import OPERATORS
from ftuner.runtime.shapes.binding import bind, check


def run_reference(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph by the NumPy references; see `graph.arrays` for bfloat16."""
    symbols = bind(graph, [x.shape for x in inputs])
    known = {v: converted(x, v.dtype) for v, x in zip(graph.inputs, inputs, strict=True)}

    def array_of(value: Value) -> Array:
        return known[value] if value.constant is None else value.constant

    for node in graph.nodes:
        arrays = [widened(array_of(v), v.dtype) for v in node.inputs]
        attributes = {
            name: partial(run_reference, x) if isinstance(x, Graph) else x
            for name, x in _bound(node.attributes, symbols).items()
        }
        with np.errstate(all="ignore"):
            results = OPERATORS[node.op].reference(*arrays, **attributes)
        if len(node.outputs) == 1:
            results = (results,)
        for value, result in zip(node.outputs, results, strict=True):
            known[value] = reference_result(result, value.type)
        for name in node.binds:
            symbols[name] = next(
                extent
                for value in node.outputs
                for dim, extent in zip(value.shape, known[value].shape, strict=True)
                if str(dim) == name
            )
            check(graph, symbols)
    return [array_of(value) for _, value in graph.outputs]


def _bound(attributes: Mapping[str, Any], symbols: Mapping[str, int]) -> dict[str, Any]:
    """Attributes with their dims bound."""

    def value_of(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(value_of(v) for v in value)
        return evaluate(value, symbols) if isinstance(value, Symbolic) else value

    return {name: value_of(value) for name, value in attributes.items()}
