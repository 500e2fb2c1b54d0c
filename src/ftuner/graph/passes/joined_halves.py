"""Concatenates half precision as it is, and writes rows into it.

Where a device computes half precision in float32, a concatenation widens its operands, and its
result is rounded again. An operand that an input gives is the same number after both: it is copied
in half precision, and only the others are rounded. The same holds of rows that are written into
such an operand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ftuner.core.dtype import HALF_DTYPES
from ftuner.graph.ir import Graph, Node, Value, producers
from ftuner.graph.rewriting import constant, made, rewritten


def join_halves(graph: Graph) -> Graph:
    """Replace roundings of concatenations of what was half precision before, and of caches of it
    with new rows."""
    made_by = producers(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "cast" or node.output.dtype.name not in HALF_DTYPES:
            continue
        wide = made_by.get(node.inputs[0])
        if wide is None or wide.op not in ("concat", "write_rows"):
            continue
        narrow = _Narrow(node.output, made_by)
        found = narrow.joined(wide) if wide.op == "concat" else narrow.written(wide)
        if found is None:
            continue
        places[node] = [*narrow.nodes, found]
        same[node.output] = found.output
    return rewritten(graph, places, same)


class _Narrow:
    """What gives a result in half precision from values in half precision."""

    def __init__(self, result: Value, made_by: Mapping[Value, Node]) -> None:
        self._result = result
        self._made_by = made_by
        self.nodes: list[Node] = []

    def joined(self, node: Node) -> Node | None:
        """A concatenation of halves; None if no operand was half precision before."""
        operands = [(value, self._before(value)) for value in node.inputs]
        if all(found is None for _, found in operands):
            return None
        halves = [self._rounded(value) if half is None else half for value, half in operands]
        return self._made(halves, node)

    def written(self, node: Node) -> Node | None:
        """Rows written into a cache that was half precision before; None if it was not."""
        wide, starts, updates = node.inputs
        pad = self._made_by.get(wide)
        if pad is None or pad.op != "pad" or pad.attributes["mode"] != "constant":
            pad = None
        cache = self._before(wide if pad is None else pad.inputs[0])
        if cache is None:
            return None
        if pad is not None:
            cache = self._added(self._made([cache, self._rounded(pad.inputs[1])], pad))
        return self._made([cache, starts, self._rounded(updates)], node)

    def _before(self, value: Value) -> Value | None:
        """The value in half precision, if it has been widened from it; None if it has not."""
        node = self._made_by.get(value)
        if node is None:
            return None
        if node.op == "cast":
            (x,) = node.inputs
            return x if x.dtype == self._result.dtype else None
        if node.op == "concat":
            found = self.joined(node)
            return None if found is None else self._added(found)
        if node.op not in ("reshape", "slice"):
            return None
        before = self._before(node.inputs[0])
        return None if before is None else self._added(self._made([before], node))

    def _rounded(self, value: Value) -> Value:
        name, dtype = f"{value.name}_rounded", self._result.dtype
        if value.constant is not None:
            return constant(name, dtype, value.constant)
        type_ = replace(value.type, dtype=dtype)
        return self._added(made("cast", [value], type_, name, to=dtype))

    def _added(self, node: Node) -> Value:
        self.nodes.append(node)
        return node.output

    def _made(self, operands: list[Value], wide: Node) -> Node:
        """The node in half precision that another one is in float32."""
        result, dtype = wide.output, self._result.dtype
        type_ = replace(result.type, dtype=dtype)
        return made(wide.op, operands, type_, f"{result.name}_{dtype}", **wide.attributes)
