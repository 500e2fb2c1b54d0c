"""Batches of requests of unequal length on one GPU: row-wise steps are launched once for all.

As on a CPU (`runtime.cpu.ragged`), programs share the steps of a graph (`graph.ragged`): one of the
row-wise steps of each kind, bound to the rows of all requests together, and one of the others,
bound to the extents of each request. They take turns on one stream. What both access is in memory
of the first ones, in which the rows of requests follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby, islice
from typing import NamedTuple, Protocol, cast

import torch

from ftuner.core.caching import RecentlyUsed
from ftuner.core.evaluation import compiled
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.errors import AllocationError, ShapeError
from ftuner.graph.buffers import Buffer
from ftuner.graph.ragged import RaggedSteps, Turn, divide
from ftuner.graph.steps import Lowered
from ftuner.runtime.gpu.arrays import TORCH_DTYPES, Tensor, allocated
from ftuner.runtime.gpu.program import Launch, aligned_copy
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.gpu.step_kind import Alike, CompiledStep, Together
from ftuner.runtime.grouping import Orders, groups
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shapes.evaluation import Outputs
from ftuner.runtime.shapes.layout import Lifetime, first_fit

BUFFER_BYTES = 256
"""Alignment of buffers in an arena; that of torch's allocator."""
MAX_LAUNCHES = 1 << 16
"""Launches of all programs that a graph keeps for batches, at about 3 KiB of the host's memory."""
ROWS_PER_MULTIPROCESSOR = 128
"""Derived: a product with as many rows for each multiprocessor has a tile of the tallest for each,
even if it has one column of tiles."""


class Runner(Protocol):
    """A compiled graph, as `CompiledGraph`."""

    session: GpuSession
    binding: Binding
    lowered: Lowered
    steps: Sequence[CompiledStep]
    sizes: Mapping[Buffer, int]
    constants: Mapping[Buffer, Tensor]
    outputs: Sequence[tuple[Sequence[int], torch.dtype]]
    evaluate: Callable[[Sequence[int]], list[int]]

    def values(self, symbols: Sequence[int]) -> tuple[list[int], Outputs]: ...
    def steps_with_words(self) -> list[tuple[CompiledStep, Tensor | None]]: ...
    def launched(self, arrays: Sequence[Tensor]) -> list[Tensor]: ...


class _Bound(NamedTuple):
    """The launches of a program at known extents."""

    launches: Sequence[Launch | None]
    offsets: Sequence[int]
    """Of its own buffers in an arena."""
    arena_bytes: int
    elements: Sequence[int]
    """Of all buffers."""
    alike: Mapping[int, Alike | None]
    """Of steps that are launched once for several requests, by number."""


class _Program:
    """Some of the steps of a graph. Its launches are given the inputs of the graph, the outputs,
    and all buffers of the arena that the steps access."""

    def __init__(
        self, graph: Runner, lowered: Lowered,
        steps: Sequence[tuple[CompiledStep, Tensor | None]],
        evaluate: Callable[[Sequence[int]], list[int]], elsewhere: frozenset[Buffer] = frozenset(),
        together: Mapping[int, Together] | None = None,
    ) -> None:  # fmt: skip
        """`lowered`: with the steps of the program; `elsewhere`: buffers that a run is given;
        `together`: steps that may be launched once for several requests, by number."""
        self.together = together or {}
        self._graph, self._steps, self._evaluate = graph, steps, evaluate
        lifetimes = lowered.lifetimes()
        self.inputs = len(lowered.inputs)
        first = self.inputs + len(graph.outputs)
        self.places = {b: place for place, b in enumerate(lifetimes, first)}
        self.own = [b for b in lifetimes if b not in elsewhere]
        self._lifetimes = [Lifetime(*lifetimes[b]) for b in self.own]
        self._known: RecentlyUsed[tuple[int, ...], _Bound] = RecentlyUsed(
            MAX_LAUNCHES, size=lambda bound: max(len(bound.launches), 1)
        )

    def place(self, buffer: Buffer) -> int:
        """The number of a buffer among what launches are given."""
        if buffer.kind == "input":
            return buffer.number
        return self.inputs + buffer.number if buffer.kind == "output" else self.places[buffer]

    def bound(self, symbols: Sequence[int]) -> _Bound:
        key = tuple(symbols)
        found = self._known.get(key)
        if found is None:
            found = self._bound(symbols)
            self._known.add(key, found)
        return found

    def order_of_sums(self, symbols: Sequence[int]) -> tuple[Hashable, ...]:
        values = self._evaluate(symbols)
        return tuple([step.order_of_sums(values) for step, _ in self._steps])

    def _bound(self, symbols: Sequence[int]) -> _Bound:
        graph = self._graph
        values = self._evaluate(symbols)
        elements = {b: max(values[graph.sizes[b]], 1) for b in self.places}
        sizes = [-(-elements[b] * b.dtype.itemsize // BUFFER_BYTES) * BUFFER_BYTES
                 for b in self.own]  # fmt: skip
        offsets, arena_bytes = first_fit(self._lifetimes, sizes)

        def memory(buffer: Buffer) -> Tensor | int:
            return graph.constants[buffer] if buffer.is_constant else self.place(buffer)

        launches = [step.bind(values, memory, word) for step, word in self._steps]
        alike = {number: step.alike(values) for number, step in self.together.items()}
        return _Bound(launches, offsets, arena_bytes, [*elements.values()], alike)

    def placed(self, bound: _Bound, arena: Tensor, arrays: Sequence[Tensor | None]) -> list[Tensor]:
        """What launches are given. `arrays`: inputs, and outputs; None for those that they do not
        access, as is what `elsewhere` stands for."""
        given = [*arrays, *[None] * len(self.places)]
        elements = dict(zip(self.places, bound.elements, strict=True))
        for buffer, offset in zip(self.own, bound.offsets, strict=True):
            part = arena[offset : offset + elements[buffer] * buffer.dtype.itemsize]
            given[self.places[buffer]] = part.view(TORCH_DTYPES[buffer.dtype.name])
        return given  # type: ignore[return-value]


_Request = tuple[_Bound, list[Tensor], dict[Buffer, Tensor]]
"""A request: its launches, what they are given, and its rows of what row-wise steps access."""


class _RowProgram(NamedTuple):
    """The row-wise steps of one kind."""

    program: _Program
    inputs: Sequence[Buffer]
    shared: Mapping[Buffer, int]
    """Buffers that steps of requests access, with the elements of a row."""
    outputs: Mapping[Buffer, int]
    """The same of outputs that row-wise steps access."""
    symbols: Callable[[int], list[int]]
    """Gives values of the symbols for a number of rows."""


class RaggedGraph:
    """Runs batches of requests, on the current stream. Its caller has one run at a time."""

    def __init__(self, graph: Runner, found: RaggedSteps) -> None:
        """`found`: the steps of the graph that are row-wise."""
        self._graph, self.found = graph, found
        lowered, binding = graph.lowered, graph.binding
        together = for_several(graph.steps, lowered, found)
        # Between steps that are launched for one request after the other, one for all.
        found = replace(found, apart=frozenset(together))
        division = divide(lowered, found)
        self._rows_of = compiled([rows.count for rows in found.rows], binding.names)
        every = graph.steps_with_words()

        def of_kind(kind: int | None) -> list[tuple[CompiledStep, Tensor | None]]:
            return [s for s, its in zip(every, found.kinds, strict=True) if its == kind]

        shared = [buffer for part in division.parts for buffer in part.shared]
        self._kept = division.kept
        others = [s for s, its in zip(lowered.steps, found.kinds, strict=True) if its is None]
        self._own = _Program(
            graph, replace(lowered, steps=tuple(others)), of_kind(None),
            lambda symbols: graph.values(symbols)[0], frozenset((*shared, *division.kept)),
            {found.kinds[:n].count(None): step for n, step in together.items()},
        )  # fmt: skip
        self._programs = [
            _RowProgram(
                _Program(graph, part.steps, of_kind(kind), graph.evaluate), part.inputs,
                rows.widths(part.shared), rows.widths(part.outputs),
                binding.counting(rows.count),
            )
            for kind, (part, rows) in enumerate(zip(division.parts, found.rows, strict=True))
        ]  # fmt: skip
        accessed = {b for step in others for b in (*step.reads, *step.writes)}
        self._loose = {
            b for program in self._programs
            for b, width in (*program.shared.items(), *program.outputs.items())
            if b in accessed and width * b.dtype.itemsize % ALIGNMENT_BYTES
        }  # fmt: skip
        """Buffers whose rows are not aligned, as kernels ask of what they access: a request has a
        copy of its rows."""
        self._turns = _loosely(lowered, found, self._loose)
        self._orders = Orders()

    @property
    def room(self) -> int:
        """Rows that run together at most."""
        return self._graph.session.hardware.multiprocessors * ROWS_PER_MULTIPROCESSOR

    def size(self, arrays: Sequence[Tensor]) -> int:
        """The rows of a request; raises ShapeError as a run does."""
        return int(self._rows_of(self._graph.binding([x.shape for x in arrays]))[0])

    def run(self, batch: Sequence[Sequence[Tensor]], exact: bool) -> list[list[Tensor]]:
        """The outputs of each request, for tensors as `CompiledGraph.run` takes them. Outputs of
        requests that run together may be views of one tensor. `exact`: whether each has the bits
        that it has alone.

        Raises:
            As `CompiledGraph.run`, for any of the requests.
        """
        alone = self._graph.launched
        symbols = [self._graph.binding([x.shape for x in arrays]) for arrays in batch]
        rows = [self._rows_of(own) for own in symbols]
        results: list[list[Tensor]] = [[]] * len(batch)
        sizes = [int(own[0]) for own in rows]

        def order(size: int) -> int:
            return self._orders(size, partial(self._order, size)) if exact else 0

        for group in groups(sizes, self.room, self.room, order):
            if len(group) == 1:
                results[group[0]] = alone(batch[group[0]])
                continue
            try:
                if exact:
                    group = self._adjacent(group, symbols)
                own = [[*map(aligned_copy, batch[number])] for number in group]
                found = self._together(
                    own, [symbols[n] for n in group], [rows[n] for n in group], exact
                )
            except (AllocationError, ShapeError, ZeroDivisionError, torch.OutOfMemoryError):
                # Together they may need too much memory, or more rows than the graph can have.
                # Where one request is wrong, its own run says so.
                found = [alone(batch[number]) for number in group]
            for number, outputs in zip(group, found, strict=True):
                results[number] = outputs
        return results

    def _adjacent(self, group: Sequence[int], symbols: Sequence[Sequence[int]]) -> list[int]:
        """The requests in an order in which those follow each other that share launches."""
        places: dict[Hashable, int] = {}

        def place(number: int) -> int:
            alike = self._own.bound(symbols[number]).alike.values()
            bits = tuple([x and (x.past, x.bits) for x in alike])
            return places.setdefault(bits, len(places))

        return sorted(group, key=place)

    def _order(self, rows: int) -> tuple[Hashable, ...]:
        first = self._programs[0]
        try:
            return first.program.order_of_sums(first.symbols(rows))
        except (ShapeError, ZeroDivisionError):
            return (None,)

    def _together(
        self, group: Sequence[Sequence[Tensor]], symbols: Sequence[Sequence[int]],
        rows: Sequence[Sequence[int]], exact: bool,
    ) -> list[list[Tensor]]:  # fmt: skip
        """The outputs of requests with values of the symbols, and the rows of each kind. `exact`:
        as of `run`."""
        device = self._graph.session.device
        inputs, made = self._own.inputs, len(self._graph.outputs)
        bound = [self._own.bound(own) for own in symbols]
        # Steps of one turn of a request access it, and the next turn is another request's.
        arena = allocated((max(b.arena_bytes for b in bound),), torch.uint8, device)
        outputs = [self._outputs(own) for own in symbols]
        wise: list[tuple[_Bound, list[Tensor]]] = []
        pieces: list[dict[Buffer, Tensor]] = [{} for _ in group]
        """Of each request, its rows of what row-wise steps access."""
        for kind, program in enumerate(self._programs):
            counts = [own[kind] for own in rows]
            ends = [*accumulate(counts, initial=0)]
            both = program.program.bound(program.symbols(ends[-1]))
            memory = allocated((both.arena_bytes,), torch.uint8, device)
            arrays: list[Tensor | None] = [None] * (inputs + made)
            for b in program.inputs:
                arrays[b.number] = torch.cat([own[b.number].reshape(-1) for own in group])
            for b, width in program.outputs.items():
                whole = allocated((ends[-1] * width,), TORCH_DTYPES[b.dtype.name], device)
                arrays[inputs + b.number] = whole
                for own, found, begin, end in zip(outputs, pieces, ends, ends[1:], strict=False):
                    piece = whole[begin * width : end * width]
                    found[b] = own[b.number] = piece.view(own[b.number].shape)
            placed = program.program.placed(both, memory, arrays)
            wise.append((both, placed))
            for b, width in program.shared.items():
                whole = placed[program.program.places[b]]
                for found, begin, end in zip(pieces, ends, ends[1:], strict=False):
                    found[b] = whole[begin * width : end * width]
        each: list[_Request] = []
        for given, template, results, found in zip(group, bound, outputs, pieces, strict=True):
            placed = self._own.placed(template, arena, (*given, *results))
            elements = dict(zip(self._own.places, template.elements, strict=True))
            for b in self._kept:
                found[b] = allocated((elements[b],), TORCH_DTYPES[b.dtype.name], device)
            for b, piece in found.items():
                placed[self._own.place(b)] = torch.empty_like(piece) if b in self._loose else piece
            each.append((template, placed, found))
        for turn, copied, written in self._turns:
            if turn.kind is not None:
                _launch(*wise[turn.kind], turn)
                continue
            left = each
            if turn.first in self._own.together:
                counts = [own[0] for own in rows]
                left = self._launched(turn.first, wise[0][1], each, counts, exact)
            for template, placed, found in left:
                for b in copied:
                    placed[self._own.place(b)].copy_(found[b])
                _launch(template, placed, turn)
                for b in written:
                    found[b].copy_(placed[self._own.place(b)])
        return outputs

    def _launched(
        self, number: int, whole: Sequence[Tensor], each: Sequence[_Request], rows: Sequence[int],
        exact: bool,
    ) -> list[_Request]:  # fmt: skip
        """Launches a step of requests once for those that follow each other and may share a
        launch; returns the others. `whole`: what row-wise steps are given; `rows`: of each
        request."""
        step = self._own.together[number]
        place = self._programs[0].program.place
        memories = [whole[place(buffer)] for buffer in step.buffers]
        alike = [request[0].alike[number] for request in each]
        ends = [*accumulate(rows, initial=0)]

        def agreed(i: int) -> Hashable:
            found = alike[i]
            return found and (found.past, found.bits if exact else None)

        left: list[_Request] = []
        for _, run in groupby(range(len(each)), agreed):
            members = [*run]
            begin, end, like = ends[members[0]], ends[members[-1] + 1], alike[members[0]]
            if like is None or len(members) == 1:
                left += [each[i] for i in members]
                continue
            sequences = [
                n - begin
                for i in members for n in range(ends[i], ends[i + 1], cast("Alike", alike[i]).rows)
            ]  # fmt: skip
            step.launch(memories, begin, [*sequences, end - begin], like, exact)
        return left

    def _outputs(self, symbols: Sequence[int]) -> list[Tensor]:
        graph = self._graph
        values = graph.evaluate(symbols)
        return [
            allocated([values[n] for n in shape], dtype, graph.session.device)
            for shape, dtype in graph.outputs
        ]


def for_several(
    steps: Sequence[CompiledStep], lowered: Lowered, found: RaggedSteps
) -> dict[int, Together]:
    """The steps that work within a request and may be launched once for several, by number."""
    pairs = [*zip(lowered.steps, found.kinds, strict=True)]
    joined = {b for step, kind in pairs if kind == 0 for b in (*step.reads, *step.writes)}
    made = {}
    for number, (step, kind) in enumerate(zip(steps, found.kinds, strict=True)):
        together = step.together(found.rows[0]) if kind is None else None
        if together is not None and joined.issuperset(together.buffers):
            made[number] = together
    return made


def _loosely(
    lowered: Lowered, found: RaggedSteps, loose: Collection[Buffer]
) -> list[tuple[Turn, list[Buffer], list[Buffer]]]:
    """The turns of the programs, with the loose buffers that the steps of a request access, and
    those that they write."""
    steps = iter(lowered.steps)
    turns = []
    for turn in found.turns():
        run = [*islice(steps, turn.steps)]
        written = [b for step in run for b in step.writes]
        accessed = [b for step in run for b in step.reads] + written
        kept = loose if turn.kind is None else ()
        copied, back = ([b for b in dict.fromkeys(x) if b in kept] for x in (accessed, written))
        turns.append((turn, copied, back))
    return turns


def _launch(bound: _Bound, arrays: Sequence[Tensor], turn: Turn) -> None:
    for launch in bound.launches[turn.first : turn.first + turn.steps]:
        if launch is not None:
            launch(arrays)
