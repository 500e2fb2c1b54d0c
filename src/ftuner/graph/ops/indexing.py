"""Operators that read elements at indices that are data, or sums of multiples of positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.dim import Shape
from ftuner.core.dtype import INT32, INT64, UINT8, DType
from ftuner.errors import GraphError, IndexRangeError, ShapeError
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
from ftuner.graph.ops.pointwise import broadcast_index, broadcast_shape

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


def _infer_read(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, *positions = types
    shape, what = attributes["shape"], f"read of {x}"
    chosen, padded = attributes["chosen"], attributes["padded"]
    if len(attributes["steps"]) != x.rank * len(shape) or len(attributes["starts"]) != x.rank:
        raise ShapeError(f"{what} as {dict(attributes)}")
    if len(chosen) != len(positions) or not {*chosen, *padded} <= set(range(x.rank)):
        raise GraphError(f"{what} as {dict(attributes)} at {len(positions)} tensors")
    for position in positions:
        expect_indices(position.dtype, what)
        whole = broadcast_shape([position.shape, shape], require, what)
        for extent, wanted in zip(whole, shape, strict=True):
            require(extent, wanted, what)
    return (TensorType(x.dtype, shape),)


@elementwise
def _define_read(writer: ElementWriter) -> int:
    (x, *positions), attributes = writer.types, writer.attributes
    shape: Shape = attributes["shape"]
    at, inside = [], None
    for axis, extent in enumerate(x.shape):
        place = writer.integer(attributes["starts"][axis])
        for step, i in zip(attributes["steps"][axis * len(shape) :], writer.at, strict=False):
            place = writer.add(place, writer.multiply(i, writer.integer(step)))
        if axis in attributes["chosen"]:
            number = attributes["chosen"].index(axis)
            own = broadcast_index(writer, positions[number].shape, shape, writer.at)
            place = writer.add(writer.cast(writer.load(1 + number, own), INT64), place)
            if axis not in attributes["inside"]:
                place = writer.checked(place, writer.integer(extent))
        elif axis in attributes["padded"]:
            inside = writer.within(place, writer.integer(extent), inside)
        at.append(place)
    found = writer.load(0, at)
    if inside is None:
        return found
    return writer.where(inside, found, writer.constant(0, x.dtype), absent=True)


def _reference_read(
    x: Any, *positions: Any, shape: tuple[int, ...], starts: tuple[int, ...],
    steps: tuple[int, ...], chosen: tuple[int, ...], inside: tuple[int, ...],
    padded: tuple[int, ...], node: str = "",
) -> Any:  # fmt: skip
    grid = np.indices(shape, sparse=True) if shape else ()
    at, valid = [], np.ones((), np.bool_)
    for axis, extent in enumerate(x.shape):
        place = np.asarray(starts[axis])
        for step, i in zip(steps[axis * len(shape) :], grid, strict=False):
            place = place + step * i
        if axis in chosen:
            place = place + positions[chosen.index(axis)]
            if place.size and not ((place >= -extent) & (place < extent)).all():
                raise IndexRangeError(f"{node}: an index is out of range of {extent}")
        elif axis in padded:
            valid = valid & (place >= 0) & (place < extent)
            place = np.clip(place, 0, max(extent - 1, 0))
        at.append(place)
    if 0 in x.shape:
        return np.zeros(shape, x.dtype)
    found = x[tuple(at)] if at else x
    return np.broadcast_to(np.where(valid, found, np.zeros((), x.dtype)), shape)


OPERATORS = (
    Operator("look_up", _infer_look_up, lambda table, levels: table[levels], _define_look_up,
             numerics=Numerics.LOOK_UP, moves=True),
    Operator("gather", _infer_gather, lambda x, indices, axis, node="": x.take(indices, axis),
             _define_gather, numerics=Numerics.LOOK_UP, moves=True),
    Operator("gather_elements", _infer_gather_elements, _reference_gather_elements,
             _define_gather_elements, numerics=Numerics.LOOK_UP),
    Operator("gather_nd", _infer_gather_nd, _reference_gather_nd, _define_gather_nd,
             numerics=Numerics.LOOK_UP),
    Operator("read", _infer_read, _reference_read, _define_read, numerics=Numerics.LOOK_UP,
             exact_from=1),
)  # fmt: skip
"""Element `i` of the result of `read` is that of x at `starts[a] + sum(steps[a * rank + r] * i[r])`
along each axis `a`. Along the axes `chosen`, the elements of a further operand are added, which
broadcast to the result, and the sum is checked at run time, unless the caller has proven that it is
`inside`. Along the axes `padded` it may lie outside of x, where the result is zero; along the
others it does not."""
