"""Undoes merges of batch axes.

Batched products of PyTorch (`bmm`) have one batch axis: exporters write the axes of requests and
heads merged before them and split after them. Merged heads that were transposed are copied, and a
mask of requests is no operand of scores whose axes are merged. So a split moves up through what is
computed on merged axes, to where they were merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ftuner.core.dim import Shape
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.passes.batch_axes import parts_of, together, view_shape
from ftuner.graph.rewrite.surroundings import Surroundings, made, rewritten

MAX_DEPTH = 24
"""Most nodes between a merge and a split. In DeBERTa there are seven."""


def undo_merged_axes(graph: Graph) -> Graph:
    """Replace the reshape that splits batch axes by the nodes before it on axes that are not
    merged, if all that they read was merged for them, is repeated along the axes, or has one
    element along them."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    known: dict[tuple[Value, Shape], Value] = {}
    for node in graph.nodes:
        if node.op != "reshape":
            continue
        x, shape = node.inputs[0], node.output.shape
        if x.rank < 3 or len(shape) <= x.rank or x.shape[-2:] != shape[-2:]:
            continue
        source = around.producer_of(x)
        if source is None or source.op in _ENDS or parts_of(x.shape[:-2], shape[:-2]) is None:
            continue
        split = _Split(around, x.shape[:-2], shape[:-2], dict(known))
        found = split.value(x, MAX_DEPTH)
        if found is not None and found.shape == shape:
            places[node] = split.nodes
            same[node.output] = found
            known = split.known
    return rewritten(graph, places, same)


@dataclass
class _Split:
    """Values with `batch` axes that are split into `finer` ones."""

    around: Surroundings
    batch: Shape
    finer: Shape
    known: dict[tuple[Value, Shape], Value]
    """What has been split so far."""
    nodes: list[Node] = field(default_factory=list)

    def value(self, value: Value, depth: int) -> Value | None:
        """A tensor that broadcasts as the value does, on split axes."""
        shape = view_shape(value.shape, self.batch, self.finer)
        if shape is None or shape == value.shape:
            return value if shape is not None else None
        key = value, self.finer
        if key not in self.known:
            found = self._made(value, shape, depth)
            if found is None:
                return None
            self.known[key] = found
        return self.known[key]

    def _made(self, value: Value, shape: Shape, depth: int) -> Value | None:
        node = self.around.producer_of(value)
        if value.constant is not None:
            return self.add("reshape", [value], shape, shape=shape)
        if node is None or depth == 0:
            return None
        if node.op in _ENDS:
            return _ENDS[node.op](self, node, shape)
        rule = _RULES.get(node.op, _pointwise if _is_pointwise(node.op) else None)
        if rule is None or self.around.only_consumer(value) is None:
            return None
        operands = [self.value(x, depth - 1) for x in node.inputs]
        if any(x is None for x in operands):
            return None
        return rule(self, node, [x for x in operands if x is not None])

    def add(self, op: str, inputs: list[Value], result: Shape, like: Value | None = None,
            **attributes: object) -> Value:  # fmt: skip
        """The result of a new node; its element type is that of `like`, or of the first operand."""
        type_ = TensorType((inputs[0] if like is None else like).dtype, result)
        name = f"{(inputs[-1] if like is None else like).name}_apart_{len(self.known)}"
        self.nodes.append(made(op, inputs, type_, name, **attributes))
        return self.nodes[-1].output

    def whole(self, value: Value) -> Value:
        """The value with all elements along its batch axes."""
        shape = (*self.finer, *value.shape[-2:])
        return value if value.shape == shape else self.add("broadcast", [value], shape, shape=shape)


def _is_pointwise(op: str) -> bool:
    return op in SCALAR_FUNCTIONS or op in ("where", "cast")


# What moves: the result of a node on split operands; None if it does not move.


def _pointwise(split: _Split, node: Node, operands: list[Value]) -> Value:
    shape: Shape = ()
    for x in operands:
        shape = together(shape, x.shape)
    return split.add(node.op, operands, shape, node.output, **node.attributes)


def _matmul(split: _Split, node: Node, operands: list[Value]) -> Value:
    x, y = operands
    shape = (*together(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    return split.add("matmul", operands, shape)


def _transpose(split: _Split, node: Node, operands: list[Value]) -> Value | None:
    (x,) = operands
    old = node.output.rank
    if node.attributes["perm"] != _swapping(old):
        return None
    shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
    return split.add("transpose", [x], shape, perm=_swapping(x.rank))


def _swapping(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _softmax(split: _Split, node: Node, operands: list[Value]) -> Value | None:
    (x,) = operands
    axis = node.attributes["axis"] - node.output.rank
    if axis < -2:
        return None
    return split.add("softmax", [x], x.shape, axis=x.rank + axis, log=node.attributes["log"])


def _gather_elements(split: _Split, node: Node, operands: list[Value]) -> Value | None:
    axis = node.attributes["axis"] - node.output.rank
    x, indices = node.inputs
    if axis < -2 or x.shape[:-2] != indices.shape[:-2]:
        return None
    x, indices = map(split.whole, operands)
    attributes = {**node.attributes, "axis": x.rank + axis}
    return split.add("gather_elements", [x, indices], indices.shape, x, **attributes)


# Where a split ends: the value of a shape that the node gives on split axes.


def _merged(split: _Split, node: Node, shape: Shape) -> Value:
    (x,) = node.inputs
    return x if x.shape == shape else split.add("reshape", [x], shape, shape=shape)


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
    "matmul": _matmul,
    "transpose": _transpose,
    "softmax": _softmax,
    "gather_elements": _gather_elements,
}
_ENDS: Mapping[str, Callable[[_Split, Node, Shape], Value | None]] = {
    "reshape": _merged,
    "tile": _tiled,
    "broadcast": _broadcast,
}
