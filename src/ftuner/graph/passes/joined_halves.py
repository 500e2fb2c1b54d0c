"""Concatenates half precision as it is, and writes rows into it.

Where a device computes half precision in float32, a concatenation widens its operands, and its
result is rounded again. An operand that an input gives is the same number after both: it is copied
in half precision, and only the others are rounded. The same holds of rows that are written into
such an operand.
"""

from __future__ import annotations

from dataclasses import replace

from ftuner.core.dtype import HALF_DTYPES, DType
from ftuner.graph.ir import Graph, Node, Value, producers
from ftuner.graph.rewrite.surroundings import constant, made, rewritten


def join_halves(graph: Graph) -> Graph:
    """Replace roundings of concatenations of what was half precision before, and of caches of it
    with new rows."""
    for dtype in HALF_DTYPES.values():
        if any(node.op == "cast" and node.output.dtype == dtype for node in graph.nodes):
            narrow = _Narrow(graph, dtype)
            graph = rewritten(graph, narrow.places, narrow.same) if narrow.same else graph
    return graph


class _Narrow:
    """What gives values in half precision from other ones. It is added after the nodes that give
    them in float32; where no rounding takes it, it is dropped."""

    def __init__(self, graph: Graph, dtype: DType) -> None:
        self._dtype = dtype
        self._made_by = producers(graph)
        self._known: dict[Value, Value] = {}
        """Values of float32 in half precision."""
        self.places: dict[Node, list[Node]] = {}
        self.same: dict[Value, Value] = {}
        for node in graph.nodes:
            self._nodes: list[Node] = []
            if node.op == "cast":
                self._visit_cast(node)
            elif node.op in ("concat", "reshape", "slice") and any(
                value in self._known for value in node.inputs
            ):
                halves = [self._half(value) for value in node.inputs]
                self._known[node.output] = self._made(halves, node)
            if self._nodes:
                self.places[node] = [*self._nodes, node]

    def _visit_cast(self, node: Node) -> None:
        (x,) = node.inputs
        if x.dtype == self._dtype:
            self._known[node.output] = x
        wide = self._made_by.get(x)
        if node.output.dtype == self._dtype and wide is not None:
            found = self._written(wide) if wide.op == "write_rows" else None
            if wide.op == "concat":
                found = self._known.get(x)
            if found is not None:
                self.same[node.output] = found

    def _written(self, node: Node) -> Value | None:
        """Rows written into a cache that was half precision before; None if it was not."""
        wide, starts, updates = node.inputs
        pad = self._made_by.get(wide)
        if pad is None or pad.op != "pad" or pad.attributes["mode"] != "constant":
            pad = None
        cache = self._known.get(wide if pad is None else pad.inputs[0])
        if cache is None:
            return None
        if pad is not None:
            cache = self._made([cache, self._half(pad.inputs[1])], pad)
        return self._made([cache, starts, self._half(updates)], node)

    def _half(self, value: Value) -> Value:
        """The value in half precision: as it was before, or rounded."""
        found = self._known.get(value)
        if found is not None:
            return found
        name = f"{value.name}_rounded"
        if value.constant is not None:
            return constant(name, self._dtype, value.constant)
        type_ = replace(value.type, dtype=self._dtype)
        self._nodes.append(made("cast", [value], type_, name, to=self._dtype))
        return self._nodes[-1].output

    def _made(self, operands: list[Value], wide: Node) -> Value:
        """What a node gives in half precision that another one gives in float32."""
        result, dtype = wide.output, self._dtype
        type_ = replace(result.type, dtype=dtype)
        name = f"{result.name}_{dtype}"
        self._nodes.append(made(wide.op, operands, type_, name, **wide.attributes))
        return self._nodes[-1].output
