"""Operators that select or place elements, by run-time indices, order or condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ftuner.core.dim import Dim, Shape, product
from ftuner.core.dtype import BOOL, INT64, DType
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import Axis, Sizes, onnx
from ftuner.graph.algebra import (
    apply,
    apply_many,
    concat,
    constant,
    equal,
    gather,
    iota,
    isnan,
    scalar,
    where,
)
from ftuner.graph.checks import expect_shape, malformed, origin, require, unsupported
from ftuner.graph.ir import Value
from ftuner.graph.operators import OPERATORS

_BEYOND = 1 << 62
"""More rows or columns than a matrix has."""


@onnx("Gather")
def _gather(x: Value, indices: Value, axis: Axis = 0) -> Value:
    extent, constant = x.shape[axis], indices.constant
    if constant is not None and indices.dtype.kind == "int" and isinstance(extent, int):
        index = int(constant.flat[0]) if constant.size == 1 else extent
        if -extent <= index < extent:
            # A slice is a view; a gather would copy.
            one = x.slice(axis, index % extent, 1)
            return one.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])
    return gather(x, indices, axis)


@onnx("GatherElements")
def _gather_elements(x: Value, indices: Value, axis: Axis = 0) -> Value:
    return apply("gather_elements", x, indices, axis=axis, node=origin())


@onnx("GatherND")
def _gather_nd(x: Value, indices: Value, batch_dims: int = 0) -> Value:
    _expect_depth(indices)
    return apply("gather_nd", x, indices, batch_dims=batch_dims, node=origin())


def _expect_depth(indices: Value) -> None:
    """Raise an error unless the number of indexed axes is known: it decides the result's rank."""
    if indices.rank and not isinstance(indices.shape[-1], int):
        raise unsupported(
            f"the last extent of {indices.type} is known only at run time (data-dependent shape)"
        )


_COMBINE = {"none": "none", "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


@onnx("Scatter", "ScatterElements")
def _scatter_elements(
    x: Value, indices: Value, updates: Value, axis: Axis = 0,
    reduction: Literal["none", "add", "mul", "max", "min"] = "none",
) -> Value:  # fmt: skip
    kind = _COMBINE[reduction]
    return apply("scatter_elements", x, indices, updates, axis=axis, kind=kind, node=origin())


@onnx("ScatterND")
def _scatter_nd(
    x: Value, indices: Value, updates: Value,
    reduction: Literal["none", "add", "mul", "max", "min"] = "none",
) -> Value:  # fmt: skip
    _expect_depth(indices)
    return apply("scatter_nd", x, indices, updates, kind=_COMBINE[reduction], node=origin())


def _hot_positions(context: Context, indices: Value, extent: Dim) -> Value:
    """Indices as positions counted from the front; an index out of range selects nothing."""
    outside = context.builder.dims([extent], ())
    position = indices.cast(INT64)
    if indices.dtype.kind == "uint":
        # Values beyond int64 become negative, and then are out of range.
        return position
    if indices.dtype.kind == "float":
        position = where(isnan(indices), outside, position)
    return where(position < 0, position + outside, position)


@onnx("OneHot")
def _one_hot(
    context: Context, indices: Value, depth: Value, values: Value, axis: int = -1
) -> Value:
    # The specification allows any number.
    depth = depth.cast(INT64)
    extent = context.dim_of(depth, "the depth")
    if isinstance(extent, int) and extent < 1:
        raise malformed(f"the depth is {extent}; expected one or more")
    what = f"values {values.type}; expected two"
    expect_shape(values, (2,), what)
    axis = context.axis(axis, indices.rank + 1)
    chosen = _hot_positions(context, indices, extent).unsqueeze([axis])
    hot = equal(chosen, iota(extent, axis, chosen.rank))
    off, on = (values.slice(0, i, 1).reshape(()) for i in range(2))
    return where(hot, on, off)


@onnx("Trilu")
def _trilu(context: Context, x: Value, given: Value | None, upper: bool = True) -> Value:
    if x.rank < 2:
        raise malformed(f"a triangle of {x.type}")
    offset = 0 if given is None else context.dim_of(given, "the diagonal")
    row = iota(x.shape[-2], 0, 2)
    column = iota(x.shape[-1], 1, 2)
    if isinstance(offset, int):
        # All diagonals beyond the matrix are equivalent, and the sums must fit 64 bits.
        offset = max(min(offset, _BEYOND), -_BEYOND)
    if offset != 0:
        row = row + context.builder.dims([offset], ())
    pair = (row, column) if upper else (column, row)
    kept = apply("less_equal", *pair)
    if x.dtype == BOOL:
        return x & kept
    return where(kept, x, 0)


@onnx("CumProd", op="cumulative_product")
@onnx("CumSum", op="cumulative_sum")
def _cumulative(
    context: Context, x: Value, given: Value, exclusive: bool = False, reverse: bool = False, *,
    op: str,
) -> Value:  # fmt: skip
    """A running reduction."""
    if op == "cumulative_product" and given.rank:
        raise malformed(f"the axis is {given.type}; expected a number")
    axis = context.axis(context.integer_of(given, "the axis"), x.rank)
    return apply(op, x, axis=axis, exclusive=exclusive, reverse=reverse)


@onnx("TopK", since=10)
def _top_k(x: Value, k: Sizes, axis: Axis = -1, largest: bool = True) -> Sequence[Value]:
    if len(k) != 1:
        raise malformed(f"k is {list(k)}; expected one element")
    return apply_many("top_k", x, axis=axis, k=k[0], largest=largest)


@onnx("TopK")
def _top_k_by_attribute(x: Value, k: int, axis: Axis = -1, largest: bool = True) -> Sequence[Value]:
    return apply_many("top_k", x, axis=axis, k=k, largest=largest)


def non_zero(context: Context, node: NodeView, x: Value) -> Value:
    """The index of each element that is not zero, one in each column, for a node."""
    if x.constant is not None and context.builder.folding.spend(
        x.rank * x.constant.size * INT64.itemsize, x.constant.size
    ):
        return constant(OPERATORS["non_zero"].reference(x.constant, ""))
    element = context.builder.known.element(x)
    if element is not None and element.constant is not None and x.rank > 0:
        return _positions(x.shape, everywhere=bool(element.constant))
    return context.non_zero(x, next(iter(node.record.outputs), "non_zero"))


def _positions(shape: Shape, everywhere: bool) -> Value:
    """The positions of all elements of a shape, one in each column, or of none."""
    if not everywhere:
        return constant(np.zeros((len(shape), 0), np.int64))
    rank, row = len(shape), (1, product(shape))
    along = (iota(n, i, rank).broadcast(shape) for i, n in enumerate(shape))
    return concat([index.reshape(row) for index in along], 0)


@onnx("NonZero")
def _non_zero(context: Context, node: NodeView, x: Value) -> Value:
    return non_zero(context, node, x)


@onnx("Compress")
def _compress(
    context: Context, node: NodeView, x: Value, condition: Value, axis: Axis | None = None
) -> Value:
    """The elements along an axis, or of the whole tensor, where a condition holds."""
    if condition.rank != 1 or condition.dtype != BOOL:
        raise malformed(f"a condition {condition.type}; expected booleans along one axis")
    if axis is None:
        x, axis = x.reshape((product(x.shape),)), 0
    found = non_zero(context, node, condition)
    return gather(x, found.reshape((found.shape[1],)), axis)


@onnx("EyeLike")
def _eye_like(x: Value, k: int = 0, dtype: DType | None = None) -> Value:
    if x.rank != 2:
        raise malformed(f"{x.type}; expected two axes")
    # All diagonals beyond the matrix are equivalent, and the sums must fit 64 bits.
    row = iota(x.shape[0], 0, 2) + max(min(k, _BEYOND), -_BEYOND)
    return equal(row, iota(x.shape[1], 1, 2)).cast(dtype or x.dtype)


@onnx("ReverseSequence")
def _reverse_sequence(x: Value, lengths: Value, time_axis: int = 0, batch_axis: int = 1) -> Value:
    """The first elements of each sequence of a batch, as many as its length, in reverse order."""
    if x.rank < 2 or sorted((time_axis, batch_axis)) != [0, 1]:
        raise malformed(f"batch axis {batch_axis} and time axis {time_axis} of {x.type}")
    if lengths.rank != 1 or lengths.dtype.kind != "int":
        raise malformed(f"lengths {lengths.type}; expected integers along one axis")
    require(lengths.shape[0], x.shape[batch_axis], f"lengths {lengths.type}")
    turned = (1, 0, *range(2, x.rank))
    if time_axis == 0:
        x = x.transpose(turned)
    length = lengths.cast(INT64).unsqueeze([1])
    step = iota(x.shape[1], 1, 2)
    # A length beyond the sequence is an index out of range, and so is one below zero.
    length = where(length < 0, x.shape[1] + 1, length)
    at = where(step < length, length + -1 - step, step).unsqueeze([2])
    found = apply("gather_nd", x, at, batch_dims=1, node=origin())
    return found.transpose(turned) if time_axis == 0 else found


@onnx("TensorScatter")
def _tensor_scatter(
    cache: Value, update: Value, start: Value | None,
    mode: Literal["linear", "circular"] = "linear", axis: Axis = -2,
) -> Value:  # fmt: skip
    """A cache with an update written along an axis, from a position of each sequence on."""
    return written_from(cache, update, start, axis, mode == "circular")


def written_from(
    cache: Value, update: Value, start: Value | None, axis: int, circular: bool = False
) -> Value:
    """A cache with an update written along an axis, from a position of each sequence on, or from
    the first one."""
    what = f"an update {update.type} of {cache.type}"
    if axis == 0 or update.rank != cache.rank:
        raise malformed(f"{what} along axis {axis}")
    if start is None:
        start = scalar(0, INT64).broadcast(cache.shape[:1])
    elif start.rank != 1 or start.dtype.kind != "int":
        raise malformed(f"positions {start.type}; expected integers along one axis")
    return apply(
        "write_rows", cache, start.cast(INT64), update, axis=axis, circular=circular,
        node=origin(),
    )  # fmt: skip


@onnx("Unique")
def _unique(
    context: Context, node: NodeView, x: Value, axis: Axis | None = None, sorted: bool = True
) -> Sequence[Value]:
    count = context.names.fresh(f"{next(filter(None, node.record.outputs), 'unique')}_count")
    return context.builder.add_many("unique", x, axis=axis, ordered=sorted, count=str(count))
