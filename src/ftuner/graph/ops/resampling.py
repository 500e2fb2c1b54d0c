"""Resampling: elements along some axes are weighted sums of elements at given positions.

Operands are x, then a table of positions for each of `axes`, then a table of weights for each, or
no weights if all are one. A table has the shape (taps, extent of the result): the result along that
axis is the sum over the taps. A position outside x stands for the nearest element within.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from ftuner.core.dim import Shape, maximum
from ftuner.core.dtype import BOOL, INT64
from ftuner.core.index_expr import Index, Nest
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.operator import (
    Attributes,
    ElementWriter,
    NestWriter,
    Operator,
    Require,
    Types,
    elementwise,
    expect_axis,
    expect_elements,
    reduction,
)
from ftuner.graph.placement import Placement

MAX_WRITTEN_TAPS = 8
"""Most elements of a sum that is written out: those of linear interpolation along three axes. A
longer sum is a reduction."""


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, *tables = types
    axes = attributes["axes"]
    what = f"resample {x} along axes {list(axes)} by {', '.join(map(str, tables))}"
    if len(set(axes)) != len(axes) or len(tables) not in (len(axes), 2 * len(axes)):
        raise ShapeError(what)
    positions, weights = tables[: len(axes)], tables[len(axes) :]
    if any(p.rank != 2 for p in tables):
        raise ShapeError(f"{what}: expected tables of two axes")
    if any(p.dtype != INT64 for p in positions) or any(w.dtype != x.dtype for w in weights):
        raise GraphError(what)
    if weights and x.dtype.kind != "float":
        raise GraphError(f"{what}: expected floats")
    if x.dtype == BOOL and any(p.shape[0] != 1 for p in positions):
        raise GraphError(f"{what}: booleans do not add up")
    shape = list(x.shape)
    for number, axis in enumerate(axes):
        expect_axis(x, axis, what)
        table = positions[number]
        shape[axis] = table.shape[1]
        expect_elements(require, table.shape, x.shape[axis], f"{what}: axis {axis} is empty")
        if weights:
            for have, wanted in zip(weights[number].shape, table.shape, strict=True):
                require(have, wanted, f"{what}: weights of axis {axis}")
    return (TensorType(x.dtype, tuple(shape)),)


def written_out(taps: Shape) -> list[int]:
    """The taps of each axis if their sum is written out; none if it is a reduction."""
    known = [n for n in taps if isinstance(n, int)]
    return known if len(known) == len(taps) and 0 < math.prod(known) <= MAX_WRITTEN_TAPS else []


def _define(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, axes = types[0], attributes["axes"]
    count = len(axes)
    weighted = len(types) > 1 + count
    taps: Shape = tuple(t.shape[0] for t in types[1 : 1 + count])

    def term(writer: NestWriter, index: Index, chosen: Index) -> int:
        at = list(index)
        factor: int | None = None
        for number, (axis, tap) in enumerate(zip(axes, chosen, strict=True)):
            place = [tap, index[axis]]
            position = writer.load(1 + number, place)
            last = writer.subtract(writer.integer(x.shape[axis]), writer.integer(1))
            position = writer.step("minimum", INT64, position, last)
            at[axis] = writer.step("maximum", INT64, position, writer.integer(0))
            if weighted:
                weight = writer.load(1 + count + number, place)
                factor = weight if factor is None else writer.step(
                    "multiply", x.dtype, factor, weight)  # fmt: skip
        element = writer.load(0, at)
        return element if factor is None else writer.step("multiply", x.dtype, element, factor)

    known = written_out(taps)
    if not known:
        return reduction(types, results[0].shape, taps, "sum", term)

    @elementwise
    def written(writer: ElementWriter) -> int:
        values = [
            term(writer, writer.at, [writer.integer(n) for n in numbers])
            for numbers in itertools.product(*map(range, known))
        ]
        return functools.reduce(lambda a, b: writer.step("add", x.dtype, a, b), values)

    return written(types, attributes, results)


def _reference(x: Any, *tables: Any, axes: tuple[int, ...]) -> Any:
    positions, weights = tables[: len(axes)], tables[len(axes) :]
    for number, axis in enumerate(axes):
        table = positions[number]
        extent = x.shape[axis]
        picked = np.take(x, np.clip(table, 0, max(extent - 1, 0)), axis)
        if weights:
            factor = weights[number].reshape(*table.shape, *[1] * (x.ndim - axis - 1))
            picked = picked * factor
        # A sum of one element keeps its dtype, which NumPy widens.
        x = np.squeeze(picked, axis) if len(table) == 1 else picked.sum(axis, x.dtype)
    return x


def _lower(node: Node, placement: Placement) -> None:
    """Have in memory what would be computed for many elements of the result: tables, which may also
    be computed once for a shape, and x where the result is known to have no fewer elements. A roll
    reads each element once."""
    x, *tables = node.inputs
    counts = [(t.shape, x.shape[a]) for a, t in zip(node.attributes["axes"], tables, strict=False)]
    if all(shape == (1, extent) for shape, extent in counts):
        return
    for table in tables:
        placement.view(table)
    if all(maximum(shape[1], extent) == shape[1] for shape, extent in counts):
        placement.view(x)


OPERATORS = (Operator("resample", _infer, _reference, _define, _lower),)
