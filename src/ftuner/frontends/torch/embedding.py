"""Embeddings, and sums of them."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, product
from ftuner.core.dtype import INT64
from ftuner.frontends.torch.dims import extent_of
from ftuner.frontends.torch.ordering import search
from ftuner.frontends.torch.registry import aten
from ftuner.frontends.torch.views import axis_of
from ftuner.graph.algebra import apply, concat, equal, gather, iota, where
from ftuner.graph.checks import origin, unsupported
from ftuner.graph.ir import Value

_KINDS = ("add", "add", "maximum")
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
    kind = _KINDS[mode]
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
