"""Recognises gelu, with erf or with tanh."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.gates import gated, is_near, polynomial
from ftuner.graph.rewriting import Surroundings, made, near, rewritten, scalar

_ERF_ARGUMENT = (0.0, math.sqrt(0.5))
_TANH_ARGUMENT = (0.0, math.sqrt(2 / math.pi), 0.0, math.sqrt(2 / math.pi) * 0.044715)


def recognise_gelu(graph: Graph) -> Graph:
    """Replace `0.5 x (1 + erf(x / sqrt 2))`, with its factors in any order, by `gelu(x)`."""
    return _recognised(graph, "erf", _ERF_ARGUMENT, "gelu")


def recognise_gelu_tanh(graph: Graph) -> Graph:
    """Replace `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, with its factors in any order
    and its cube in any spelling, by `gelu_tanh(x)`."""
    return _recognised(graph, "tanh", _TANH_ARGUMENT, "gelu_tanh")


def _recognised(graph: Graph, op: str, argument: Sequence[float], name: str) -> Graph:
    """Replace `0.5 x (1 + op(p(x)))` by one node; `argument` has the coefficients of p."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        lifted = around.only_consumer(node.output) if node.op == op else None
        if lifted is None or lifted.op != "add":
            continue
        if not any(near(scalar(v), 1.0, v.dtype) for v in lifted.inputs):
            continue
        for end, x, number in gated(around, lifted.output):
            found = polynomial(around, node.inputs[0], x)
            if near(number, 0.5, x.dtype) and is_near(found, argument, x.dtype):
                gelu = made(name, [x], x.type, f"{end.output.name}_{name}")
                places[end] = [gelu]
                same[end.output] = gelu.output
                break
    return rewritten(graph, places, same)
