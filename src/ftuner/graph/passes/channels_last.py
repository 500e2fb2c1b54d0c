"""Moves transpositions to channels first down the graph, to where they cancel.

Operators with windows are channels last, and a model file is channels first: each such operator
stands between two transpositions. A transposition is moved from the operand of an operator to its
result where the operator can work on the permuted axes. There it meets the opposite transposition
of the next operator, and both go. What is left are conversions at the borders of regions that
channels last suits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import Shape, product
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.algebra import apply, concat, constant, zero_padded
from ftuner.graph.ir import Graph, Node, Value, writing_to
from ftuner.graph.passes.permuted_axes import RULES, Permutation, inverse
from ftuner.graph.rewrite.rewriting import Rewriting
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings

WINDOWED = frozenset({"convolution", "word_convolution", "window_reduce"})
"""Operators that a graph must have for the pass to change it."""
FEW_CHANNELS = 4
"""Most channels of a picture. With more, an element of a window is long enough to be read alone."""


def move_transpositions(graph: Graph) -> Graph:
    """Move transpositions as described above. A graph without windows stays as it is."""
    return _Moving(graph).run() if has_windows(graph) else graph


def has_windows(graph: Graph) -> bool:
    """Whether a graph has operators with windows, or products that are channels last because they
    are convolutions by windows of one element."""
    products: set[Value] = set()
    for node in graph.nodes:
        if node.op in WINDOWED:
            return True
        if node.op == "matmul" or (node.op == "add" and not products.isdisjoint(node.inputs)):
            products.add(node.output)
        elif node.op == "transpose" and node.inputs[0] in products:
            perm = node.attributes["perm"]
            if len(perm) > 3 and is_to_channels_first(perm):
                return True
    return False


@rule("convolution")
def pad_first_layers(node: Node, around: Surroundings) -> Value | None:
    """Pads what convolutions of few channels read, so that each row of a window is one piece of
    memory. The first layer of a network reads a copy of the picture anyway: channels last."""
    x, w = node.inputs
    attributes = node.attributes
    begin, extents = attributes["begin"], attributes["extents"]
    channels = x.shape[-1]
    if not isinstance(channels, int) or channels > FEW_CHANNELS or attributes["groups"] > 1:
        return None
    steps = zip(attributes["strides"], attributes["dilations"], w.shape, strict=False)
    needed = tuple(
        (count - 1) * stride + (n - 1) * dilation + 1
        for count, (stride, dilation, n) in zip(extents, steps, strict=True)
    )
    if needed == x.shape[1:-1] and not any(begin):
        return None
    # Negative widths cut what no window reads.
    after = tuple(n - b - d for n, b, d in zip(needed, begin, x.shape[1:-1], strict=True))
    if around.producer(x, "transpose") is not None:
        padded = zero_padded(x, (0, *begin, 0), (0, *after, 0))
    else:
        # Positions and channels as one axis, along which x is contiguous.
        lines = x.reshape((*x.shape[:-2], x.shape[-2] * channels))
        before, behind = begin[-1] * channels, after[-1] * channels
        lines = zero_padded(lines, (0, *begin[:-1], before), (0, *after[:-1], behind))
        padded = lines.reshape((x.shape[0], *needed, channels))
    return apply("convolution", padded, w, **{**attributes, "begin": (0,) * len(begin)})


class _Moving:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._new = Rewriting(graph)
        self._waiting: dict[Value, tuple[Value, Permutation]] = {}
        """Values that are a transposition of another, which may not be read."""
        self._scores: set[Value] = set()
        """Products of two tensors, and what is computed of their elements: their last axes are rows
        and columns, and no channels."""

    def run(self) -> Graph:
        with writing_to(self._new):
            for node in self._graph.nodes:
                self._new.name = node.outputs[0].name
                self._node(node)
        return self._new.rewritten()

    def _node(self, node: Node) -> None:
        same = self._new.same
        inputs = tuple(v if v in self._waiting else same.get(v, v) for v in node.inputs)
        if node.op == "transpose":
            self._transpose(node, inputs[0])
            return
        if node.op == "resample" and inputs[0].constant is not None:
            self._await_channels_last(inputs[0], node.attributes["axes"])
        if len(node.outputs) == 1 and any(v in self._waiting for v in inputs):
            if is_pointwise(node.op):
                moved = self._pointwise(node, inputs)
            elif node.op == "concat":
                moved = self._concat(node, inputs)
            else:
                moved = self._unary(node, inputs)
            if moved:
                return
        if is_pointwise(node.op) or node.op == "softmax":
            of_scores = any(v in self._scores and v.shape == node.output.shape for v in inputs)
        else:
            of_scores = node.op == "matmul" and all(v.constant is None for v in inputs)
        if of_scores:
            self._scores.add(node.output)

    def _transpose(self, node: Node, x: Value) -> None:
        base, permutation = self._waiting.get(x, (x, tuple(range(x.rank))))
        permutation = tuple(permutation[p] for p in node.attributes["perm"])
        if x in self._waiting or is_to_channels_first(permutation):
            self._await(node.output, base, permutation)
        elif _is_reshape(x.shape, x.rank, permutation):
            self._new.same[node.output] = apply("reshape", x, shape=node.output.shape)

    def _await_channels_last(self, picture: Value, axes: Sequence[int]) -> None:
        """A constant picture, such as a table of positions, becomes the transposition of one with
        channels last: vectors of channels have the same weights."""
        to_first = _to_channels_first(picture.rank)
        if picture in self._waiting or picture.rank < 3 or not {0, 1}.isdisjoint(axes):
            return
        assert picture.constant is not None
        array = np.transpose(picture.constant, inverse(to_first))
        last = constant(np.ascontiguousarray(array), picture.dtype)
        self._waiting[picture] = last, to_first

    def _await(self, value: Value, base: Value, permutation: Permutation) -> None:
        """Have a value be a transposition of another."""
        if permutation != tuple(range(value.rank)):
            self._waiting[value] = base, permutation
        self._new.same[value] = base.transpose(permutation)

    def _unary(self, node: Node, inputs: Sequence[Value]) -> bool:
        """An operator whose first operand alone has the axes."""
        x, *others = inputs
        if node.op not in RULES or x not in self._waiting:
            return False
        base, permutation = self._waiting[x]
        moved = RULES[node.op](node, permutation)
        if moved is None:
            return False
        if moved.arranged is not None:
            base = base.transpose(moved.arranged)
        result = apply(node.op, base, *others, **moved.attributes)
        self._await(node.output, result, moved.permutation)
        return True

    def _concat(self, node: Node, inputs: Sequence[Value]) -> bool:
        found = self._most_common(inputs, node.output.rank)
        if found is None:
            return False
        permutation, count = found
        if 2 * count < len(inputs):
            return False
        operands = [self._permuted(v, permutation) for v in inputs]
        result = concat(operands, permutation[node.attributes["axis"]])
        self._await(node.output, result, permutation)
        return True

    def _pointwise(self, node: Node, inputs: Sequence[Value]) -> bool:
        found = self._most_common(inputs, node.output.rank)
        if found is None:
            return False
        permutation = found[0]
        order = inverse(permutation)
        # What is broadcast is small: its transposition costs little, whichever way it goes.
        whole = [v for v in inputs if v.constant is None and v.shape == node.output.shape]
        waiting = [v for v in whole if self._waiting.get(v, (v, ()))[1] == permutation]
        copied = [
            v for v in whole
            if v not in waiting and not _is_reshape(v.shape, node.output.rank, order)
        ]  # fmt: skip
        if len(copied) > len(waiting) or not self._scores.isdisjoint(copied):
            return False
        operands = [self._permuted(v, permutation, node.output.rank) for v in inputs]
        result = apply(node.op, *operands, **node.attributes)
        self._await(node.output, result, permutation)
        return True

    def _most_common(self, inputs: Sequence[Value], rank: int) -> tuple[Permutation, int] | None:
        """The permutation that most operands wait with, and how many; None if none does."""
        counts = Counter(
            self._waiting[v][1] for v in inputs if v in self._waiting and v.rank == rank
        )
        return counts.most_common(1)[0] if counts else None

    def _permuted(self, value: Value, permutation: Permutation, rank: int | None = None) -> Value:
        """The operand whose transposition by `permutation` is the value, of `rank` axes: those that
        are missing in front have extent 1."""
        rank = value.rank if rank is None else rank
        order = inverse(permutation)
        if value in self._waiting and value.rank == rank:
            base, own = self._waiting[value]
            return base.transpose([own[j] for j in order])
        if product(value.shape) == 1:
            return value
        shape = (1,) * (rank - value.rank) + value.shape
        if value.constant is not None:
            array = np.transpose(value.constant.reshape(shape), order)
            return constant(np.ascontiguousarray(array), value.dtype)
        if _is_reshape(value.shape, rank, order):
            return value.reshape(tuple(shape[j] for j in order))
        return value.reshape(shape).transpose(order)


def _to_channels_first(rank: int) -> Permutation:
    return (0, rank - 1, *range(1, rank - 1))


def is_to_channels_first(permutation: Permutation) -> bool:
    return len(permutation) > 2 and permutation == _to_channels_first(len(permutation))


def is_to_channels_last(permutation: Permutation) -> bool:
    rank = len(permutation)
    return rank > 2 and permutation == inverse(_to_channels_first(rank))


def is_pointwise(op: str) -> bool:
    return op in SCALAR_FUNCTIONS or op in ("where", "cast", "bit_cast")


def _is_reshape(shape: Shape, rank: int, permutation: Permutation) -> bool:
    """Whether a transposition of a shape, with ones in front, keeps the order of the elements."""
    whole = (1,) * (rank - len(shape)) + shape
    moved = [j for j in permutation if whole[j] != 1]
    return moved == sorted(moved)
