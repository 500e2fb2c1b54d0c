"""Operators that reduce or sort axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, maximum, product, quotient
from ftuner.core.dtype import BOOL, INT32, INT64, UINT8, DType
from ftuner.frontends.torch.promotion import Operand, counting, floating, promoted, summed, truth
from ftuner.frontends.torch.registry import aten
from ftuner.frontends.torch.views import axes_of, axis_of, diagonal
from ftuner.graph.algebra import (
    apply,
    apply_many,
    concat,
    counted,
    equal,
    exp,
    isinf,
    isnan,
    log,
    sqrt,
    where,
)
from ftuner.graph.checks import origin, require
from ftuner.graph.ir import Value

Axes = int | Sequence[int] | None


@aten("sum", "sum.dim_IntList")
@aten("prod", "prod.dim_int", kind="product")
def total(
    x: Value, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None, *,
    kind: str = "sum",
) -> Value:  # fmt: skip
    """The sum or product along axes; of integers in int64."""
    wide = summed(x, dtype)
    return wide.wide().reduce(kind, axes_of(dim, x.rank), keepdim).cast(wide.dtype)


@aten("mean", "mean.dim")
def mean(x: Value, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """The mean along axes; NaN of no element."""
    x = x.cast(dtype or x.dtype)
    return _mean(x.wide(), axes_of(dim, x.rank), keepdim).cast(x.dtype)


def _mean(x: Value, axes: Sequence[int], keep: bool) -> Value:
    count = counted((x.shape[a] for a in axes), x.dtype)
    return x.reduce("sum", axes, keep) / count


def _variance(x: Value, dim: Axes, correction: float, keep: bool) -> tuple[Value, Value]:
    axes = axes_of(dim, x.rank)
    wide = x.wide()
    centre = _mean(wide, axes, True)
    centred = wide - centre
    count = counted((x.shape[a] for a in axes), wide.dtype)
    divisor = (count - correction).at_least(0) if correction else count
    found = (centred * centred).reduce("sum", axes, keep) / divisor
    centre = centre if keep else centre.squeeze(axes)
    return found.cast(x.dtype), centre.cast(x.dtype)


@aten("var", "var.dim", "var.correction", root=False, both=False)
@aten("std", "std.dim", "std.correction", root=True, both=False)
@aten("var_mean", "var_mean.dim", "var_mean.correction", root=False, both=True)
@aten("std_mean", "std_mean.dim", "std_mean.correction", root=True, both=True)
def _spread(
    x: Value, dim: Axes = None, unbiased: bool = True, correction: float | None = None,
    keepdim: bool = False, *, root: bool, both: bool,
) -> Value | Sequence[Value]:  # fmt: skip
    correction = int(unbiased) if correction is None else correction
    variance, centre = _variance(x, dim, correction, keepdim)
    found = sqrt(variance) if root else variance
    return [found, centre] if both else found


@aten("amax", "max", kind="maximum")
@aten("amin", "min", kind="minimum")
def _extreme(x: Value, dim: Axes = (), keepdim: bool = False, *, kind: str) -> Value:
    axes = axes_of(list(dim) if isinstance(dim, Sequence) else dim, x.rank)
    for axis in axes:
        require(maximum(x.shape[axis], 1), x.shape[axis], f"{kind} of no elements of {x.type}")
    return counting(x).reduce(kind, axes, keepdim).cast(x.dtype)


@aten("max.dim", kind="maximum")
@aten("min.dim", kind="minimum")
def _extreme_at(x: Value, dim: int, keepdim: bool = False, *, kind: str) -> Sequence[Value]:
    arg = _arg(x, dim, keepdim, kind={"maximum": "argmax", "minimum": "argmin"}[kind])
    return [_extreme(x, dim, keepdim, kind=kind), arg]


@aten("argmax", kind="argmax")
@aten("argmin", kind="argmin")
def _arg(x: Value, dim: int | None = None, keepdim: bool = False, *, kind: str) -> Value:
    rank = x.rank
    if dim is None:
        x = x.reshape((product(x.shape),))
    axis = axis_of(dim or 0, x.rank)
    if not x.rank:
        x = x.reshape((1,))
    found = apply("arg_reduce", counting(x), kind=kind, axis=axis, last=False)
    if keepdim and rank:
        return found.reshape((1,) * rank) if dim is None else found.unsqueeze([axis])
    return found


@aten("any", "any.dim", "any.dims", kind="maximum")
@aten("all", "all.dim", "all.dims", kind="minimum")
def _truths(x: Value, dim: Axes = None, keepdim: bool = False, *, kind: str) -> Value:
    axes = axes_of(dim, x.rank, none=True)
    found = truth(x).cast(UINT8).reduce(kind, axes, keepdim)
    if kind == "minimum":
        found = found.at_most(1)
    return found if x.dtype == UINT8 else found.cast(BOOL)


@aten("linalg_vector_norm")
def vector_norm(
    x: Value, ord: float = 2, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None
) -> Value:
    """The norm of vectors along axes."""
    x = x.cast(dtype or x.dtype)
    axes, size = axes_of(dim, x.rank), abs(x.wide())
    if ord in (math.inf, -math.inf):
        found = size.reduce("maximum" if ord > 0 else "minimum", axes, keepdim)
    elif ord == 0:
        found = truth(size).cast(size.dtype).reduce("sum", axes, keepdim)
    elif ord == 1:
        found = size.reduce("sum", axes, keepdim)
    elif ord == 2:
        found = sqrt((size * size).reduce("sum", axes, keepdim))
    else:
        found = (size**ord).reduce("sum", axes, keepdim) ** (1 / ord)
    return found.cast(x.dtype)


aten("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim_dtype")(
    lambda x, p=2, dim=None, keepdim=False, dtype=None: vector_norm(
        x, 2 if p is None else p, dim, keepdim, dtype
    )
)


@aten("_weight_norm")
def _of_norm(v: Value, g: Value, dim: int = 0) -> Value:
    """v with vectors of the norms g, one for each position along an axis; -1 is none."""
    others = [a for a in range(v.rank) if dim == -1 or a != axis_of(dim, v.rank)]
    norms = vector_norm(v, dim=others, keepdim=True) if others else abs(v)
    return v * (g / norms)


@aten("logsumexp")
def log_sum_exp(x: Value, dim: Axes, keepdim: bool = False) -> Value:
    """log(sum(exp(x))), with the largest element subtracted first so that nothing overflows."""
    x = floating(x)
    axes, wide = axes_of(dim, x.rank), x.wide()
    largest = wide.reduce("maximum", axes)
    # An infinity minus an infinity would be NaN.
    largest = where(isinf(largest), 0, largest)
    found = log(exp(wide - largest).reduce("sum", axes)) + largest
    return (found if keepdim else found.squeeze(axes)).cast(x.dtype)


@aten("nansum")
def _known_total(
    x: Value, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None
) -> Value:
    return total(where(isnan(x), 0, x) if x.dtype.kind == "float" else x, dim, keepdim, dtype)


aten("count_nonzero", "count_nonzero.dim_IntList")(
    lambda x, dim=None: truth(x).cast(INT64).reduce("sum", axes_of(dim, x.rank), False)
)
aten("trace")(lambda x: total(diagonal(x)))


@aten("cumsum", op="cumulative_sum")
@aten("cumprod", op="cumulative_product")
def _cumulative(x: Value, dim: int, dtype: DType | None = None, *, op: str) -> Value:
    """A running reduction."""
    x = summed(x, dtype)
    if not x.rank:
        return x
    return apply(op, x, axis=axis_of(dim, x.rank), exclusive=False, reverse=False)


@aten("diff")
def _differences(
    x: Value, n: int = 1, dim: int = -1, prepend: Value | None = None, append: Value | None = None
) -> Value:
    """Each element along an axis minus the one before it."""
    axis = axis_of(dim, x.rank)
    if n:
        x = concat(promoted(*(y for y in (prepend, x, append) if y is not None)), axis)
    for _ in range(n):
        count = maximum(x.shape[axis] - 1, 0)
        later, earlier = x.slice(axis, x.shape[axis] - count, count), x.slice(axis, 0, count)
        x = ~equal(later, earlier) if x.dtype == BOOL else later - earlier
    return x


# Operators that sort.


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
