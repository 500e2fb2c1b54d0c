"""Recognises silu and swish."""

from __future__ import annotations

import numpy as np

from ftuner.core.functions import MAX_SLOPE, MIN_SLOPE
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.passes.gates import gated, polynomial
from ftuner.graph.rewriting import Surroundings, constant, made, near, rewritten


def recognise_silu(graph: Graph) -> Graph:
    """Replace `x sigmoid(x)` by `silu(x)`, and `x sigmoid(a x)` (quick gelu) by `swish(x, a)`. Both
    read x once, so that they can be the epilogue of a product."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "sigmoid":
            continue
        argument = node.inputs[0]
        for end, x, number in gated(around, node.output):
            factor = _factor(around, argument, x)
            if factor is not None and near(number, 1.0, x.dtype):
                name = end.output.name
                if factor == 1.0:
                    written = made("silu", [x], x.type, f"{name}_silu")
                else:
                    slope = constant(f"{name}_slope", x.dtype, np.array(factor))
                    written = made("swish", [x, slope], x.type, f"{name}_swish")
                places[end] = [written]
                same[end.output] = written.output
                break
    return rewritten(graph, places, same)


def _factor(around: Surroundings, value: Value, x: Value) -> float | None:
    """The number that x is multiplied by to give a value, unless it is very large or small."""
    found = polynomial(around, value, x)
    if found is None or len(found) != 2 or found[0] != 0:
        return None
    return found[1] if MIN_SLOPE <= abs(found[1]) <= MAX_SLOPE else None
