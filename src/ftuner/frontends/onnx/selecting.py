"""Operators that select or place elements by computed positions: Compress, EyeLike, Hardmax,
ReverseSequence, TensorScatter, Unique."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import product
from ftuner.core.dtype import BOOL, INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.indexing import non_zero
from ftuner.frontends.onnx.reading import dtype_of
from ftuner.graph.algebra import (
    apply,
    concat,
    counted,
    equal,
    gather,
    iota,
    malformed,
    origin,
    require,
    scalar,
    where,
)
from ftuner.graph.ir import Value

_BEYOND = 1 << 62
"""More rows or columns than a matrix has."""


def _compress(context: Context, node: NodeView) -> Sequence[Value]:
    """The elements along an axis, or of the whole tensor, where a condition holds."""
    x, condition = node.input(0), node.input(1)
    if condition.rank != 1 or condition.dtype != BOOL:
        raise malformed(f"a condition {condition.type}; expected booleans along one axis")
    axis = 0
    if node.has("axis"):
        axis = context.axis(node.integer("axis"), x.rank)
    else:
        x = x.reshape((product(x.shape),))
    found = non_zero(context, node, condition)
    chosen = found.reshape((found.shape[1],))
    return [gather(x, chosen, axis)]


def _eye_like(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if x.rank != 2:
        raise malformed(f"{x.type}; expected two axes")
    dtype = x.dtype
    if node.has("dtype"):
        what = f"{origin()}: attribute dtype"
        dtype = dtype_of(node.integer("dtype"), what)
    # All diagonals beyond the matrix are equivalent, and the sums must fit 64 bits.
    offset = max(min(node.integer("k", 0), _BEYOND), -_BEYOND)
    row = iota(x.shape[0], 0, 2) + offset
    hot = equal(row, iota(x.shape[1], 1, 2))
    return [hot.cast(dtype)]


def _hardmax(context: Context, node: NodeView) -> Sequence[Value]:
    """One at the first of the largest elements, and zero elsewhere."""
    x = node.input(0)
    if x.dtype.kind != "float":
        raise malformed(f"hardmax of {x.type}")
    given = x
    if node.opset >= 13:
        axis = context.axis(node.integer("axis", -1), x.rank)
    else:
        # The axes from `axis` on are merged into one.
        axis = context.axis(node.integer("axis", 1), x.rank)
        x = x.reshape((*x.shape[:axis], product(x.shape[axis:])))
    # One element more, which is never the first of the largest: an axis may have none.
    least = scalar(-math.inf, x.dtype)
    more = least.broadcast(tuple(1 if i == axis else n for i, n in enumerate(x.shape)))
    best = apply("arg_reduce", concat([x, more], axis), kind="argmax", axis=axis, last=False)
    place = iota(x.shape[axis], axis, x.rank)
    hot = equal(best.unsqueeze([axis]), place)
    return [hot.cast(x.dtype).reshape(given.shape)]


def _reverse_sequence(context: Context, node: NodeView) -> Sequence[Value]:
    """The first elements of each sequence of a batch, as many as its length, in reverse order."""
    x, lengths = node.input(0), node.input(1)
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    if x.rank < 2 or sorted((time, batch)) != [0, 1]:
        raise malformed(f"batch axis {batch} and time axis {time} of {x.type}")
    if lengths.rank != 1 or lengths.dtype.kind != "int":
        raise malformed(f"lengths {lengths.type}; expected integers along one axis")
    require(lengths.shape[0], x.shape[batch], f"lengths {lengths.type}")
    turned = (1, 0, *range(2, x.rank))
    if time == 0:
        x = x.transpose(turned)
    length = lengths.cast(INT64).unsqueeze([1])
    step = iota(x.shape[1], 1, 2)
    # A length beyond the sequence is an index out of range, and so is one below zero.
    below = length < scalar(0, INT64)
    length = where(below, counted([x.shape[1] + 1], INT64), length)
    back = length + -1 - step
    within = step < length
    at = where(within, back, step).unsqueeze([2])
    found = apply("gather_nd", x, at, batch_dims=1, node=origin())
    return [found.transpose(turned) if time == 0 else found]


def _tensor_scatter(context: Context, node: NodeView) -> Sequence[Value]:
    """A cache with an update written along an axis, from a position of each sequence on."""
    cache, update, start = node.input(0), node.input(1), node.optional(2)
    mode = node.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise malformed(f"mode is {mode!r}; expected 'linear' or 'circular'")
    axis = context.axis(node.integer("axis", -2), cache.rank)
    return [written_from(context, cache, update, start, axis, mode == "circular")]


def written_from(
    context: Context, cache: Value, update: Value, start: Value | None, axis: int,
    circular: bool = False,
) -> Value:  # fmt: skip
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
        "write_rows",
        cache,
        start.cast(INT64),
        update,
        axis=axis,
        circular=circular,
        node=origin(),
    )


def _unique(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    axis = context.axis(node.integer("axis"), x.rank) if node.has("axis") else None
    ordered = node.flag("sorted", True)
    count = context.names.fresh(f"{next(filter(None, node.record.outputs), 'unique')}_count")
    return context.builder.add_many("unique", x, axis=axis, ordered=ordered, count=str(count))


SELECTING: Table = {
    ("", "Compress"): _compress,
    ("", "EyeLike"): _eye_like,
    ("", "Hardmax"): _hardmax,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "TensorScatter"): _tensor_scatter,
    ("", "Unique"): _unique,
}
