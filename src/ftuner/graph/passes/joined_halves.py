"""Concatenates half precision as it is, and writes rows into it.

Where a device computes half precision in float32, a concatenation widens its operands, and its
result is rounded again. An operand that an input gives is the same number after both: it is copied
in half precision, and only the others are rounded. The same holds of rows that are written into
such an operand.
"""

from __future__ import annotations

from ftuner.core.dtype import HALF_DTYPES, DType
from ftuner.graph.algebra import apply, constant
from ftuner.graph.ir import Graph, Node, Value, producers, writing_to
from ftuner.graph.rewrite.rewriting import Rewriting


def join_halves(graph: Graph) -> Graph:
    """Replace roundings of concatenations of what was half precision before, and of caches of it
    with new rows."""
    for dtype in HALF_DTYPES.values():
        if any(node.op == "cast" and node.output.dtype == dtype for node in graph.nodes):
            new = Rewriting(graph)
            with writing_to(new):
                new.same.update(_Narrow(graph, dtype).same)
            graph = new.rewritten()
    return graph


class _Narrow:
    """What gives values in half precision from other ones; where no rounding takes it, it is left
    out."""

    def __init__(self, graph: Graph, dtype: DType) -> None:
        self._dtype = dtype
        self._made_by = producers(graph)
        self._known: dict[Value, Value] = {}
        """Values of float32 in half precision."""
        self.same: dict[Value, Value] = {}
        for node in graph.nodes:
            if node.op == "cast":
                self._visit_cast(node)
            elif node.op in ("concat", "reshape", "slice") and any(
                value in self._known for value in node.inputs
            ):
                halves = map(self._half, node.inputs)
                self._known[node.output] = apply(node.op, *halves, **node.attributes)

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
            cache = apply("pad", cache, self._half(pad.inputs[1]), **pad.attributes)
        return apply("write_rows", cache, starts, self._half(updates), **node.attributes)

    def _half(self, value: Value) -> Value:
        """The value in half precision: as it was before, or rounded."""
        if value in self._known:
            return self._known[value]
        return (
            value.cast(self._dtype)
            if value.constant is None
            else constant(value.constant, self._dtype)
        )
