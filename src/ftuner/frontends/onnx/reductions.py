"""Operators that reduce axes, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from ftuner.core.dim import product
from ftuner.core.dtype import BOOL, INT32, INT64, UINT8
from ftuner.frontends.onnx.context import Context
from ftuner.frontends.onnx.signatures import Axis, Integers, onnx
from ftuner.graph.algebra import apply, concat, equal, exp, iota, isinf, log, scalar, sqrt, where
from ftuner.graph.checks import malformed
from ftuner.graph.ir import Value

Reduce = Callable[[Value, Sequence[int], bool], Value]
"""Reduces axes; the last argument says whether they are kept with extent 1."""


def _plain(kind: str, x: Value, axes: Sequence[int], keep: bool) -> Value:
    wide = x.cast(UINT8) if x.dtype == BOOL else x
    return wide.reduce(kind, axes, keep).cast(x.dtype)


_sum = partial(_plain, "sum")


def _log_sum_exp(x: Value, axes: Sequence[int], keep: bool) -> Value:
    """log(sum(exp(x))), with the largest element subtracted first so that nothing overflows."""
    wide = x.computed()
    largest = wide.reduce("maximum", axes)
    # An infinity minus an infinity would be NaN.
    largest = where(isinf(largest), 0, largest)
    result = (log(exp(wide - largest).reduce("sum", axes)) + largest).cast(x.dtype)
    return result if keep else result.squeeze(axes)


def _squares(x: Value, axes: Sequence[int], keep: bool) -> Value:
    return (x * x).reduce("sum", axes, keep)


_REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes, keep: abs(x).reduce("sum", axes, keep),
    "ReduceL2": lambda x, axes, keep: sqrt(_squares(x.computed(), axes, keep)).cast(x.dtype),
    "ReduceLogSum": lambda x, axes, keep: log(_sum(x.computed(), axes, keep)).cast(x.dtype),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": partial(_plain, "maximum"),
    "ReduceMean": Value.mean,
    "ReduceMin": partial(_plain, "minimum"),
    "ReduceProd": partial(_plain, "product"),
    "ReduceSum": _sum,
    "ReduceSumSquare": _squares,
}


def _reduced(
    context: Context, x: Value, axes: Integers | None = None, keepdims: bool = True,
    noop_with_empty_axes: bool = False, *, reduce: Reduce,
) -> Value:  # fmt: skip
    all_axes = () if noop_with_empty_axes else range(x.rank)
    counted = context.axes(axes or all_axes, x.rank)
    found = reduce(x, counted, keepdims)
    is_total = reduce is _sum and x.dtype in (INT32, INT64) and len(counted) == x.rank
    if is_total and found.dims is None:
        # The number of elements of a tensor that are true is an extent, too: exporters make room
        # so for what they look up where a condition holds.
        condition = context.condition_of(x)
        if condition is not None:
            (_, count) = context.non_zero(condition, "true").shape
            context.builder.known.presume(found, (count,))
    return found


for _op, _reduce in _REDUCTIONS.items():
    onnx(_op, attribute="axes", reduce=_reduce)(_reduced)
    onnx(_op, since=13 if _op == "ReduceSum" else 18, reduce=_reduce)(_reduced)


@onnx("ArgMax", kind="argmax")
@onnx("ArgMin", kind="argmin")
def _arg(
    x: Value, axis: Axis = 0, keepdims: bool = True, select_last_index: bool = False, *, kind: str
) -> Value:
    found = apply("arg_reduce", x, kind=kind, axis=axis, last=select_last_index)
    return found.unsqueeze([axis]) if keepdims else found


@onnx("Softmax", since=13, log=False)
@onnx("LogSoftmax", since=13, log=True)
def _softmax(x: Value, axis: Axis = -1, *, log: bool) -> Value:
    return apply("softmax", x, axis=axis, log=log)


@onnx("Hardmax", since=13)
def _hardmax(x: Value, axis: Axis = -1) -> Value:
    """One at the first of the largest elements, and zero elsewhere."""
    if x.dtype.kind != "float":
        raise malformed(f"hardmax of {x.type}")
    # One element more, which is never the first of the largest: an axis may have none.
    least = scalar(-math.inf, x.dtype)
    more = least.broadcast(tuple(1 if i == axis else n for i, n in enumerate(x.shape)))
    best = apply("arg_reduce", concat([x, more], axis), kind="argmax", axis=axis, last=False)
    return equal(best.unsqueeze([axis]), iota(x.shape[axis], axis, x.rank)).cast(x.dtype)


@onnx("Softmax", of=partial(_softmax, log=False))
@onnx("LogSoftmax", of=partial(_softmax, log=True))
@onnx("Hardmax", of=_hardmax)
def _merged(x: Value, axis: Axis = 1, *, of: Callable[[Value, int], Value]) -> Value:
    """The axes from `axis` on are merged into one."""
    flat = x.reshape((*x.shape[:axis], product(x.shape[axis:])))
    return of(flat, axis).reshape(x.shape)
