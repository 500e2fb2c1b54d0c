"""Recognises triangular masks: comparisons of the positions of rows and columns.

A tensor of positions is linear along its axes: `iota` is, and so are its sums, slices and views. A
comparison of two such tensors is a triangle if it is `j <= i + offset` in the last two axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ftuner.core.dim import Dim, Shape, without_ones
from ftuner.core.dtype import BOOL
from ftuner.core.frozen import dataclass
from ftuner.graph.ir import Array, Graph, Node, Value

_MOST = 1 << 31
"""Limit on positions: products with extents stay within 64 bits."""


@dataclass(frozen=True)
class Linear:
    """The tensor with the elements `offset + sum(factor * index)`, with a factor for each axis."""

    offset: Dim
    factors: tuple[int, ...]

    def of_rank(self, rank: int) -> Linear:
        """The tensor with new first axes, along which it is constant."""
        return replace(self, factors=(*[0] * (rank - len(self.factors)), *self.factors))


@dataclass(frozen=True)
class Seen:
    """The scores that a mask shows: in row i the columns `j <= i + offset`, or all columns if
    `offset` is None, where each mask of `rest`, which broadcasts, is true as well."""

    offset: Dim | None = None
    rest: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Choice:
    """A tensor that is `first` where a mask is true, and `second` elsewhere."""

    mask: Value
    first: float
    second: float


class Masks:
    """What each mask of a graph shows, found in one walk over the nodes."""

    def __init__(self, graph: Graph) -> None:
        self._linear: dict[Value, Linear | None] = {}
        self._uniform: dict[Value, float] = {}
        self._constants: dict[Value, float | None] = {}
        """The number that all elements of a constant are equal to."""
        self._triangles: dict[tuple[Value, bool], int | None] = {}
        """The offset of a constant that is a triangle, where it is true or where it is false."""
        self._choices: dict[Value, Choice] = {}
        self._seen: dict[tuple[Value, bool], Seen] = {}
        for node in graph.nodes:
            if len(node.outputs) > 1:
                continue
            value = node.output
            copied = node.op in ("broadcast", "reshape")
            number = self.uniform(node.inputs[0]) if copied else None
            if number is not None:
                self._uniform[value] = number
            if value.dtype.kind == "int":
                positions = self._linear_result(node)
                if positions is not None:
                    self._linear[value] = positions
            if node.op == "where" and node.inputs[0].shape[-2:] == value.shape[-2:]:
                first, second = map(self.uniform, node.inputs[1:])
                if first is not None and second is not None:
                    self._choices[value] = Choice(node.inputs[0], first, second)
            if value.dtype == BOOL:
                for shown in (True, False):
                    seen = self._seen_of(node, shown)
                    if seen is not None:
                        self._seen[value, shown] = seen

    def uniform(self, value: Value) -> float | None:
        """The number that all elements of a tensor are equal to, if it is known."""
        array = value.constant
        if array is None or value.dtype.on_host:
            return self._uniform.get(value)
        if value not in self._constants:
            same = array.size and np.all(array == array.reshape(-1)[0])
            self._constants[value] = float(array.reshape(-1)[0]) if same else None
        return self._constants[value]

    def choice(self, value: Value) -> Choice | None:
        """The choice that gives a tensor of two numbers."""
        return self._choices.get(value)

    def seen(self, mask: Value, shown: bool = True) -> Seen | None:
        """The scores where a boolean mask is true, or false if not `shown`. None if that needs a
        mask that the graph does not have."""
        if self.uniform(mask) == shown:
            return Seen()
        if mask.constant is not None and mask.rank > 1:
            key = mask, shown
            if key not in self._triangles:
                self._triangles[key] = triangle_of(mask.constant == shown)
            offset = self._triangles[key]
            if offset is not None:
                return Seen(offset)
        return self._seen.get((mask, shown), Seen(None, (mask,)) if shown else None)

    # Masks.

    def _seen_of(self, node: Node, shown: bool) -> Seen | None:
        """The scores where the result of a node is true (`shown`) or false, if its operands say
        more than the result as a mask."""
        if node.op in ("logical_and", "logical_or"):
            return self._joined(node, node.op == "logical_and", shown)
        if node.op == "logical_not":
            return self.seen(node.inputs[0], not shown)
        offset: Dim | None = None
        if node.op in ("less", "less_equal"):
            offset = self._compared(node, shown)
        elif node.op in ("reshape", "broadcast", "slice"):
            offset = self._moved(node, shown)
        elif node.op in ("equal", "cast"):
            offset = self._chosen(node, shown)
        return None if offset is None else Seen(offset)

    def _joined(self, node: Node, neutral: bool, shown: bool) -> Seen | None:
        """The scores of a conjunction or disjunction of masks, one of which may be constant."""
        for x, other in (node.inputs, node.inputs[::-1]):
            if self.uniform(x) == neutral and other.shape == node.output.shape:
                return self.seen(other, shown)
        if neutral != shown:
            return None
        rest: list[Value] = []
        offset: Dim | None = None
        for value in node.inputs:
            part = self.seen(value, shown)
            if part is None:
                return None
            if part.offset is not None:
                whole = value.shape[-2:] == node.output.shape[-2:]
                if not whole or offset not in (None, part.offset):
                    return None
                offset = part.offset
            rest += part.rest
        # An attention takes one mask besides the triangle: the node's own result.
        return Seen(offset, tuple(rest)) if len(rest) < 2 else None

    def _compared(self, node: Node, shown: bool) -> Dim | None:
        """The offset of the triangle of `x <= y` or `x < y`, or of its complement."""
        x, y = self._together(node)
        strict = node.op == "less"
        if x is None or y is None:
            return None
        if not shown:
            x, y, strict = y, x, not strict
        difference = tuple(b - a for a, b in zip(x.factors, y.factors, strict=True))
        if len(difference) < 2 or difference != (*[0] * (len(difference) - 2), 1, -1):
            return None
        return y.offset - x.offset - (1 if strict else 0)

    def _moved(self, node: Node, shown: bool) -> Dim | None:
        """The offset of a view of a triangle."""
        (x,) = node.inputs
        offset = self._alone(x, shown)
        if offset is None:
            return None
        if node.op == "slice":
            starts = node.attributes["starts"]
            within = node.attributes["steps"][-2:] == (1, 1)
            return offset + starts[-2] - starts[-1] if within else None
        ones = all(n == 1 for n in x.shape[:-2])
        return offset if ones and x.shape[-2:] == node.output.shape[-2:] else None

    def _chosen(self, node: Node, shown: bool) -> Dim | None:
        """The offset of the triangle where the elements of a choice equal a number, or where they
        are not zero."""
        equal = node.op == "equal"
        wanted = self.uniform(node.inputs[1]) if equal else 0.0
        choice = self.choice(node.inputs[0])
        if choice is None or wanted is None:
            return None
        if choice.mask.shape[-2:] != node.output.shape[-2:]:
            return None
        # The result is the mask or its complement, unless it is the same for both numbers.
        first, second = ((n == wanted) == equal for n in (choice.first, choice.second))
        return None if first == second else self._alone(choice.mask, shown == first)

    def _alone(self, mask: Value, shown: bool) -> Dim | None:
        """The offset of a mask that is a triangle and nothing else."""
        found = self.seen(mask, shown)
        return None if found is None or found.rest else found.offset

    # Positions.

    def _position(self, value: Value) -> Linear | None:
        """A tensor of integers as linear positions."""
        if value.dtype.kind != "int":
            return None
        if value.constant is not None and value not in self._linear:
            self._linear[value] = _linear_array(value.constant)
        return self._linear.get(value)

    def _together(self, node: Node) -> Iterator[Linear | None]:
        """Both operands as positions; None for operands that are broadcast from other than one
        element."""
        fits = all(_fits(v.shape, node.output.shape) for v in node.inputs)
        for value in node.inputs:
            found = self._position(value) if fits else None
            yield found and found.of_rank(node.output.rank)

    def _linear_result(self, node: Node) -> Linear | None:
        attributes = node.attributes
        if node.op == "iota":
            shape, axis = attributes["shape"], attributes["axis"]
            return Linear(0, tuple(int(i == axis and n != 1) for i, n in enumerate(shape)))
        if node.op == "dims":
            dims = attributes["dims"]
            return Linear(dims[0], (0,)) if len(dims) == 1 else None
        if node.op in ("add", "subtract"):
            x, y = self._together(node)
            return x and y and _sum(x, y, 1 if node.op == "add" else -1)
        x = self._position(node.inputs[0]) if node.inputs else None
        rule = _VIEWS.get(node.op)
        return None if x is None or rule is None else rule(node, x)


def triangle_of(shown: Array) -> int | None:
    """The offset of an array of booleans that is a triangle."""
    rows, columns = shown.shape[-2:]
    if not shown.size or shown.size != rows * columns:
        return None
    shown = shown.reshape(rows, columns)
    offset = int(np.count_nonzero(shown[0])) - 1
    return offset if np.array_equal(shown, np.tri(rows, columns, offset, dtype=bool)) else None


def _linear_array(array: Array) -> Linear | None:
    if not array.size:
        return None
    first = array[(0,) * array.ndim]
    if not -_MOST < array.min() <= array.max() < _MOST:
        return None
    factors, total = [], np.asarray(first)
    for axis, extent in enumerate(array.shape):
        one = tuple(int(i == axis) for i in range(array.ndim))
        factors.append(int(array[one]) - int(first) if extent > 1 else 0)
        along = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        total = total + factors[-1] * along
    return Linear(int(first), tuple(factors)) if np.array_equal(total, array) else None


def _sum(x: Linear, y: Linear, sign: int) -> Linear:
    factors = tuple(a + sign * b for a, b in zip(x.factors, y.factors, strict=True))
    return Linear(x.offset + sign * y.offset, factors)


def _reshaped(node: Node, x: Linear) -> Linear | None:
    shape = node.inputs[0].shape
    if without_ones(shape) != without_ones(node.output.shape):
        return None
    factors = iter([f for f, n in zip(x.factors, shape, strict=True) if n != 1])
    return Linear(x.offset, tuple(0 if n == 1 else next(factors) for n in node.output.shape))


def _broadcast(node: Node, x: Linear) -> Linear | None:
    fits = _fits(node.inputs[0].shape, node.output.shape)
    return x.of_rank(node.output.rank) if fits else None


def _sliced(node: Node, x: Linear) -> Linear:
    offset = x.offset
    for factor, start in zip(x.factors, node.attributes["starts"], strict=True):
        offset = offset + factor * start
    steps = zip(x.factors, node.attributes["steps"], strict=True)
    return Linear(offset, tuple(factor * step for factor, step in steps))


_VIEWS: Mapping[str, Callable[[Node, Linear], Linear | None]] = {
    # Positions fit 32 bits.
    "cast": lambda node, x: x if node.output.dtype.bits >= 32 else None,
    "reshape": _reshaped,
    "broadcast": _broadcast,
    "transpose": lambda node, x: Linear(
        x.offset, tuple(x.factors[p] for p in node.attributes["perm"])
    ),
    "slice": _sliced,
}


def _fits(shape: Sequence[Dim], whole: Shape) -> bool:
    """Whether a shape broadcasts to `whole`."""
    last = whole[len(whole) - len(shape) :]
    return all(n in (1, m) for n, m in zip(shape, last, strict=True))
