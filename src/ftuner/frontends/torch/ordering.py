"""Operators that sort."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, product, quotient
from ftuner.core.dtype import INT32, INT64, UINT8
from ftuner.frontends.torch.promotion import Operand, counting, promoted
from ftuner.frontends.torch.registry import aten
from ftuner.frontends.torch.views import axis_of
from ftuner.graph.algebra import apply, apply_many, isnan, where
from ftuner.graph.checks import origin
from ftuner.graph.ir import Value


@aten("topk")
def top_k(x: Value, k: Dim, dim: int = -1, largest: bool = True) -> Sequence[Value]:
    """The largest or smallest elements along an axis, and their positions."""
    if not x.rank:
        found = top_k(x.reshape((1,)), k, 0, largest)
        return [v.reshape(()) for v in found]
    axis = axis_of(dim, x.rank)
    values, at = apply_many("top_k", counting(x), axis=axis, k=k, largest=largest)
    return [values.cast(x.dtype), at]


@aten("sort", "sort.stable")
def sort(x: Value, dim: int = -1, descending: bool = False) -> Sequence[Value]:
    """The elements along an axis in order, and their positions."""
    extent = x.shape[axis_of(dim, x.rank)] if x.rank else 1
    return top_k(x, extent, dim, descending)


aten("argsort", "argsort.stable")(lambda x, dim=-1, descending=False: sort(x, dim, descending)[1])
aten("msort")(lambda x: sort(x, 0)[0])


@aten("kthvalue")
def _kth(x: Value, k: Dim = 1, dim: int = -1, keepdim: bool = False) -> Sequence[Value]:
    if not x.rank:
        return top_k(x, 1)
    axis = axis_of(dim, x.rank)
    found = [v.slice(axis, k - 1, 1) for v in top_k(x, k, axis, largest=False)]
    return found if keepdim else [v.squeeze([axis]) for v in found]


@aten("median.dim")
def _median(x: Value, dim: int, keepdim: bool = False) -> Sequence[Value]:
    """The lower of two middle elements; NaN if there is one."""
    if not x.rank:
        return top_k(x, 1)
    axis = axis_of(dim, x.rank)
    extent = x.shape[axis]
    values, at = sort(x, axis)
    middle = quotient(extent - 1, 2)
    found = [v.slice(axis, middle, 1) for v in (values, at)]
    if x.dtype.kind == "float":
        last = [v.slice(axis, extent - 1, 1) for v in (values, at)]
        unknown = isnan(last[0])
        first = apply("arg_reduce", isnan(x).cast(UINT8), kind="argmax", axis=axis, last=False)
        last[1] = first.unsqueeze([axis])
        found = [where(unknown, n, v) for n, v in zip(last, found, strict=True)]
    return found if keepdim else [v.squeeze([axis]) for v in found]


aten("median")(lambda x: _median(x.reshape((product(x.shape),)), 0)[0])


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def search(
    sorted_sequence: Value, x: Operand, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    """How many elements of a sorted row are before each of x: all of them before NaN."""
    if sorter is not None:
        axis = sorted_sequence.rank - 1
        sorted_sequence = apply("gather_elements", sorted_sequence, sorter, axis=axis, node="")
    row, found = map(counting, promoted(sorted_sequence, x))
    rank = found.rank
    if row.rank > 1:
        row = row.unsqueeze([row.rank - 1])
    wide = found.unsqueeze([rank])
    before = row <= wide if right or side == "right" else row < wide
    if wide.dtype.kind == "float":
        before = before | isnan(wide)
    return before.cast(INT64).reduce("sum", [rank], False).cast(INT32 if out_int32 else INT64)


aten("bucketize.Tensor", "bucketize.Scalar")(
    lambda x, boundaries, out_int32=False, right=False: search(boundaries, x, out_int32, right)
)


@aten("_unique2", "unique_dim")
def _unique(
    x: Value, dim: int | None = None, return_inverse: bool = False, return_counts: bool = False
) -> Sequence[Value | None]:
    """The different elements, in order, the number of the one that each is, and their counts; those
    of parts along an axis in any case."""
    axis = None if dim is None else axis_of(dim, x.rank)
    count = f"{origin().partition(' ')[0]}_count"
    values, _, at, counts = apply_many("unique", counting(x), axis=axis, ordered=True, count=count)
    inverse = at if axis is not None else at.reshape(x.shape) if return_inverse else None
    return [values.cast(x.dtype), inverse, counts if return_counts or axis is not None else None]
