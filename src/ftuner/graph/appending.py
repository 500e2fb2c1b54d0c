"""Outputs that append to an input in place.

A decoder returns the keys and values of all tokens so far: `present = concat([past, new])`. If
`past` already lies where `present` is to be, a run writes the new rows alone. So such an output is
a part of memory that has room for more rows, and the input is its beginning. How many rows there is
room for depends on the number of rows alone: it is a dim like others, and a program is bound once
for each number of rows, wherever the past came from.

With a sliding window, a decoder keeps the last rows alone: `present = last(concat([last(past),
new]))`. Then the output is the end of that part of the memory, which moves on from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftuner.core.dim import Dim, Shape, Symbolic, ceil_quotient, row_major_strides
from ftuner.core.index_expr import Operand
from ftuner.graph.ir import Graph, Node, Value, consumers, producers

ROOM_ROWS = 128
"""Memory has room for a multiple of this many rows. Derived: a copy moves up to three times the
bytes of all rows, which attention reads for each token; once in 128 tokens that adds some 2%."""


class Appended(NamedTuple):
    """An output that is the end of a concatenation, which begins with the end of an input. Where
    no window slides, each end is everything."""

    input: int
    """The number of the input, as `output` of the output."""
    output: int
    axis: int
    """The axis along which rows are appended."""
    kept: Value
    """The rows of the input that the concatenation begins with."""
    whole: Value
    """The concatenation."""
    slides: bool
    """Whether the output, or `kept`, may be fewer rows than there are."""

    @property
    def room(self) -> Shape:
        """The shape of the memory that `whole` is a part of."""
        return memory_shape(self.whole.shape, self.axis, self.slides)

    @property
    def layout(self) -> Operand:
        """The layout of `whole` in that memory."""
        whole = self.whole
        return Operand(whole.dtype, whole.shape, row_major_strides(self.room))


class Copied(NamedTuple):
    """An output that begins with an input, which a run has to copy."""

    input: int
    output: int
    why: str


def appended_outputs(graph: Graph) -> tuple[Appended, ...]:
    """The outputs that can append to an input in place: concatenations that begin with an input of
    unknown extent, which nothing else reads where it matters how far its rows are apart; and the
    last rows of such ones."""
    return tuple(found for found in grown_outputs(graph) if isinstance(found, Appended))


def grown_outputs(graph: Graph) -> tuple[Appended | Copied, ...]:
    """The outputs that are the end of a concatenation that begins with the end of an input: those
    that can append to it in place, and others with the reason."""
    made_by, readers = producers(graph), consumers(graph)
    inputs = {value: number for number, value in enumerate(graph.inputs)}
    first: dict[Value, str] = {}
    found: list[Appended | Copied] = []
    for number, (name, value) in enumerate(graph.outputs):
        whole = _all_rows(value, made_by)
        node = made_by.get(whole)
        if node is None or node.op != "concat" or len(node.inputs) == 1:
            continue
        kept, axis = node.inputs[0], node.attributes["axis"]
        past = _all_rows(kept, made_by)
        if past not in inputs:
            continue
        ends = [(value, whole), (kept, past)]
        others = [
            reader for reader in _read(past, kept, readers)
            if not _takes_strides(reader, kept, node, made_by)
        ]  # fmt: skip
        why = ""
        if whole in first:
            why = f"output {first[whole]} has the same rows"
        elif not all(_same_but_along(axis, x, y) for x, y in ends):
            why = "a part along another axis is kept"
        elif not isinstance(past.shape[axis], Symbolic):
            why = f"it has {past.shape[axis]} rows in every run"
        elif others:
            why = f"it is also read by: {', '.join(dict.fromkeys(r.op for r in others))}"
        if why:
            found.append(Copied(inputs[past], number, why))
        else:
            first[whole] = name
            slides = any(x is not y for x, y in ends)
            found.append(Appended(inputs[past], number, axis, kept, whole, slides))
    return tuple(found)


def _read(past: Value, kept: Value, readers: Mapping[Value, Sequence[Node]]) -> list[Node]:
    """The nodes that read an input or its last rows."""
    return [*readers[past], *(readers[kept] if kept is not past else ())]


def _takes_strides(
    reader: Node, kept: Value, joined: Node, made_by: Mapping[Value, Node]
) -> bool:  # fmt: skip
    return reader in (joined, made_by.get(kept)) or (
        reader.op == "cast" and reader.inputs[0] is kept
    )


def _all_rows(value: Value, made_by: Mapping[Value, Node]) -> Value:
    """What a value is the last rows of along one axis; the value itself if it is not a slice."""
    node = made_by.get(value)
    if node is None or node.op != "slice" or any(step != 1 for step in node.attributes["steps"]):
        return value
    (x,) = node.inputs
    ends = zip(node.attributes["starts"], value.shape, x.shape, strict=True)
    is_end = all(start + extent == whole for start, extent, whole in ends)
    return x if is_end else value


def _same_but_along(axis: int, x: Value, y: Value) -> bool:
    extents = enumerate(zip(x.shape, y.shape, strict=True))
    return all(i == axis or one == other for i, (one, other) in extents)


def memory_shape(shape: Sequence[Dim], axis: int, slides: bool = False) -> Shape:
    """The shape of the memory that a tensor is a part of, along an axis. `slides`: whether a window
    moves on in it, for which there always is room."""
    rows = ceil_quotient(shape[axis], ROOM_ROWS) * ROOM_ROWS
    return (*shape[:axis], rows + ROOM_ROWS if slides else rows, *shape[axis + 1 :])
