"""Checks the invariants of a graph; runs after each pass."""

from __future__ import annotations

from collections.abc import Collection

from ftuner.core.dim import Dim, UsedSymbols
from ftuner.errors import GraphError
from ftuner.graph.ir import Graph, Node, Value, used_dims
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


def free_symbols(graph: Graph) -> set[str]:
    """The symbols in the nodes and outputs of a graph that none of its nodes binds."""
    used = UsedSymbols()
    used.add(n for _, value in graph.outputs for n in value.shape)
    for node in graph.nodes:
        used.add(used_dims(node))
    return set(used.names).difference(*(node.binds for node in graph.nodes))


def expect_bound(graph: Graph, free: Collection[str]) -> None:
    """Check that each symbol of a graph is bound by a node or among `free`.

    Raises:
        GraphError: one is not, so that a pass has lost the node that binds it.
    """
    if lost := free_symbols(graph).difference(free):
        raise GraphError(f"no node binds {', '.join(sorted(lost))}")


def _agree(x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
    """Raise GraphError if two numbers differ. Symbols may still be bound to equal values."""
    if isinstance(x, int) and isinstance(y, int) and x != y and not (or_one and 1 in (x, y)):
        raise GraphError(f"{what}: {x} and {y}")
