"""The reference interpreter: runs a graph with the NumPy references of its operators. Compiled
schedules must agree with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ftuner.core.dim import Symbolic
from ftuner.core.evaluation import evaluate
from ftuner.graph.arrays import converted
from ftuner.graph.ir import Array, Graph, Node, Value
from ftuner.graph.operator import Attributes, prepared_reference
from ftuner.graph.operators import OPERATORS
from ftuner.runtime.shapes.binding import bind, check


def run_reference(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph by the NumPy references; see `graph.arrays` for bfloat16."""
    symbols = bind(graph, [x.shape for x in inputs])
    known = {v: converted(x, v.dtype) for v, x in zip(graph.inputs, inputs, strict=True)}
    return _outputs(graph, symbols, known)


def outputs_of_extents(graph: Graph, shapes: Sequence[Sequence[int]]) -> list[Array]:
    """The outputs of a graph that reads no element of its inputs, which have some shapes."""
    return _outputs(graph, bind(graph, shapes), {})


def _outputs(graph: Graph, symbols: dict[str, int], known: dict[Value, Array]) -> list[Array]:
    def array_of(value: Value) -> Array:
        return known[value] if value.constant is None else value.constant

    for node in graph.nodes:
        attributes = {
            name: partial(run_reference, x) if isinstance(x, Graph) else x
            for name, x in bound_attributes(node, symbols).items()
        }
        results = prepared(node, attributes)([array_of(v) for v in node.inputs])
        known.update(zip(node.outputs, results, strict=True))
        for name in node.binds:
            symbols[name] = next(
                extent
                for value in node.outputs
                for dim, extent in zip(value.shape, known[value].shape, strict=True)
                if str(dim) == name
            )
            check(graph, symbols)
    return [array_of(value) for _, value in graph.outputs]


def prepared(
    node: Node, attributes: Attributes | None = None
) -> Callable[[Sequence[Array]], list[Array]]:
    """A function from operands to what the reference of a node's operator gives, in the dtypes of
    the node's outputs. `attributes`: the node's, with their dims bound; by default as they are."""
    return prepared_reference(
        OPERATORS[node.op],
        [v.dtype for v in node.inputs],
        node.attributes if attributes is None else attributes,
        [v.type for v in node.outputs],
    )


def bound_attributes(node: Node, symbols: Mapping[str, int]) -> dict[str, Any]:
    """The attributes of a node with their dims bound."""

    def value_of(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(value_of(v) for v in value)
        return evaluate(value, symbols) if isinstance(value, Symbolic) else value

    return {name: value_of(value) for name, value in node.attributes.items()}
