"""Operators on shapes and layout. Most become dims or views."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import (
    Dim,
    Shape,
    ceil_quotient,
    least_value,
    maximum,
    minimum,
    product,
    quotient,
)
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.graph.algebra import (
    apply,
    concat,
    constant,
    counted,
    equal,
    iota,
    malformed,
    require,
    scalar,
    unsupported,
)
from ftuner.graph.following import elements_of
from ftuner.graph.ir import Value
from ftuner.graph.ops.views import slice_extent


def _shape(context: Context, node: NodeView) -> Sequence[Value]:
    shape = node.input(0).shape
    end = node.integer("end") if node.has("end") else len(shape)
    return [context.builder.dims(shape[slice(node.integer("start", 0), end)])]


def _size(context: Context, node: NodeView) -> Sequence[Value]:
    return [counted(node.input(0).shape, INT64)]


def _constant(context: Context, node: NodeView) -> Sequence[Value]:
    if node.has("value"):
        value = node.tensor("value")
        return [context.builder.stored(value.array, value.dtype)]
    if node.has("value_float"):
        return [constant(np.float32(node.number("value_float", finite=False)))]
    if node.has("value_int"):
        return [constant(np.int64(node.integer("value_int")))]
    if node.has("value_ints"):
        return [constant(np.array(node.integers("value_ints"), np.int64))]
    if node.has("value_floats"):
        return [constant(np.array(node.numbers("value_floats"), np.float32))]
    raise unsupported("constants that are text or sparse")


def _constant_of_shape(context: Context, node: NodeView) -> Sequence[Value]:
    shape = context.shape_of(node.input(0), "the shape")
    if not node.has("value"):
        return [scalar(0, FLOAT32).broadcast(shape)]
    value = node.tensor("value")
    if value.array.size != 1:
        raise malformed(f"value has {value.array.size} elements; expected one")
    element = constant(value.array.reshape(()), value.dtype)
    return [element.broadcast(shape)]


def _reshape(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    wanted = list(context.dims_of(node.input(1), "the shape"))
    if not node.flag("allowzero"):
        for axis, extent in enumerate(wanted):
            if extent == 0:
                if axis >= x.rank:
                    raise malformed(f"0 at axis {axis} of a shape, of {x.type}")
                wanted[axis] = x.shape[axis]
    unknown = [axis for axis, extent in enumerate(wanted) if extent == -1]
    if len(unknown) > 1:
        raise malformed(f"more than one -1 in {wanted}")
    if unknown:
        others = product(extent for extent in wanted if extent != -1)
        total = product(x.shape)
        if others == 0 and total != 0:
            raise malformed(f"{x.type} cannot take the shape {wanted}")
        wanted[unknown[0]] = 0 if others == 0 else quotient(total, others)
    return [x.reshape(tuple(wanted))]


def _flatten(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    axis = node.integer("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise malformed(f"axis {axis} of {x.type}")
    axis += x.rank if axis < 0 else 0
    return [x.reshape((product(x.shape[:axis]), product(x.shape[axis:])))]


def _given_axes(context: Context, node: NodeView) -> Sequence[int] | None:
    """The axes of Squeeze and Unsqueeze, as the file has them."""
    if node.opset < 13:
        return node.integers("axes") if node.has("axes") else None
    given = node.optional(1)
    if given is None:
        return None
    # Unsqueeze also takes one axis as a scalar.
    scalar = given.rank == 0 and node.record.op == "Unsqueeze"
    what = "the axes"
    return (context.integer_of(given, what),) if scalar else context.integers_of(given, what)


def _squeeze(context: Context, node: NodeView) -> Sequence[Value]:
    x, given = node.input(0), _given_axes(context, node)
    if given is None:
        given = [i for i, extent in enumerate(x.shape) if _asked_one(context, extent, x)]
    return [x.squeeze(context.axes(given, x.rank))]


def _asked_one(context: Context, extent: Dim, x: Value) -> bool:
    """Whether an extent is one. Where it is known only at run time this asks for a condition, which
    is the same for all other extents."""
    if isinstance(extent, int):
        return extent == 1
    one = scalar(1, INT64)
    found = equal(context.builder.dims([extent], ()), one)
    return bool(context.array_of(found, f"which axes of {x.type} have one element").item())


def _unsqueeze(context: Context, node: NodeView) -> Sequence[Value]:
    x, given = node.input(0), _given_axes(context, node)
    if given is None:
        raise malformed("axes are missing")
    return [x.unsqueeze(context.axes(given, x.rank + len(given)))]


def _transpose(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    return [x.transpose(node.integers("perm", tuple(reversed(range(x.rank)))))]


def _concat(context: Context, node: NodeView) -> Sequence[Value]:
    values = node.present()
    return [concat(values, context.axis(node.integer("axis"), values[0].rank))]


def _expand(context: Context, node: NodeView) -> Sequence[Value]:
    return [node.input(0).broadcast(context.dims_of(node.input(1), "the shape"))]


def _tile(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    repeats = context.shape_of(node.input(1), "the number of repetitions")
    if len(repeats) != x.rank:
        raise malformed(f"{len(repeats)} numbers of repetitions for {x.type}")
    return [x if all(n == 1 for n in repeats) else apply("tile", x, repeats=repeats)]


def _split(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    axis = context.axis(node.integer("axis", 0), x.rank)
    extent, count = x.shape[axis], len(node.record.outputs)
    given = node.optional(1) if node.opset >= 13 else None
    extents: Sequence[Dim]
    if given is not None:
        extents = context.extents_of(given, "the split")
    elif node.has("split") and node.opset < 13:
        extents = node.integers("split")
    elif node.opset >= 18:
        # Equal pieces, the last one shorter.
        piece = ceil_quotient(extent, count)
        extents = [*[piece] * (count - 1), extent - piece * (count - 1)]
    else:
        extents = [quotient(extent, count)] * count
    if len(extents) != count:
        raise malformed(f"{len(extents)} pieces for {count} outputs")
    total: Dim = 0
    for piece in extents:
        total = total + piece
    require(total, extent, f"pieces of {x.type} along axis {axis}")
    return x.pieces(axis, extents)


def _pad(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    fill: Value | None = None
    axes: Sequence[int] = range(x.rank)
    widths: Shape
    if node.opset < 11:
        widths = node.integers("pads")
        fill = scalar(node.number("value", 0.0, finite=False), x.dtype)
    else:
        widths = context.dims_of(node.input(1), "the padding")
        fill = node.optional(2)
        given = node.optional(3)
        if given is not None:
            axes = [context.axis(a, x.rank) for a in context.integers_of(given, "the axes")]
    if len(widths) != 2 * len(axes):
        raise malformed(f"{len(widths)} widths of padding for {len(axes)} axes")
    before: list[Dim] = [0] * x.rank
    after: list[Dim] = [0] * x.rank
    for axis, low, high in zip(axes, widths, widths[len(axes) :], strict=False):
        before[axis], after[axis] = low, high
    if all(n == 0 for n in (*before, *after)):
        return [x]
    mode = node.text("mode", "constant")
    operands = [x]
    if mode == "constant":
        fill = scalar(0, x.dtype) if fill is None else fill.reshape(())
        operands.append(fill)
    return [apply("pad", *operands, before=tuple(before), after=tuple(after), mode=mode)]


def _is_one(value: Value) -> bool:
    return value.constant is not None and bool(value.constant.item() == 1)


def _whole(context: Context, value: Value) -> Dim | None:
    """The element of a float, if it is known to be an integer."""
    elements = elements_of(value)
    found = context.builder.presumed(value) if elements is None else tuple(elements.ravel())
    return None if found is None else found[0]


def _float_range(context: Context, start: Value, limit: Value, delta: Value) -> Dim | None:
    """The number of elements of a range of floats whose ends are extents, such as the distances
    from t - 1 down to 1 - t, or from any number up to an extent. None if they are not known to
    be."""
    step = _whole(context, delta)
    if not isinstance(step, int) or step == 0:
        return None
    begin = _whole(context, start)
    if begin is None and step == 1 and start.constant is not None:
        # Up to an integer there are as many elements as from the integer below.
        first = float(start.constant.item())
        begin = math.floor(first) if math.isfinite(first) else None
    end = None if begin is None else _whole(context, limit)
    return None if begin is None or end is None else slice_extent(begin, end, step)


def _known_range(context: Context, start: Value, limit: Value, delta: Value) -> int:
    """The number of elements of a range of floats, all known now."""
    first, last, step = (context.array_of(v, "the range").item() for v in (start, limit, delta))
    steps = float(last - first) / float(step) if step else math.nan
    if not math.isfinite(steps):
        raise malformed(f"a range from {first} to {last} by {step}")
    return max(math.ceil(steps), 0)


def _integer_range(context: Context, start: Value, limit: Value, delta: Value) -> Dim:
    """The number of elements of a range of integers."""
    (width,) = delta.dims or (0,)
    least = None if isinstance(width, int) else least_value(width)
    if least is not None and least >= 0:
        begin, end = context.dim_of(start, "the start"), context.dim_of(limit, "the limit")
        require(minimum(width, 1), 1, "a range with steps of 0")
        return maximum(ceil_quotient(end - begin, maximum(width, 1)), 0)
    step = context.integer_of(delta, "the step")
    if step == 0:
        raise malformed("a range with steps of 0")
    single = all(v.shape in ((), (1,)) for v in (start, limit))
    if context.counted and single and not all(map(context.has_dims, (start, limit))):
        first, last = (v.cast(INT64).reshape((1,)) for v in (start, limit))
        count = context.count_between(first, last, (step,))
        return context.extents_of(count, "the elements of a range")[0]
    begin, end = context.dim_of(start, "the start"), context.dim_of(limit, "the limit")
    return slice_extent(begin, end, step)


def _range(context: Context, node: NodeView) -> Sequence[Value]:
    start, limit, delta = (node.input(i) for i in range(3))
    what = f"a range from {start.type} to {limit.type} by {delta.type}"
    if any(v.rank > 1 for v in (start, limit, delta)):
        raise malformed(what)
    for one in (n for v in (start, limit, delta) for n in v.shape):
        require(one, 1, what)
    if start.dtype.kind == "float":
        extent = _float_range(context, start, limit, delta)
        if extent is None:
            extent = _known_range(context, start, limit, delta)
    else:
        extent = _integer_range(context, start, limit, delta)
    numbers = iota(extent).cast(start.dtype)
    if not _is_one(delta):
        numbers = numbers * delta.reshape(())
    if start.constant is None or start.constant.item() != 0:
        numbers = numbers + start.reshape(())
    return [numbers]


SHAPES: Table = {
    ("", "Concat"): _concat,
    ("", "Constant"): _constant,
    ("", "ConstantOfShape"): _constant_of_shape,
    ("", "Expand"): _expand,
    ("", "Flatten"): _flatten,
    ("", "Pad"): _pad,
    ("", "Range"): _range,
    ("", "Reshape"): _reshape,
    ("", "Shape"): _shape,
    ("", "Size"): _size,
    ("", "Split"): _split,
    ("", "Squeeze"): _squeeze,
    ("", "Tile"): _tile,
    ("", "Transpose"): _transpose,
    ("", "Unsqueeze"): _unsqueeze,
}
