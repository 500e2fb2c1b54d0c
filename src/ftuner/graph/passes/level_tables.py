"""Functions of 8-bit levels, as tables.

A chain of pointwise nodes from one tensor of 8 bits to another, such as an activation between a
DequantizeLinear and a QuantizeLinear, is a function of 256 numbers: its results are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ftuner.core.dtype import INT8, UINT8
from ftuner.core.expr import is_expensive
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Array, Graph, Node, TensorType, Value, building, writing_to
from ftuner.graph.operator import reference_results
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops.pointwise import is_pointwise
from ftuner.graph.rewrite.rule import Rewriting

BYTES = (INT8, UINT8)
MOST_ROUNDINGS = 1
"""Roundings of a chain that is not a table without a function that is expensive. Derived: a look-up
takes about as many instructions as one."""


def level_tables(graph: Graph) -> Graph:
    """The pass that writes tables."""
    new = Rewriting(graph)
    roots: dict[Value, Value] = {}
    """The tensor of 8 bits that a value is a function of, element by element."""
    makers: dict[Value, int] = {}
    with writing_to(new):
        for number, node in enumerate(graph.nodes):
            found = _root(node, roots)
            if found is not None:
                roots[node.output], makers[node.output] = found, number
            if found is not None and node.op == "cast" and node.output.dtype in BYTES:
                chain = [graph.nodes[n] for n in _chain(graph, number, makers)]
                if _pays(chain):
                    new.name = node.output.name
                    new.same[node.output] = _looked_up(found, chain)
        return new.rewritten()


def _root(node: Node, roots: Mapping[Value, Value]) -> Value | None:
    """Returns the one tensor that the result of a node is a function of, element by element, if
    there is one."""
    if not is_pointwise(node.op):
        return None
    tensors = [v for v in node.inputs if v.constant is None or v.constant.size != 1]
    found = {roots.get(v, v if v.dtype in BYTES else None) for v in tensors}
    root = found.pop() if len(found) == 1 else None
    same = root is not None and root.constant is None and root.shape == node.output.shape
    return root if same else None


def _chain(graph: Graph, number: int, makers: Mapping[Value, int]) -> list[int]:
    """The nodes that give a node's result of its root, in their order."""
    found: set[int] = set()
    left = {number}
    while left:
        found |= left
        read = {v for n in left for v in graph.nodes[n].inputs}
        left = {makers[v] for v in read if v in makers} - found
    return sorted(found)


def _pays(chain: Sequence[Node]) -> bool:
    roundings = sum(node.op == "rint" for node in chain)
    return roundings > MOST_ROUNDINGS or any(is_expensive(node.op) for node in chain)


def _looked_up(root: Value, chain: Sequence[Node]) -> Value:
    known: dict[Value, Array] = {root: np.arange(256, dtype=np.uint8).view(root.dtype.name)}
    for node in chain:
        operands = [
            (known[v] if v.constant is None else v.constant.reshape(()), v.type)
            for v in node.inputs
        ]
        types = [TensorType(node.output.dtype, (256,))]
        (known[node.output],) = reference_results(
            OPERATORS[node.op], operands, node.attributes, types
        )
    result = chain[-1].output
    table = building().constant(known[result], result.dtype)
    levels = root if root.dtype == UINT8 else apply("bit_cast", root, of=root.dtype, to=UINT8)
    return apply("look_up", table, levels)
