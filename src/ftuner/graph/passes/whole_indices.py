"""Drops look-ups and writes at the positions of all rows in their order, and writes at no position.

Exporters write `x[where] = f(x[where])`. Where the condition holds everywhere, or nowhere, nothing
is moved.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ftuner.core.dim import Dim, Shape
from ftuner.graph.ir import Graph, Node, Value, producers
from ftuner.graph.rewrite.surroundings import made, rewritten

MadeBy = Mapping[Value, Node]


def drop_whole_indices(graph: Graph) -> Graph:
    """Replace look-ups of all rows by their operand, and writes of all rows by what is written."""
    made_by = producers(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        source = _source(node, made_by)
        if source is None:
            continue
        if source.shape != node.output.shape:
            type_, name = node.output.type, f"{node.output.name}_whole"
            places[node] = [made("reshape", [source], type_, name, shape=type_.shape)]
            source = places[node][0].output
        same[node.output] = source
    return rewritten(graph, places, same)


def _source(node: Node, made_by: MadeBy) -> Value | None:
    """The operand whose elements the result of a look-up or a write has, in the same order."""
    if node.op == "gather":
        x, indices = node.inputs
        extent = x.shape[node.attributes["axis"]]
        return x if indices.rank == 1 and _along(indices, made_by) == extent else None
    if node.op == "scatter_nd":
        x, indices, updates = node.inputs
        if 0 in updates.shape:
            return x
        if node.attributes["kind"] == "none" and _covers(indices, x, made_by):
            return updates
    if node.op == "gather_nd" and node.attributes["batch_dims"] == 0:
        x, indices = node.inputs
        return x if _covers(indices, x, made_by) else None
    return None


def _covers(indices: Value, x: Value, made_by: MadeBy) -> bool:
    """Whether indices are the positions of all elements, or of all rows, of x in their order."""
    depth = indices.shape[-1]
    if depth == 1:
        return x.rank > 0 and _along(indices, made_by) == x.shape[0]
    turned = made_by.get(indices)
    if turned is None or turned.op != "transpose" or turned.attributes["perm"] != (1, 0):
        return False
    joined = made_by.get(turned.inputs[0])
    if joined is None or joined.op != "concat" or joined.attributes["axis"] != 0:
        return False
    rows = joined.inputs
    if len(rows) != depth or len(rows) > x.rank:
        return False
    shape = x.shape[: len(rows)]
    return all(_counts(row, axis, shape, made_by) for axis, row in enumerate(rows))


def _along(value: Value, made_by: MadeBy) -> Dim | None:
    """n if a tensor has the elements 0, 1, ..., n - 1, all along one axis; else None."""
    extents = _longer(value.shape)
    if len(extents) != 1:
        return None
    while (node := made_by.get(value)) is not None:
        if node.op == "iota":
            return extents[0] if node.output.shape[node.attributes["axis"]] == extents[0] else None
        if node.op not in ("reshape", "transpose") or _longer(node.inputs[0].shape) != extents:
            return None
        (value,) = node.inputs
    return None


def _longer(shape: Shape) -> list[Dim]:
    return [n for n in shape if n != 1]


def _counts(row: Value, axis: int, shape: Shape, made_by: MadeBy) -> bool:
    """Whether a row has the index along an axis of each element of a shape."""
    reshape = made_by.get(row)
    if reshape is None or reshape.op != "reshape" or reshape.inputs[0].shape != shape:
        return False
    (value,) = reshape.inputs
    node = made_by.get(value)
    if node is not None and node.op == "broadcast":
        (value,) = node.inputs
        node = made_by.get(value)
    if value.shape != tuple(n if i == axis else 1 for i, n in enumerate(shape)):
        return False
    if value.constant is not None:
        return bool(np.array_equal(value.constant.ravel(), np.arange(value.constant.size)))
    return node is not None and node.op == "iota" and node.attributes["axis"] == axis
