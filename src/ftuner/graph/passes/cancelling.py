"""Recognises expressions that lose digits to cancellation and replaces them by one function."""

from __future__ import annotations

from collections.abc import Iterable

from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.gates import gated
from ftuner.graph.rewriting import Surroundings, made, rewritten, scalar


def recognise_expm1(graph: Graph) -> Graph:
    """Replace `exp(x) - 1` by `expm1(x)`."""
    around = Surroundings(graph)
    found = []
    for node in graph.nodes:
        power = _power_less_one(node)
        exp = around.producer(power, "exp") if power is not None else None
        if exp is not None and exp.output.type == node.output.type:
            found.append((node, exp.inputs[0]))
    return _replaced(graph, "expm1", found)


def recognise_erfc(graph: Graph) -> Graph:
    """Replace `1 - erf(x)` by `erfc(x)`."""
    around = Surroundings(graph)
    found = []
    for node in graph.nodes:
        if node.op != "subtract" or node.output.dtype.kind != "float":
            continue
        erf = around.producer(node.inputs[1], "erf")
        if scalar(node.inputs[0]) == 1 and erf is not None and erf.output.type == node.output.type:
            found.append((node, erf.inputs[0]))
    return _replaced(graph, "erfc", found)


def recognise_mish(graph: Graph) -> Graph:
    """Replace `x tanh(softplus(x))` by `mish(x)`."""
    around = Surroundings(graph)
    found = []
    for node in graph.nodes:
        inner = around.producer(node.inputs[0], "softplus") if node.op == "tanh" else None
        if inner is None:
            continue
        for end, x, number in gated(around, node.output):
            if x is inner.inputs[0] and number == 1.0:
                found.append((end, x))
                break
    return _replaced(graph, "mish", found)


def _power_less_one(node: Node) -> Value | None:
    """The tensor that a node subtracts 1 from, or adds -1 to."""
    if node.op not in ("add", "subtract") or node.output.dtype.kind != "float":
        return None
    pairs = [(node.inputs[0], node.inputs[1])]
    if node.op == "add":
        pairs.append((node.inputs[1], node.inputs[0]))
    one = -1 if node.op == "add" else 1
    return next((x for x, other in pairs if scalar(other) == one), None)


def _replaced(graph: Graph, op: str, found: Iterable[tuple[Node, Value]]) -> Graph:
    """The graph with each node replaced by `op` of a tensor."""
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node, x in found:
        other = made(op, [x], node.output.type, f"{node.output.name}_{op}")
        places[node] = [other]
        same[node.output] = other.output
    return rewritten(graph, places, same)
