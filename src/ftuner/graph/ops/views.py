"""Operators that are views of what is in memory: reshapes, transpositions, broadcasts, slices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum, product
from ftuner.errors import ShapeError
from ftuner.graph.buffers import View, permuted, reshaped, spread
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.operator import Attributes, ElementWriter, Operator, Require, Types, elementwise
from ftuner.graph.ops.pointwise import broadcast_index, broadcast_shape
from ftuner.graph.placement import Form, Placement

SHORT_SUM = 2
"""Most terms of an extent of which a slice is written as a difference. Slices of slices would make
ever longer sums."""


def _infer_reshape(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    shape = attributes["shape"]
    require(product(types[0].shape), product(shape), f"reshape {types[0]} to {list(shape)}")
    return (TensorType(types[0].dtype, shape),)


def _infer_transpose(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    perm = attributes["perm"]
    if sorted(perm) != list(range(types[0].rank)):
        raise ShapeError(f"transpose {types[0]} by {list(perm)}")
    return (TensorType(types[0].dtype, tuple(types[0].shape[p] for p in perm)),)


@elementwise
def _define_transpose(writer: ElementWriter) -> int:
    perm = writer.attributes["perm"]
    return writer.load(0, [writer.at[perm.index(axis)] for axis in range(len(perm))])


def _infer_broadcast(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    shape = broadcast_shape([types[0].shape, attributes["shape"]], require, "broadcast")
    return (TensorType(types[0].dtype, shape),)


@elementwise
def _define_broadcast(writer: ElementWriter) -> int:
    (x,) = writer.types
    return writer.load(0, broadcast_index(writer, x.shape, writer.result.shape, writer.at))


def _infer_slice(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """Require that all elements that are read are within the operand; extents that are unknown
    become constraints."""
    x, starts, steps, shape = types[0], *(attributes[a] for a in ("starts", "steps", "shape"))
    if not len(starts) == len(steps) == len(shape) == x.rank or 0 in steps:
        raise ShapeError(f"slice {x} from {list(starts)} by {list(steps)} to {list(shape)}")
    for extent, start, step, count in zip(x.shape, starts, steps, shape, strict=True):
        last = start + (count - 1) * step
        low, high = (start, last) if step > 0 else (last, start)
        what = f"slice {x}: {count} of {extent} from {start} by {step}"
        # An empty slice reads nothing, whatever its start.
        some = minimum(count, 1)
        require(some * maximum(-low, 0), 0, what)
        require(some * maximum(high + 1 - extent, 0), 0, what)
    return (TensorType(x.dtype, shape),)


@elementwise
def _define_slice(writer: ElementWriter) -> int:
    starts, steps = (writer.attributes[name] for name in ("starts", "steps"))
    return writer.load(0, [
        writer.add(writer.integer(start), writer.multiply(i, writer.integer(step)))
        for i, start, step in zip(writer.at, starts, steps, strict=True)
    ])  # fmt: skip


def _reference_slice(
    x: Any, starts: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...]
) -> Any:
    def taken(start: int, step: int, n: int) -> slice:
        end = start + step * n
        # Backwards, a slice has no end before the first element.
        return slice(start, None if end < 0 else end, step) if n else slice(0, 0)

    return x[tuple(map(taken, starts, steps, shape))].copy()


def slice_extent(start: Dim, end: Dim, step: Dim) -> Dim:
    """Elements of a slice from `start` up to `end`; none if `end` is before `start`."""
    if step == 1 and (isinstance(end, int) or len(end.terms) <= SHORT_SUM):
        # The two parts of an axis add up to all of it.
        return end - minimum(start, end)
    return maximum(ceil_quotient(end - start, step), 0)


def _lower_reshape(node: Node, placement: Placement) -> tuple[Form]:
    (value,) = node.inputs
    shape = node.attributes["shape"]
    pending = placement.pending(value)
    read_once = placement.read_once(value)
    if pending is not None:
        grown = pending.reshaped(value.shape, shape, read_once)
        if grown is not None:
            return (grown,)
    if pending is None or not read_once:
        view = reshaped(placement.view(value), shape)
        if view is not None:
            return (view,)
    if read_once:
        place = placement.place(node.output)
        target = reshaped(place, value.shape)
        if target is not None:
            placement.put(value, target)
            return (place,)
    view = reshaped(placement.contiguous(value), shape)
    assert view is not None
    return (view,)


def _lower_transpose(node: Node, placement: Placement) -> tuple[View] | None:
    (value,) = node.inputs
    perm = node.attributes["perm"]
    pending = placement.pending(value)
    if pending is not None:
        moves_rows = pending.strided_rows and placement.read_once(value)
        if moves_rows and perm[-1] == len(perm) - 1:
            # It stores its rows in the order of the result.
            target = placement.place(node.output)
            placement.store(pending, permuted(target, [perm.index(a) for a in range(len(perm))]))
            return (target,)
        fused = pending.fused
        if fused is not None and fused.injective:
            # Vectors lie along the rows that it looks up; the result is transposed afterwards.
            turns_rows = perm[-1] != len(perm) - 1 and fused.looks_up_rows
            if not turns_rows or not placement.read_once(value):
                return None
    return (permuted(placement.view(value), perm),)


def _is_fused(node: Node, placement: Placement) -> bool:
    """Whether the operand is a nest that is not in memory yet."""
    pending = placement.pending(node.inputs[0])
    return pending is not None and pending.fused is not None


def _lower_broadcast(node: Node, placement: Placement) -> tuple[View] | None:
    if _is_fused(node, placement):
        return None
    return (spread(placement.view(node.inputs[0]), node.output.shape),)


def _lower_slice(node: Node, placement: Placement) -> tuple[View] | None:
    if _is_fused(node, placement):
        return None
    view = placement.view(node.inputs[0])
    offset, strides = view.layout.offset, view.layout.strides
    for start, stride in zip(node.attributes["starts"], strides, strict=True):
        offset = offset + start * stride
    strides = tuple(n * step for n, step in zip(strides, node.attributes["steps"], strict=True))
    layout = replace(view.layout, shape=node.output.shape, strides=strides, offset=offset)
    return (View(view.buffer, layout),)


OPERATORS = (
    Operator("reshape", _infer_reshape, lambda x, shape: np.reshape(x, shape),
             lower=_lower_reshape, moves=True),
    Operator("transpose", _infer_transpose, lambda x, perm: np.transpose(x, perm),
             _define_transpose, _lower_transpose, moves=True),
    Operator("broadcast", _infer_broadcast,
             lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(np.shape(x), shape)),
             _define_broadcast, _lower_broadcast, moves=True),
    Operator("slice", _infer_slice, _reference_slice, _define_slice, _lower_slice, moves=True),
)  # fmt: skip
