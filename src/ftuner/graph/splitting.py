"""Splits graphs with nodes that a host computes into several graphs that run one after the other.

Extents must be known before a program is bound, and a program has no loops. At a node whose data
decides an extent of its result, that runs graphs, or that a library of the host computes, the
program ends. The next one begins with what is known by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.ir import Graph, Node, Value, live_nodes
from ftuner.graph.operators import OPERATORS

MAX_PARTS = 64
"""Most parts of a model. Detection models have two or three."""


@dataclass(frozen=True)
class Part:
    """A graph without host nodes, and the host node that follows it, None for the last part. The
    outputs are what that node or later parts read; there may be none, and then no nodes either."""

    graph: Graph
    node: Node | None


def split(graph: Graph) -> tuple[Part, ...]:
    """The parts of a graph, in order. Most graphs have one.

    The inputs of each part are those of the graph, then results of earlier parts and of the nodes
    between them.

    Raises:
        UnsupportedOperatorError: there would be more than `MAX_PARTS`.
    """
    parts: list[Part] = []
    inputs = list(graph.inputs)
    left = graph.nodes
    while True:
        at = next((i for i, node in enumerate(left) if OPERATORS[node.op].on_host), None)
        if at is None:
            parts.append(Part(Graph(tuple(inputs), graph.outputs, left, graph.constraints), None))
            return tuple(parts)
        if len(parts) == MAX_PARTS - 1:
            raise UnsupportedOperatorError(
                f"more than {MAX_PARTS - 1} loops, extents that depend on data or determinants, "
                "one after the other"
            )
        node, after = left[at], left[at + 1 :]
        wanted = _crossing(left[:at], left[at:], [value for _, value in graph.outputs])
        nodes = live_nodes(left[:at], wanted)
        named = tuple((value.name, value) for value in wanted)
        parts.append(Part(Graph(tuple(inputs), named, nodes, graph.constraints), node))
        inputs += [*wanted, *node.outputs]
        left = after


def _crossing(
    before: Sequence[Node], after: Sequence[Node], outputs: Sequence[Value]
) -> list[Value]:
    """Values given by nodes before the split that later nodes read or that are outputs."""
    made = {value for node in before for value in node.outputs}
    read = [value for node in after for value in node.inputs]
    return list(dict.fromkeys(v for v in (*read, *outputs) if v in made))
