"""Folding what reads constants alone and was not folded when the graph was built."""

from __future__ import annotations

from ftuner.graph.folding import folded
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import rewritten


def fold_constants(graph: Graph) -> Graph:
    """Nodes of constants become constants."""
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        known = [same.get(v, v) for v in node.inputs]
        results = folded(node.op, known, node.attributes, [v.type for v in node.outputs])
        if results is not None and known:
            places[node] = []
            for value, result in zip(node.outputs, results, strict=True):
                same[value] = Value(value.name, value.type, result)
    return rewritten(graph, places, same)
