"""Outputs that append to an input in place.

A decoder returns the keys and values of all tokens so far: `present = concat([past, new])`. If
`past` already lies where `present` is to be, a run writes the new rows alone. So such an output is
a part of memory that has room for more rows, and the input is its beginning. How many rows there is
room for depends on the number of rows alone: it is a dim like others, and a program is bound once
for each number of rows, wherever the past came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftuner.core.dim import Dim, Shape, Symbolic, ceil_quotient, row_major_strides
from ftuner.core.index_expr import Operand
from ftuner.graph.ir import Graph, TensorType, Value, consumers, producers

ROOM_ROWS = 128
"""Memory has room for a multiple of this many rows. Derived: a copy moves up to three times the
bytes of all rows, which attention reads for each token; once in 128 tokens that adds some 2%."""


class Appended(NamedTuple):
    """An output that begins with an input."""

    input: int
    """The number of the input, as `output` of the output."""
    output: int
    axis: int
    """The axis along which rows are appended."""


def appended_outputs(graph: Graph) -> tuple[Appended, ...]:
    """The outputs that can append to an input in place: concatenations that begin with an input of
    unknown extent, which nothing else reads where it matters how far its rows are apart."""
    made_by, readers = producers(graph), consumers(graph)
    inputs = {value: number for number, value in enumerate(graph.inputs)}
    found: dict[Value, Appended] = {}
    for number, (_, value) in enumerate(graph.outputs):
        node = made_by.get(value)
        if node is None or node.op != "concat" or len(node.inputs) == 1 or value in found:
            continue
        past, axis = node.inputs[0], node.attributes["axis"]
        grows = past in inputs and isinstance(past.shape[axis], Symbolic)
        if grows and all(reader is node or reader.op == "cast" for reader in readers[past]):
            found[value] = Appended(inputs[past], number, axis)
    return tuple(found.values())


def memory_shape(shape: Sequence[Dim], axis: int) -> Shape:
    """The shape of the memory that a tensor is the beginning of, along an axis."""
    return (*shape[:axis], ceil_quotient(shape[axis], ROOM_ROWS) * ROOM_ROWS, *shape[axis + 1 :])


def with_room(type_: TensorType, axis: int) -> Operand:
    """The layout of a tensor in such memory."""
    strides = row_major_strides(memory_shape(type_.shape, axis))
    return Operand(type_.dtype, type_.shape, strides)
