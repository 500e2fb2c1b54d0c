"""Running a graph with the NumPy references of its operators: what schedules must agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core.dim import Symbolic, evaluate, symbols_of
from ftuner.errors import ShapeError
from ftuner.graph.ir import Array, Graph, Value, bound_symbols
from ftuner.graph.operator import reference_result
from ftuner.graph.operators import OPERATORS


def bind(graph: Graph, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The values of all symbols, from the shapes of the inputs.

    Raises:
        ShapeError: shapes that contradict the graph or each other.
    """
    values: dict[str, int] = {}
    for value, shape in zip(graph.inputs, shapes, strict=True):
        if len(shape) != value.rank:
            raise ShapeError(f"input {value} was given {tuple(shape)}")
        for dim, extent in zip(value.shape, shape, strict=True):
            known: int | None
            if isinstance(dim, Symbolic):
                name = str(dim)
                known = values.setdefault(name, extent)
            else:
                known = dim
            if known != extent:
                raise ShapeError(
                    f"input {value} was given {tuple(shape)}: {dim} is {known} elsewhere"
                )
    check(graph, values)
    return values


def check(graph: Graph, values: Mapping[str, int]) -> None:
    """Check the constraints of a graph whose symbols are all bound; others wait for data.

    Raises:
        ShapeError: one of them does not hold.
    """
    for constraint in graph.constraints:
        if any(name not in values for name in symbols_of((constraint.x, constraint.y))):
            continue
        x, y = evaluate(constraint.x, values), evaluate(constraint.y, values)
        if not constraint.holds(x, y):
            raise ShapeError(f"{constraint.what}: {constraint.x} is {x} and {constraint.y} is {y}")


def run_reference(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph by the NumPy references."""
    symbols = bind(graph, [x.shape for x in inputs])
    known: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))

    def array_of(value: Value) -> Array:
        return known[value] if value.constant is None else value.constant

    for node in graph.nodes:
        arrays = [array_of(v) for v in node.inputs]
        attributes = _bound(node.attributes, symbols)
        with np.errstate(all="ignore"):
            results = OPERATORS[node.op].reference(*arrays, **attributes)
        if len(node.outputs) == 1:
            results = (results,)
        for value, result in zip(node.outputs, results, strict=True):
            known[value] = reference_result(result, value.type)
        for name in bound_symbols(node):
            (symbols[name],) = (
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
