"""Concatenates half precision as it is.

Where a device computes half precision in float32, a concatenation widens its operands, and its
result is rounded again. An operand that an input gives is the same number after both: it is copied
in half precision, and only the others are rounded.
"""

from __future__ import annotations

from dataclasses import replace

from ftuner.core.dtype import HALF_DTYPES
from ftuner.graph.ir import Graph, Node, Value, producers
from ftuner.graph.rewriting import made, rewritten


def join_halves(graph: Graph) -> Graph:
    """Replace roundings of concatenations of what was half precision before."""
    made_by = producers(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}

    def narrow(value: Value, wanted: Value) -> Value | None:
        """What a value was widened from, if that has the dtype that is wanted."""
        node = made_by.get(value)
        if node is None or node.op != "cast" or node.inputs[0].dtype != wanted.dtype:
            return None
        return node.inputs[0]

    for node in graph.nodes:
        if node.op != "cast" or node.output.dtype.name not in HALF_DTYPES:
            continue
        result = node.output
        joined = made_by.get(node.inputs[0])
        if joined is None or joined.op != "concat":
            continue
        operands = [(value, narrow(value, result)) for value in joined.inputs]
        if all(found is None for _, found in operands):
            continue
        halves: list[Value] = []
        places[node] = []
        for value, found in operands:
            if found is None:
                type_ = replace(value.type, dtype=result.dtype)
                name = f"{value.name}_rounded"
                places[node].append(made("cast", [value], type_, name, to=result.dtype))
                found = places[node][-1].output
            halves.append(found)
        axis = joined.attributes["axis"]
        whole = made("concat", halves, result.type, f"{result.name}_joined", axis=axis)
        places[node].append(whole)
        same[result] = whole.output
    return rewritten(graph, places, same)
