"""Undoes merges of batch axes.

Batched products of PyTorch (`bmm`) have one batch axis: exporters write the axes of requests and
heads merged before them and split after them. Merged heads that were transposed are copied, and a
mask of requests is no operand of scores whose axes are merged. So a split moves up through what is
computed on merged axes, to where they were merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftuner.core.dim import Dim, Shape, product
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Node, Value
from ftuner.graph.ops.pointwise import broadcast_shape, is_pointwise
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings, agreed

MAX_DEPTH = 24
"""Most nodes between a merge and a split. In DeBERTa there are seven."""


@rule("reshape")
def undo_merged_axes(node: Node, around: Surroundings) -> Value | None:
    """Replace the reshape that splits batch axes by the nodes before it on axes that are not
    merged, if all that they read was merged for them, is repeated along the axes, or has one
    element along them."""
    x, shape = node.inputs[0], node.output.shape
    if x.rank < 3 or len(shape) <= x.rank or x.shape[-2:] != shape[-2:]:
        return None
    source = around.producer_of(x)
    if source is None or source.op in _ENDS or parts_of(x.shape[:-2], shape[:-2]) is None:
        return None
    return _Split(around, x.shape[:-2], shape[:-2]).value(x, MAX_DEPTH)


@dataclass
class _Split:
    """Values with `batch` axes that are split into `finer` ones."""

    around: Surroundings
    batch: Shape
    finer: Shape

    def value(self, value: Value, depth: int) -> Value | None:
        """A tensor that broadcasts as the value does, on split axes."""
        shape = view_shape(value.shape, self.batch, self.finer)
        if shape is None or shape == value.shape:
            return value if shape is not None else None
        return self._made(value, shape, depth)

    def _made(self, value: Value, shape: Shape, depth: int) -> Value | None:
        node = self.around.producer_of(value)
        if value.constant is not None:
            return value.reshape(shape)
        if node is None or depth == 0:
            return None
        if node.op in _ENDS:
            return _ENDS[node.op](self, node, shape)
        rule = _RULES.get(node.op, _pointwise if is_pointwise(node.op) else None)
        if rule is None or self.around.only_consumer(value) is None:
            return None
        operands = [self.value(x, depth - 1) for x in node.inputs]
        if any(x is None for x in operands):
            return None
        return rule(self, node, [x for x in operands if x is not None])

    def whole(self, value: Value) -> Value:
        """The value with all elements along its batch axes."""
        return value.broadcast((*self.finer, *value.shape[-2:]))


# What moves: the result of a node on split operands; None if it does not move.


def _pointwise(split: _Split, node: Node, operands: list[Value]) -> Value:
    return apply(node.op, *operands, **node.attributes)


def _transpose(split: _Split, node: Node, operands: list[Value]) -> Value | None:
    rank = node.output.rank
    swapping = (*range(rank - 2), rank - 1, rank - 2)
    return operands[0].swapped() if node.attributes["perm"] == swapping else None


def _softmax(split: _Split, node: Node, operands: list[Value]) -> Value | None:
    (x,) = operands
    axis = node.attributes["axis"] - node.output.rank
    attributes = {**node.attributes, "axis": x.rank + axis}
    return apply("softmax", x, **attributes) if axis >= -2 else None


def _gather_elements(split: _Split, node: Node, operands: list[Value]) -> Value | None:
    axis = node.attributes["axis"] - node.output.rank
    x, indices = node.inputs
    if axis < -2 or x.shape[:-2] != indices.shape[:-2]:
        return None
    x, indices = map(split.whole, operands)
    return apply("gather_elements", x, indices, **{**node.attributes, "axis": x.rank + axis})


# Where a split ends: the value of a shape that the node gives on split axes.


def _tiled(split: _Split, node: Node, shape: Shape) -> Value | None:
    """What is repeated along the first of the axes that one is split into."""
    (x,) = node.inputs
    times, *rest = node.attributes["repeats"]
    apart = (times, *x.shape)
    return x if all(r == 1 for r in rest) and apart == shape else None


def _broadcast(split: _Split, node: Node, shape: Shape) -> Value | None:
    (x,) = node.inputs
    return x if x.rank >= 2 and view_shape(x.shape, split.batch, split.finer) == x.shape else None


_RULES: Mapping[str, Callable[[_Split, Node, list[Value]], Value | None]] = {
    "matmul": _pointwise,
    "transpose": _transpose,
    "softmax": _softmax,
    "gather_elements": _gather_elements,
}
_ENDS: Mapping[str, Callable[[_Split, Node, Shape], Value | None]] = {
    "reshape": lambda split, node, shape: node.inputs[0].reshape(shape),
    "tile": _tiled,
    "broadcast": _broadcast,
}


def parts_of(batch: Shape, finer: Shape) -> tuple[Shape, ...] | None:
    """The axes of `finer` that each axis of `batch` is split into; None if it is not."""
    left = list(finer)
    found: list[Shape] = []
    for extent in batch:
        taken: list[Dim] = [left.pop(0)] if left else []
        while left and product(taken) != extent:
            taken.append(left.pop(0))
        if product(taken) != extent:
            return None
        found.append(tuple(taken))
    if any(n != 1 for n in left):
        return None
    if left and found:
        found[-1] = (*found[-1], *left)
    return tuple(found) if found or not left else None


def view_shape(shape: Shape, batch: Shape, finer: Shape) -> Shape | None:
    """The shape of a tensor that broadcasts to matrices of `batch` axes when these are split into
    `finer` ones; None if it has only some of the elements of an axis, or `batch` is not split."""
    parts = parts_of(batch, finer)
    ahead = len(batch) + 2 - len(shape)
    if parts is None or ahead < 0:
        return None
    if all(n == 1 for n in shape[:-2]):
        return shape if len(shape) <= 2 + len(finer) else None
    given = (*(1,) * ahead, *shape[:-2])
    found: list[Dim] = []
    for extent, whole, split in zip(given, batch, parts, strict=True):
        if extent not in (1, whole):
            return None
        found += split if extent == whole else (1,) * len(split)
    return (*found, *shape[-2:])


def together(x: Shape, y: Shape) -> Shape:
    """The shape that two tensors of a valid graph are broadcast to."""
    return broadcast_shape([x, y], agreed, "operands of scores")
