"""Operators that write elements at indices that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.core.dtype import INT64
from ftuner.core.index_expr import Nest, Store
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.buffers import View
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.operator import (
    Attributes,
    NestWriter,
    Operator,
    Require,
    Types,
    expect_axis,
    expect_elements,
)
from ftuner.graph.operators import definition
from ftuner.graph.ops.indexing import expect_covered, expect_indices
from ftuner.graph.placement import Placement

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


def _infer_elements(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
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


def _reference_elements(
    x: Any, indices: Any, updates: Any, axis: int, kind: str, node: str = ""
) -> Any:
    grid = list(np.meshgrid(*[np.arange(n) for n in indices.shape], indexing="ij", sparse=True))
    grid[axis] = indices
    return _scatter(x, tuple(grid), updates, kind)


def _scattering(writer: NestWriter, kind: str, index: Sequence[int]) -> Nest:
    """Store each update at `index`, one after the other, in a buffer that holds a copy of x."""
    updates = writer.types[2]
    value = writer.load(2, [writer.index(axis) for axis in range(updates.rank)])
    combine = {"none": "", "add": "sum", "multiply": "product"}.get(kind, kind)
    return writer.nest((), updates.shape, (), Store(value, (), tuple(index), combine))


def _define_elements(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, indices, _ = types
    axis = attributes["axis"]
    writer = NestWriter(types, attributes)
    index = [writer.index(i) for i in range(indices.rank)]
    index[axis] = writer.checked(writer.load(1, index), writer.integer(x.shape[axis]))
    return _scattering(writer, attributes["kind"], index)


def _define_nd(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, indices, updates = types
    depth = indices.shape[-1]
    assert isinstance(depth, int)
    writer = NestWriter(types, attributes)
    own = [writer.index(i) for i in range(updates.rank)]
    outer = indices.rank - 1
    index = []
    for i in range(depth):
        chosen = writer.load(1, [*own[:outer], writer.integer(i)])
        index.append(writer.checked(chosen, writer.integer(x.shape[i])))
    return _scattering(writer, attributes["kind"], [*index, *own[outer:]])


def _lower(node: Node, placement: Placement) -> tuple[View]:
    """A copy of the first operand, into which the updates are written in their order."""
    place = placement.place(node.output)
    placement.put(node.inputs[0], place)
    placement.add(placement.fused(node, definition(node)).step(place))
    return (place,)


def _infer_nd(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
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


def _reference_nd(x: Any, indices: Any, updates: Any, kind: str, node: str = "") -> Any:
    at = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _scatter(x, at, updates, kind)


def _infer_rows(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, starts, updates = types
    axis = attributes["axis"]
    what = f"write_rows of {updates} into {x} from {starts} on"
    expect_indices(starts.dtype, "write_rows")
    expect_axis(x, axis, what)
    if x.dtype != updates.dtype or axis == 0 or starts.rank != 1 or x.rank != updates.rank:
        raise GraphError(f"{what} along axis {axis}")
    for i, (have, wanted) in enumerate(zip(updates.shape, x.shape, strict=True)):
        if i != axis:
            require(have, wanted, what)
    require(starts.shape[0], x.shape[0], what)
    expect_elements(require, updates.shape, x.shape[axis], f"{what}: no row")
    return (x,)


def _define_rows(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, _, updates = types
    axis = attributes["axis"]
    writer = NestWriter(types, attributes)
    index = [writer.index(i) for i in range(updates.rank)]
    start = writer.cast(writer.load(1, index[:1]), INT64)
    extent = writer.integer(x.shape[axis])
    place = writer.add(start, index[axis])
    if attributes["circular"]:
        place = writer.step("remainder", INT64, place, extent)
    # A position below zero is out of range: it does not count from the end.
    below = writer.compare("less", start, writer.integer(0))
    place = writer.where(below, extent, place)
    index[axis] = writer.checked(place, extent)
    return _scattering(writer, "none", index)


def _reference_rows(
    x: Any, starts: Any, updates: Any, axis: int, circular: bool, node: str = ""
) -> Any:
    extent, count = x.shape[axis], updates.shape[axis]
    result = np.moveaxis(np.array(x), axis, 1)
    if not updates.size:
        return np.moveaxis(result, 1, axis)
    place = np.asarray(starts, np.int64)[:, None] + np.arange(count)
    if circular and extent:
        place %= extent
    if (starts < 0).any() or (place >= extent).any():
        raise IndexError(f"{node or 'write_rows'}: an index is out of range")
    for row in range(count):
        # The last of equal positions wins.
        result[np.arange(len(place)), place[:, row]] = np.moveaxis(updates, axis, 1)[:, row]
    return np.moveaxis(result, 1, axis)


OPERATORS = (
    Operator("scatter_elements", _infer_elements, _reference_elements, _define_elements, _lower),
    Operator("scatter_nd", _infer_nd, _reference_nd, _define_nd, _lower),
    Operator("write_rows", _infer_rows, _reference_rows, _define_rows, _lower),
)
"""`kind` is "none", "add", "multiply", "maximum" or "minimum". Elements are written in the order of
the indices, so that the last of equal indices wins. `write_rows` writes the rows of each element of
a batch along `axis`, from a position of its own on; with `circular`, after the last row comes the
first one."""
