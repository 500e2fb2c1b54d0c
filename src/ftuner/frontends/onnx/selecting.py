"""Operators that select or place elements by computed positions: Compress, EyeLike,
ReverseSequence, TensorScatter, Unique."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ftuner.core.dim import product
from ftuner.core.dtype import BOOL, INT64, DType
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.indexing import non_zero
from ftuner.frontends.onnx.signatures import Axis, onnx
from ftuner.graph.algebra import apply, equal, gather, iota, scalar, where
from ftuner.graph.checks import malformed, origin, require
from ftuner.graph.ir import Value

_BEYOND = 1 << 62
"""More rows or columns than a matrix has."""


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
