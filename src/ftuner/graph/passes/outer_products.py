"""Products over one element as what they are."""

from __future__ import annotations

from ftuner.graph.ir import Graph, Node
from ftuner.graph.rewriting import made, rewritten


def write_outer_products(graph: Graph) -> Graph:
    """A matrix product over an axis of one element becomes a multiplication, which ends in the
    loops of whoever reads it. Models multiply positions and rates so; where products of float32 may
    be rounded to tf32, these may not."""
    places: dict[Node, list[Node]] = {}
    same = {}
    for node in graph.nodes:
        if node.op == "matmul" and node.inputs[0].shape[-1] == node.inputs[1].shape[-2] == 1:
            value = node.output
            places[node] = [made("multiply", node.inputs, value.type, f"{value.name}_outer")]
            same[value] = places[node][0].output
    return rewritten(graph, places, same)
