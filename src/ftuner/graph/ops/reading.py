"""Reads of a tensor at indices that are sums of multiples of positions, and of data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.dim import Shape
from ftuner.core.dtype import INT64
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
)
from ftuner.graph.ops.indexing import expect_indices
from ftuner.graph.ops.pointwise import broadcast_index, broadcast_shape


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
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
def _define(writer: ElementWriter) -> int:
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


def _reference(
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


READING = (Operator("read", _infer, _reference, _define, numerics=Numerics.LOOK_UP, exact_from=1),)
"""Element `i` of the result is that of x at `starts[a] + sum(steps[a * rank + r] * i[r])` along
each axis `a`. Along the axes `chosen`, the elements of a further operand are added, which broadcast
to the result, and the sum is checked at run time, unless the caller has proven that it is `inside`.
Along the axes `padded` it may lie outside of x, where the result is zero; along the others it does
not."""
