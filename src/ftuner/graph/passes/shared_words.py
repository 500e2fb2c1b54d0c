"""Looks strings up once, before they are moved.

A host moves strings, node by node; moves of numbers are native, and mostly free. The strings that
are moved to look-ups become numbers of all words that these know, and look-ups become tables.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from ftuner.core.dim import product
from ftuner.core.dtype import STRING
from ftuner.core.symbolic import least_value
from ftuner.graph.algebra import apply, constant, gather
from ftuner.graph.ir import Graph, Node, Value, writing_to
from ftuner.graph.ops.learning import Words
from ftuner.graph.rewrite.rule import Rewriting
from ftuner.graph.rewrite.surroundings import Surroundings

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
