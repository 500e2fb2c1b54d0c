"""Operators that read elements at indices that are data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.dtype import INT32, INT64, UINT8, DType
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    ElementWriter,
    Numerics,
    Operator,
    Require,
    Types,
    elementwise,
    expect_axis,
    expect_elements,
    expect_within,
)

_INDEX_DTYPES = (INT32, INT64)


def expect_indices(dtype: DType, what: str) -> None:
    """Raise GraphError unless a dtype is one of indices."""
    if dtype not in _INDEX_DTYPES:
        raise GraphError(f"{what} with indices of {dtype}; expected int32 or int64")


def _infer_gather(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, indices = types
    expect_indices(indices.dtype, "gather")
    axis, what = attributes["axis"], f"gather of {x} at {indices}"
    expect_axis(x, axis, what)
    expect_elements(require, indices.shape, x.shape[axis], f"{what}: no element along axis {axis}")
    return (TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :]),)


@elementwise
def _define_gather(writer: ElementWriter) -> int:
    (x, indices), axis, index = writer.types, writer.attributes["axis"], writer.at
    after = axis + indices.rank
    at = writer.checked(writer.load(1, index[axis:after]), writer.integer(x.shape[axis]))
    return writer.load(0, [*index[:axis], at, *index[after:]])


def _infer_gather_elements(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType]:
    x, indices = types
    expect_indices(indices.dtype, "gather_elements")
    what = f"gather_elements of {x} at {indices}"
    expect_covered(x, indices, attributes["axis"], require, what)
    return (TensorType(x.dtype, indices.shape),)


def expect_covered(
    x: TensorType, indices: TensorType, axis: int, require: Require, what: str
) -> None:
    """Require that along all axes but `axis` there are at most as many indices as elements of `x`:
    there, an element is read at the position of its index."""
    if x.rank != indices.rank:
        raise ShapeError(f"{what}: {indices.rank} axes of indices for {x.rank}")
    expect_axis(x, axis, what)
    for i, (count, extent) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if i != axis:
            expect_within(
                require, count, extent, f"{what}: more indices than elements along axis {i}"
            )
    expect_elements(require, indices.shape, x.shape[axis], f"{what}: no element along axis {axis}")


@elementwise
def _define_gather_elements(writer: ElementWriter) -> int:
    axis, at = writer.attributes["axis"], list(writer.at)
    extent = writer.integer(writer.types[0].shape[axis])
    at[axis] = writer.checked(writer.load(1, writer.at), extent)
    return writer.load(0, at)


def _reference_gather_elements(x: Any, indices: Any, axis: int, node: str = "") -> Any:
    grid = list(np.meshgrid(*[np.arange(n) for n in indices.shape], indexing="ij", sparse=True))
    grid[axis] = indices
    return x[tuple(grid)]


def _infer_gather_nd(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, indices = types
    expect_indices(indices.dtype, "gather_nd")
    batch, depth = attributes["batch_dims"], indices.shape[-1] if indices.rank else None
    what = f"gather_nd of {x} at {indices} with {batch} batch axes"
    if not isinstance(depth, int) or batch + depth > x.rank or not 0 <= batch < indices.rank:
        raise ShapeError(what)
    for have, wanted in zip(indices.shape[:batch], x.shape[:batch], strict=True):
        require(have, wanted, what)
    count = indices.shape[:-1]
    for axis in range(batch, batch + depth):
        expect_elements(require, count, x.shape[axis], f"{what}: no element along axis {axis}")
    return (TensorType(x.dtype, count + x.shape[batch + depth :]),)


@elementwise
def _define_gather_nd(writer: ElementWriter) -> int:
    (x, indices), index = writer.types, writer.at
    batch, depth, outer = writer.attributes["batch_dims"], indices.shape[-1], indices.rank - 1
    assert isinstance(depth, int)
    at = list(index[:batch])
    for i in range(depth):
        chosen = writer.load(1, [*index[:outer], writer.integer(i)])
        at.append(writer.checked(chosen, writer.integer(x.shape[batch + i])))
    return writer.load(0, [*at, *index[outer:]])


def _reference_gather_nd(x: Any, indices: Any, batch_dims: int, node: str = "") -> Any:
    depth = indices.shape[-1]
    shape = indices.shape[:-1] + x.shape[batch_dims + depth :]
    whole = indices.shape[:-1]
    grid = np.meshgrid(*[np.arange(n) for n in whole], indexing="ij", sparse=True)
    at = tuple(np.broadcast_to(g, whole) for g in grid[:batch_dims]) + tuple(
        indices[..., i] for i in range(depth)
    )
    return x[at].reshape(shape)


def _infer_look_up(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    table, levels = types
    if table.shape != (256,) or levels.dtype != UINT8:
        raise GraphError(f"looking {levels} up in {table}; expected bytes, in 256 elements")
    return (TensorType(table.dtype, levels.shape),)


@elementwise
def _define_look_up(writer: ElementWriter) -> int:
    return writer.load(0, [writer.cast(writer.load(1, writer.at), INT64)])


INDEXING = (
    Operator("look_up", _infer_look_up, lambda table, levels: table[levels], _define_look_up,
             numerics=Numerics.LOOK_UP, moves=True),
    Operator(
        "gather", _infer_gather,
        lambda x, indices, axis, node="": x.take(indices, axis), _define_gather,
        numerics=Numerics.LOOK_UP, moves=True,
    ),
    Operator("gather_elements", _infer_gather_elements, _reference_gather_elements,
             _define_gather_elements, numerics=Numerics.LOOK_UP),
    Operator("gather_nd", _infer_gather_nd, _reference_gather_nd, _define_gather_nd,
             numerics=Numerics.LOOK_UP),
)  # fmt: skip
