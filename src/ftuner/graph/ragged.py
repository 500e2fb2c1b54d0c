"""Which steps of a lowered graph compute the rows of several requests at once.

The inputs of a request begin with axes that count its *rows*, such as its sentences and their
tokens. A buffer with a fixed number of elements for each row is *ragged*: those of several requests
follow each other in memory, and nothing is padded. A step is row-wise if row r of all that it
writes is computed from row r of what it reads and from constants alone, whatever r and the number
of rows are: run once on all rows, it computes for each request what it would compute for that one
alone. Each kind of step proves that from what it loads and stores (`row_wise`); all others run for
one request after the other. Rows are those of memory: no step needs to know the axes of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, runtime_checkable

from ftuner.core.dim import Dim, Symbolic, product, quotient
from ftuner.core.symbolic import Symbol
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Graph
from ftuner.graph.steps import Lowered, Step

MOST_ROW_AXES = 2
"""Axes that count rows at most: those of requests, and of what each of them has."""
Loops = Iterable[tuple[Dim, Dim]]
"""The coefficient and the extent of each other axis that an access walks."""


@dataclass(frozen=True)
class Rows:
    """The rows of a request."""

    count: Symbolic

    def each(self, extent: Dim) -> int | None:
        """Return how many of `extent` there are for each row; None if requests differ in that."""
        found = quotient(extent, self.count)
        return found if isinstance(found, int) and found * self.count == extent else None

    def width(self, buffer: Buffer) -> int | None:
        """The elements of a row of a ragged buffer; None if the buffer is not ragged."""
        return None if buffer.is_constant else self.each(buffer.elements)

    def stays(self, buffer: Buffer, offset: Dim, stride: Dim, each: int, others: Loops) -> bool:
        """Whether row r of an access is in row r of a buffer. `stride`: from one index to the next
        along the axis of rows, of which each row has `each`."""
        width = self.width(buffer)
        if width is None or stride * each != width or not isinstance(offset, int):
            return False
        low = high = offset
        for coefficient, extent in (*others, (stride, each)):
            if not isinstance(coefficient, int) or not isinstance(extent, int):
                return False
            reach = coefficient * (extent - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low >= 0 and high < width

    def keeps(self, view: View, axis: int) -> bool:
        """The same of a view, of which `axis` has the rows."""
        each = self.each(view.shape[axis])
        if each is None:
            return False
        # A view may be of words, several elements of the buffer. Sums of blocks depend on how many
        # rows there are.
        dtype = view.layout.dtype
        word = dtype.itemsize // view.buffer.dtype.itemsize if dtype.kind == "word" else 1
        loops = [
            (n * word, extent) for n, extent in zip(view.layout.strides, view.shape, strict=True)
        ]
        stride, _ = loops.pop(axis)
        loops.append((1, word))
        return self.stays(view.buffer, view.layout.offset * word, stride, each, loops)


@runtime_checkable
class RowWise(Protocol):
    """A step of a kind that may be row-wise."""

    def row_wise(self, rows: Rows) -> str:
        """Why the step is not row-wise; empty if it is."""
        ...


@dataclass(frozen=True)
class RaggedSteps:
    """The steps of a lowered graph that run once for several requests."""

    rows: Rows
    reasons: tuple[str, ...]
    """Of each step: why it runs for one request after the other; empty if it is row-wise."""

    def segments(self) -> list[tuple[bool, int]]:
        """Runs of successive steps, each with whether they are row-wise and with its length."""
        return [(wise, len([*run])) for wise, run in groupby(not why for why in self.reasons)]


def ragged_steps(lowered: Lowered) -> RaggedSteps | None:
    """The steps that are row-wise, by the rows of which most steps are; None if no matrix product
    is: nothing is then gained by the rows of several requests."""
    found = [
        RaggedSteps(rows, tuple(_reason(step, rows) for step in lowered.steps))
        for rows in _candidates(lowered.graph)
    ]
    best = max(found, key=lambda x: x.reasons.count(""), default=None)
    if best is None:
        return None
    kinds = {s.kind for s, why in zip(lowered.steps, best.reasons, strict=True) if not why}
    return best if "product" in kinds else None


def _reason(step: Step, rows: Rows) -> str:
    if not isinstance(step, RowWise):
        return f"{step.kind} works within a request"
    return step.row_wise(rows)


def _candidates(graph: Graph) -> list[Rows]:
    """What may count rows: the first axis, or the first two axes, of an input, of which each is a
    symbol or one."""
    counts: dict[Dim, None] = {}
    for value in graph.inputs:
        for axes in range(1, min(value.rank, MOST_ROW_AXES) + 1):
            counts.setdefault(product(value.shape[:axes]))
    return [Rows(n) for n in counts if isinstance(n, Symbolic) and _counts(n)]


def _counts(dim: Symbolic) -> bool:
    """Whether a dim is the product of distinct symbols."""
    ((atoms, factor), *others) = dim.terms
    plain = all(isinstance(atom, Symbol) for atom in atoms)
    return not others and factor == 1 and plain and len({*atoms}) == len(atoms)


@dataclass(frozen=True)
class RowSteps(Lowered):
    """The row-wise steps of a lowered graph."""

    between: tuple[tuple[int, frozenset[Buffer]], ...] = ()
    """Where other steps run: the number of the step that follows, and what they access."""

    def lifetimes(self) -> dict[Buffer, tuple[int, int]]:
        """Other steps access buffers at the end of the step before and at the start of the next."""
        found, last = super().lifetimes(), len(self.steps) - 1
        for number, buffers in self.between:
            for buffer in buffers & found.keys():
                first, end = found[buffer]
                found[buffer] = min(first, max(number - 1, 0)), max(end, min(number, last))
        # Memory is given in the order of the first access.
        return dict(sorted(found.items(), key=lambda entry: entry[1]))


@dataclass(frozen=True)
class Division:
    """The steps of a lowered graph in two programs, which take turns."""

    by_rows: RowSteps
    of_request: Lowered
    """Without its steps, the others: `moved` buffers are further inputs of them."""
    shared: tuple[Buffer, ...]
    """Buffers in the arena of the row-wise steps that other steps access."""
    kept: tuple[Buffer, ...]
    """Buffers that other steps of several turns access, and no row-wise ones."""
    moved: Mapping[Buffer, Buffer]
    """The further inputs, by the `shared` and then the `kept` buffers that they stand for."""
    inputs: tuple[Buffer, ...]
    """Inputs that the row-wise steps read."""
    outputs: tuple[Buffer, ...]
    """Outputs that the row-wise steps access."""


def divide(lowered: Lowered, found: RaggedSteps) -> Division:
    """The steps in two programs."""
    wise = [s for s, why in zip(lowered.steps, found.reasons, strict=True) if not why]
    others = [s for s, why in zip(lowered.steps, found.reasons, strict=True) if why]
    by_rows = dict.fromkeys(b for s in wise for b in (*s.reads, *s.writes))
    between: list[tuple[int, frozenset[Buffer]]] = []
    before = at = 0
    for is_wise, count in found.segments():
        if is_wise:
            before += count
            continue
        run = others[at : at + count]
        between.append((before, frozenset(b for s in run for b in (*s.reads, *s.writes))))
        at += count
    turns = Counter(b for _, buffers in between for b in buffers if b.kind == "arena")
    order = dict.fromkeys(b for s in others for b in (*s.reads, *s.writes) if b in turns)
    shared = tuple(b for b in order if b in by_rows)
    kept = tuple(b for b in order if b not in by_rows and turns[b] > 1)
    inputs = len(lowered.inputs)
    moved = {
        b: replace(b, kind="input", number=number)
        for number, b in enumerate((*shared, *kept), inputs)
    }
    return Division(
        RowSteps(lowered.graph, tuple(wise), lowered.inputs, (), (), tuple(between)),
        replace(lowered, steps=(), inputs=(*lowered.inputs, *moved.values())),
        shared, kept, moved,
        tuple(b for b in by_rows if b.kind == "input"),
        tuple(b for b in by_rows if b.kind == "output"),
    )  # fmt: skip
