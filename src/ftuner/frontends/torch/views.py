"""Shapes and views, and what moves elements without computing."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, ceil_quotient, least_value, maximum, minimum, product, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.torch.promotion import promoted
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply, concat, equal, gather, iota, where, zero_padded
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions.slices import bounds, from_front
from ftuner.graph.ir import Value
from ftuner.graph.operator import axis_of as axis_within


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front; a scalar counts as one axis."""
    return axis_within(axis, max(rank, 1), "axis")


def axes_of(dim: int | Sequence[int] | None, rank: int, none: bool = False) -> tuple[int, ...]:
    """Axes counted from the front: all of them without any. `none`: if an empty list means no
    axes."""
    if dim is None or (dim == [] and not none):
        return tuple(range(rank))
    given = [dim] if isinstance(dim, int) else dim
    return tuple(sorted({axis_of(a, rank) for a in given})) if rank else ()


@aten("view", "reshape", "_unsafe_view")
def view(x: Value, size: Sequence[Dim]) -> Value:
    """x in another shape, of which one extent may be -1."""
    return x.reshape(_filled(size, product(x.shape)))


def _filled(size: Sequence[Dim], elements: Dim) -> tuple[Dim, ...]:
    """A shape of so many elements, of which one extent may be -1."""
    if -1 not in size:
        return tuple(size)
    rest = product(n for n in size if n != -1)
    missing = 0 if rest == 0 else quotient(elements, rest)
    return tuple(missing if n == -1 else n for n in size)


aten("view_as", "reshape_as")(lambda x, other: x.reshape(other.shape))


@aten("transpose.int", "swapaxes", "swapdims")
def _transpose(x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.rank))
    first, second = axis_of(dim0, x.rank), axis_of(dim1, x.rank)
    if x.rank:
        order[first], order[second] = order[second], order[first]
    return x.transpose(order)


aten("t", "mT", "mH", "adjoint", "matrix_H")(lambda x: x.swapped() if x.rank > 1 else x)
aten("numpy_T")(lambda x: x.transpose(tuple(reversed(range(x.rank)))))


@aten("movedim.int", "moveaxis.int", "movedim.intlist", "moveaxis.intlist")
def _move(x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    pairs = [[a] if isinstance(a, int) else a for a in (source, destination)]
    old, new = ([axis_of(a, x.rank) for a in axes] for axes in pairs)
    order = [a for a in range(x.rank) if a not in old]
    for to, axis in sorted(zip(new, old, strict=True)):
        order.insert(to, axis)
    return x.transpose(order)


aten("unsqueeze")(lambda x, dim: x.unsqueeze([axis_of(dim, x.rank + 1)]))
aten("permute")(lambda x, dims: x.transpose([axis_of(a, x.rank) for a in dims]))


@aten("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Value, dim: int | Sequence[int] | None = None) -> Value:
    return x.squeeze([a for a in axes_of(dim, x.rank, none=True) if x.shape[a] == 1])


@aten("flatten.using_ints")
def _flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    start, end = axis_of(start_dim, x.rank), axis_of(end_dim, x.rank) + 1
    return x.reshape((*x.shape[:start], product(x.shape[start:end]), *x.shape[end:]))


@aten("unflatten.int")
def _unflatten(x: Value, dim: int, sizes: Sequence[Dim]) -> Value:
    axis = axis_of(dim, x.rank)
    return x.reshape((*x.shape[:axis], *_filled(sizes, x.shape[axis]), *x.shape[axis + 1 :]))


@aten("expand", "broadcast_to")
def _expand(x: Value, size: Sequence[Dim]) -> Value:
    """x broadcast to a shape; -1 is the extent that x has."""
    more = len(size) - x.rank
    own = (1,) * more + x.shape
    return x.broadcast(tuple(have if n == -1 else n for n, have in zip(size, own, strict=True)))


aten("expand_as")(lambda x, other: x.broadcast(other.shape))


aten(
    "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "lift_fresh", "positive",
    "resolve_conj", "resolve_neg", "conj", "_conj", "conj_physical", "_conj_physical", "real",
    "lift", "detach_",
)(lambda x: x)  # fmt: skip
aten("copy")(lambda x, src: src.cast(x.dtype).broadcast(x.shape))


# Parts.


@aten("slice.Tensor")
def sliced(
    x: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Value:
    """Every `step`-th element from `start` up to `end` along an axis."""
    axis = axis_of(dim, x.rank)
    first, count = _bounds(x, axis, start, end, step)
    return x.slice(axis, first, count, step)


def _bounds(x: Value, axis: int, start: Dim | None, end: Dim | None, step: int) -> tuple[Dim, Dim]:
    first = 0 if start is None else start
    last = (1 << 62) if end is None else end
    return bounds(first, last, step, x.shape[axis])


@aten("narrow")
def _narrow(x: Value, dim: int, start: Dim, length: Dim) -> Value:
    axis = axis_of(dim, x.rank)
    return x.slice(axis, from_front(start, x.shape[axis]), length)


@aten("select.int")
def select(x: Value, dim: int, index: Dim) -> Value:
    """The elements at one position along an axis, which is left out."""
    axis = axis_of(dim, x.rank)
    one = x.slice(axis, from_front(index, x.shape[axis]), 1)
    return one.reshape((*x.shape[:axis], *x.shape[axis + 1 :]))


@aten("unbind.int")
def _unbind(x: Value, dim: int = 0, *, pieces: int) -> Sequence[Value]:
    axis = axis_of(dim, x.rank)
    require(x.shape[axis], pieces, f"tensors along axis {axis} of {x.type}")
    return [select(x, axis, i) for i in range(pieces)]


@aten("split_with_sizes", "split.sizes")
def _pieces(x: Value, split_sizes: Sequence[Dim], dim: int = 0) -> Sequence[Value]:
    axis = axis_of(dim, x.rank)
    require(sum(split_sizes), x.shape[axis], f"pieces of {x.type} along axis {axis}")
    return x.pieces(axis, split_sizes)


@aten("split.Tensor", "unsafe_split.Tensor")
def _split(x: Value, split_size: Dim, dim: int = 0, *, pieces: int) -> Sequence[Value]:
    return _even(x, axis_of(dim, x.rank), split_size, pieces)


@aten("chunk", "unsafe_chunk")
def _chunk(x: Value, chunks: int, dim: int = 0, *, pieces: int) -> Sequence[Value]:
    """At most as many pieces as asked for, of one size but for the last."""
    axis = axis_of(dim, x.rank)
    return _even(x, axis, ceil_quotient(x.shape[axis], chunks), pieces)


def _even(x: Value, axis: int, size: Dim, count: int) -> Sequence[Value]:
    extent = x.shape[axis]
    last = extent - size * (count - 1)
    require(minimum(last, size), last, f"{count} pieces of {x.type} along axis {axis}")
    return x.pieces(axis, [size] * (count - 1) + [last])


@aten("diagonal")
def diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of matrices, along a new last axis."""
    first, second = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    others = [a for a in range(x.rank) if a not in (first, second)]
    moved = x.transpose((*others, first, second))
    rows, columns = moved.shape[-2:]
    count = maximum(minimum(rows + min(offset, 0), columns - max(offset, 0)), 0)
    if offset > 0:
        rows = minimum(rows, count)
    begin = max(offset, 0) + columns * max(-offset, 0)
    flat = moved.reshape((*moved.shape[:-2], moved.shape[-2] * columns))
    return gather(flat, iota(count) * (columns + 1) + begin, flat.rank - 1)


@aten("diagonal_scatter")
def _diagonal_scatter(x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """x with `src` as the diagonal of its matrices."""
    first, second = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    order = [*(a for a in range(x.rank) if a not in (first, second)), first, second]
    moved = x.transpose(order)
    rows, columns = moved.shape[-2:]
    last = src.rank - 1
    missing = (rows if offset >= 0 else columns) - src.shape[last]
    whole = zero_padded(src.cast(x.dtype), (0,) * src.rank, (*[0] * last, missing))
    whole = whole.unsqueeze([last + 1 if offset >= 0 else last])
    found = where(equal(iota(columns, 1, 2), iota(rows, 0, 2) + offset), whole, moved)
    return found.transpose(sorted(range(x.rank), key=order.__getitem__))


@aten("select_scatter")
def _select_scatter(x: Value, src: Value, dim: int, index: Dim) -> Value:
    axis = axis_of(dim, x.rank)
    return _written(x, src.unsqueeze([axis]), axis, from_front(index, x.shape[axis]), 1, 1)


@aten("slice_scatter")
def _slice_scatter(
    x: Value, src: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None,
    step: int = 1,
) -> Value:  # fmt: skip
    axis = axis_of(dim, x.rank)
    first, count = _bounds(x, axis, start, end, step)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return _written(x, src.broadcast(shape), axis, first, count, step)


def _written(x: Value, src: Value, axis: int, first: Dim, count: Dim, step: int) -> Value:
    """x with other elements at `count` positions along an axis."""
    src, extent = src.cast(x.dtype), x.shape[axis]
    if first == 0 and step == 1 and count == extent:
        return src
    if step == 1:
        end = first + count
        before, after = x.slice(axis, 0, first), x.slice(axis, end, extent - end)
        return concat([before, src, after], axis)
    moved, own = x.moved(axis, 0), src.moved(axis, 0)
    at = (iota(count) * step + first).unsqueeze([1])
    return apply("scatter_nd", moved, at, own, kind="none", node="").moved(0, axis)


@aten("unfold")
def _unfold(x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows along an axis; what one has is along a new last axis."""
    if not x.rank:
        return x.reshape((1,)).slice(0, 0, size)
    axis = axis_of(dimension, x.rank)
    count = quotient(x.shape[axis] - size, step) + 1
    at = iota(count, 0, 2) * step + iota(size, 1, 2)
    return gather(x, at, axis).moved(axis + 1, x.rank)


# Joining, repeating, turning.


@aten("cat", "concat", "concatenate")
def _concatenated(tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors of one axis without elements count as nothing."""
    from_all = promoted(*tensors)
    some = [x for x in from_all if x.shape != (0,)] or from_all[:1]
    return concat(some, axis_of(dim, some[0].rank))


@aten("stack")
def _stack(tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(dim, tensors[0].rank + 1)
    return concat([x.unsqueeze([axis]) for x in promoted(*tensors)], axis)


@aten("repeat", "tile")
def _repeat(x: Value, repeats: Sequence[Dim]) -> Value:
    x = x.unsqueeze(range(max(len(repeats) - x.rank, 0)))
    times = (1,) * (x.rank - len(repeats)) + tuple(repeats)
    return x if all(n == 1 for n in times) else apply("tile", x, repeats=times)


@aten("repeat_interleave.self_int")
def _repeat_each(
    x: Value, repeats: Dim, dim: int | None = None, output_size: Dim | None = None
) -> Value:
    if dim is None:
        x = x.reshape((product(x.shape),))
    axis = axis_of(dim or 0, x.rank)
    if repeats == 1:
        return x
    shape = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    wide = x.unsqueeze([axis + 1]).broadcast(shape)
    return wide.reshape((*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))


@aten("flip")
def _flip(x: Value, dims: Sequence[int]) -> Value:
    for axis in axes_of(list(dims), x.rank, none=True):
        x = x.slice(axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


@aten("roll")
def _roll(x: Value, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> Value:
    if not dims:
        flat = x.reshape((product(x.shape),))
        return _roll(flat, shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, x.rank)
        extent = x.shape[axis]
        if shift == 0 or not x.rank:
            continue
        if isinstance(shift, int) and (least_value(extent) or 0) >= abs(shift):
            cut = extent - shift if shift > 0 else -shift
            parts = x.pieces(axis, [cut, extent - cut])
            x = concat(parts[::-1], axis)
            continue
        at = (iota(extent) - shift) % iota(1).like(maximum(extent, 1))
        x = gather(x, at, axis)
    return x


@aten("tril", upper=False)
@aten("triu", upper=True)
def _triangle(x: Value, diagonal: Dim = 0, *, upper: bool) -> Value:
    row, column = iota(x.shape[-2], 0, 2) + diagonal, iota(x.shape[-1], 1, 2)
    kept = row <= column if upper else column <= row
    return x & kept if x.dtype.kind == "bool" else where(kept, x, 0)


@aten("meshgrid", indexing="ij")
@aten("meshgrid.indexing")
def _mesh(tensors: Sequence[Value], indexing: str) -> Sequence[Value]:
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    rows = [x.reshape((product(x.shape),)) for x in tensors]
    shape = tuple(rows[i].shape[0] for i in order)
    found = []
    for i, x in enumerate(rows):
        axis = order.index(i)
        own = x.reshape(tuple(x.shape[0] if a == axis else 1 for a in range(len(order))))
        found.append(own.broadcast(shape))
    return found


@aten("one_hot")
def _one_hot(x: Value, num_classes: Dim = -1) -> Value:
    if num_classes == -1:
        raise malformed("one_hot without a number of classes, which would be data-dependent")
    hot = x.unsqueeze([x.rank])
    found = apply("equal", hot, iota(num_classes, x.rank, x.rank + 1).cast(x.dtype))
    return found.cast(INT64)
