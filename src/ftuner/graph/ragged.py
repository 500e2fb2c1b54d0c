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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import NamedTuple, Protocol, runtime_checkable

from ftuner.core.dim import Dim, Symbolic, product, quotient, symbols_of
from ftuner.core.frozen import dataclass
from ftuner.core.symbolic import Symbol
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Graph, equal_symbols
from ftuner.graph.steps import Lowered, Step

MOST_ROW_AXES = 2
"""Axes that count rows at most: those of requests, and of what each of them has."""
Loops = Iterable[tuple[Dim, Dim]]
"""The coefficient and the extent of each other axis that an access walks."""
NOT_ASKED = 'unpad="auto" was not given when the model was compiled'


@dataclass(frozen=True)
class Axes:
    """The axes of an input or output that padding concerns."""

    requests: int | None
    """The axis that counts requests."""
    lengths: tuple[int, ...]
    """Those that count positions."""


@dataclass(frozen=True)
class Padding:
    """How a batch without its padding is the same."""

    mask: int
    """The number of the input that is zero in tails."""
    inputs: tuple[Axes, ...]
    outputs: tuple[Axes, ...]


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

    def widths(self, buffers: Iterable[Buffer]) -> dict[Buffer, int]:
        """Return the elements of a row of each of some ragged buffers."""
        found = {}
        for buffer in buffers:
            width = self.width(buffer)
            assert width is not None
            found[buffer] = width
        return found

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

    def follow(self, view: View, axis: int, sequences: int | None) -> bool:
        """Whether those of a view follow each other in memory: along `axis` those of a sequence,
        and along the axis `sequences`, if there is one, the sequences."""
        layout, count = view.layout, view.shape[axis]
        width = self.width(view.buffer)
        if width is None or layout.dtype != view.buffer.dtype or layout.strides[axis] != width:
            return False
        if sequences is not None:
            if layout.strides[sequences] != count * width:
                return False
            count = count * view.shape[sequences]
        loops = enumerate(zip(layout.strides, view.shape, strict=True))
        others = [x for n, x in loops if n not in (axis, sequences) and x[1] != 1]
        return count == self.count and self.stays(view.buffer, layout.offset, width, 1, others)

    def keeps(self, view: View, axis: int) -> bool:
        """Whether a view, whose rows are along `axis`, keeps rows apart."""
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


class Turn(NamedTuple):
    """Successive steps of one of the programs of a batch: of the row-wise steps of one kind, or of
    all others."""

    kind: int | None
    """As of `RaggedSteps`."""
    first: int
    """The number of the first step among those of the program."""
    steps: int


@dataclass(frozen=True)
class RaggedSteps:
    """The steps of a lowered graph that run once for several requests."""

    rows: tuple[Rows, ...]
    """The kinds of rows by which steps are row-wise, such as tokens and texts."""
    kinds: tuple[int | None, ...]
    """Of each step: the number of its kind of rows; None if it runs for one request after the
    other."""
    reasons: tuple[str, ...]
    """Of each step: why it runs for one request after the other; empty if it is row-wise."""
    apart: frozenset[int] = frozenset()
    """The numbers of steps that have a turn of their own."""

    def turns(self) -> list[Turn]:
        """The turns of the programs of a batch."""
        found: list[Turn] = []
        next_of = Counter[int | None]()
        ends = [(kind, n if n in self.apart else None) for n, kind in enumerate(self.kinds)]
        for (kind, _), run in groupby(ends):
            found.append(Turn(kind, next_of[kind], len([*run])))
            next_of[kind] += found[-1].steps
        return found


def ragged_steps(lowered: Lowered, exact: bool = True) -> RaggedSteps | None:
    """The steps that are row-wise, by the rows of which most steps are; None if no matrix product
    is: nothing is then gained by the rows of several requests. Unless `exact`, also products by
    fewer rows of a request, such as that of its last token, which sum in another order alone."""
    found = _of_one_kind(lowered, _candidates(lowered.graph), [*range(len(lowered.steps))])
    if found is None:
        return None
    counted = {*symbols_of((found.rows[0].count,))}
    fewer = [r for r in _candidates(lowered.graph) if {*symbols_of((r.count,))} < counted]
    rest = [number for number, kind in enumerate(found.kinds) if kind is None]
    further = None if exact else _of_one_kind(lowered, fewer, rest)
    if further is None:
        return found
    pairs = [*zip(found.kinds, further.kinds, strict=True)]
    return RaggedSteps(
        (*found.rows, *further.rows),
        tuple(x if y is None else 1 for x, y in pairs),
        tuple("" if kind == 0 else why
              for why, (_, kind) in zip(found.reasons, pairs, strict=True)),
    )  # fmt: skip


def _of_one_kind(
    lowered: Lowered, candidates: Iterable[Rows], numbers: Sequence[int]
) -> RaggedSteps | None:
    """The steps of some numbers that are row-wise, by the candidate with most of them."""
    best = None
    for rows in candidates:
        reasons = ["not asked"] * len(lowered.steps)
        for number in numbers:
            step = lowered.steps[number]
            why = f"{step.kind} works within a request"
            reasons[number] = step.row_wise(rows) if isinstance(step, RowWise) else why
        kinds = tuple(None if why else 0 for why in reasons)
        if best is None or kinds.count(0) > best.kinds.count(0):
            best = RaggedSteps((rows,), kinds, tuple(reasons))
    if best is None:
        return None
    wise = {s.kind for s, kind in zip(lowered.steps, best.kinds, strict=True) if kind == 0}
    return best if "product" in wise else None


def _candidates(graph: Graph) -> list[Rows]:
    """What may count rows: the first axis, or the first two axes, of an input, of which each is a
    symbol or one."""
    counts: dict[Dim, None] = {}
    for value in graph.inputs:
        for axes in range(1, min(value.rank, MOST_ROW_AXES) + 1):
            counts.setdefault(product(value.shape[:axes]))
    equal = equal_symbols(graph.constraints)
    return [Rows(n) for n in counts if isinstance(n, Symbolic) and _counts(n, equal)]


def _counts(dim: Symbolic, equal: Mapping[str, str]) -> bool:
    """Whether a dim is a product of symbols of which any number may be the value. `equal`: as
    `equal_symbols` gives; not every number is a square."""
    ((atoms, factor), *others) = dim.terms
    names = [equal.get(a.name, a.name) for a in atoms if isinstance(a, Symbol)]
    return not others and factor == 1 and len({*names}) == len(atoms)


@dataclass(frozen=True)
class RowSteps(Lowered):
    """Row-wise steps of a lowered graph."""

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
class RowPart:
    """The row-wise steps of one kind, and what they have in common with others."""

    steps: RowSteps
    shared: tuple[Buffer, ...]
    """Buffers in the arena of these steps that steps of requests access."""
    inputs: tuple[Buffer, ...]
    """Inputs that they read."""
    outputs: tuple[Buffer, ...]
    """Outputs that they access."""


@dataclass(frozen=True)
class Division:
    """The steps of a lowered graph in several programs, which take turns."""

    parts: tuple[RowPart, ...]
    """The row-wise steps, by kind. Those of two kinds have no buffers in common."""
    of_request: Lowered
    """Without its steps, the others: `moved` buffers are further inputs of them."""
    kept: tuple[Buffer, ...]
    """Buffers that other steps of several turns access, and no row-wise ones."""
    moved: Mapping[Buffer, Buffer]
    """The further inputs, by the `shared` and then the `kept` buffers that they stand for."""


def divide(lowered: Lowered, found: RaggedSteps) -> Division:
    """The steps in a program of each kind."""
    turns: list[tuple[int | None, tuple[Step, ...], frozenset[Buffer]]] = []
    steps = iter(lowered.steps)
    for kind, _, count in found.turns():
        run = tuple(islice(steps, count))
        turns.append((kind, run, frozenset(b for s in run for b in (*s.reads, *s.writes))))
    uses = Counter(b for kind, _, bs in turns for b in bs if kind is None and b.kind == "arena")
    others = [s for kind, run, _ in turns for s in run if kind is None]
    order = dict.fromkeys(b for s in others for b in (*s.reads, *s.writes) if b in uses)
    parts = []
    for number in range(len(found.rows)):
        own = [s for kind, run, _ in turns for s in run if kind == number]
        between, before = [], 0
        for kind, run, accessed in turns:
            if kind is None:
                between.append((before, accessed))
            before += len(run) * (kind == number)
        buffers = dict.fromkeys(b for s in own for b in (*s.reads, *s.writes))
        parts.append(RowPart(
            RowSteps(lowered.graph, tuple(own), lowered.inputs, (), (), tuple(between)),
            tuple(b for b in order if b in buffers),
            tuple(b for b in buffers if b.kind == "input"),
            tuple(b for b in buffers if b.kind == "output"),
        ))  # fmt: skip
    shared = [b for part in parts for b in part.shared]
    kept = tuple(b for b in order if b not in shared and uses[b] > 1)
    moved = {
        b: replace(b, kind="input", number=number)
        for number, b in enumerate((*shared, *kept), len(lowered.inputs))
    }
    inputs = (*lowered.inputs, *moved.values())
    return Division(tuple(parts), replace(lowered, steps=(), inputs=inputs), kept, moved)
