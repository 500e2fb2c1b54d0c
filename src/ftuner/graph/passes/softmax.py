"""Recognising softmax where it is written out."""

from __future__ import annotations

from ftuner.core.dtype import FLOAT32, HALF_DTYPES
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import Surroundings, made, reduced, rewritten


def recognise_softmax(graph: Graph) -> Graph:
    """`e / sum(e)` with `e = exp(x - max(x))`, and `x - max(x) - log(sum(e))`, become one node.

    Without the maximum it is left alone: `exp(x) / sum(exp(x))` is not its equal. Where the sum
    overflows it is zero or no number, and softmax is neither.
    """
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for power in graph.nodes:
        if power.op != "exp":
            continue
        shifted = power.inputs[0]
        found = _above_the_largest(around, shifted)
        if found is None:
            continue
        x, axis = found
        readers = [(n, False) for n in around.consumers(power.output) if n.op == "divide"]
        readers += [(n, True) for n in around.consumers(shifted) if n.op == "subtract"]
        for end, log in readers:
            if _completes(around, end, power, axis, log):
                name = f"{end.output.name}_softmax"
                softmax = made("softmax", [x], x.type, name, axis=axis, log=log)
                places[end] = [softmax]
                same[end.output] = softmax.output
    return rewritten(graph, places, same)


def narrow_softmax(graph: Graph) -> Graph:
    """The softmax of halves that were widened, rounded to halves, becomes one of halves: it is
    computed in float32 all the same, and a product that is widened first ends in no attention."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "softmax" or node.output.dtype != FLOAT32:
            continue
        widened = around.producer(node.inputs[0], "cast")
        rounded = around.only_consumer(node.output)
        if widened is None or rounded is None or rounded.op != "cast":
            continue
        (x,) = widened.inputs
        if x.dtype.name in HALF_DTYPES and rounded.output.type == x.type:
            name = f"{rounded.output.name}_softmax"
            places[rounded] = [made("softmax", [x], x.type, name, **node.attributes)]
            same[rounded.output] = places[rounded][0].output
    return rewritten(graph, places, same)


def _above_the_largest(around: Surroundings, value: Value) -> tuple[Value, int] | None:
    """The tensor that a value is less its largest element along one axis, and the axis."""
    subtract = around.producer(value, "subtract")
    if subtract is None:
        return None
    x, largest = subtract.inputs
    found = reduced(around, largest, "maximum")
    if found is None or found[0] is not x or len(found[1]) != 1 or x.type != value.type:
        return None
    return x, found[1][0]


def _completes(around: Surroundings, end: Node, power: Node, axis: int, log: bool) -> bool:
    """Whether a node divides powers by their sum, or takes its logarithm off their exponents,
    and nobody else reads the powers or the sum."""
    value, total = end.inputs
    if around.only_consumer(total) is not end:
        return False
    if log:
        logarithm = around.producer(total, "log")
        if logarithm is None or around.only_consumer(logarithm.inputs[0]) is None:
            return False
        total = logarithm.inputs[0]
    if value is not (power.inputs[0] if log else power.output):
        return False
    readers = 1 if log else 2
    alone = around.read(power.output) == readers
    return alone and reduced(around, total, "sum") == (power.output, (axis,))
