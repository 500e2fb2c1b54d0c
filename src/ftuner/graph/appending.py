"""Outputs that append to an input in place, or that are written into it.

A decoder returns the keys and values of all tokens so far: `present = concat([past, new])`. If
`past` already lies where `present` is to be, a run writes the new rows alone. So such an output is
a part of memory that has room for more rows, and the input is its beginning. How many rows there is
room for depends on the number of rows alone: it is a dim like others, and a program is bound once
for each number of rows, wherever the past came from.

With a sliding window, a decoder keeps the last rows alone: `present = last(concat([last(past),
new]))`. Then the output is the end of that part of the memory, which moves on from run to run.

A cache has rows beyond those of the tokens so far, and data says where the new ones are written:
`present = write_rows(past, position, new)`. Then a run may write over rows of the input. The cache
keeps its length, or it is padded to as many rows as there are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftuner.core.dim import (
    Dim,
    Shape,
    Symbolic,
    ceil_quotient,
    maximum,
    row_major_strides,
)
from ftuner.core.index_expr import Operand
from ftuner.graph.ir import Graph, Node, Value, consumers, producers

ROOM_ROWS = 128
"""Memory has room for a multiple of this many rows. Derived: a copy moves up to three times the
bytes of all rows, which attention reads for each token; once in 128 tokens that adds some 2%."""


WRITES = ("write_rows", "scatter_elements", "scatter_nd")
"""Operators that write into a copy of their first operand, at positions that are data."""


class Appended(NamedTuple):
    """An output that is the end of a concatenation, which begins with the end of an input; or an
    input with rows written into it. Where no window slides, each end is everything."""

    input: int
    """The number of the input, as `output` of the output."""
    output: int
    axis: int
    """The axis along which rows are appended."""
    rows: Dim
    """Rows of the input that are kept, the last ones."""
    kept: Value
    """What is in the memory when a run begins: these rows, or the whole cache before new rows are
    written."""
    whole: Value
    """The concatenation, or the cache with the new rows."""
    slides: bool = False
    """Whether the output, or `kept`, may be fewer rows than there are."""
    writes: bool = False
    """Whether a run may write over rows of the input."""

    @property
    def room(self) -> Shape:
        """The shape of the memory that `whole` is a part of."""
        if self.whole.shape[self.axis] == self.rows:
            return self.whole.shape
        return memory_shape(self.whole.shape, self.axis, self.slides)

    @property
    def layout(self) -> Operand:
        """The layout of `whole` in that memory."""
        whole = self.whole
        return Operand(whole.dtype, whole.shape, row_major_strides(self.room))


class Copied(NamedTuple):
    """An output that begins with an input, or is written into it, which a run has to copy."""

    input: int
    output: int
    why: str


def appended_outputs(graph: Graph) -> tuple[Appended, ...]:
    """The outputs that can append to an input in place: concatenations that begin with an input of
    unknown extent, which nothing else reads where it matters how far its rows are apart; and the
    last rows of such ones. And inputs into which rows are written, which nothing else reads."""
    return tuple(found for found in grown_outputs(graph) if isinstance(found, Appended))


def grown_outputs(graph: Graph) -> tuple[Appended | Copied, ...]:
    """The outputs that are the end of a concatenation that begins with the end of an input, or an
    input into which rows are written: those that can be computed in place, and others with the
    reason."""
    made_by, readers = producers(graph), consumers(graph)
    inputs = {value: number for number, value in enumerate(graph.inputs)}
    given = {value for _, value in graph.outputs if value in inputs}
    first: dict[Value, str] = {}
    found: list[Appended | Copied] = []
    for number, (name, value) in enumerate(graph.outputs):
        pair = _concatenated(value, number, made_by, inputs) or _written(
            value, number, made_by, inputs
        )
        if pair is None:
            continue
        past = graph.inputs[pair.input]
        if pair.whole in first:
            why = f"output {first[pair.whole]} has the same rows"
        elif pair.writes and past in given:
            why = "it is also an output"
        else:
            why = _why_copied(pair, past, value, readers, made_by)
        if why:
            found.append(Copied(pair.input, number, why))
        else:
            first[pair.whole] = name
            found.append(pair)
    return tuple(found)


def _concatenated(
    value: Value, number: int, made_by: Mapping[Value, Node], inputs: Mapping[Value, int]
) -> Appended | None:
    """An output that is the end of a concatenation that begins with the end of an input."""
    whole = _all_rows(value, made_by)
    node = made_by.get(whole)
    if node is None or node.op != "concat" or len(node.inputs) == 1:
        return None
    kept, axis = node.inputs[0], node.attributes["axis"]
    past = _all_rows(kept, made_by)
    if past not in inputs:
        return None
    slides = value is not whole or kept is not past
    return Appended(inputs[past], number, axis, kept.shape[axis], kept, whole, slides)


def _written(
    value: Value, number: int, made_by: Mapping[Value, Node], inputs: Mapping[Value, int]
) -> Appended | None:
    """An output that is an input, or one with zeros after its rows, into which rows are written."""
    node = made_by.get(value)
    if node is None or node.op not in WRITES:
        return None
    kept = past = node.inputs[0]
    axis = node.attributes.get("axis", 0)
    pad = made_by.get(kept)
    if pad is not None and pad.attributes.get("mode") == "constant" and _adds_rows(pad, axis):
        past = pad.inputs[0]
    if past not in inputs or not value.rank:
        return None
    return Appended(inputs[past], number, axis, past.shape[axis], kept, value, writes=True)


def _adds_rows(pad: Node, axis: int) -> bool:
    """Whether a pad adds zeros after the last row, and nothing else."""
    attributes, (x, fill) = pad.attributes, pad.inputs
    others = [*attributes["before"], *attributes["after"][:axis], *attributes["after"][axis + 1 :]]
    rows = pad.output.shape[axis]
    return (
        all(extent == 0 for extent in others)
        and maximum(rows, x.shape[axis]) == rows
        and fill.constant is not None
        and not fill.constant.any()
    )


def _why_copied(
    pair: Appended, past: Value, value: Value, readers: Mapping[Value, Sequence[Node]],
    made_by: Mapping[Value, Node],
) -> str:  # fmt: skip
    """Why an output is not computed in the memory of its input; nothing if it can be."""
    axis, kept, whole = pair.axis, pair.kept, pair.whole
    node, before = made_by[whole], made_by.get(kept)
    others = _read(past, kept, readers)
    if pair.writes:
        # Any other reader might find rows that are written already.
        for reader in (node, before):
            if reader in others:
                others.remove(reader)
    else:
        if not all(_same_but_along(axis, x, y) for x, y in ((value, whole), (kept, past))):
            return "a part along another axis is kept"
        if not isinstance(past.shape[axis], Symbolic):
            return f"it has {past.shape[axis]} rows in every run"
        others = [reader for reader in others if not _takes_strides(reader, kept, node, made_by)]
    if others:
        return f"it is also read by: {', '.join(dict.fromkeys(r.op for r in others))}"
    return ""


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
