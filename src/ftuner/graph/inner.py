"""Nodes that run graphs. What such a graph reads of the values around it become operands of the
node. So do extents that it reads: of each symbol that no operand has there is an empty operand with
it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ftuner.core.dim import UsedSymbols, symbol
from ftuner.core.dtype import BOOL
from ftuner.graph.algebra import apply, constant
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, TensorType, Value, used_dims


def choose(
    outer: Builder, condition: Value, inners: Sequence[Builder], results: Sequence[Sequence[Value]],
    types: Sequence[TensorType], counts: Sequence[str] = (),
) -> list[Value]:  # fmt: skip
    """The results of the first of two graphs where a condition holds, else of the second.

    Args:
        outer: of the graph around.
        condition: a scalar of bool.
        inners: the builders of both graphs, from `Builder.within`.
        results: the values that each graph gives, of the same dtypes and numbers of axes.
        types: of what the node gives.
        counts: symbols in these that only the graphs know.
    """
    each = [closed(x, [], found) for x, found in zip(inners, results, strict=True)]
    captured = list(dict.fromkeys(v for _, found in each for v in found))
    then, otherwise = (replace(graph, inputs=tuple(captured)) for graph, _ in each)
    made = outer.add_many(
        "choose", condition, *captured, then=then, otherwise=otherwise, types=tuple(types),
        counts=tuple(counts),
    )  # fmt: skip
    return list(made)


def closed(
    inner: Builder, given: Sequence[Value], outputs: Sequence[Value]
) -> tuple[Graph, list[Value]]:
    """The graph within a node, whose inputs are those given and what it reads around it; and the
    operands for the latter."""
    named = [(f"result {i}", v) for i, v in enumerate(outputs)]
    graph = inner.graph(given, named)
    made = {*given, *(v for node in graph.nodes for v in node.outputs)}
    read = [v for node in graph.nodes for v in node.inputs] + [v for _, v in graph.outputs]
    captured = list(dict.fromkeys(v for v in read if v.constant is None and v not in made))
    inputs = [*given, *captured]
    used = symbols_used(graph, inputs)
    known = {str(n) for v in inputs for n in v.shape} | bound_within(inner)
    for name in used:
        if name not in known:
            nothing = constant(np.zeros((1, 0), np.bool_), BOOL)
            captured.append(apply("broadcast", nothing, shape=(symbol(name), 0)))
    return replace(graph, inputs=(*given, *captured)), captured


def symbols_used(graph: Graph, inputs: Iterable[Value]) -> list[str]:
    """The symbols of a graph, and of the values that it is given."""
    found = UsedSymbols()
    for value in (*inputs, *(v for _, v in graph.outputs)):
        found.add(value.shape)
    for node in graph.nodes:
        found.add(used_dims(node))
    found.add(side for c in graph.constraints for side in (c.x, c.y))
    return list(found.names)


def bound_within(inner: Builder) -> set[str]:
    """The symbols that nodes of an inner graph bind."""
    return {name for node in inner.nodes for name in node.binds}
