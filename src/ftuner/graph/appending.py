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

`grown_outputs` (`graph/growing.py`) finds them in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ftuner.core.dim import Dim, Shape, ceil_quotient, row_major_strides
from ftuner.core.index_expr import Operand
from ftuner.graph.ir import Value

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
