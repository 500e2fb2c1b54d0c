"""Reductions, softmax and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core.dim import Shape, product
from ftuner.core.dtype import FLOAT32, INT64, TENSOR_DTYPES, UINT8, UINT32
from ftuner.core.functions import neutral
from ftuner.core.index_expr import Index, Nest, Stage, Store
from ftuner.core.references import product_of_floats
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
    expect_elements,
    reduction,
)

SIGN = 128
"""An int8 plus this has the bits of a uint8, but for the highest."""
LEVELS = 127
"""Largest magnitude of a level of an int8 with the zero point 0."""
KINDS: Mapping[str, Callable[..., Any]] = {
    "sum": np.sum,
    "product": np.prod,
    "maximum": np.max,
    "minimum": np.min,
}


def _split(shape: Shape, axes: Sequence[int]) -> tuple[Shape, Shape]:
    """The kept and the reduced extents."""
    kept = tuple(n for i, n in enumerate(shape) if i not in axes)
    return kept, tuple(shape[i] for i in axes)


def _whole(rank: int, axes: Sequence[int], kept: Index, reduced: Index) -> list[int]:
    """The index into the operand."""
    inner, outer = iter(reduced), iter(kept)
    return [next(inner) if i in axes else next(outer) for i in range(rank)]


def _infer_reduce(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    kind = attributes["kind"]
    if kind not in KINDS or types[0].dtype.kind == "bool":
        raise GraphError(f"reduction {kind!r} of {types[0]}")
    return (TensorType(types[0].dtype, _split(types[0].shape, attributes["axes"])[0]),)


def _define_reduce(types: Types, attributes: Attributes, results: Types) -> Nest:
    """The definition of `reduce`, and of `arg_reduce`, which has one axis."""
    axes = attributes["axes"] if "axes" in attributes else (attributes["axis"],)
    kept, reduced = _split(types[0].shape, axes)
    return reduction(
        types, kept, reduced, attributes["kind"],
        lambda w, k, r: w.load(0, _whole(types[0].rank, axes, k, r)), attributes.get("last", False),
    )  # fmt: skip


def _reference_reduce(x: Any, kind: str, axes: tuple[int, ...]) -> Any:
    if kind in ("maximum", "minimum") and not all(x.shape[a] for a in axes):
        # NumPy needs the neutral element for an empty axis.
        return KINDS[kind](x, axis=axes, initial=neutral(kind, TENSOR_DTYPES[x.dtype.name]))
    if kind == "product" and x.dtype.kind == "f":
        return product_of_floats(x, axes)
    return KINDS[kind](x, axis=axes) if axes else x


def _infer_arg(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, axis, kind = types[0], attributes["axis"], attributes["kind"]
    expect_axis(x, axis, kind)
    if x.dtype.kind == "bool":
        raise GraphError(f"{kind} of {x}")
    kept, (extent,) = _split(x.shape, (axis,))
    expect_elements(require, kept, extent, f"{kind} of {x} along axis {axis}: there is no element")
    return (TensorType(INT64, kept),)


def _reference_arg(x: Any, kind: str, axis: int, last: bool) -> Any:
    find = np.argmax if kind == "argmax" else np.argmin
    if x.size == 0:
        return np.zeros(np.delete(x.shape, axis), np.int64)
    if last:
        return x.shape[axis] - 1 - find(np.flip(x, axis), axis)
    return find(x, axis)


def _infer_softmax(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    if types[0].dtype.kind != "float":
        raise GraphError(f"softmax of {types[0]}")
    return (types[0],)


class _Rows:
    """A nest that reduces some axes of its operand and stores an element for each of the
    operand's."""

    def __init__(self, types: Types, axes: Sequence[int]) -> None:
        self.kept, self.reduced = _split(types[0].shape, axes)
        self.writer = NestWriter(types, {})
        count = len(self.kept)
        self.axes = tuple(
            _whole(types[0].rank, axes, range(count), range(count, count + len(axes)))
        )
        self.index = [self.writer.index(axis) for axis in self.axes]

    def nest(self, stages: Sequence[Stage], result: int, *of_rows: int) -> Nest:
        """`of_rows`: further results, an element for each row."""
        stores = [Store(row, tuple(range(len(self.kept)))) for row in of_rows]
        return self.writer.nest(self.kept, self.reduced, stages, Store(result, self.axes), *stores)


def _define_softmax(types: Types, attributes: Attributes, results: Types) -> Nest:
    x = types[0]
    rows = _Rows(types, (attributes["axis"],))
    writer = rows.writer
    value = writer.load(0, rows.index)
    largest = writer.step("stage", x.dtype, payload=0)
    shifted = writer.step("subtract", x.dtype, value, largest)
    power = writer.step("exp", x.dtype, shifted)
    total = writer.step("stage", x.dtype, payload=1)
    if attributes["log"]:
        result = writer.step("subtract", x.dtype, shifted, writer.step("log", x.dtype, total))
    else:
        result = writer.step("divide", x.dtype, power, total)
    return rows.nest([Stage("maximum", value), Stage("sum", power)], result)


def _reference_softmax(x: Any, axis: int, log: bool) -> Any:
    if x.size == 0:
        return x
    shifted = x - np.max(x, axis, keepdims=True)
    total = np.sum(np.exp(shifted), axis, keepdims=True)
    return shifted - np.log(total) if log else np.exp(shifted) / total


def _infer_norm(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, *parameters = types
    if x.dtype.kind != "float" or any(p.dtype != x.dtype for p in parameters):
        raise GraphError(f"norm of {', '.join(map(str, types))}")
    for p in parameters:
        if p.rank != x.rank - attributes["axis"]:
            raise ShapeError(f"norm of {x} over the axes from {attributes['axis']} with {p}")
        for have, wanted in zip(p.shape, x.shape[attributes["axis"] :], strict=True):
            require(have, wanted, f"norm of {x} with {p}", have == 1)
    return (x,)


def _define_norm(types: Types, attributes: Attributes, results: Types) -> Nest:
    x = types[0]
    axes = tuple(range(attributes["axis"], x.rank))
    rows = _Rows(types, axes)
    writer = rows.writer
    value = writer.load(0, rows.index)
    count = writer.cast(writer.integer(product(rows.reduced)), x.dtype)
    stages = []
    if not attributes["rms"]:
        mean = writer.step("divide", x.dtype, writer.step("stage", x.dtype, payload=0), count)
        stages.append(Stage("sum", value))
        value = writer.step("subtract", x.dtype, value, mean)
    square = writer.step("multiply", x.dtype, value, value)
    total = writer.step("stage", x.dtype, payload=len(stages))
    stages.append(Stage("sum", square))
    variance = writer.step("divide", x.dtype, total, count)
    lifted = writer.step("add", x.dtype, variance, writer.constant(attributes["epsilon"], x.dtype))
    one = writer.constant(1.0, x.dtype)
    scale = writer.step("divide", x.dtype, one, writer.step("sqrt", x.dtype, lifted))
    value = writer.step("multiply", x.dtype, value, scale)
    inner = rows.index[attributes["axis"] :]
    for i, op in zip(range(1, len(types)), ("multiply", "add"), strict=False):
        at = [w if n != 1 else writer.integer(0)
              for n, w in zip(types[i].shape, inner, strict=True)]  # fmt: skip
        value = writer.step(op, x.dtype, value, writer.load(i, at))
    return rows.nest(stages, value)


def _reference_norm(x: Any, *parameters: Any, axis: int, epsilon: float, rms: bool) -> Any:
    axes = tuple(range(axis, x.ndim))
    y = x if rms else x - np.mean(x, axes, keepdims=True)
    y = y / np.sqrt(np.mean(y * y, axes, keepdims=True) + epsilon)
    for parameter, apply in zip(parameters, (np.multiply, np.add), strict=False):
        y = apply(y, parameter)
    return y


def _infer_range(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    (x,) = types
    if x.dtype.kind != "float" or not x.rank:
        raise GraphError(f"ranges of rows of {x}")
    return (TensorType(x.dtype, x.shape[:-1]),) * 2


def _define_range(types: Types, attributes: Attributes, results: Types) -> Nest:
    (x,) = types
    rows = _Rows(types, (x.rank - 1,))
    writer, axes = rows.writer, tuple(range(x.rank - 1))
    stages = [Stage(kind, writer.load(0, rows.index)) for kind in ("minimum", "maximum")]
    stores = [Store(writer.step("stage", x.dtype, payload=i), axes) for i in range(len(stages))]
    return writer.nest(rows.kept, rows.reduced, stages, *stores)


def _infer_levels(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    (x,) = types
    if x.dtype != FLOAT32 or not x.rank:
        raise GraphError(f"levels of rows of {x}")
    return TensorType(UINT8, x.shape), TensorType(FLOAT32, x.shape[:-1])


def _define_levels(types: Types, attributes: Attributes, results: Types) -> Nest:
    (x,) = types
    rows = _Rows(types, (x.rank - 1,))
    writer = rows.writer

    def number(value: float) -> int:
        return writer.constant(value, FLOAT32)

    value = writer.load(0, rows.index)
    magnitude = writer.step("absolute", FLOAT32, value)
    most = writer.step("stage", FLOAT32, payload=0)
    none = writer.compare("equal", most, number(0))
    inverse = writer.step("divide", FLOAT32, number(LEVELS), most)
    inverse = writer.step("minimum", FLOAT32, inverse, number(float(np.finfo(np.float32).max)))
    # The sum's last bits are the level, rounded to even.
    shifted = writer.step("multiply", FLOAT32, value, inverse)
    shifted = writer.step("add", FLOAT32, shifted, number(1.5 * 2**23 + SIGN))
    level = writer.cast(writer.step("bit_cast", UINT32, shifted), UINT8)
    scale = writer.step("multiply", FLOAT32, most, number(1 / LEVELS))
    scale = writer.step("maximum", FLOAT32, scale, number(1 / float(np.finfo(np.float32).max)))
    scale = writer.where(none, number(0), scale)
    # Of a row with infinities NaN.
    scale = writer.step("add", FLOAT32, scale, writer.step("multiply", FLOAT32, most, number(0)))
    return rows.nest([Stage("maximum", magnitude)], level, scale)


def _reference_levels(x: Any) -> Any:
    most = np.abs(x).max(-1, initial=0)
    largest = np.finfo(np.float32).max
    inverse = np.minimum(np.float32(LEVELS) / most, largest)
    levels = np.rint(x * inverse[..., None]) + np.float32(SIGN)
    scale = np.maximum(most * np.float32(1 / LEVELS), 1 / largest)
    return levels.astype(np.uint8), np.where(most == 0, 0, scale) + most * 0


OPERATORS = (
    Operator("row_range", _infer_range, lambda x: (x.min(-1), x.max(-1)), _define_range),
    Operator("row_levels", _infer_levels, _reference_levels, _define_levels),
    Operator(
        "reduce", _infer_reduce, _reference_reduce, _define_reduce, numerics=Numerics.REDUCTION
    ),
    Operator("arg_reduce", _infer_arg, _reference_arg, _define_reduce),
    Operator(
        "softmax",
        _infer_softmax,
        _reference_softmax,
        _define_softmax,
        numerics=Numerics.NORMALISATION,
    ),
    Operator("norm", _infer_norm, _reference_norm, _define_norm, numerics=Numerics.NORMALISATION),
)
"""As in NumPy, `maximum` and `minimum` are NaN if an element is NaN, and `arg_reduce` then gives
the position of the first NaN (with `last`, of the last). The `product` of floats overflows or
underflows only where the exact product does: see `core.scaled_product`.

`row_range` gives the least and the greatest element of each row, along the last axis. `row_levels`
rounds each row of x to levels of uint8 whose zero point is `SIGN`, and gives their scale: the row
is about `(levels - SIGN) * scale`. Results of a row do not depend on the others."""
