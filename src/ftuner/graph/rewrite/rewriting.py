"""A graph that is rewritten: new nodes are written in the algebra of graph values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import DType
from ftuner.graph.ir import Graph, Node, Value, live_nodes
from ftuner.graph.operators import OPERATORS
from ftuner.graph.rewrite.surroundings import agreed, constant


class Rewriting:
    """The values that replace those of a graph, and the nodes that give them. Equal nodes are
    written once; what is not read in the end is left out.

    Attributes:
        same: the value that replaces a value. It may not depend on the latter.
        outputs: those of the graph that is written, which may be others.
        name: what new names begin with.
    """

    where = "a rewrite"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = graph.outputs
        self.same: dict[Value, Value] = {}
        self.name = ""
        self._made: dict[object, tuple[Value, ...]] = {}
        self._nodes: dict[Value, Node] = {}
        self._scalars: dict[object, Value] = {}

    def add(self, op: str, /, *inputs: Value, **attributes: Any) -> Value:
        (value,) = self.add_many(op, *inputs, **attributes)
        return value

    def add_many(self, op: str, /, *inputs: Value, **attributes: Any) -> tuple[Value, ...]:
        """The results of an operator that may have several."""
        key = (op, inputs, tuple(sorted(attributes.items())))
        if key not in self._made:
            types = OPERATORS[op].infer([v.type for v in inputs], attributes, agreed)
            first = len(self._nodes)
            values = tuple(Value(f"{self.name}_{n}", t) for n, t in enumerate(types, first))
            self._nodes |= dict.fromkeys(values, Node(op, inputs, values, attributes))
            self._made[key] = values
        return self._made[key]

    def scalar(self, value: float, dtype: DType, /) -> Value:
        key = str(value), dtype
        if key not in self._scalars:
            self._scalars[key] = self.constant(value, dtype)
        return self._scalars[key]

    def constant(self, array: Any, dtype: DType | None = None, /) -> Value:
        assert dtype is not None
        return constant(f"{self.name}_constant", dtype, array)

    def dims(self, values: Sequence[Dim], shape: Shape, /) -> Value:
        return self.add("dims", dims=tuple(values)).reshape(shape)

    def require(self, x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
        """Nothing: the graph that is rewritten has the constraints."""

    def rewritten(self) -> Graph:
        """The graph with values replaced; the graph itself if there are none. New nodes come where
        the first value that needs them was."""
        if not self.same and self.outputs == self.graph.outputs:
            return self.graph
        graph, same, left = self.graph, self.same, dict(self._nodes)
        nodes: list[Node] = []

        def final(value: Value) -> Value:
            while value in same:
                value = same[value]
            return value

        def taken(value: Value) -> Node:
            node = left[value]
            for result in node.outputs:
                del left[result]
            return node

        def place(node: Node) -> None:
            stack = [node]
            while stack:
                node = stack[-1]
                inputs = tuple(final(v) for v in node.inputs)
                before = next((v for v in inputs if v in left), None)
                if before is not None:
                    stack.append(taken(before))
                    continue
                stack.pop()
                nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))

        for node in graph.nodes:
            if any(value not in same for value in node.outputs):
                place(node)
            for value in map(final, node.outputs):
                if value in left:
                    place(taken(value))
        outputs = tuple((name, final(value)) for name, value in self.outputs)
        for _, value in outputs:
            if value in left:
                place(taken(value))
        live = live_nodes(nodes, [value for _, value in outputs])
        return Graph(graph.inputs, outputs, live, graph.constraints)
