"""Look-ups: those of all rows, those of strings, and those of 8-bit levels.

Look-ups and writes at the positions of all rows in their order are dropped, and so are writes at no
position. Exporters write `x[where] = f(x[where])`. Where the condition holds everywhere, or
nowhere, nothing is moved.

Strings are looked up once, before they are moved. A host moves strings, node by node; moves of
numbers are native, and mostly free. The strings that are moved to look-ups become numbers of all
words that these know, and look-ups become tables.

Functions of 8-bit levels become tables. A chain of pointwise nodes from one tensor of 8 bits to
another, such as an activation between a DequantizeLinear and a QuantizeLinear, is a function of 256
numbers: its results are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ftuner.core.dim import Dim, Shape, least_value, product, without_ones
from ftuner.core.dtype import INT8, STRING, UINT8
from ftuner.core.expr import is_expensive
from ftuner.graph.algebra import apply, constant, gather
from ftuner.graph.ir import Array, Graph, Node, TensorType, Value, writing_to
from ftuner.graph.operator import reference_results
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops.learning import Words
from ftuner.graph.ops.pointwise import is_pointwise
from ftuner.graph.rewrite.rule import Rewriting, rule
from ftuner.graph.rewrite.surroundings import Surroundings

# All rows.


@rule("gather", "gather_nd", "scatter_nd")
def whole_indices(node: Node, around: Surroundings) -> Value | None:
    """Replace look-ups of all rows by their operand, and writes of all rows by what is written."""
    source = _source(node, around)
    return None if source is None else source.reshape(node.output.shape)


def _source(node: Node, around: Surroundings) -> Value | None:
    """The operand whose elements the result of a look-up or a write has, in the same order."""
    x, indices, *updates = node.inputs
    if node.op == "gather":
        extent = x.shape[node.attributes["axis"]]
        return x if indices.rank == 1 and _along(indices, around) == extent else None
    if node.op == "gather_nd":
        whole = node.attributes["batch_dims"] == 0 and _covers(indices, x, around)
        return x if whole else None
    if 0 in updates[0].shape:
        return x
    whole = node.attributes["kind"] == "none" and _covers(indices, x, around)
    return updates[0] if whole else None


def _covers(indices: Value, x: Value, around: Surroundings) -> bool:
    """Whether indices are the positions of all elements, or of all rows, of x in their order."""
    depth = indices.shape[-1]
    if depth == 1:
        return x.rank > 0 and _along(indices, around) == x.shape[0]
    turned = around.producer_of(indices)
    if turned is None or turned.op != "transpose" or turned.attributes["perm"] != (1, 0):
        return False
    joined = around.producer_of(turned.inputs[0])
    if joined is None or joined.op != "concat" or joined.attributes["axis"] != 0:
        return False
    rows = joined.inputs
    if len(rows) != depth or len(rows) > x.rank:
        return False
    shape = x.shape[: len(rows)]
    return all(_counts(row, axis, shape, around) for axis, row in enumerate(rows))


def _along(value: Value, around: Surroundings) -> Dim | None:
    """n if a tensor has the elements 0, 1, ..., n - 1, all along one axis; else None."""
    extents = without_ones(value.shape)
    if len(extents) != 1:
        return None
    while (node := around.producer_of(value)) is not None:
        if node.op == "iota":
            return extents[0] if node.output.shape[node.attributes["axis"]] == extents[0] else None
        if node.op not in ("reshape", "transpose") or without_ones(node.inputs[0].shape) != extents:
            return None
        (value,) = node.inputs
    return None


def _counts(row: Value, axis: int, shape: Shape, around: Surroundings) -> bool:
    """Whether a row has the index along an axis of each element of a shape."""
    reshape = around.producer_of(row)
    if reshape is None or reshape.op != "reshape" or reshape.inputs[0].shape != shape:
        return False
    (value,) = reshape.inputs
    node = around.producer_of(value)
    if node is not None and node.op == "broadcast":
        (value,) = node.inputs
        node = around.producer_of(value)
    if value.shape != tuple(n if i == axis else 1 for i, n in enumerate(shape)):
        return False
    if value.constant is not None:
        return bool(np.array_equal(value.constant.ravel(), np.arange(value.constant.size)))
    return node is not None and node.op == "iota" and node.attributes["axis"] == axis


# Strings.

MOVES = frozenset({"gather", "reshape", "slice", "transpose"})
"""Their first operand is what is moved."""


class _LookUp(NamedTuple):
    node: Node
    moves: list[Node]
    """From the strings to the look-up, the last one first."""


def share_words(graph: Graph) -> Graph:
    """Have the look-ups of strings that are moved share one look-up of all of them, where these are
    no more than are looked up now."""
    around = Surroundings(graph)
    groups: dict[Value, list[_LookUp]] = {}
    for node in graph.nodes:
        if node.op == "translated" and node.output.dtype != STRING:
            (source,), moves = node.inputs, []
            while (move := around.producer_of(source)) is not None and move.op in MOVES:
                moves.append(move)
                source = move.inputs[0]
            groups.setdefault(source, []).append(_LookUp(node, moves))
    new = Rewriting(graph)
    with writing_to(new):
        for source, group in groups.items():
            read = sum((product(look_up.node.output.shape) for look_up in group), 0)
            more = least_value(read - product(source.shape))
            if any(look_up.moves for look_up in group) and more is not None and more >= 0:
                new.name = group[0].node.output.name
                _share(source, group, new)
    return new.rewritten()


def _share(source: Value, group: list[_LookUp], new: Rewriting) -> None:
    """Write the shared look-up."""
    tables: list[Words] = [look_up.node.attributes["words"] for look_up in group]
    words = tuple(dict.fromkeys(chain.from_iterable(table.words for table in tables)))
    numbers = apply("translated", source, words=Words(words, np.arange(len(words) + 1)))
    for (node, moves), table in zip(group, tables, strict=True):
        found = numbers
        for move in reversed(moves):
            found = apply(move.op, found, *move.inputs[1:], **move.attributes)
        # The last word, which no table has, stands for all others.
        values = np.append(table.of(words, len(words)), table.values[-1:])
        new.same[node.output] = gather(constant(values, node.output.dtype), found)


# Levels.

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
                nodes = [graph.nodes[n] for n in _chain(graph, number, makers)]
                if _pays(nodes):
                    new.name = node.output.name
                    new.same[node.output] = _looked_up(found, nodes)
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


def _pays(nodes: Sequence[Node]) -> bool:
    roundings = sum(node.op == "rint" for node in nodes)
    return roundings > MOST_ROUNDINGS or any(is_expensive(node.op) for node in nodes)


def _looked_up(root: Value, nodes: Sequence[Node]) -> Value:
    known: dict[Value, Array] = {root: np.arange(256, dtype=np.uint8).view(root.dtype.name)}
    for node in nodes:
        operands = [
            (known[v] if v.constant is None else v.constant.reshape(()), v.type)
            for v in node.inputs
        ]
        types = [TensorType(node.output.dtype, (256,))]
        (known[node.output],) = reference_results(
            OPERATORS[node.op], operands, node.attributes, types
        )
    result = nodes[-1].output
    table = constant(known[result], result.dtype)
    levels = root if root.dtype == UINT8 else apply("bit_cast", root, of=root.dtype, to=UINT8)
    return apply("look_up", table, levels)
