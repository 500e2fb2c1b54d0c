"""Recognising gelu where it is written out with erf."""

from __future__ import annotations

import math

from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import Surroundings, made, near, rewritten, scalar, scaled


def recognise_gelu(graph: Graph) -> Graph:
    """`0.5 x (1 + erf(x / sqrt 2))`, its factors in any order, becomes `gelu(x)`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "erf":
            continue
        x, factor = scaled(around, node.inputs[0])
        end = _product(around, node, x) if near(factor, math.sqrt(0.5)) else None
        if end is not None:
            gelu = made("gelu", [x], x.type, f"{end.output.name}_gelu")
            places[end] = [gelu]
            same[end.output] = gelu.output
    return rewritten(graph, places, same)


def _product(around: Surroundings, erf: Node, x: Value) -> Node | None:
    """The multiplication that completes `0.5 x (1 + erf)`."""
    lifted = around.only_consumer(erf.output)
    if lifted is None or lifted.op != "add":
        return None
    if not any(near(scalar(v), 1.0) for v in lifted.inputs):
        return None
    node, number, found = lifted, 1.0, False
    while True:
        following = around.only_consumer(node.output)
        if following is None or following.op != "multiply":
            return None
        other = following.inputs[1 if following.inputs[0] is node.output else 0]
        constant = scalar(other)
        if constant is not None:
            number *= constant
        else:
            base, factor = scaled(around, other)
            if found or x not in (other, base):
                return None
            number *= 1.0 if other is x else factor
            found = True
        node = following
        if found and near(number, 0.5):
            return node if node.output.type == x.type else None
