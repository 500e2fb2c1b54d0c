"""The graph: operators on tensors whose shapes may hold symbols.

A `Value` is a tensor: a graph input, a constant, or the result of one `Node`. A graph is a list of
nodes in an order in which each comes after those it reads. Passes make new graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from ftuner.core.dim import Dim, Shape, Symbolic, UsedSymbols
from ftuner.core.dtype import UINT64, DType

Array = npt.NDArray[Any]
MAX_RANK = 64
"""Most axes of a tensor: NumPy's own limit."""


@dataclass(frozen=True)
class TensorType:
    """An element type and a shape."""

    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor. Equal only to itself."""

    name: str
    type: TensorType
    constant: Array | None = None
    """The elements, if they are known. Never written to."""
    dims: tuple[Dim, ...] | None = None
    """The elements of a small integer tensor in row-major order, if each is known as a dim."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


RANDOM_KEY = TensorType(UINT64, (2,))
"""A key of random numbers: where they come from, and the number of the run."""


@dataclass(frozen=True, eq=False)
class RandomKey(Value):
    """The last input of a graph that draws random numbers: each run of a model has a new one, which
    callers do not give; see `graph.ops.random_numbers`."""


@dataclass(frozen=True, eq=False)
class Node:
    """The application of an operator of the table `graph.operators.OPERATORS`."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def binds(self) -> tuple[str, ...]:
        """The symbols that the node binds at run time: the data-dependent extents of its results,
        which the attributes `count`, one, and `counts`, several, name."""
        one, several = self.attributes.get("count"), self.attributes.get("counts", ())
        return several if one is None else (one,)

    @property
    def output(self) -> Value:
        """The one output."""
        assert len(self.outputs) == 1
        return self.outputs[0]

    def __str__(self) -> str:
        attributes = "".join(f", {k}={v}" for k, v in self.attributes.items())
        inputs = ", ".join(v.name for v in self.inputs)
        outputs = ", ".join(map(str, self.outputs))
        return f"{outputs} = {self.op}({inputs}{attributes})"


@dataclass(frozen=True)
class Constraint:
    """A condition on dims, checked when they are bound: x equals y, or (`or_one`) one of them is
    1. `what` describes it in error messages."""

    x: Dim
    y: Dim
    or_one: bool
    what: str
    operands: tuple[Shape, ...] = ()
    """The shapes of the operands of the node that it is of, for error messages."""

    def holds(self, x: int, y: int) -> bool:
        return x == y or (self.or_one and 1 in (x, y))


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, with the inputs that they read and the outputs that they give."""

    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    """(name in the model, value)."""
    nodes: tuple[Node, ...]
    constraints: tuple[Constraint, ...] = ()

    def moved(self) -> Graph:
        """The graph; this one has no nodes any more, so that whoever still has it keeps none of the
        constants. Only for a graph with one reader."""
        found = Graph(self.inputs, self.outputs, self.nodes, self.constraints)
        object.__setattr__(self, "nodes", ())
        return found

    def __str__(self) -> str:
        lines = [f"input {v}" for v in self.inputs]
        lines += [str(n) for n in self.nodes]
        lines += [f"output {name} = {v.name}" for name, v in self.outputs]
        return "\n".join(lines)


def consumers(graph: Graph) -> dict[Value, list[Node]]:
    """The nodes that read each value, in order; a node that reads it twice is there twice."""
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            found.setdefault(value, []).append(node)
    return found


def producers(graph: Graph) -> dict[Value, Node]:
    """The node that gives each value."""
    return {value: node for node in graph.nodes for value in node.outputs}


def used_dims(node: Node) -> list[Dim]:
    """The dims in the shapes and attributes of a node."""
    shapes = (n for value in (*node.inputs, *node.outputs) for n in value.shape)
    return [*shapes, *attribute_dims(node)]


def attribute_dims(node: Node) -> list[Symbolic]:
    """The dims in the attributes of a node that are known only at run time."""
    found: list[Symbolic] = []
    for attribute in node.attributes.values():
        entries = attribute if isinstance(attribute, tuple) else (attribute,)
        found += [entry for entry in entries if isinstance(entry, Symbolic)]
    return found


def live_nodes(nodes: Sequence[Node], outputs: Iterable[Value]) -> tuple[Node, ...]:
    """The nodes that outputs depend on, through values or through symbols that nodes bind, in
    order."""
    wanted = set(outputs)
    binding = any(node.binds for node in nodes)
    symbols = UsedSymbols()
    if binding:
        symbols.add(n for value in wanted for n in value.shape)
    kept: list[Node] = []
    for node in reversed(nodes):
        read = any(value in wanted for value in node.outputs)
        if read or any(name in symbols.names for name in node.binds):
            kept.append(node)
            wanted.update(node.inputs)
            if binding:
                symbols.add(used_dims(node))
    return tuple(reversed(kept))
