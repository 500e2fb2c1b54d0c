"""Writes operators of users that have schedules by their definitions."""

from __future__ import annotations

from ftuner.graph.ir import Graph, writing_to
from ftuner.graph.rewrite.rewriting import Rewriting


def definitions(graph: Graph) -> Graph:
    """The graph without nodes that are computed by a schedule of a user."""
    new = Rewriting(graph)
    with writing_to(new):
        for node in graph.nodes:
            if node.op == "scheduled":
                new.name = node.outputs[0].name
                values = node.attributes["schedule"].defined(node.inputs)
                new.same.update(zip(node.outputs, values, strict=True))
    return new.rewritten()
