"""Helpers of passes: find the neighbours of a node, and what its values are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from ftuner.core.dim import Dim, Shape, maximum, product
from ftuner.core.dtype import FLOAT32, DType
from ftuner.graph.arrays import converted
from ftuner.graph.ir import Array, Graph, Node, TensorType, Value, consumers, producers

T = TypeVar("T")
ROUNDINGS = 4
"""Roundings that a recognised constant may have: it may be a product of several constants."""


class Surroundings:
    """The producer and the consumers of each value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._producers = producers(graph)
        self._consumers = consumers(graph)
        self._outputs = {value for _, value in graph.outputs}
        self._known: dict[object, object] = {}
        self._equal = {(c.x, c.y) for c in graph.constraints if not c.or_one}

    def producer(self, value: Value, *ops: str) -> Node | None:
        """The node that gives a value, if it is of one of some operators."""
        node = self._producers.get(value)
        return node if node is not None and node.op in ops else None

    def swapped(self, value: Value) -> Value | None:
        """x if a value is x with its last two axes exchanged."""
        node, rank = self.producer(value, "transpose"), value.rank
        if node is None or node.attributes["perm"] != (*range(rank - 2), rank - 1, rank - 2):
            return None
        return node.inputs[0]

    def producer_of(self, value: Value) -> Node | None:
        return self._producers.get(value)

    def consumers(self, value: Value) -> Sequence[Node]:
        return self._consumers.get(value, ())

    def read(self, value: Value) -> int:
        """How often a value is read, by nodes or as an output."""
        return len(self.consumers(value)) + (value in self._outputs)

    def only_consumer(self, value: Value) -> Node | None:
        """The only node that reads a value, if it reads it once and the value is no output."""
        found = self._consumers.get(value, ())
        return found[0] if len(found) == 1 and value not in self._outputs else None

    def once(self, find: Callable[[Surroundings, Value], T], value: Value) -> T:
        """What a function finds of a value, found once."""
        if (find, value) not in self._known:
            self._known[find, value] = find(self, value)
        return cast("T", self._known[find, value])

    def alike(self, x: Shape, y: Shape) -> bool:
        """Whether two shapes are equal, or constrained to be when they are bound."""
        pairs = list(zip(x, y, strict=False))
        known = (a == b or (a, b) in self._equal or (b, a) in self._equal for a, b in pairs)
        return len(x) == len(y) and all(known)


def scalar(value: Value) -> float | None:
    """The number in a constant of one element, else None."""
    if value.constant is None or value.constant.size != 1 or value.dtype.on_host:
        return None
    return float(value.constant.reshape(()))


def near(value: float | None, wanted: float, dtype: DType) -> bool:
    """Whether a number is `wanted` up to a few roundings to `dtype`, a float, or up to the few
    digits that some models have."""
    assert dtype.kind == "float"
    tolerance = max(1e-5, ROUNDINGS * dtype.unit_roundoff)
    return value is not None and math.isclose(value, wanted, rel_tol=tolerance)


def scaled(around: Surroundings, value: Value) -> tuple[Value, float]:
    """(x, factor) such that the value is x times factor; (value, 1.0) if no factor is found."""
    for op in ("multiply", "divide"):
        node = around.producer(value, op)
        if node is None:
            continue
        for x, other in (node.inputs, node.inputs[::-1]):
            number = scalar(other)
            if (
                number
                and x.type == node.output.type
                and (op == "multiply" or other is node.inputs[1])
            ):
                return x, number if op == "multiply" else 1.0 / number
    return value, 1.0


def reduced(around: Surroundings, value: Value, kind: str) -> tuple[Value, tuple[int, ...]] | None:
    """(x, axes) if the value is the reduction `kind` of x over axes, in a shape that broadcasts
    with x as if the axes were kept with extent 1."""
    reshape = around.producer(value, "reshape")
    reduce = around.producer(value if reshape is None else reshape.inputs[0], "reduce")
    if reduce is None or reduce.attributes["kind"] != kind:
        return None
    x, axes = reduce.inputs[0], reduce.attributes["axes"]
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    return (x, axes) if (1,) * (x.rank - value.rank) + value.shape == kept else None


def mean(around: Surroundings, value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """(x, axes) if the value is the mean of x over axes, in a shape as of `reduced`. The mean of no
    element may be divided by one."""
    total, factor = scaled(around, value)
    divide = around.producer(value, "divide")
    count = None
    if total is value and divide is not None:
        total, count = divide.inputs
    found = reduced(around, total, "sum")
    if found is None:
        return None
    elements = product(found[0].shape[axis] for axis in found[1])
    if count is None:
        known = isinstance(elements, int) and elements > 0 and near(factor, 1 / elements, FLOAT32)
        return found if known else None
    node = around.producer_of(count)
    while node is not None and node.op in ("reshape", "cast"):
        node = around.producer_of(node.inputs[0])
    dims = () if node is None or node.op != "dims" else node.attributes["dims"]
    return found if dims in ((elements,), (maximum(elements, 1),)) else None


def agreed(x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
    """A `Require` that does nothing: the graph has the constraints that its dims need."""


def constant(name: str, dtype: DType, array: Array) -> Value:
    """A constant, in row-major order."""
    array = converted(array, dtype)
    return Value(name, TensorType(dtype, array.shape), array)
