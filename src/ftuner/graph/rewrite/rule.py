"""Rules: what is written in the place of what a pattern matches.

    @rule(lambda x: x * sigmoid(x))
    def silu(x: Value) -> Value | None:
        return apply("silu", x)

The function writes the replacement in the algebra of graph values. Its parameters are those of the
pattern, by name and type: a `Value` is a tensor, a `float` a constant of one element, and others
are attributes. It may also take the `node` that is replaced and what is `around` it. It returns
None to leave the node alone, and so does a result of another type than the node's.

A rule is a pass. `together` makes one pass of several rules, which is one walk over the graph. A
pass of another form writes to a `Rewriting` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import DType
from ftuner.core.extensions import note_extension
from ftuner.graph.ir import Graph, Node, Value, live_nodes, writing_to
from ftuner.graph.operators import OPERATORS
from ftuner.graph.rewrite.matching import Pattern, Search
from ftuner.graph.rewrite.surroundings import Surroundings, agreed, constant


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


Pass = Callable[[Graph], Graph]


class Rule:
    """A function that writes a replacement, and the patterns or operators that it replaces."""

    def __init__(
        self, write: Callable[..., Value | None], patterns: Iterable[Callable[..., Value] | str]
    ) -> None:
        self.write = write
        # They are text where a module says so, else classes.
        named = {n: str(getattr(t, "__name__", t)) for n, t in write.__annotations__.items()}
        kinds = {n: text.removesuffix(" | None") for n, text in named.items()}
        self.patterns = [p if isinstance(p, str) else Pattern(p, kinds) for p in patterns]
        self._takes_node, self._takes_around = "node" in kinds, "around" in kinds

    def __call__(self, graph: Graph) -> Graph:
        return _applied((self,), graph)

    def written(self, node: Node, around: Surroundings, parts: dict[str, Any]) -> Value | None:
        if self._takes_node:
            parts["node"] = node
        if self._takes_around:
            parts["around"] = around
        return self.write(**parts)


_REGISTERED: list[Rule] = []


def rule(*patterns: Callable[..., Value] | str) -> Callable[[Callable[..., Value | None]], Rule]:
    """Declare a rule. A text is an operator, each node of which is asked of the function."""
    return lambda write: Rule(write, patterns)


def register_rule(added: Rule) -> Rule:
    """Add a rule from outside ftuner. It is applied with those of activations."""
    note_extension(added.write.__module__)
    _REGISTERED.append(added)
    return added


def registered(graph: Graph) -> Graph:
    """The pass that applies registered rules."""
    return _applied(_REGISTERED, graph)


def together(*rules: Rule) -> Pass:
    """The pass that applies rules in one walk; of two that match a node the first is applied."""
    return partial(_applied, rules)


def _applied(rules: Sequence[Rule], graph: Graph) -> Graph:
    ops = {node.op for node in graph.nodes}
    by_op: dict[str, list[tuple[Rule, Pattern | None]]] = {}
    for each in rules:
        for pattern in each.patterns:
            if isinstance(pattern, str):
                by_op.setdefault(pattern, []).append((each, None))
            elif pattern.needs <= ops:
                by_op.setdefault(pattern.anchor, []).append((each, pattern))
    if by_op.keys().isdisjoint(ops):
        return graph
    around = Surroundings(graph)
    new = Rewriting(graph)
    with writing_to(new):
        for anchor in graph.nodes:
            for each, form in by_op.get(anchor.op, ()):
                ends = [(anchor, {})] if form is None else Search(form, around).matches(anchor)
                for end, parts in ends:
                    if end.output in new.same:
                        break
                    new.name = end.output.name
                    value = each.written(end, around, parts)
                    if value is not None and value.type == end.output.type:
                        new.same[end.output] = value
                        break
    return new.rewritten()
