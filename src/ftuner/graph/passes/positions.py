"""Which masks are triangles: comparisons of the positions of rows and columns, however they came.

A tensor of positions is linear along its axes: `iota` is, and so are its sums, slices and views. A
comparison of two of them is a triangle if it says `j <= i + offset` of the last two axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ftuner.core.dim import Dim, Shape
from ftuner.graph.ir import Array, Node, Value
from ftuner.graph.rewriting import Surroundings, scalar


@dataclass(frozen=True)
class Linear:
    """The tensor of `offset + sum(factor * index)`, a factor for each axis."""

    offset: Dim
    factors: tuple[int, ...]

    def of_rank(self, rank: int) -> Linear:
        """With axes in front, along which it stays as it is."""
        return replace(self, factors=(*[0] * (rank - len(self.factors)), *self.factors))


@dataclass(frozen=True)
class Seen:
    """The columns j of a row i with `j <= i + offset`, or all columns if it is None, of which only
    those count that all of `rest` show, masks that broadcast."""

    offset: Dim | None = None
    rest: tuple[Value, ...] = ()


def seen_by(around: Surroundings, mask: Value, shown: bool = True) -> Seen | None:
    """What a boolean mask shows, or hides if not `shown`; None if it takes a node to say so."""
    if uniform(around, mask) == shown:
        return Seen()
    found = _triangle(around, mask, shown)
    if found is not None:
        return Seen(found)
    for op, neutral in (("logical_and", True), ("logical_or", False)):
        node = around.producer(mask, op)
        if node is None:
            continue
        for x, other in (node.inputs, node.inputs[::-1]):
            if uniform(around, x) == neutral and other.shape == mask.shape:
                return seen_by(around, other, shown)
        if neutral == shown:
            both = _both(node, [seen_by(around, x, shown) for x in node.inputs])
            if both is not None:
                return both
    negated = around.producer(mask, "logical_not")
    if negated is not None:
        return seen_by(around, negated.inputs[0], not shown)
    return Seen(None, (mask,)) if shown else None


def _both(node: Node, parts: Sequence[Seen | None]) -> Seen | None:
    """What two masks show, each of which may leave axes to the other."""
    rest: list[Value] = []
    offset: Dim | None = None
    for part, value in zip(parts, node.inputs, strict=True):
        if part is None:
            return None
        if part.offset is not None:
            if value.shape[-2:] != node.output.shape[-2:] or offset not in (None, part.offset):
                return None
            offset = part.offset
        rest += part.rest
    return Seen(offset, tuple(rest))


def _triangle(around: Surroundings, mask: Value, shown: bool) -> Dim | None:
    """The offset of a mask that shows a triangle, or hides all but one."""
    if mask.rank < 2:
        return None
    if mask.constant is not None:
        return triangle_of(mask.constant == shown)
    for op, strict in (("less_equal", False), ("less", True)):
        node = around.producer(mask, op)
        if node is not None:
            return _compared(around, node, strict, shown)
    for op in ("reshape", "broadcast", "slice"):
        node = around.producer(mask, op)
        if node is not None:
            return _moved(around, node, shown)
    for op in ("equal", "cast"):
        node = around.producer(mask, op)
        if node is not None:
            return _chosen(around, node, shown)
    return None


def triangle_of(shown: Array) -> int | None:
    """The offset of a triangle that an array of booleans is."""
    rows, columns = shown.shape[-2:]
    if not shown.size or shown.size != rows * columns:
        return None
    shown = shown.reshape(rows, columns)
    offset = int(np.count_nonzero(shown[0])) - 1
    return offset if np.array_equal(shown, np.tri(rows, columns, offset, dtype=bool)) else None


def _compared(around: Surroundings, node: Node, strict: bool, shown: bool) -> Dim | None:
    """`x <= y` or `x < y`, or the contrary."""
    positions = [linear(around, v) for v in node.inputs]
    x, y = (p and p.of_rank(node.output.rank) for p in positions)
    if x is None or y is None:
        return None
    if not shown:
        x, y, strict = y, x, not strict
    difference = tuple(b - a for a, b in zip(x.factors, y.factors, strict=True))
    if difference != (*[0] * (node.output.rank - 2), 1, -1):
        return None
    # All positions along both axes are there: none of them is broadcast from one.
    extents = [n for v in node.inputs for n in v.shape[-2:] if n != 1]
    if any(n not in node.output.shape[-2:] for n in extents):
        return None
    return y.offset - x.offset - (1 if strict else 0)


def _moved(around: Surroundings, node: Node, shown: bool) -> Dim | None:
    """A view of a triangle."""
    (x,) = node.inputs
    offset = _alone(around, x, shown)
    if offset is None:
        return None
    if node.op == "slice":
        starts = node.attributes["starts"]
        within = node.attributes["steps"][-2:] == (1, 1)
        return offset + starts[-2] - starts[-1] if within else None
    ones = all(n == 1 for n in x.shape[:-2])
    return offset if ones and x.shape[-2:] == node.output.shape[-2:] else None


def _chosen(around: Surroundings, node: Node, shown: bool) -> Dim | None:
    """Whether numbers that a triangle chose are equal to another, or not zero."""
    where = around.producer(node.inputs[0], "where")
    wanted = scalar(node.inputs[1]) if node.op == "equal" else 0.0
    if where is None or wanted is None:
        return None
    mask, *values = where.inputs
    numbers = [uniform(around, v) for v in values]
    if None in numbers or mask.shape[-2:] != node.output.shape[-2:]:
        return None
    # The result is the mask or its contrary, unless both numbers are alike in this.
    first, second = ((n == wanted) == (node.op == "equal") for n in numbers)
    return None if first == second else _alone(around, mask, shown == first)


def _alone(around: Surroundings, mask: Value, shown: bool) -> Dim | None:
    """The offset of a triangle that is all that a mask shows."""
    found = seen_by(around, mask, shown)
    return None if found is None or found.rest else found.offset


def uniform(around: Surroundings, value: Value) -> float | None:
    """The number that all elements of a tensor are, if that is known."""
    for op in ("broadcast", "reshape"):
        node = around.producer(value, op)
        if node is not None:
            return uniform(around, node.inputs[0])
    array = value.constant
    if array is None or not array.size or array.dtype.kind not in "fiub":
        return None
    first = array.reshape(-1)[0]
    return float(first) if np.all(array == first) else None


def linear(around: Surroundings, value: Value) -> Linear | None:
    """A tensor of integers as positions along its axes."""
    if value.dtype.kind != "int":
        return None
    if value.constant is not None:
        return _linear_array(value.constant)
    if value.dims is not None and len(value.dims) == 1:
        return Linear(value.dims[0], (0,) * value.rank)
    for op, rule in _LINEAR.items():
        node = around.producer(value, op)
        if node is not None:
            return rule(around, node)
    return None


def _linear_array(array: Array) -> Linear | None:
    if not array.size:
        return None
    first = array[(0,) * array.ndim]
    factors, total = [], np.asarray(first)
    for axis, extent in enumerate(array.shape):
        one = tuple(int(i == axis) for i in range(array.ndim))
        factors.append(int(array[one] - first) if extent > 1 else 0)
        along = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        total = total + factors[-1] * along
    return Linear(int(first), tuple(factors)) if np.array_equal(total, array) else None


def _linear_dims(around: Surroundings, node: Node) -> Linear | None:
    dims = node.attributes["dims"]
    return Linear(dims[0], (0,)) if len(dims) == 1 else None


def _linear_iota(around: Surroundings, node: Node) -> Linear | None:
    axis, shape = node.attributes["axis"], node.attributes["shape"]
    return Linear(0, tuple(int(i == axis and n != 1) for i, n in enumerate(shape)))


def _linear_cast(around: Surroundings, node: Node) -> Linear | None:
    return linear(around, node.inputs[0])


def _linear_sum(around: Surroundings, node: Node) -> Linear | None:
    x, y = (linear(around, v) for v in node.inputs)
    if x is None or y is None or not all(_fits(v.shape, node.output.shape) for v in node.inputs):
        return None
    x, y = x.of_rank(node.output.rank), y.of_rank(node.output.rank)
    sign = 1 if node.op == "add" else -1
    factors = tuple(a + sign * b for a, b in zip(x.factors, y.factors, strict=True))
    return Linear(x.offset + sign * y.offset, factors)


def _linear_reshape(around: Surroundings, node: Node) -> Linear | None:
    x = linear(around, node.inputs[0])
    real = [n for n in node.inputs[0].shape if n != 1]
    if x is None or real != [n for n in node.output.shape if n != 1]:
        return None
    factors = iter(f for f, n in zip(x.factors, node.inputs[0].shape, strict=True) if n != 1)
    return Linear(x.offset, tuple(0 if n == 1 else next(factors) for n in node.output.shape))


def _linear_broadcast(around: Surroundings, node: Node) -> Linear | None:
    x = linear(around, node.inputs[0])
    fits = _fits(node.inputs[0].shape, node.output.shape)
    return x.of_rank(node.output.rank) if x is not None and fits else None


def _linear_transpose(around: Surroundings, node: Node) -> Linear | None:
    x = linear(around, node.inputs[0])
    return x and Linear(x.offset, tuple(x.factors[p] for p in node.attributes["perm"]))


def _linear_slice(around: Surroundings, node: Node) -> Linear | None:
    x = linear(around, node.inputs[0])
    if x is None:
        return None
    offset = x.offset
    for factor, start in zip(x.factors, node.attributes["starts"], strict=True):
        offset = offset + factor * start
    steps = zip(x.factors, node.attributes["steps"], strict=True)
    return Linear(offset, tuple(factor * step for factor, step in steps))


_LINEAR = {
    "dims": _linear_dims,
    "iota": _linear_iota,
    "cast": _linear_cast,
    "add": _linear_sum,
    "subtract": _linear_sum,
    "reshape": _linear_reshape,
    "broadcast": _linear_broadcast,
    "transpose": _linear_transpose,
    "slice": _linear_slice,
}


def _fits(shape: Shape, whole: Shape) -> bool:
    """Whether a tensor is one of a broadcast shape, with axes of one element and without some."""
    behind = whole[len(whole) - len(shape) :]
    return all(n in (1, m) for n, m in zip(shape, behind, strict=True))
