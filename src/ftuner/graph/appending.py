"""Outputs that append to an input in place, or that are written into it, and their memory.

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

`grown_outputs` (`graph/appending.py`) finds them in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ftuner.core.dim import Dim, Shape, Symbolic, ceil_quotient, maximum, row_major_strides
from ftuner.core.index_expr import Operand
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewrite.surroundings import Surroundings

ROOM_ROWS = 128
"""Memory has room for a multiple of this many rows. Derived: a copy moves up to three times the
bytes of all rows, which attention reads for each token; once in 128 tokens that adds some 2%."""


class Appended(NamedTuple):
    """An output that is the end of a tensor that begins with the end of an input, or an input with
    rows written into it. Where no window slides, each end is everything."""

    input: int
    """The number of the input, as `output` of the output."""
    output: int
    axis: int
    """The axis along which rows are appended."""
    rows: Dim
    """Rows of the input that are kept, the last ones."""
    whole: Value
    """The tensor that begins with them."""
    kept: tuple[Value, ...]
    """Values that are in the memory when a run begins: the rows of each of `parts`, then others."""
    parts: tuple[Value, ...]
    """What a run computes in the memory: `whole`, or what is stacked to it."""
    stacked: int | None = None
    """The axis of `whole` along which it is stacked, which a part and its rows may lack. None if
    `whole` is the only part."""
    slides: bool = False
    """Whether the output, or what is kept, may be fewer rows than there are."""
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

    @property
    def layouts(self) -> dict[Value, Operand]:
        """The layouts of `kept` and `parts` in that memory."""
        whole, axis = self.layout, self.stacked
        found = {v: replace(whole, shape=v.shape) for v in (*self.kept, *self.parts)}
        if axis is None:
            return found
        for number, values in enumerate(zip(self.kept, self.parts, strict=False)):
            for value in values:
                strides = list(whole.strides)
                if value.rank < len(strides):
                    del strides[axis]
                offset = number * whole.strides[axis]
                found[value] = Operand(whole.dtype, value.shape, tuple(strides), offset)
        return found


class Copied(NamedTuple):
    """An output that begins with an input, or is written into it, which a run has to copy."""

    input: int
    output: int
    why: str


def memory_shape(shape: Sequence[Dim], axis: int, slides: bool = False) -> Shape:
    """The shape of the memory that a tensor is a part of, along an axis. `slides`: whether a window
    moves on in it, for which there always is room."""
    rows = ceil_quotient(shape[axis], ROOM_ROWS) * ROOM_ROWS
    return (*shape[:axis], rows + ROOM_ROWS if slides else rows, *shape[axis + 1 :])


WRITES = ("write_rows", "scatter_elements", "scatter_nd")
"""Operators that write into a copy of their first operand, at positions that are data."""


def appended_outputs(graph: Graph) -> tuple[Appended, ...]:
    """The outputs that can append to an input in place."""
    return tuple(found for found in grown_outputs(graph) if isinstance(found, Appended))


def grown_outputs(graph: Graph) -> tuple[Appended | Copied, ...]:
    """The outputs that begin with rows of an input, or are an input into which rows are written:
    those that can be computed in place, and others with the reason."""
    given = _Given(graph)
    first: dict[Value, str] = {}
    found: list[Appended | Copied] = []
    for number, (name, value) in enumerate(graph.outputs):
        tried = (spelling(given, value, number) for spelling in SPELLINGS)
        pair = next((x for x in tried if x is not None), None)
        if pair is None:
            continue
        if pair.whole in first:
            why = f"output {first[pair.whole]} has the same rows"
        else:
            why = given.why_copied(pair)
        if why:
            found.append(Copied(pair.input, number, why))
        else:
            first[pair.whole] = name
            found.append(pair)
    return tuple(found)


class _Given(Surroundings):
    """A graph, and the nodes around each value."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.numbers = {value: number for number, value in enumerate(graph.inputs)}
        self._graph = graph

    def why_copied(self, pair: Appended) -> str:
        """Why an output is not computed in the memory of its input; nothing if it can be."""
        past, (_, value) = self._graph.inputs[pair.input], self._graph.outputs[pair.output]
        if pair.writes:
            if past in self._outputs:
                return "it is also an output"
        elif pair.stacked is None:
            ends = ((value, pair.whole), (pair.kept[0], past))
            if not all(_same_but_along(pair.axis, x, y) for x, y in ends):
                return "a part along another axis is kept"
        rows = past.shape[pair.axis]
        if not pair.writes and not isinstance(rows, Symbolic):
            return f"it has {rows} rows in every run"
        others = [node.op for node in self._others(pair, past)]
        return f"it is also read by: {', '.join(dict.fromkeys(others))}" if others else ""

    def _others(self, pair: Appended, past: Value) -> list[Node]:
        """The nodes that read the input, or what is kept of it, where it matters how far its rows
        are apart, or whether rows have been written over."""
        # What leads from the input to what is kept.
        between = dict.fromkeys([past, *pair.kept])
        for value in pair.kept:
            while value is not past:
                value = self._producers[value].inputs[0]
                between[value] = None
        leading = [self._producers[value] for value in between if value is not past]
        parts = [self._producers[part] for part in pair.parts]
        found: list[Node] = []
        for value in between:
            read = list(self.consumers(value))
            if not pair.writes:
                # A conversion takes any strides.
                strided = [r for r in read if r.op == "cast" and value in pair.kept]
                found += [r for r in read if r not in (*leading, *parts, *strided)]
                continue
            # Any other reader might find rows that are written already.
            for reader in (*leading, *parts):
                if reader in read:
                    read.remove(reader)
            found += [r for r in read if not self._writes_alike(r, parts[0])]
        return found

    def _writes_alike(self, reader: Node, written: Node) -> bool:
        """Whether a reader converts a cache, of which the rows that `written` writes are written
        over: so it does not matter whether they are in the cache already."""
        if reader.op != "cast" or written.op != "write_rows":
            return False
        value = reader.output
        while (node := self.only_consumer(value)) is not None:
            if node.op == written.op:
                alike = node.inputs[1] is written.inputs[1]
                alike = alike and node.attributes == written.attributes
                return alike and node.inputs[2].shape == written.inputs[2].shape
            if node.op != "pad" or not _adds_rows(node, written.attributes["axis"]):
                return False
            value = node.output
        return False


def _concatenated(given: _Given, value: Value, number: int) -> Appended | None:
    """`last(concat([last(past), new]))`."""
    whole = _all_rows(given, value)
    node = given.producer(whole, "concat")
    if node is None or len(node.inputs) == 1:
        return None
    kept, axis = node.inputs[0], node.attributes["axis"]
    past = _all_rows(given, kept)
    if past not in given.numbers:
        return None
    slides = value is not whole or kept is not past
    return Appended(
        given.numbers[past], number, axis, kept.shape[axis], whole, (kept,), (whole,),
        slides=slides,
    )  # fmt: skip


def _stacked(given: _Given, value: Value, number: int) -> Appended | None:
    """`stack([concat([past[0], new_key]), concat([past[1], new_value])])`."""
    node = given.producer(value, "concat")
    if node is None:
        return None
    axis = node.attributes["axis"]
    past: Value | None = None
    parts: list[Value] = []
    kept: list[Value] = []
    rows: set[int] = set()
    for at, piece in enumerate(node.inputs):
        part = _without_axis(given, piece, axis)
        joined = given.producer(part, "concat")
        if piece.shape[axis] != 1 or joined is None or len(joined.inputs) == 1:
            return None
        begin = joined.inputs[0]
        piece_of_past = _without_axis(given, begin, axis, back=True)
        of = given.producer(piece_of_past, "slice")
        if of is None or not _is_element(of, axis, at) or past not in (None, of.inputs[0]):
            return None
        past = of.inputs[0]
        along = joined.attributes["axis"]
        rows.add(along + 1 if part is not piece and along >= axis else along)
        if begin.rank != part.rank or (part is piece) != (begin is piece_of_past):
            return None
        parts.append(part)
        kept.append(begin)
    if past not in given.numbers or past.shape[axis] != len(parts) or len(rows) != 1:
        return None
    (row,) = rows
    if row == axis or len(set(parts)) < len(parts):
        return None
    return Appended(
        given.numbers[past], number, row, past.shape[row], value, (*kept, past), tuple(parts),
        stacked=axis,
    )  # fmt: skip


def _written(given: _Given, value: Value, number: int) -> Appended | None:
    """`write_rows(past, position, new)`, or the same of a past with zeros after its rows."""
    node = given.producer(value, *WRITES)
    if node is None or not value.rank:
        return None
    cache = past = node.inputs[0]
    axis = node.attributes.get("axis", 0)
    pad = given.producer(cache, "pad")
    if pad is not None and _adds_rows(pad, axis):
        past = pad.inputs[0]
    if past not in given.numbers:
        return None
    kept = (past,) if cache is past else (past, cache)
    return Appended(
        given.numbers[past], number, axis, past.shape[axis], value, kept, (value,), writes=True
    )


SPELLINGS: tuple[Callable[[_Given, Value, int], Appended | None], ...] = (
    _concatenated, _stacked, _written
)  # fmt: skip
"""What an output may be: functions of the graph, the output and its number."""


def _adds_rows(pad: Node, axis: int) -> bool:
    """Whether a pad adds zeros after the last row, and nothing else."""
    attributes, x = pad.attributes, pad.inputs[0]
    others = [*attributes["before"], *attributes["after"][:axis], *attributes["after"][axis + 1 :]]
    rows = pad.output.shape[axis]
    if attributes["mode"] != "constant" or any(extent != 0 for extent in others):
        return False
    fill = pad.inputs[1].constant
    return maximum(rows, x.shape[axis]) == rows and fill is not None and not fill.any()


def _without_axis(given: _Given, value: Value, axis: int, back: bool = False) -> Value:
    """What a value is with one more axis of extent 1, or, `back`, with one less; the value itself
    if it is not."""
    node = given.producer(value, "reshape")
    if node is None:
        return value
    x = node.inputs[0]
    more, less = (x, value) if back else (value, x)
    added = (*less.shape[:axis], 1, *less.shape[axis:])
    return x if more.shape == added else value


def _is_element(node: Node, axis: int, at: int) -> bool:
    """Whether a slice is the element `at` along an axis, and everything along the others."""
    attributes, x = node.attributes, node.inputs[0]
    if any(step != 1 for step in attributes["steps"]):
        return False
    wanted = [(at, 1) if i == axis else (0, n) for i, n in enumerate(x.shape)]
    return wanted == list(zip(attributes["starts"], node.output.shape, strict=True))


def _all_rows(given: _Given, value: Value) -> Value:
    """What a value is the last rows of along one axis; the value itself if it is not a slice."""
    node = given.producer(value, "slice")
    if node is None or any(step != 1 for step in node.attributes["steps"]):
        return value
    (x,) = node.inputs
    ends = zip(node.attributes["starts"], value.shape, x.shape, strict=True)
    is_end = all(start + extent == whole for start, extent, whole in ends)
    return x if is_end else value


def _same_but_along(axis: int, x: Value, y: Value) -> bool:
    extents = enumerate(zip(x.shape, y.shape, strict=True))
    return all(i == axis or one == other for i, (one, other) in extents)
