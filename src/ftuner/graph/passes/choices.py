"""Recognises choices that are written as sums of products with zeros and ones."""

from __future__ import annotations

import math

import numpy as np

from ftuner.core.dtype import BOOL
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.rewrite.surroundings import (
    Surroundings,
    constant,
    made,
    rewritten,
    scalar,
    scaled,
)

_MOVES = ("reshape", "transpose", "broadcast", "slice")
"""Operators whose results are elements of their operand."""


def write_choices(graph: Graph) -> Graph:
    """Replace `x * m + number * (1 - m)`, m being zeros and ones, by a choice: as GPT (Radford et
    al., 2018) hides what is ahead. Where x is infinite and m is zero the sum would be NaN."""
    booleans = _Booleans(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op in ("add", "subtract"):
            written = _choice(booleans, node)
            if written:
                places[node] = written
                same[node.output] = written[-1].output
    return rewritten(graph, places, same)


class _Booleans:
    """The tensors of zeros and ones of a graph, as booleans that nodes share."""

    def __init__(self, graph: Graph) -> None:
        self.around = Surroundings(graph)
        self._found: dict[Value, Value] = {}
        self._made: list[Node] = []

    def of(self, value: Value) -> Value | None:
        """Booleans that are true where a tensor is one; None if other numbers may be in it."""
        if value not in self._found:
            found = self._constant(value) if value.constant is not None else self._moved(value)
            if found is None:
                return None
            self._found[value] = found
        return self._found[value]

    def placed(self) -> list[Node]:
        """The nodes that were made since the last call."""
        nodes, self._made = self._made, []
        return nodes

    def _constant(self, value: Value) -> Value | None:
        array = value.constant
        assert array is not None
        if not np.all((array == 0) | (array == 1)):
            return None
        return constant(f"{value.name}_booleans", BOOL, array != 0)

    def _moved(self, value: Value) -> Value | None:
        node = self.around.producer_of(value)
        if node is not None and node.op == "cast" and node.inputs[0].dtype == BOOL:
            return node.inputs[0]
        source = self.of(node.inputs[0]) if node is not None and node.op in _MOVES else None
        if node is None or source is None:
            return None
        type_ = TensorType(BOOL, value.shape)
        moved = made(node.op, [source], type_, f"{value.name}_booleans", **node.attributes)
        self._made.append(moved)
        return moved.output


def _choice(booleans: _Booleans, node: Node) -> list[Node] | None:
    """The nodes that give the choice."""
    around = booleans.around
    orders = (node.inputs, node.inputs[::-1]) if node.op == "add" else (node.inputs,)
    for kept, rest in orders:
        product = around.producer(kept, "multiply")
        if product is None:
            continue
        for x, mask in (product.inputs, product.inputs[::-1]):
            number = _number(around, rest, mask)
            if number is None or not around.alike(x.shape, node.output.shape):
                continue
            shown = booleans.of(mask)
            if shown is None or x.dtype.kind != "float":
                continue
            number *= 1 if node.op == "add" else -1
            other = constant(f"{node.output.name}_else", x.dtype, np.array(number))
            inputs, name = [shown, x, other], f"{node.output.name}_chosen"
            return [*booleans.placed(), made("where", inputs, node.output.type, name)]
    return None


def _number(around: Surroundings, rest: Value, mask: Value) -> float | None:
    """The number if `rest` is that number times (1 - mask)."""
    if rest.constant is not None and mask.constant is not None and rest.shape == mask.shape:
        ones, numbers = mask.constant == 1, np.unique(rest.constant[mask.constant != 1])
        alone = len(numbers) == 1 and not rest.constant[ones].any()
        return float(numbers[0]) if alone else None
    contrary, factor = scaled(around, rest)
    difference = around.producer(contrary, "subtract")
    if difference is None or scalar(difference.inputs[0]) != 1:
        return None
    if not math.isfinite(factor):
        # Zero times it is NaN where x is kept.
        return None
    return factor if difference.inputs[1] is mask else None
