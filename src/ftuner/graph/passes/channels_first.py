"""Products between two transpositions become products that are channels first.

A convolution by windows of one element is a product whose rows are positions. So is a transposed
one by windows that do not overlap. Where neither what it reads nor what reads its result has
channels last, both would be copied. Instead the transposed weight is multiplied by the pictures as
they are, with vectors along positions; what follows is moved as `channels_last` moves it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ftuner.core.dim import product
from ftuner.core.dtype import FLOAT32
from ftuner.graph.algebra import constant
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.ops.pointwise import is_pointwise
from ftuner.graph.passes import channels_last
from ftuner.graph.passes.permuted_axes import RULES, equal_runs, inverse
from ftuner.graph.rewrite.surroundings import Surroundings

LEAST_POSITIONS = 192
"""Positions of a picture from which vectors lie along them. Derived: four panels of three vectors
of AVX-512. The last panel may be almost empty, so that a quarter of all lanes is lost at most.
Where the number is not known it is taken to be large."""


def write_products_first(graph: Graph) -> Graph:
    """Write products channels first as described above."""
    around = Surroundings(graph)
    found = {node for node in graph.nodes if node.op == "matmul" and _is_between(node, around)}
    return _Turning(graph, around, found).run() if found else graph


def _is_between(node: Node, around: Surroundings) -> bool:
    """Whether a product of transposed pictures by a weight is transposed back."""
    x, w = node.inputs
    before = around.producer(x, "transpose")
    if before is None or w.constant is None or w.rank != 2 or w.dtype != FLOAT32:
        return False
    positions = product(x.shape[1:-1])
    if isinstance(positions, int) and positions < LEAST_POSITIONS:
        return False
    return channels_last.is_to_channels_last(before.attributes["perm"]) and _is_turned(
        node.output, around
    )


def _is_turned(value: Value, around: Surroundings) -> bool:
    """Whether what can be moved, then a transposition to channels first, alone reads a value."""
    while (node := around.only_consumer(value)) is not None:
        if node.op == "transpose":
            if channels_last.is_to_channels_first(node.attributes["perm"]):
                return True
        elif is_pointwise(node.op):
            # Other whole operands would have to be transposed.
            if any(v is not value and v.shape == node.output.shape for v in node.inputs):
                return False
        elif node.op not in RULES or node.inputs[0] is not value:
            return False
        value = node.output
    return False


class _Turning(channels_last.Moving):
    """Moves the transpositions of some products alone."""

    def __init__(self, graph: Graph, around: Surroundings, products: Collection[Node]) -> None:
        super().__init__(graph)
        self._around, self._products = around, products

    def _node(self, node: Node) -> None:
        if node not in self._products:
            super()._node(node)
            return
        x, w = node.inputs
        before = self._around.producer(x, "transpose")
        assert before is not None
        assert w.constant is not None
        picture = self._new.same.get(before.inputs[0], before.inputs[0])
        images, channels, *extents = picture.shape
        lines = picture.reshape((images, channels, product(extents)))
        weight = constant(np.ascontiguousarray(w.constant.T), w.dtype)
        found = (weight @ lines).reshape((images, w.shape[1], *extents))
        self._await(node.output, found, inverse(channels_last.to_channels_first(found.rank)))

    def _unary(self, node: Node, inputs: Sequence[Value]) -> bool:
        """Phases are merged with positions in one copy, which has channels first."""
        # Fewer axes than an image, a channel and a position have no channels first.
        if node.op != "reshape" or inputs[0] not in self._waiting or node.output.rank < 3:
            return super()._unary(node, inputs)
        runs = equal_runs(node.inputs[0].shape, node.output.shape)
        if runs is None or any(len(after) != 1 for _, after in runs):
            return super()._unary(node, inputs)
        base, permutation = self._waiting[inputs[0]]
        to_first, shape = channels_last.to_channels_first(node.output.rank), node.output.shape
        order = [permutation[axis] for number in to_first for axis in runs[number][0]]
        found = base.transpose(order).reshape(tuple(shape[axis] for axis in to_first))
        self._await(node.output, found, inverse(to_first))
        return True

    def _transpose(self, node: Node, x: Value) -> None:
        if x in self._waiting:
            super()._transpose(node, x)
