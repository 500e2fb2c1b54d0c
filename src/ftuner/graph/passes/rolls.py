"""Replaces both parts of an axis in exchanged order, as torch.roll is exported, by one read."""

from __future__ import annotations

from collections.abc import Mapping

from ftuner.core.dim import Dim, minimum
from ftuner.core.dtype import INT64
from ftuner.graph.ir import Graph, Node, TensorType, Value, producers
from ftuner.graph.parts import is_slice_along
from ftuner.graph.rewriting import made, rewritten


def write_rolls(graph: Graph) -> Graph:
    """Replace the concatenation of the later and the earlier part of an axis by elements at rolled
    positions: its reader takes that in, and it takes in what it reads. The last axis stays as it
    is, because its elements would be read one by one."""
    made_by = producers(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        by = _rolled_by(node, made_by)
        if by is not None:
            (x,) = made_by[node.inputs[0]].inputs
            places[node] = _rolled(x, node.attributes["axis"], by, node.output.name)
            same[node.output] = places[node][-1].output
    return rewritten(graph, places, same)


def _rolled_by(node: Node, made_by: Mapping[Value, Node]) -> Dim | None:
    """By how much later each element of the result was; None if the node rolls nothing."""
    if node.op != "concat" or len(node.inputs) != 2 or any(v not in made_by for v in node.inputs):
        return None
    axis = node.attributes["axis"]
    late, early = (made_by[value] for value in node.inputs)
    if any(part.op != "slice" or not is_slice_along(part, axis) for part in (late, early)):
        return None
    (x,) = late.inputs
    start, by = late.attributes["starts"][axis], early.output.shape[axis]
    # A start beyond the end stands for the end.
    begins = by in (start, minimum(start, x.shape[axis]))
    if early.inputs[0] is not x or early.attributes["starts"][axis] != 0 or not begins:
        return None
    return by if node.output.type == x.type and axis < x.rank - 1 else None


def _rolled(x: Value, axis: int, by: Dim, name: str) -> list[Node]:
    extent = x.shape[axis]
    row, one = TensorType(INT64, (1, extent)), TensorType(INT64, (1,))
    index = made("iota", [], row, f"{name}_index", shape=row.shape, axis=1)
    step = made("dims", [], one, f"{name}_step", dims=(by,))
    count = made("dims", [], one, f"{name}_extent", dims=(extent,))
    later = made("add", [index.output, step.output], row, f"{name}_later")
    at = made("remainder", [later.output, count.output], row, f"{name}_at")
    result = made("resample", [x, at.output], x.type, f"{name}_rolled", axes=(axis,))
    return [index, step, count, later, at, result]
