"""Operators that select elements: by ranges, by run-time indices, by order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import Dim, Shape, least_value, maximum, minimum, product
from ftuner.core.dtype import BOOL, INT64
from ftuner.frontends.onnx.context import Context, Importer, NodeView, Table
from ftuner.graph.ir import Value
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops.views import slice_extent

_BEYOND = 1 << 62
"""More rows or columns than a matrix has."""
_UNBOUNDED = 2**31 - 1
"""A slice end at least this large, positive or negative, means the end of the axis, as ONNX
specifies."""


def _from_front(position: Dim, extent: Dim) -> Dim:
    """A position counted from the front; a negative one counts from the back."""
    if isinstance(position, int):
        return position + extent if position < 0 else position
    low, below = least_value(position), least_value(-position)
    if low is not None and low >= 0:
        return position
    # 1 if the position is negative, else 0.
    known = below is not None and below >= 0
    negative = minimum(-position if known else maximum(-position, 0), 1)
    return position + extent * negative


def _bounds(start: Dim, end: Dim, step: int, extent: Dim) -> tuple[Dim, Dim]:
    """The first index of a slice along an axis, and the number of elements.

    A start beyond the end of the axis needs no clamp: the slice is then empty.
    """
    forward = step > 0
    open_end = isinstance(end, int) and (end >= _UNBOUNDED if forward else end <= -_UNBOUNDED)
    if forward:
        first = maximum(_from_front(start, extent), 0)
        stop = extent if open_end else minimum(_from_front(end, extent), extent)
        if step == 1 and stop == extent and isinstance(start, int) and start < 0:
            count = minimum(-start, extent)
            return extent - count, count
    else:
        first = minimum(maximum(_from_front(start, extent), 0), extent - 1)
        if isinstance(start, int) and start >= _UNBOUNDED:
            first = extent - 1
        stop = -1 if open_end else maximum(_from_front(end, extent), -1)
    return first, slice_extent(first, stop, step)


def _slice(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    starts: Sequence[Dim]
    ends: Sequence[Dim]
    if node.opset < 10:
        starts, ends = node.integers("starts"), node.integers("ends")
        axes = node.integers("axes", tuple(range(len(starts))))
        steps: Sequence[int] = [1] * len(starts)
    else:
        if context.nested and _come_as_data(context, node.input(1), node.input(2)):
            return [_sliced_by_data(context, node)]
        starts = context.dims_of(node.input(1), "the start")
        ends = context.dims_of(node.input(2), "the end")
        axes, steps = _axes_and_steps(context, node, len(starts))
    if len(starts) != len(ends) or len(axes) != len(starts):
        raise context.malformed(f"{len(starts)} starts, {len(ends)} ends and {len(axes)} axes")
    first: list[Dim] = [0] * x.rank
    stride = [1] * x.rank
    shape = list(x.shape)
    context.axes(axes, x.rank)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = context.axis(axis, x.rank)
        stride[at] = step
        first[at], shape[at] = _bounds(start, end, step, x.shape[at])
    if tuple(shape) == x.shape and all(s == 1 for s in stride) and not any(first):
        return [x]
    return [context.add("slice", x, starts=tuple(first), steps=tuple(stride), shape=tuple(shape))]


def _axes_and_steps(
    context: Context, node: NodeView, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes and steps of a slice with a number of bounds."""
    given, strides = node.optional(3), node.optional(4)
    axes, steps = tuple(range(count)), (1,) * count
    if given is not None:
        axes = context.integers_of(given, "the axes")
    if strides is not None:
        steps = context.integers_of(strides, "the step")
    if len(axes) != len(steps):
        raise context.malformed(f"{len(axes)} axes and {len(steps)} steps")
    if 0 in steps:
        raise context.malformed("a slice with steps of 0")
    return axes, steps


def _come_as_data(context: Context, start: Value, end: Value) -> bool:
    """Whether bounds of a known number of axes are known only at run time."""
    some = start.rank == 1 and start.shape == end.shape and isinstance(start.shape[0], int)
    return some and any(context.decided_by_data(v) for v in (start, end))


def _sliced_by_data(context: Context, node: NodeView) -> Value:
    """A slice between bounds that data decides. The nodes around compute its first positions and
    its extents, which are zero or more, or one; see `Context.presumes_ones`."""
    x, bounds = node.input(0), [context.cast(node.input(i), INT64) for i in (1, 2)]
    (count,) = bounds[0].shape
    assert isinstance(count, int)
    axes, steps = _axes_and_steps(context, node, count)
    if len(axes) != count:
        raise context.malformed(f"{count} starts and {len(axes)} axes")
    axes = context.axes(axes, x.rank)
    forward = context.builder.constant(np.array([step > 0 for step in steps]), BOOL)
    sizes = context.builder.constant(np.array([abs(step) for step in steps]), INT64)
    extents = context.builder.dims([x.shape[axis] for axis in axes])
    zero, one = context.scalar(0, INT64), context.scalar(1, INT64)
    last = context.add("subtract", extents, one)

    def between(position: Value, least: Value) -> Value:
        """A position, counted from the front and clamped, where steps go back to `least`."""
        back = context.add("less", position, zero)
        position = context.add("where", back, context.add("add", position, extents), position)
        low = context.add("where", forward, zero, least)
        high = context.add("where", forward, extents, last)
        return context.add("minimum", context.add("maximum", position, low), high)

    first, stop = between(bounds[0], zero), between(bounds[1], context.scalar(-1, INT64))
    length = context.add("subtract", stop, first)
    length = context.add("where", forward, length, context.add("subtract", first, stop))
    whole = context.add("divide", context.add("add", context.at_least(length, 0),
                        context.add("subtract", sizes, one)), sizes)  # fmt: skip
    found = context.concat([context.at_least(first, 0), whole], 0)
    numbers = context.extents_of(found, "the bounds of a slice")
    lengths: list[Dim] = list(numbers[count:])
    ones = all(step == 1 for step in steps) and _ends_one_after(context, *bounds)
    if context.presumes_ones and ones:
        for n in lengths:
            context.builder.require(n, 1, f"elements of a slice of one of {x.type}")
        lengths = [1] * count
    starts: list[Dim] = [0] * x.rank
    stride, shape = [1] * x.rank, list(x.shape)
    for i, axis in enumerate(axes):
        starts[axis], stride[axis], shape[axis] = numbers[i], steps[i], lengths[i]
    return context.add("slice", x, starts=tuple(starts), steps=tuple(stride), shape=tuple(shape))


def _ends_one_after(context: Context, start: Value, end: Value) -> bool:
    (first, before), (last, after) = (_with_offset(context, v) for v in (start, end))
    return first is last and after - before == 1


def _with_offset(context: Context, value: Value) -> tuple[Value, int]:
    """A value as another one and a number that is added to each element of it."""
    total = 0
    while (node := context.builder.producer(value)) is not None and node.op == "add":
        x, y = node.inputs if node.inputs[1].constant is not None else node.inputs[::-1]
        if y.constant is None or y.constant.size != 1 or x.shape != value.shape:
            break
        value, total = x, total + int(y.constant.item())
    return value, total


def _gather(context: Context, node: NodeView) -> Sequence[Value]:
    x, indices = node.input(0), node.input(1)
    axis = context.axis(node.integer("axis", 0), x.rank)
    extent, constant = x.shape[axis], indices.constant
    if constant is not None and indices.dtype.kind == "int" and isinstance(extent, int):
        index = int(constant.flat[0]) if constant.size == 1 else extent
        if -extent <= index < extent:
            # A slice is a view; a gather would copy.
            one = context.slice(x, axis, index % extent, 1)
            return [context.reshape(one, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])]
    return [context.add("gather", x, indices, axis=axis, node=context.builder.where)]


def _gather_elements(context: Context, node: NodeView) -> Sequence[Value]:
    x, indices = node.input(0), node.input(1)
    axis = context.axis(node.integer("axis", 0), x.rank)
    where = context.builder.where
    return [context.add("gather_elements", x, indices, axis=axis, node=where)]


def _gather_nd(context: Context, node: NodeView) -> Sequence[Value]:
    batch = node.integer("batch_dims", 0)
    x, indices = node.input(0), node.input(1)
    _expect_depth(context, indices)
    return [context.add("gather_nd", x, indices, batch_dims=batch, node=context.builder.where)]


def _expect_depth(context: Context, indices: Value) -> None:
    """Raise an error unless the number of indexed axes is known: it decides the result's rank."""
    if indices.rank and not isinstance(indices.shape[-1], int):
        raise context.unsupported(
            f"the last extent of {indices.type} is known only at run time (data-dependent shape)"
        )


_COMBINE = {"none": "none", "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _combination(context: Context, node: NodeView) -> str:
    given = node.text("reduction", "none")
    if given not in _COMBINE:
        raise context.malformed(f"reduction is {given!r}; expected one of {tuple(_COMBINE)}")
    return _COMBINE[given]


def _scatter_elements(context: Context, node: NodeView) -> Sequence[Value]:
    x, indices, updates = (node.input(i) for i in range(3))
    result = context.add(
        "scatter_elements", x, indices, updates, axis=context.axis(node.integer("axis", 0), x.rank),
        kind=_combination(context, node), node=context.builder.where,
    )  # fmt: skip
    return [result]


def _scatter_nd(context: Context, node: NodeView) -> Sequence[Value]:
    x, indices, updates = (node.input(i) for i in range(3))
    _expect_depth(context, indices)
    kind = _combination(context, node)
    where = context.builder.where
    return [context.add("scatter_nd", x, indices, updates, kind=kind, node=where)]


def _hot_positions(context: Context, indices: Value, extent: Dim) -> Value:
    """Indices as positions counted from the front; an index out of range selects nothing."""
    outside = context.builder.dims([extent], ())
    position = context.cast(indices, INT64)
    if indices.dtype.kind == "uint":
        # Values beyond int64 become negative, and then are out of range.
        return position
    if indices.dtype.kind == "float":
        position = context.add("where", context.add("isnan", indices), outside, position)
    negative = context.add("less", position, context.scalar(0, INT64))
    return context.add("where", negative, context.add("add", position, outside), position)


def _one_hot(context: Context, node: NodeView) -> Sequence[Value]:
    indices, depth, values = (node.input(i) for i in range(3))
    # The specification allows any number.
    depth = context.cast(depth, INT64)
    extent = context.dim_of(depth, "the depth")
    if isinstance(extent, int) and extent < 1:
        raise context.malformed(f"the depth is {extent}; expected one or more")
    what = f"values {values.type}; expected two"
    if values.rank != 1:
        raise context.malformed(what)
    context.builder.require(values.shape[0], 2, what)
    axis = context.axis(node.integer("axis", -1), indices.rank + 1)
    chosen = context.unsqueeze(_hot_positions(context, indices, extent), [axis])
    hot = context.add("equal", chosen, context.iota(extent, axis, chosen.rank))
    off, on = (context.reshape(context.slice(values, 0, i, 1), ()) for i in range(2))
    return [context.add("where", hot, on, off)]


def _trilu(context: Context, node: NodeView) -> Sequence[Value]:
    x, given = node.input(0), node.optional(1)
    if x.rank < 2:
        raise context.malformed(f"a triangle of {x.type}")
    offset = 0 if given is None else context.dim_of(given, "the diagonal")
    row = context.iota(x.shape[-2], 0, 2)
    column = context.iota(x.shape[-1], 1, 2)
    if isinstance(offset, int):
        # All diagonals beyond the matrix are equivalent, and the sums must fit 64 bits.
        offset = max(min(offset, _BEYOND), -_BEYOND)
    if offset != 0:
        row = context.add("add", row, context.builder.dims([offset], ()))
    pair = (row, column) if node.flag("upper", True) else (column, row)
    kept = context.add("less_equal", *pair)
    if x.dtype == BOOL:
        return [context.add("logical_and", x, kept)]
    return [context.add("where", kept, x, context.scalar(0, x.dtype))]


def _cumulative(op: str) -> Importer:
    """The importer of a running reduction."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x, given = node.input(0), node.input(1)
        if op == "cumulative_product" and given.rank:
            raise context.malformed(f"the axis is {given.type}; expected a number")
        axis = context.axis(context.integer_of(given, "the axis"), x.rank)
        exclusive, reverse = node.flag("exclusive"), node.flag("reverse")
        return [context.add(op, x, axis=axis, exclusive=exclusive, reverse=reverse)]

    return convert


def _top_k(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    axis = context.axis(node.integer("axis", -1), x.rank)
    k: Dim
    if node.opset < 10:
        k = node.integer("k")
    else:
        given = node.input(1)
        (k, *others) = context.dims_of(given, "k") or (0, 0)
        if others:
            raise context.malformed(f"k is {given.type}; expected one element")
    largest = node.flag("largest", True)
    return context.builder.add_many("top_k", x, axis=axis, k=k, largest=largest)


def non_zero(context: Context, node: NodeView, x: Value) -> Value:
    """The index of each element that is not zero, one in each column, for a node."""
    if x.constant is not None and context.builder.folding.spend(
        x.rank * x.constant.size * INT64.itemsize, x.constant.size
    ):
        return context.builder.constant(OPERATORS["non_zero"].reference(x.constant, ""))
    element = context.builder.uniform.element(x)
    if element is not None and element.constant is not None and x.rank > 0:
        return _positions(context, x.shape, everywhere=bool(element.constant))
    return context.non_zero(x, next(iter(node.record.outputs), "non_zero"))


def _positions(context: Context, shape: Shape, everywhere: bool) -> Value:
    """The positions of all elements of a shape, one in each column, or of none."""
    if not everywhere:
        return context.builder.constant(np.zeros((len(shape), 0), np.int64))
    rank, row = len(shape), (1, product(shape))
    along = (context.broadcast(context.iota(n, i, rank), shape) for i, n in enumerate(shape))
    return context.concat([context.reshape(index, row) for index in along], 0)


INDEXING: Table = {
    ("", "CumProd"): _cumulative("cumulative_product"),
    ("", "CumSum"): _cumulative("cumulative_sum"),
    ("", "Gather"): _gather,
    ("", "GatherElements"): _gather_elements,
    ("", "GatherND"): _gather_nd,
    ("", "NonZero"): lambda context, node: [non_zero(context, node, node.input(0))],
    ("", "OneHot"): _one_hot,
    ("", "Scatter"): _scatter_elements,
    ("", "ScatterElements"): _scatter_elements,
    ("", "ScatterND"): _scatter_nd,
    ("", "Slice"): _slice,
    ("", "TopK"): _top_k,
    ("", "Trilu"): _trilu,
}
