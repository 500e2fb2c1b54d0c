"""Half precision on a device that multiplies no halves.

Inputs are widened where they are read, and outputs are rounded at the end; the tensors between are
float32. Constants have the values of the file. In between, only casts of the file to half precision
round, so results are at least as exact as the file asks for.

Constant weights of half precision stay as they are: uKernels widen them, which takes half of the
memory. Concatenations copy what is half precision before and after them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dtype import FLOAT32, HALF_DTYPES, DType
from ftuner.graph.algebra import apply, constant
from ftuner.graph.arrays import exactly_half
from ftuner.graph.ir import Graph, Node, Value, producers, writing_to
from ftuner.graph.rewrite.rule import Rewriting, Rule, rule
from ftuner.graph.rewrite.surroundings import Surroundings
from ftuner.graph.rewrite.surroundings import constant as named_constant


def halves_in_float32(graph: Graph) -> Graph:
    """The graph with float32 in the place of half precision, but for its inputs and outputs."""
    new = Rewriting(graph)

    def widened(value: Value) -> Value:
        """The value that nodes read in the place of one."""
        if value.constant is not None and _is_half(value) and value not in new.same:
            new.same[value] = named_constant(value.name, FLOAT32, value.constant)
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
                attributes = {
                    n: FLOAT32 if isinstance(x, DType) and x.name in HALF_DTYPES else x
                    for n, x in attributes.items()
                }
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


def _is_half(value: Value) -> bool:
    return value.dtype.name in HALF_DTYPES


LEAST_ELEMENTS = 1 << 14
"""Smaller weights stay in the nearest caches either way. Assumed."""


def half_dtypes(graph: Graph) -> tuple[DType, ...]:
    """The half-precision dtypes that constants of a graph have."""
    constants = (v for node in graph.nodes for v in node.inputs if v.constant is not None)
    found = {v.dtype for v in constants}
    return tuple(dtype for dtype in HALF_DTYPES.values() if dtype in found)


def half_weights(dtypes: Sequence[DType]) -> Rule:
    """The rule that keeps float32 weights whose elements are all numbers of one of `dtypes`."""

    def half(around: Surroundings, value: Value) -> Value | None:
        array = value.constant
        if array is None or value.dtype != FLOAT32 or array.ndim != 2:
            return None
        fits = (d for d in dtypes if array.size >= LEAST_ELEMENTS and exactly_half(array, d))
        return next((named_constant(f"{value.name}_{d}", d, array) for d in fits), None)

    @rule("matmul")
    def half_weight(node: Node, around: Surroundings) -> Value | None:
        x, weight = node.inputs
        fits = 0 not in x.shape and x.dtype == FLOAT32 and x.rank >= 2
        kept = around.once(half, weight) if fits else None
        return None if kept is None else apply("narrow_matmul", x, kept)

    return half_weight


def join_halves(graph: Graph) -> Graph:
    """Replace roundings of concatenations of what was half precision before, and of caches of it
    with new rows.

    A concatenation widens its operands, and its result is rounded again. An operand that an input
    gives is the same number after both: it is copied in half precision, and only the others are
    rounded. The same holds of rows that are written into such an operand.
    """
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
        array = value.constant
        return value.cast(self._dtype) if array is None else constant(array, self._dtype)
