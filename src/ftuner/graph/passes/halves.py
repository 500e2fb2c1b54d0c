"""Computes half precision in float32, for a device that multiplies no halves.

Inputs are widened where they are read, and outputs are rounded at the end; the tensors between are
float32. Constants have the values of the file. In between, only casts of the file to half precision
round, so results are at least as exact as the file asks for.
"""

from __future__ import annotations

from typing import Any

from ftuner.core.dtype import FLOAT32, HALF_DTYPES, DType
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Graph, Value, writing_to
from ftuner.graph.rewrite.rewriting import Rewriting
from ftuner.graph.rewrite.surroundings import constant


def halves_in_float32(graph: Graph) -> Graph:
    """The graph with float32 in the place of half precision, but for its inputs and outputs."""
    new = Rewriting(graph)

    def widened(value: Value) -> Value:
        """The value that nodes read in the place of one."""
        if value.constant is not None and _is_half(value) and value not in new.same:
            new.same[value] = constant(value.name, FLOAT32, value.constant)
        found = new.same.get(value, value)
        return found.cast(FLOAT32) if _is_half(found) else found

    def rounded(value: Value) -> Value:
        """The value in the dtype that the file gives it."""
        return widened(value).cast(value.dtype)

    with writing_to(new):
        for node in graph.nodes:
            new.name = node.outputs[0].name
            # The inputs and outputs of graphs, and bits, are those of the dtypes of the file.
            within = any(isinstance(x, Graph) for x in node.attributes.values())
            as_given = within or node.op == "bit_cast"
            inputs = tuple(map(rounded if as_given else widened, node.inputs))
            attributes = node.attributes
            if not as_given:
                attributes = {n: _wide_attribute(x) for n, x in attributes.items()}
            if node.op == "cast" and inputs[0].dtype == attributes["to"]:
                # It rounds to half precision, or widens what is wide.
                if attributes.get("explicit"):
                    inputs = (apply(f"round_{node.output.dtype}", *inputs),)
                new.same[node.output] = inputs[0]
            elif any(map(_is_half, (*node.inputs, *node.outputs))):
                results = new.add_many(node.op, *inputs, **attributes)
                new.same.update(zip(node.outputs, results, strict=True))
        new.outputs = tuple((name, rounded(value)) for name, value in graph.outputs)
    return new.rewritten()


def _wide_attribute(attribute: Any) -> Any:
    is_half = isinstance(attribute, DType) and attribute.name in HALF_DTYPES
    return FLOAT32 if is_half else attribute


def _is_half(value: Value) -> bool:
    return value.dtype.name in HALF_DTYPES
