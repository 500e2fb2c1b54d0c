"""Replaces matrix products over an axis of extent 1 by multiplications."""

from __future__ import annotations

from ftuner.graph.ir import Graph, Node
from ftuner.graph.rewriting import made, rewritten


def write_outer_products(graph: Graph) -> Graph:
    """Replace a matrix product over an axis of extent 1 by a multiplication, which is fused into
    its reader. Models multiply positions by frequencies like this, which must not be rounded to
    tf32 even where products of float32 may be."""
    places: dict[Node, list[Node]] = {}
    same = {}
    for node in graph.nodes:
        if node.op == "matmul" and node.inputs[0].shape[-1] == node.inputs[1].shape[-2] == 1:
            value = node.output
            places[node] = [made("multiply", node.inputs, value.type, f"{value.name}_outer")]
            same[value] = places[node][0].output
    return rewritten(graph, places, same)
