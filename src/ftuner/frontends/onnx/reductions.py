"""Operators that reduce axes, and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftuner.core.dim import product
from ftuner.core.dtype import BOOL, INT32, INT64, UINT8
from ftuner.frontends.onnx.context import Context
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, exp, isinf, log, sqrt, where
from ftuner.graph.ir import Value

Reduce = Callable[[Context, Value, Sequence[int], bool], Value]
"""Reduces axes; the last argument says whether they are kept with extent 1."""


def _plain(kind: str) -> Reduce:
    def reduce(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
        wide = x.cast(UINT8) if x.dtype == BOOL else x
        return wide.reduce(kind, axes, keep).cast(x.dtype)

    return reduce


def _sum(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """A sum. The number of elements of a tensor that are true is an extent, too: exporters make
    room so for what they look up where a condition holds."""
    total = _plain("sum")(context, x, axes, keep)
    if total.dims is None and x.dtype in (INT32, INT64) and len(axes) == x.rank:
        condition = context.condition_of(x)
        if condition is not None:
            (_, count) = context.non_zero(condition, "true").shape
            context.builder.known.presume(total, (count,))
    return total


def _length(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    wide = x.computed()
    return sqrt((wide * wide).reduce("sum", axes, keep)).cast(x.dtype)


def _log_sum_exp(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """log(sum(exp(x))), with the largest element subtracted first so that nothing overflows."""
    wide = x.computed()
    largest = wide.reduce("maximum", axes)
    # An infinity minus an infinity would be NaN.
    largest = where(isinf(largest), 0, largest)
    result = (log(exp(wide - largest).reduce("sum", axes)) + largest).cast(x.dtype)
    return result if keep else result.squeeze(axes)


_REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda context, x, axes, keep: abs(x).reduce("sum", axes, keep),
    "ReduceL2": _length,
    "ReduceLogSum": lambda context, x, axes, keep: log(x.computed().reduce("sum", axes, keep)).cast(
        x.dtype
    ),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _plain("maximum"),
    "ReduceMean": lambda context, x, axes, keep: x.mean(axes, keep),
    "ReduceMin": _plain("minimum"),
    "ReduceProd": _plain("product"),
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda context, x, axes, keep: (x * x).reduce("sum", axes, keep),
}


def _reduced(
    context: Context, x: Value, given: Value | None, keepdims: bool = True,
    noop_with_empty_axes: bool = False, *, reduce: Reduce,
) -> Value:  # fmt: skip
    axes = () if given is None else context.integers_of(given, "the axes")
    all_axes = () if noop_with_empty_axes else range(x.rank)
    return reduce(context, x, context.axes(axes or all_axes, x.rank), keepdims)


def _reduced_by_attribute(
    context: Context, x: Value, axes: tuple[int, ...] = (), keepdims: bool = True, *, reduce: Reduce
) -> Value:
    return reduce(context, x, context.axes(axes or range(x.rank), x.rank), keepdims)


for _op, _reduce in _REDUCTIONS.items():
    onnx(_op, reduce=_reduce)(_reduced_by_attribute)
    onnx(_op, since=13 if _op == "ReduceSum" else 18, reduce=_reduce)(_reduced)


@onnx("ArgMax", kind="argmax")
@onnx("ArgMin", kind="argmin")
def _arg(
    context: Context, x: Value, axis: int = 0, keepdims: bool = True,
    select_last_index: bool = False, *, kind: str,
) -> Value:  # fmt: skip
    axis = context.axis(axis, x.rank)
    found = apply("arg_reduce", x, kind=kind, axis=axis, last=select_last_index)
    return found.unsqueeze([axis]) if keepdims else found


@onnx("Softmax", since=13, log=False)
@onnx("LogSoftmax", since=13, log=True)
def _softmax(context: Context, x: Value, axis: int = -1, *, log: bool) -> Value:
    return apply("softmax", x, axis=context.axis(axis, x.rank), log=log)


@onnx("Softmax", log=False)
@onnx("LogSoftmax", log=True)
def _merged_softmax(context: Context, x: Value, axis: int = 1, *, log: bool) -> Value:
    """The axes from `axis` on are merged into one."""
    axis = context.axis(axis, x.rank)
    flat = x.reshape((*x.shape[:axis], product(x.shape[axis:])))
    return _softmax(context, flat, axis, log=log).reshape(x.shape)
