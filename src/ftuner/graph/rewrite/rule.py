"""Rules: what is written in the place of what a pattern matches.

    @rule(lambda x: x * sigmoid(x))
    def silu(x: Value) -> Value | None:
        return apply("silu", x)

The function writes the replacement in the algebra of graph values. Its parameters are those of the
pattern, by name and type: a `Value` is a tensor, a `float` a constant of one element, and others
are attributes. It may also take the `node` that is replaced and what is `around` it. It returns
None to leave the node alone, and so does a result of another type than the node's.

A rule is a pass. `together` makes one pass of several rules, which is one walk over the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ftuner.graph.ir import Graph, Node, Value, writing_to
from ftuner.graph.rewrite.matching import Pattern, Search
from ftuner.graph.rewrite.rewriting import Rewriting
from ftuner.graph.rewrite.surroundings import Surroundings

Pass = Callable[[Graph], Graph]


class Rule:
    """A function that writes a replacement, and the patterns or operators that it replaces."""

    def __init__(
        self, write: Callable[..., Value | None], patterns: Iterable[Callable[..., Value] | str]
    ) -> None:
        self.write = write
        kinds = {n: str(t).removesuffix(" | None") for n, t in write.__annotations__.items()}
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


def rule(
    *patterns: Callable[..., Value] | str,
) -> Callable[[Callable[..., Value | None]], Rule]:
    """Declare a rule. A text is an operator, each node of which is asked of the function."""
    return lambda write: Rule(write, patterns)


def register_rule(added: Rule) -> Rule:
    """Add a rule from outside ftuner. It is applied with those of activations."""
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
