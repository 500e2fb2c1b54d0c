"""Operators that read or write elements at positions that are data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import Dim, maximum, product
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, INT64, UINT8
from ftuner.core.functions import neutral
from ftuner.frontends.torch.dims import extent_of
from ftuner.frontends.torch.pointwise import floor_quotient
from ftuner.frontends.torch.promotion import Operand, indices, promoted, truth, valued
from ftuner.frontends.torch.reductions import search
from ftuner.frontends.torch.registry import aten
from ftuner.frontends.torch.views import axis_of
from ftuner.graph.algebra import apply, concat, equal, gather, iota, isnan, scalar, where
from ftuner.graph.checks import origin, require, unsupported
from ftuner.graph.ir import Value
from ftuner.graph.ops.pointwise import broadcast_shape


@aten("nonzero")
def nonzero(x: Value) -> Value:
    """The index of each element that is not zero, one in each row."""
    node = origin().partition(" ")[0]
    return apply("non_zero", x, count=f"{node}_count").swapped()


@aten("nonzero_numpy")
def _nonzero_by_axis(x: Value) -> Sequence[Value]:
    x = x if x.rank else x.reshape((1,))
    return _columns(nonzero(x))


def _columns(found: Value) -> list[Value]:
    (count, rank) = found.shape
    assert isinstance(rank, int)
    return [found.slice(1, i, 1).reshape((count,)) for i in range(rank)]


@aten("masked_select")
def _masked_select(x: Value, mask: Value) -> Value:
    shape = broadcast_shape([x.shape, mask.shape], require, "masked_select")
    count = (product(shape),)
    (at,) = _columns(nonzero(truth(mask).broadcast(shape).reshape(count)))
    return gather(x.broadcast(shape).reshape(count), at)


@aten("masked_scatter")
def _masked_scatter(x: Value, mask: Value, source: Value) -> Value:
    """x with the elements of a source, in order, where a mask holds."""
    shape = broadcast_shape([x.shape, mask.shape], require, "masked_scatter")
    kept = truth(mask).broadcast(shape)
    count = (product(shape),)
    places = apply(
        "cumulative_sum", kept.reshape(count).cast(INT64), axis=0, exclusive=True, reverse=False
    )
    flat = source.reshape((product(source.shape),))
    # Elements outside the mask read one more element, because the source may be empty.
    more = concat([flat, scalar(0, source.dtype).reshape((1,))], 0)
    at = where(kept.reshape(count), places, flat.shape[0])
    return where(kept, gather(more, at).reshape(shape), x)


@aten("index_select")
def index_select(x: Value, dim: int, index: Value) -> Value:
    """Elements along an axis."""
    if not x.rank:
        return x
    index = index if index.rank else index.reshape((1,))
    return gather(x, index, axis_of(dim, x.rank))


@aten("gather")
def _gather(x: Value, dim: int, index: Value) -> Value:
    if not index.rank:
        return index_select(x.reshape((product(x.shape),)), 0, index).reshape(())
    if 0 in index.shape:
        # torch takes an empty index of any number of axes.
        return scalar(0, x.dtype).broadcast(index.shape)
    x = x if x.rank else x.reshape((1,))
    return apply("gather_elements", x, indices(index), axis=axis_of(dim, x.rank), node=origin())


# Advanced indices.


def _listed(x: Value, indices: Sequence[Value | None]) -> list[Value | None]:
    """An index of integers, or none, for each axis of x: masks are the positions where they
    hold."""
    found: list[Value | None] = []
    for index in indices:
        if index is None or index.dtype not in (BOOL, UINT8):
            found.append(index)
            continue
        axis = len(found)
        for have, wanted in zip(index.shape, x.shape[axis:], strict=False):
            require(have, wanted, f"a mask {index.type} of {x.type}")
        found += _columns(nonzero(truth(index)))
    return found + [None] * (x.rank - len(found))


class _Index:
    """Positions along some axes of a tensor, which come first in `order`."""

    def __init__(self, x: Value, indices: Sequence[Value | None]) -> None:
        listed = _listed(x, indices)
        chosen = [a for a, index in enumerate(listed) if index is not None]
        self.order = [*chosen, *(a for a in range(x.rank) if a not in chosen)]
        given = [index for index in listed if index is not None]
        self.shape = broadcast_shape([i.shape for i in given], require, "indices")
        if len(given) == 1:
            self.single: Value | None = given[0]
        else:
            self.single = None
            self.stacked = [i.cast(INT64).broadcast(self.shape) for i in given]
        self.axes = chosen
        together = chosen == list(range(chosen[0], chosen[-1] + 1))
        self.first = chosen[0] if together else 0
        """The axis of the result from which on those of the positions are."""

    def at(self) -> Value:
        """The positions along a last axis."""
        if self.single is not None:
            return self.single.unsqueeze([self.single.rank])
        rank = len(self.shape)
        return concat([i.unsqueeze([rank]) for i in self.stacked], rank)

    def turn(self, rank: int) -> list[int]:
        """The axes of positions and rest as the result of indexing has them."""
        own = len(self.shape)
        rest = list(range(own, rank))
        return [*rest[: self.first], *range(own), *rest[self.first :]]


@aten("index.Tensor")
def _index(x: Value, indices: Sequence[Value | None]) -> Value:
    if all(i is None for i in indices):
        return x
    found = _Index(x, indices)
    if found.single is not None:
        return gather(x, found.single, found.axes[0])
    result = apply("gather_nd", x.transpose(found.order), found.at(), batch_dims=0, node=origin())
    return result.transpose(found.turn(result.rank))


@aten("index_put")
def _index_put(
    x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    values = values.cast(x.dtype)
    if not any(i is not None for i in indices):
        return x + values if accumulate else values.broadcast(x.shape)
    first = next(a for a, i in enumerate(indices) if i is not None)
    mask = indices[first]
    assert mask is not None
    only = all(i is None for i in indices[first + 1 :])
    if only and mask.dtype in (BOOL, UINT8) and product(values.shape) == 1 and not accumulate:
        # No positions are needed: the result has x's shape.
        kept = truth(mask).reshape((*mask.shape, *[1] * (x.rank - first - mask.rank)))
        return where(kept, values.reshape(()), x)
    found = _Index(x, indices)
    moved = x.transpose(found.order)
    rank = len(found.shape)
    shape = (*found.shape, *moved.shape[len(found.axes) :])
    turn = found.turn(len(shape))
    values = values.broadcast(tuple(shape[a] for a in turn))
    values = values.transpose([turn.index(a) for a in range(len(turn))])
    assert rank <= values.rank
    kind = "add" if accumulate else "none"
    if x.dtype == BOOL and accumulate:
        raise unsupported("index_put of booleans that accumulates")
    result = apply("scatter_nd", moved, found.at(), values, kind=kind, node=origin())
    return result.transpose([found.order.index(a) for a in range(x.rank)])


# Writing along an axis.


def _scattered(x: Value, dim: int, index: Value, src: Value, kind: str) -> Value:
    if not x.rank:
        flat = [v if v.rank else v.reshape((1,)) for v in (x, index, src)]
        return _scattered(flat[0], 0, flat[1], flat[2], kind).reshape(())
    if not index.rank:
        index, src = index.reshape((1,)), src.reshape((1,))
    for axis, n in enumerate(index.shape):
        src = src.slice(axis, 0, n)
    axis, index = axis_of(dim, x.rank), indices(index)
    return apply("scatter_elements", x, index, src, axis=axis, kind=kind, node=origin())


@aten("scatter.src", "scatter.value", kind="none")
@aten("scatter_add", kind="add")
def _scatter(x: Value, dim: int, index: Value, src: Operand, *, kind: str) -> Value:
    given = valued(src, x.dtype)
    src = given if isinstance(src, Value) else given.broadcast(index.shape)
    return _scattered(x, dim, index, src, kind)


@aten("bincount")
def _counted(x: Value, weights: Value | None = None, minlength: Dim = 0) -> Value:
    """How often each integer from 0 to the largest is in x, or the sums of its weights."""
    x = x.cast(INT64)
    none = x.like(0).reshape((1,))
    least = concat([none, x], 0).reduce("minimum", [0], False)
    ends = concat([none, x + 1], 0).reduce("maximum", [0], False)
    # A negative integer is refused at run time, as an extent.
    count = maximum(extent_of(where(least < 0, least, ends)), minlength)
    if weights is None:
        src = scalar(1, INT64).broadcast(x.shape)
    else:
        src = weights.cast(weights.dtype if weights.dtype in (FLOAT32, FLOAT64) else FLOAT64)
    return _scattered(src.like(0).broadcast((count,)), 0, x, src, "add")


@aten("histc")
def _histogram(x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    """How many elements are in each of several intervals of one width. The last one has its upper
    end, too."""
    if x.dtype not in (FLOAT32, FLOAT64):
        raise unsupported(f"a histogram of {x.dtype}, whose limits are rounded")
    width = np.subtract(max, min, dtype=x.dtype.name)
    if not 0 < width < math.inf:
        raise unsupported("a histogram by the range of the elements, which must be finite")
    x = x.reshape((product(x.shape),))
    within = ~(x < min) & ~(x > max) & ~isnan(x)
    place = (x - min) * bins / float(width)
    place = where(within, place, 0).cast(INT64).at_most(bins - 1)
    counts = scalar(0, INT64).broadcast((bins,))
    return _scattered(counts, 0, place, within.cast(INT64), "add").cast(x.dtype)


_KINDS = {"sum": "add", "prod": "multiply", "amax": "maximum", "amin": "minimum", "mean": "add"}


@aten("scatter.reduce", "scatter.value_reduce")
def _scatter_combining(x: Value, dim: int, index: Value, src: Operand, reduce: str) -> Value:
    kind = {"add": "add", "multiply": "multiply"}[reduce]
    return _scatter(x, dim, index, src, kind=kind)


@aten("scatter_reduce.two")
def _scatter_reduce(
    x: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True
) -> Value:
    kind = _KINDS[reduce]
    one = x.like(1).broadcast(index.shape)
    counts = _scattered(x.like(0).broadcast(x.shape), dim, index, one, "add")
    begin = x
    if not include_self:
        # Where nothing is written x stays: this is what it is combined with elsewhere.
        name = {"add": "sum", "multiply": "product"}.get(kind, kind)
        begin = where(equal(counts, 0), x, neutral(name, x.dtype))
    found = _scattered(begin, dim, index, src, kind)
    if reduce != "mean":
        return found
    number = counts + 1 if include_self else counts.at_least(1)
    return found / number if x.dtype.kind == "float" else floor_quotient(found, number)


def _with_rows(x: Value, dim: int, index: Value, source: Value, kind: str) -> Value:
    """x with rows of a source combined at positions along an axis."""
    if not x.rank:
        return _with_rows(
            x.reshape((1,)), 0, index.reshape((1,)), source.reshape((1,)), kind
        ).reshape(())
    axis = axis_of(dim, x.rank)
    at = index.reshape((product(index.shape), 1))
    own = (source if source.rank else source.reshape((1,))).moved(axis, 0).cast(x.dtype)
    found = apply("scatter_nd", x.moved(axis, 0), at, own, kind=kind, node=origin())
    return found.moved(0, axis)


@aten("index_add")
def _index_add(x: Value, dim: int, index: Value, source: Value, alpha: float = 1) -> Value:
    if x.dtype == BOOL:
        raise unsupported("index_add of booleans")
    return _with_rows(x, dim, index, source if alpha == 1 else source * alpha, "add")


aten("index_copy")(lambda x, dim, index, source: _with_rows(x, dim, index, source, "none"))
aten("take")(lambda x, index: gather(x.reshape((product(x.shape),)), indices(index)))


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(x: Value, dim: int, index: Value, value: Operand) -> Value:
    filled = valued(value, x.dtype)
    if not x.rank:
        return filled
    axis = axis_of(dim, x.rank)
    count: Dim = product(index.shape)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return _with_rows(x, dim, index, filled.broadcast(shape), "none")


@aten("isin.Tensor_Tensor")
def _is_in(elements: Value, test_elements: Value, invert: bool = False) -> Value:
    x, y = promoted(elements, test_elements)
    row = y.reshape((product(y.shape),))
    same = equal(x.unsqueeze([x.rank]), row)
    found = same.cast(INT64).reduce("sum", [x.rank], False) > 0
    return ~found if invert else found


# Embeddings, sums of them, and elements that are repeated.

_BAGS = ("add", "add", "maximum")
"""How the rows of a bag are combined: sum, mean, maximum."""


aten("embedding")(lambda weight, indices, padding_idx=-1: gather(weight, indices))


@aten("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight: Value, indices: Value, offsets: Value, mode: int = 0,
    per_sample_weights: Value | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Sequence[Value | None]:  # fmt: skip
    """Sums, means or maxima of the rows of each bag, which begins at its offset. Of no row they are
    zero."""
    if indices.rank != 1:
        raise unsupported(f"bags of {indices.type}")
    count = offsets.shape[0] - int(include_last_offset)
    begins = offsets.slice(0, 0, count).cast(INT64)
    row = iota(indices.shape[0])
    bag = search(begins, row, right=True) - 1
    rows = gather(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.cast(rows.dtype).unsqueeze([1])
    kind = _BAGS[mode]
    begin = rows.like(-float("inf") if kind == "maximum" else 0)
    counted = rows.like(1).broadcast((indices.shape[0], 1))
    if padding_idx >= 0:
        padding = equal(indices, padding_idx).unsqueeze([1])
        rows, counted = where(padding, begin, rows), where(padding, 0, counted)

    def combined(x: Value, begin: Value, kind: str) -> Value:
        whole = begin.broadcast((count, x.shape[1]))
        return apply("scatter_nd", whole, bag.unsqueeze([1]), x, kind=kind, node=origin())

    found = combined(rows, begin, kind)
    sizes = combined(counted, rows.like(0), "add")
    if mode == 1:
        found = found / sizes.at_least(1)
    if mode == 2:
        found = where(equal(sizes, 0), 0, found)
    return [found, None, None, None]


@aten("repeat_interleave.Tensor")
def _repeated(repeats: Value, output_size: Dim | None = None) -> Value:
    """Each position, as often as it is repeated."""
    ends = apply("cumulative_sum", repeats.cast(INT64), axis=0, exclusive=False, reverse=False)
    count = output_size
    if count is None:
        total = concat([ends.like(0).reshape((1,)), ends], 0)
        count = extent_of(total.slice(0, ends.shape[0], 1))
    row = iota(count)
    return search(ends, row, right=True)


@aten("repeat_interleave.self_Tensor")
def _repeated_each(
    x: Value, repeats: Value, dim: int | None = None, output_size: Dim | None = None
) -> Value:
    if dim is None:
        x = x.reshape((product(x.shape),))
    axis = axis_of(dim or 0, x.rank)
    if not repeats.rank or repeats.shape == (1,):
        repeats = repeats.reshape((1,)).broadcast((x.shape[axis],))
    return gather(x, _repeated(repeats, output_size), axis)
