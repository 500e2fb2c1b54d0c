"""Operators that write elements at indices that are data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ftuner.core.index_expr import Nest, Store, Writer
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.buffers import View
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.operator import (
    Attributes,
    Define,
    Operator,
    Require,
    contiguous,
    definition,
    expect_elements,
    load,
)
from ftuner.graph.ops.indexing import checked, expect_covered, expect_indices
from ftuner.graph.placement import Placement

Types = Sequence[TensorType]
_COMBINE = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
"""How an element in place and an update are combined; "none" overwrites."""


def _expect_scatter(types: Types, attributes: Attributes, what: str) -> None:
    x, indices, updates = types
    expect_indices(indices.dtype, what)
    kind = attributes["kind"]
    if x.dtype != updates.dtype or (kind != "none" and kind not in _COMBINE):
        raise GraphError(f"{what} of {updates} into {x}, combined by {kind!r}")
    if kind != "none" and x.dtype.kind == "bool":
        raise GraphError(f"{what} into {x}, combined by {kind!r}")


def _infer_scatter_elements(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType]:
    x, indices, updates = types
    _expect_scatter(types, attributes, "scatter_elements")
    what = f"scatter_elements of {updates} at {indices} into {x}"
    if indices.rank != updates.rank:
        raise ShapeError(what)
    for have, wanted in zip(updates.shape, indices.shape, strict=True):
        require(have, wanted, what)
    expect_covered(x, indices, attributes["axis"], require, what)
    return (x,)


def _scatter(x: Any, at: tuple[Any, ...], updates: Any, kind: str) -> Any:
    result = np.array(x)
    if kind == "none":
        result[at] = updates
    else:
        _COMBINE[kind].at(result, at, updates)
    return result


def _reference_scatter_elements(
    x: Any, indices: Any, updates: Any, axis: int, kind: str, node: str = ""
) -> Any:
    grid = list(np.meshgrid(*[np.arange(n) for n in indices.shape], indexing="ij", sparse=True))
    grid[axis] = indices
    return _scatter(x, tuple(grid), updates, kind)


def _scattering(types: Types, kind: str, index: Sequence[int], writer: Writer) -> Nest:
    """Store each update at `index`, one after the other, in a buffer that holds a copy of x."""
    updates = types[2]
    own = [writer.index(axis) for axis in range(updates.rank)]
    value = load(writer, types, 2, own)
    combine = {"none": "", "add": "sum", "multiply": "product"}.get(kind, kind)
    store = Store(value, (), tuple(index), combine)
    return Nest((), updates.shape, contiguous(types), tuple(writer.steps), (), (store,))


def _define_scatter_elements(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, indices, _ = types
    axis = attributes["axis"]
    writer = Writer()
    index = [writer.index(i) for i in range(indices.rank)]
    chosen = load(writer, types, 1, index)
    index[axis] = checked(writer, chosen, writer.integer(x.shape[axis]), attributes)
    return _scattering(types, attributes["kind"], index, writer)


def _define_scatter_nd(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, indices, updates = types
    depth = indices.shape[-1]
    assert isinstance(depth, int)
    writer = Writer()
    own = [writer.index(i) for i in range(updates.rank)]
    outer = indices.rank - 1
    index = []
    for i in range(depth):
        chosen = load(writer, types, 1, [*own[:outer], writer.integer(i)])
        index.append(checked(writer, chosen, writer.integer(x.shape[i]), attributes))
    return _scattering(types, attributes["kind"], [*index, *own[outer:]], writer)


def _lower(define: Define, node: Node, placement: Placement) -> tuple[View]:
    """A copy of the first operand, into which the updates are written in their order."""
    place = placement.place(node.output)
    placement.put(node.inputs[0], place)
    placement.add(placement.fused(node, definition(node, define)).step(place))
    return (place,)


def _infer_scatter_nd(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, indices, updates = types
    _expect_scatter(types, attributes, "scatter_nd")
    depth = indices.shape[-1] if indices.rank else None
    what = f"scatter_nd of {updates} at {indices} into {x}"
    if not isinstance(depth, int) or depth > x.rank:
        raise ShapeError(what)
    wanted = indices.shape[:-1] + x.shape[depth:]
    if len(wanted) != updates.rank:
        raise ShapeError(what)
    for have, extent in zip(updates.shape, wanted, strict=True):
        require(have, extent, what)
    for axis, extent in enumerate(x.shape[:depth]):
        expect_elements(
            require, indices.shape[:-1], extent, f"{what}: no element along axis {axis}"
        )
    return (x,)


def _reference_scatter_nd(x: Any, indices: Any, updates: Any, kind: str, node: str = "") -> Any:
    at = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _scatter(x, at, updates, kind)


SCATTERING = (
    Operator(
        "scatter_elements",
        _infer_scatter_elements,
        _reference_scatter_elements,
        _define_scatter_elements,
        partial(_lower, _define_scatter_elements),
    ),
    Operator(
        "scatter_nd",
        _infer_scatter_nd,
        _reference_scatter_nd,
        _define_scatter_nd,
        partial(_lower, _define_scatter_nd),
    ),
)
"""`kind` is "none", "add", "multiply", "maximum" or "minimum". Elements are written in the order of
the indices, so that the last of equal indices wins."""
