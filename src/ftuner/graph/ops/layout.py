"""Operators that move elements: concatenation, padding, repetition, numbers along an axis."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dim import Dim, maximum, minimum, simplest
from ftuner.core.dtype import FLOAT64, INT64
from ftuner.core.index_expr import Writer
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.buffers import View
from ftuner.graph.concat_placement import pieces
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.operator import (
    Attributes,
    ElementWriter,
    Operator,
    Require,
    Types,
    elementwise,
    expect_elements,
    same_dtype,
)
from ftuner.graph.placement import Placement


def _infer_concat(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    axis = attributes["axis"]
    same_dtype(types, "concat")
    first = types[0]
    total: Dim = 0
    for t in types:
        if t.rank != first.rank:
            raise ShapeError(f"concat of {first} and {t}")
        for i, (x, y) in enumerate(zip(first.shape, t.shape, strict=True)):
            if i != axis:
                require(x, y, f"concat of {first} and {t}")
        total = total + t.shape[axis]
    # What is equal has one name from here on, so that rows of the result are one axis.
    shape = [simplest(extents) for extents in zip(*(t.shape for t in types), strict=True)]
    shape[axis] = total
    return (TensorType(first.dtype, tuple(shape)),)


def _lower_concat(node: Node, placement: Placement) -> tuple[View]:
    """Each operand is computed to its part of the result."""
    whole = placement.place(node.output)
    for value, target in pieces(node, whole):
        placement.put(value, target)
    return (whole,)


_PAD_MODES = ("constant", "edge", "reflect", "wrap")


class _Padding(NamedTuple):
    """The padding of one axis."""

    extent: Dim
    before: Dim
    after: Dim

    @property
    def total(self) -> Dim:
        """The extent of the result."""
        return self.before + self.extent + self.after

    @property
    def left(self) -> Dim:
        """Elements of the operand that are left after negative widths have cut; negative if they
        cut more than there are."""
        return self.extent + minimum(self.before, 0) + minimum(self.after, 0)


def _paddings(x: TensorType, attributes: Attributes) -> list[_Padding]:
    pairs = zip(attributes["before"], attributes["after"], strict=True)
    return [_Padding(n, *pair) for n, pair in zip(x.shape, pairs, strict=True)]


def _infer_pad(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, *fill = types
    before, after, mode = (attributes[name] for name in ("before", "after", "mode"))
    if mode not in _PAD_MODES:
        raise GraphError(f"pad mode {mode!r}; expected one of {_PAD_MODES}")
    if not len(before) == len(after) == x.rank:
        raise ShapeError(f"pad {x} by {list(before)} and {list(after)}")
    if len(fill) != (mode == "constant") or any(t.rank or t.dtype != x.dtype for t in fill):
        raise GraphError(f"pad {x} in mode {mode!r} with {', '.join(map(str, fill)) or 'nothing'}")
    paddings = _paddings(x, attributes)
    if mode != "constant":
        for axis, p in enumerate(paddings):
            if (p.before, p.after) != (0, 0):
                what = f"pad {x} by {p.before} and {p.after} along axis {axis}, mode {mode!r}"
                expect_elements(require, (p.total,), p.left, f"{what}: no element to repeat")
    return (TensorType(x.dtype, tuple(p.total for p in paddings)),)


def _clipped(writer: Writer, position: int, extent: int) -> int:
    """The nearest position within an axis; zero on an axis without elements."""
    last = writer.subtract(extent, writer.integer(1))
    low = writer.step("minimum", INT64, position, last)
    return writer.step("maximum", INT64, low, writer.integer(0))


def _periodic(writer: Writer, position: int, n: int, mirrored: bool) -> int:
    """The position on an axis of n elements that repeats. Mirrored, a period is the axis forwards,
    then backwards without its two ends.

    Integers are divided lane by lane, float64 in vectors: the floor of the quotient, half an
    element from the next whole number, is right for positions below 2**50.
    """
    if mirrored:
        n = writer.subtract(writer.multiply(n, writer.integer(2)), writer.integer(2))
        n = writer.step("maximum", INT64, n, writer.integer(1))
    here, period = (writer.cast(v, FLOAT64) for v in (position, n))
    one, half = (writer.constant(v, FLOAT64) for v in (1.0, 0.5))

    def step(op: str, x: int, y: int) -> int:
        return writer.step(op, FLOAT64, x, y)

    turns = step("multiply", step("add", here, half), step("divide", one, period))
    found = step("subtract", here, step("multiply", writer.step("floor", FLOAT64, turns), period))
    if mirrored:
        found = step("minimum", found, step("subtract", period, found))
    return writer.cast(found, INT64)


def _repeated(writer: Writer, index: int, padding: _Padding, mode: str) -> int:
    """The position of the element that is repeated at an index of the result."""
    # Negative widths cut first; what is left is repeated.
    first = maximum(-padding.before, 0)
    position = writer.subtract(index, writer.integer(maximum(padding.before, 0)))
    n = writer.integer(padding.left)
    if mode == "edge":
        found = _clipped(writer, position, n)
    else:
        found = _periodic(writer, position, n, mirrored=mode == "reflect")
    # Most elements are none of the padding: there positions follow each other.
    found = writer.where(writer.within(position, n), position, found, absent=True)
    return writer.add(writer.integer(first), found)


@elementwise
def _define_pad(writer: ElementWriter) -> int:
    mode, paddings = writer.attributes["mode"], _paddings(writer.types[0], writer.attributes)
    inside, at = None, []
    for i, padding in zip(writer.at, paddings, strict=True):
        if (padding.before, padding.after) == (0, 0):
            at.append(i)
        elif mode != "constant":
            at.append(_repeated(writer, i, padding, mode))
        else:
            n = writer.integer(padding.extent)
            at.append(writer.subtract(i, writer.integer(padding.before)))
            inside = writer.within(at[-1], n, inside)
    value = writer.load(0, at)
    return value if inside is None else writer.where(inside, value, writer.load(1, ()), absent=True)


def _reference_pad(
    x: Any, *value: Any, before: tuple[int, ...], after: tuple[int, ...], mode: str
) -> Any:
    widths = list(zip(before, after, strict=True))
    if mode == "constant":
        result = np.full([b + n + a for n, (b, a) in zip(x.shape, widths, strict=True)], *value)
        # The elements of the operand that the result has.
        pairs = list(zip(x.shape, result.shape, before, strict=True))
        target = tuple(slice(max(b, 0), max(b + n, 0)) for n, _, b in pairs)
        source = tuple(slice(max(-b, 0), max(total - b, 0)) for _, total, b in pairs)
        result[target] = x[source]
        return result
    # Negative widths cut.
    axes = zip(x.shape, widths, strict=True)
    cut = tuple(slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in axes)
    widths = [(max(b, 0), max(a, 0)) for b, a in widths]
    if 0 in x[cut].shape:
        return np.empty(
            [b + n + a for n, (b, a) in zip(x[cut].shape, widths, strict=True)], x.dtype
        )
    return np.pad(x[cut], widths, mode=mode)  # type: ignore[call-overload]


def _infer_tile(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    pairs = zip(types[0].shape, attributes["repeats"], strict=True)
    return (TensorType(types[0].dtype, tuple(n * r for n, r in pairs)),)


@elementwise
def _define_tile(writer: ElementWriter) -> int:
    rows = zip(writer.at, writer.types[0].shape, writer.attributes["repeats"], strict=True)
    return writer.load(0, [
        i if r == 1 else writer.step("remainder", INT64, i, writer.integer(n)) for i, n, r in rows
    ])  # fmt: skip


@elementwise
def _define_repeat(writer: ElementWriter) -> int:
    rows = zip(writer.at, writer.attributes["repeats"], strict=True)
    return writer.load(0, [
        i if n == 1 else writer.step("divide", INT64, i, writer.integer(n)) for i, n in rows
    ])  # fmt: skip


def _reference_repeat(x: Any, repeats: tuple[int, ...]) -> Any:
    for axis, n in enumerate(repeats):
        x = np.repeat(x, n, axis)
    return x


def _lower_repeat(node: Node, placement: Placement) -> None:
    """Have x in memory, which would be computed again for each time."""
    placement.view(node.inputs[0])


def _reference_iota(shape: tuple[int, ...], axis: int) -> Any:
    along = [1] * len(shape)
    along[axis] = -1
    return np.broadcast_to(np.arange(shape[axis]).reshape(along), shape)


@elementwise
def _define_dims(writer: ElementWriter) -> int:
    dims = writer.attributes["dims"]
    value = writer.integer(dims[-1]) if dims else writer.integer(0)
    for i, dim in reversed(list(enumerate(dims[:-1]))):
        here = writer.compare("equal", writer.at[0], writer.integer(i))
        value = writer.where(here, writer.integer(dim), value)
    return value


OPERATORS = (
    Operator("concat", _infer_concat, lambda *arrays, axis: np.concatenate(arrays, axis),
             lower=_lower_concat, moves=True),
    Operator("pad", _infer_pad, _reference_pad, _define_pad),
    Operator("tile", _infer_tile, lambda x, repeats: np.tile(x, repeats), _define_tile, moves=True),
    Operator("repeat", _infer_tile, _reference_repeat, _define_repeat, _lower_repeat, moves=True),
    Operator("iota", lambda _, given, require: (TensorType(INT64, given["shape"]),),
             _reference_iota,
             elementwise(lambda writer: writer.at[writer.attributes["axis"]])),
    Operator("dims", lambda _, given, require: (TensorType(INT64, (len(given["dims"]),)),),
             lambda dims: np.array(dims, np.int64), _define_dims),
)  # fmt: skip
