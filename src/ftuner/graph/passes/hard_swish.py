"""Recognises hard swish."""

from __future__ import annotations

from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.gates import gated, is_near, polynomial
from ftuner.graph.rewriting import Surroundings, made, near, rewritten, scalar


def recognise_hard_swish(graph: Graph) -> Graph:
    """Replace `x clip(x + 3, 0, 6) / 6`, with its factors in any order, and
    `x clip(x / 6 + 1/2, 0, 1)`, by `hard_swish(x)`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        clipped = _clipped(around, node)
        if clipped is None:
            continue
        value, high = clipped
        line = (high / 2, high / 6)
        for end, x, number in gated(around, node.output):
            found = polynomial(around, value, x)
            if near(number * high, 1.0, x.dtype) and is_near(found, line, x.dtype):
                swish = made("hard_swish", [x], x.type, f"{end.output.name}_hard_swish")
                places[end] = [swish]
                same[end.output] = swish.output
                break
    return rewritten(graph, places, same)


def _clipped(around: Surroundings, node: Node) -> tuple[Value, float] | None:
    """(x, limit) if a node clips a floating x to 0 .. limit."""
    other = {"minimum": "maximum", "maximum": "minimum"}.get(node.op)
    if other is None or node.output.dtype.kind != "float":
        return None
    within, outer_bound = _limited(node)
    inner = around.producer(within, other)
    if inner is None:
        return None
    value, inner_bound = _limited(inner)
    bounds = (inner_bound, outer_bound)
    low, high = bounds if node.op == "minimum" else bounds[::-1]
    return (value, high) if low == 0 and high is not None and high > 0 else None


def _limited(node: Node) -> tuple[Value, float | None]:
    """The operands of a maximum or minimum: a tensor, and the number that bounds it."""
    x, y = node.inputs
    return (x, scalar(y)) if scalar(x) is None else (y, scalar(x))
