"""Recognising functions that cancel where they are written out."""

from __future__ import annotations

from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.gates import gated
from ftuner.graph.rewriting import Surroundings, made, rewritten, scalar


def recognise_expm1(graph: Graph) -> Graph:
    """`exp(x) - 1` becomes `expm1(x)`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        power = _with_number(around, node, "add", -1.0) or _with_number(
            around, node, "subtract", 1.0
        )
        exp = around.producer(power, "exp") if power is not None else None
        if exp is not None and exp.output.type == node.output.type:
            _replace(node, "expm1", exp.inputs[0], places, same)
    return rewritten(graph, places, same)


def recognise_erfc(graph: Graph) -> Graph:
    """`1 - erf(x)` becomes `erfc(x)`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "subtract" or node.output.dtype.kind != "float":
            continue
        erf = around.producer(node.inputs[1], "erf")
        if scalar(node.inputs[0]) == 1 and erf is not None and erf.output.type == node.output.type:
            _replace(node, "erfc", erf.inputs[0], places, same)
    return rewritten(graph, places, same)


def recognise_mish(graph: Graph) -> Graph:
    """`x tanh(softplus(x))` becomes `mish(x)`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        inner = around.producer(node.inputs[0], "softplus") if node.op == "tanh" else None
        if inner is None:
            continue
        for end, x, number in gated(around, node.output):
            if x is inner.inputs[0] and number == 1.0:
                _replace(end, "mish", x, places, same)
                break
    return rewritten(graph, places, same)


def _with_number(around: Surroundings, node: Node, op: str, number: float) -> Value | None:
    """The tensor that a node adds a number to, or takes it from."""
    if node.op != op or node.output.dtype.kind != "float":
        return None
    pairs = (node.inputs, node.inputs[::-1]) if op == "add" else (node.inputs,)
    return next((x for x, other in pairs if scalar(other) == number), None)


def _replace(
    node: Node, op: str, x: Value, places: dict[Node, list[Node]], same: dict[Value, Value]
) -> None:
    other = made(op, [x], node.output.type, f"{node.output.name}_{op}")
    places[node] = [other]
    same[node.output] = other.output
