"""Drops look-ups and writes at the positions of all rows in their order, and writes at no position.

Exporters write `x[where] = f(x[where])`. Where the condition holds everywhere, or nowhere, nothing
is moved.
"""

from __future__ import annotations

import numpy as np

from ftuner.core.dim import Dim, Shape
from ftuner.graph.ir import Node, Value
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings


@rule("gather", "gather_nd", "scatter_nd")
def whole_indices(node: Node, around: Surroundings) -> Value | None:
    """Replace look-ups of all rows by their operand, and writes of all rows by what is written."""
    source = _source(node, around)
    return None if source is None else source.reshape(node.output.shape)


def _source(node: Node, around: Surroundings) -> Value | None:
    """The operand whose elements the result of a look-up or a write has, in the same order."""
    x, indices, *updates = node.inputs
    if node.op == "gather":
        extent = x.shape[node.attributes["axis"]]
        return x if indices.rank == 1 and _along(indices, around) == extent else None
    if node.op == "gather_nd":
        whole = node.attributes["batch_dims"] == 0 and _covers(indices, x, around)
        return x if whole else None
    if 0 in updates[0].shape:
        return x
    whole = node.attributes["kind"] == "none" and _covers(indices, x, around)
    return updates[0] if whole else None


def _covers(indices: Value, x: Value, around: Surroundings) -> bool:
    """Whether indices are the positions of all elements, or of all rows, of x in their order."""
    depth = indices.shape[-1]
    if depth == 1:
        return x.rank > 0 and _along(indices, around) == x.shape[0]
    turned = around.producer_of(indices)
    if turned is None or turned.op != "transpose" or turned.attributes["perm"] != (1, 0):
        return False
    joined = around.producer_of(turned.inputs[0])
    if joined is None or joined.op != "concat" or joined.attributes["axis"] != 0:
        return False
    rows = joined.inputs
    if len(rows) != depth or len(rows) > x.rank:
        return False
    shape = x.shape[: len(rows)]
    return all(_counts(row, axis, shape, around) for axis, row in enumerate(rows))


def _along(value: Value, around: Surroundings) -> Dim | None:
    """n if a tensor has the elements 0, 1, ..., n - 1, all along one axis; else None."""
    extents = _longer(value.shape)
    if len(extents) != 1:
        return None
    while (node := around.producer_of(value)) is not None:
        if node.op == "iota":
            return extents[0] if node.output.shape[node.attributes["axis"]] == extents[0] else None
        if node.op not in ("reshape", "transpose") or _longer(node.inputs[0].shape) != extents:
            return None
        (value,) = node.inputs
    return None


def _longer(shape: Shape) -> list[Dim]:
    return [n for n in shape if n != 1]


def _counts(row: Value, axis: int, shape: Shape, around: Surroundings) -> bool:
    """Whether a row has the index along an axis of each element of a shape."""
    reshape = around.producer_of(row)
    if reshape is None or reshape.op != "reshape" or reshape.inputs[0].shape != shape:
        return False
    (value,) = reshape.inputs
    node = around.producer_of(value)
    if node is not None and node.op == "broadcast":
        (value,) = node.inputs
        node = around.producer_of(value)
    if value.shape != tuple(n if i == axis else 1 for i, n in enumerate(shape)):
        return False
    if value.constant is not None:
        return bool(np.array_equal(value.constant.ravel(), np.arange(value.constant.size)))
    return node is not None and node.op == "iota" and node.attributes["axis"] == axis
