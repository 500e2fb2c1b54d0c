"""Operators that compute elements in order: running sums and products, top-k, non-zero and
different ones."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ftuner.core.dim import Shape, product, symbol
from ftuner.core.dtype import BOOL, INT64
from ftuner.core.index_expr import Nest, Stage, Store
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    NestWriter,
    Numerics,
    Operator,
    Require,
    Types,
    expect_axis,
    expect_within,
)


def _infer_cumulative(
    kind: str, types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType]:
    expect_axis(types[0], attributes["axis"], f"cumulative_{kind}")
    if types[0].dtype.kind == "bool":
        raise GraphError(f"cumulative_{kind} of {types[0]}")
    return (types[0],)


def _reference_cumulative(kind: str, x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    x = np.flip(x, axis) if reverse else x
    found = np.cumsum(x, axis, x.dtype) if kind == "sum" else np.cumprod(x, axis, x.dtype)
    if exclusive:
        found = np.roll(found, 1, axis)
        found[(slice(None),) * axis + (slice(0, 1),)] = 0 if kind == "sum" else 1
    return np.flip(found, axis) if reverse else found


def _define_cumulative(kind: str, types: Types, attributes: Attributes, results: Types) -> Nest:
    x, axis = types[0], attributes["axis"]
    writer = NestWriter(types, attributes)
    kept = (*x.shape[:axis], *x.shape[axis + 1 :])
    axes = (*range(axis), x.rank - 1, *range(axis, x.rank - 1))
    index = [writer.index(a) for a in axes]
    if attributes["reverse"]:
        last = writer.subtract(writer.integer(x.shape[axis]), writer.integer(1))
        index[axis] = writer.subtract(last, index[axis])
    value = writer.load(0, index)
    total = writer.step("stage", x.dtype, payload=0)
    # In reverse, the nest walks from the last element to the first, and so does its store.
    store = Store(total, (), tuple(index)) if attributes["reverse"] else Store(total, axes)
    stage = Stage("scan", value, not attributes["exclusive"], kind)
    return writer.nest(kept, (x.shape[axis],), [stage], store)


def _infer_top_k(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType, TensorType]:
    x, axis, k = types[0], attributes["axis"], attributes["k"]
    expect_axis(x, axis, "top_k")
    if x.dtype.kind == "bool":
        raise GraphError(f"top_k of {x}")
    expect_within(require, k, x.shape[axis], f"top_k of {x} with k = {k}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape), TensorType(INT64, shape))


def _reference_top_k(x: Any, axis: int, k: int, largest: bool) -> tuple[Any, Any]:
    if largest:
        # A stable sort of the reversed axis, read backwards: among equal elements the first wins.
        backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - backwards, axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis)
    return np.take_along_axis(x, chosen, axis), chosen


def _infer_non_zero(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    return (TensorType(INT64, (types[0].rank, symbol(attributes["count"]))),)


def _reference_non_zero(x: Any, count: str) -> Any:
    x = np.asarray(x)
    # The index of a scalar has no axes, as in ONNX; NumPy gives it one.
    found = np.array(np.atleast_1d(x).nonzero(), np.int64)
    return found[: x.ndim]


def _infer_extents(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType, ...]:
    (x,), counts = types, attributes["counts"]
    if x.rank != 1 or x.dtype.kind != "int":
        raise GraphError(f"extents of {x}; expected integers along one axis")
    require(x.shape[0], len(counts), f"extents of {x}")
    # No elements, so that they take no memory.
    return tuple(TensorType(BOOL, (symbol(count), 0)) for count in counts)


def _reference_extents(x: Any, counts: tuple[str, ...]) -> Any:
    numbers = x.tolist()
    if min(numbers) < 0:
        raise ShapeError(f"extents of {numbers}; expected zero or more")
    found = tuple([np.empty((n, 0), np.bool_) for n in numbers])
    return found if len(found) > 1 else found[0]


def _infer_unique(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    (x,), axis, count = types, attributes["axis"], symbol(attributes["count"])
    shape: Shape = (count,)
    given = product(x.shape)
    if axis is not None:
        expect_axis(x, axis, "unique")
        shape, given = (*x.shape[:axis], count, *x.shape[axis + 1 :]), x.shape[axis]
    return TensorType(x.dtype, shape), *(TensorType(INT64, (n,)) for n in (count, given, count))


def _reference_unique(
    x: Any, axis: int | None, ordered: bool, count: str
) -> tuple[Any, Any, Any, Any]:
    x = np.asarray(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    given = x.shape[axis]
    # Stable: the first of equal elements comes first.
    if x.ndim == 1:
        order = np.argsort(x, kind="stable")
        differ = _differ(x[order])
    else:
        # A row for each element along the axis, of which the first column counts most.
        rows = np.moveaxis(x, axis, 0).reshape(given, math.prod(x.shape) // max(given, 1))
        order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(given)
        differ = _differ(rows[order]).any(axis=1)
    begins = np.ones(given, np.bool_)
    begins[1:] = differ
    numbers = np.empty(given, np.int64)
    numbers[order] = np.cumsum(begins) - 1
    first = order[begins]
    if not ordered:
        arrived = np.argsort(first, kind="stable")
        first = first[arrived]
        places = np.empty(len(first), np.int64)
        places[arrived] = np.arange(len(first))
        numbers = places[numbers]
    return np.take(x, first, axis), first, numbers, np.bincount(numbers, minlength=len(first))


def _differ(rows: Any) -> Any:
    """Where elements differ from those of the row before. NaN is equal to NaN."""
    one, other = rows[1:], rows[:-1]
    found = one != other
    if rows.dtype.kind == "f":
        found &= (one == one) | (other == other)
    return found


OPERATORS = (
    *(
        Operator(
            f"cumulative_{kind}",
            partial(_infer_cumulative, kind),
            partial(_reference_cumulative, kind),
            partial(_define_cumulative, kind),
            numerics=Numerics.REDUCTION,
        )
        for kind in ("sum", "product")
    ),
    Operator("top_k", _infer_top_k, _reference_top_k),
    Operator("non_zero", _infer_non_zero, _reference_non_zero, plain=True),
    Operator("extents", _infer_extents, _reference_extents, plain=True),
    Operator("unique", _infer_unique, _reference_unique),
)
"""A `cumulative_product` is rounded, and may overflow, at each element.

`top_k` gives the `k` largest (or smallest) elements along `axis`, sorted, and their positions.
Among equal elements the first wins. NaN is larger than every number and equal to NaN, as in NumPy's
sort, torch.topk and ONNX's reference implementation (ONNX Runtime defines no order).

`non_zero` gives the index of each element that is not zero, one in each column, in the order of the
elements. Their number is data-dependent: the attribute `count` names its symbol, which is bound
when the operator has run.

`extents` gives a tensor for each of one or more integers, which is the extent of its first axis;
that of its second one is 0. The attribute `counts` names the symbols of the extents.

`unique` gives the different elements of the flattened tensor, or the different parts along `axis`:
in ascending order if `ordered`, else in that of their first occurrence. Then it gives the position
of the first occurrence of each, the number of the element or part that is equal to each given one,
and how often each occurs. Parts are compared element by element. NaN is larger than every number
and equal to NaN, as in numpy.unique, which ONNX refers to. (ONNX Runtime takes NaN for equal to
whatever it is compared with, so that its result depends on the order of the elements and may lack
some: of NaN and 1 it gives NaN alone.)"""
