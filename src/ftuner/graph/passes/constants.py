"""Folding what reads constants alone and was not folded when the graph was built."""

from __future__ import annotations

from ftuner.graph.folding import Folding
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import rewritten


def fold_constants(graph: Graph) -> Graph:
    """Nodes of constants become constants.

    Raises:
        IndexRangeError, GraphError: what they hold is out of range, or does not fit.
    """
    folding = Folding()
    for value in {v for node in graph.nodes for v in node.inputs}:
        if value.constant is not None:
            folding.allow(value.constant.nbytes)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        known = [same.get(v, v) for v in node.inputs]
        types = [v.type for v in node.outputs]
        results = folding.folded(node.op, known, node.attributes, types)
        if results is not None and known:
            places[node] = []
            for value, result in zip(node.outputs, results, strict=True):
                same[value] = Value(value.name, value.type, result)
    return rewritten(graph, places, same)
