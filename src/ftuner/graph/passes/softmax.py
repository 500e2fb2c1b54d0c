"""Recognises softmax and log-softmax, and what is around them without need."""

from __future__ import annotations

import numpy as np

from ftuner.core.dtype import FLOAT32, HALF_DTYPES
from ftuner.core.functions import ROUNDINGS
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import (
    Surroundings,
    constant,
    made,
    near,
    reduced,
    rewritten,
    scaled,
)


def recognise_softmax(graph: Graph) -> Graph:
    """Replace `e / sum(e)` with `e = exp(x - max(x))`, and `x - max(x) - log(sum(e))`, by one node.

    `exp(x) / sum(exp(x))` is left alone: where the sum overflows it gives zero or NaN, and softmax
    gives neither.
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


def plain_softmax(graph: Graph) -> Graph:
    """Replace the softmax of differences from the largest element, as GPT-OSS has it, by that of
    the elements: a softmax subtracts the largest itself. The differences may be multiplied by a
    number from zero to one, or by what divides the elements, as in LayoutLMv3."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "softmax":
            continue
        shifted, factor = scaled(around, node.inputs[0])
        found = _above_the_largest(around, shifted)
        if found is None or found[1] != node.attributes["axis"] or not factor > 0:
            continue
        (x, _), type_, nodes = found, node.output.type, []
        inner, divided = scaled(around, x)
        if near(factor * divided, 1.0, x.dtype):
            x = inner
        elif factor > 1:
            # Elements below the largest would overflow.
            continue
        elif factor != 1:
            name = f"{node.output.name}_factor"
            number = constant(name, x.dtype, np.array(factor))
            nodes.append(made("multiply", [x, number], type_, f"{name}_scaled"))
            x = nodes[0].output
        plain = made("softmax", [x], type_, f"{node.output.name}_plain", **node.attributes)
        places[node] = [*nodes, plain]
        same[node.output] = plain.output
    return rewritten(graph, places, same)


def narrow_softmax(graph: Graph) -> Graph:
    """Replace a softmax between a widening cast from half precision and a narrowing one by one in
    half precision. It is computed in float32 anyway, and the casts would hide the attention, as
    would the rounding of a softmax whose products a CPU computes in float32."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "softmax" or node.output.dtype != FLOAT32:
            continue
        widened = around.producer(node.inputs[0], "cast")
        rounded = around.only_consumer(node.output)
        if rounded is not None and rounded.op in ROUNDINGS:
            reader = around.only_consumer(rounded.output)
            if reader is not None and reader.op == "matmul":
                places[rounded], same[rounded.output] = [], node.output
            continue
        if widened is None or rounded is None or rounded.op != "cast":
            continue
        (x,) = widened.inputs
        if x.dtype.name in HALF_DTYPES and rounded.output.type == x.type:
            name = f"{rounded.output.name}_softmax"
            places[rounded] = [made("softmax", [x], x.type, name, **node.attributes)]
            same[rounded.output] = places[rounded][0].output
    return rewritten(graph, places, same)


def _above_the_largest(around: Surroundings, value: Value) -> tuple[Value, int] | None:
    """(x, axis) if a value is x minus its maximum along the axis."""
    subtract = around.producer(value, "subtract")
    if subtract is None:
        return None
    x, largest = subtract.inputs
    found = reduced(around, largest, "maximum")
    if found is None or found[0] is not x or len(found[1]) != 1 or x.type != value.type:
        return None
    return x, found[1][0]


def _completes(around: Surroundings, end: Node, power: Node, axis: int, log: bool) -> bool:
    """Whether a node divides the exponentials by their sum, or subtracts its logarithm from the
    exponents, and nothing else reads the exponentials or the sum."""
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
