"""Computes half precision in float32, for a device that multiplies no halves.

Inputs are widened where they are read, and outputs are rounded at the end; the tensors between are
float32. Constants have the values of the file. In between, only casts of the file to half precision
round, so results are at least as exact as the file asks for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ftuner.core.dtype import FLOAT32, HALF_DTYPES, DType
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewrite.surroundings import constant, made


def halves_in_float32(graph: Graph) -> Graph:
    """The graph with float32 in the place of half precision, but for its inputs and outputs."""
    wide: dict[Value, Value] = {}
    nodes: list[Node] = []

    def widened(value: Value) -> Value:
        """The value that nodes read in the place of one."""
        if value not in wide:
            if not _is_half(value):
                return value
            if value.constant is not None:
                wide[value] = constant(value.name, FLOAT32, value.constant)
            else:
                type_ = replace(value.type, dtype=FLOAT32)
                nodes.append(made("cast", [value], type_, f"{value.name}_wide", to=FLOAT32))
                wide[value] = nodes[-1].output
        return wide[value]

    def rounded(value: Value) -> Value:
        """The value in the dtype that the file gives it."""
        found = widened(value)
        if not _is_half(value):
            return found
        nodes.append(made("cast", [found], value.type, f"{value.name}_rounded", to=value.dtype))
        return nodes[-1].output

    for node in graph.nodes:
        within = any(isinstance(x, Graph) for x in node.attributes.values())
        if within or node.op == "bit_cast":
            # The inputs and outputs of graphs, and bits, are those of the dtypes of the file.
            nodes.append(replace(node, inputs=tuple(map(rounded, node.inputs))))
            continue
        inputs = tuple(map(widened, node.inputs))
        for value in filter(_is_half, node.outputs):
            wide[value] = replace(value, type=replace(value.type, dtype=FLOAT32))
        results = tuple(wide.get(v, v) for v in node.outputs)
        if node.op == "cast" and inputs[0].dtype == results[0].dtype:
            # It rounds to half precision, or widens what is wide.
            if node.attributes.get("explicit"):
                name = f"{node.output.name}_rounded"
                nodes.append(made(f"round_{node.output.dtype}", inputs, results[0].type, name))
                inputs = nodes[-1].outputs
            wide[node.output] = inputs[0]
            continue
        attributes = {n: _wide_attribute(x) for n, x in node.attributes.items()}
        nodes.append(replace(node, inputs=inputs, outputs=results, attributes=attributes))
    outputs = tuple((name, rounded(value)) for name, value in graph.outputs)
    return Graph(graph.inputs, outputs, tuple(nodes), graph.constraints)


def _wide_attribute(attribute: Any) -> Any:
    is_half = isinstance(attribute, DType) and attribute.name in HALF_DTYPES
    return FLOAT32 if is_half else attribute


def _is_half(value: Value) -> bool:
    return value.dtype.name in HALF_DTYPES
