"""Checks the invariants of a graph; runs after each pass."""

from __future__ import annotations

from ftuner.core.dim import Dim
from ftuner.errors import GraphError
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.operators import OPERATORS


def verify(graph: Graph, typed: set[Node] | None = None) -> None:
    """Check that each node comes after the nodes that it reads, that each value is made once, and
    that types agree with the operators' shape rules.

    Args:
        typed: nodes whose types were checked before; those of the graph are added.

    Raises:
        GraphError: one of these does not hold. That is a defect of a pass, not of a model.
    """
    typed = set() if typed is None else typed
    known: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        for value in node.inputs:
            if value.constant is None and value not in known:
                raise GraphError(f"{node} reads {value.name} before it is made")
        if node not in typed:
            types = OPERATORS[node.op].infer([v.type for v in node.inputs], node.attributes, _agree)
            if types != tuple(v.type for v in node.outputs):
                raise GraphError(f"{node} should give {', '.join(map(str, types))}")
            typed.add(node)
        for value in node.outputs:
            if value in known:
                raise GraphError(f"{value.name} is made twice")
            known.add(value)
    for name, value in graph.outputs:
        if value.constant is None and value not in known:
            raise GraphError(f"output {name} is never made")


def _agree(x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
    """Raise GraphError if two numbers differ. Symbols may still be bound to equal values."""
    if isinstance(x, int) and isinstance(y, int) and x != y and not (or_one and 1 in (x, y)):
        raise GraphError(f"{what}: {x} and {y}")
