"""Batches of requests of unequal length: row-wise steps run once for all of them.

Two programs share the steps of a graph (`graph.ragged`): one of the row-wise steps, bound to the
rows of all requests together, and one of the others, bound to the extents of each request as a run
of that request alone is. They take turns. Buffers that both access are in the arena of the first
one, in which the rows of requests follow each other; the others read and write their part of these.
What a request needs later, and has no rows, is kept for each one apart.

Each row has the bits that it has alone. Plans of products differ with the number of rows, and so
may the order of the sums over k: requests run together only if that order is one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ftuner.codegen.llvm.native.records import ALIGNMENT_BYTES, SLACK_BYTES, SLOT_BYTES
from ftuner.core.caching import RecentlyUsed
from ftuner.core.dim import symbols_of
from ftuner.core.evaluation import compiled
from ftuner.errors import UnsupportedKernelError
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ragged import RaggedSteps, divide
from ftuner.graph.steps import Lowered
from ftuner.runtime.cpu.arrays import DATA_WORD, Array, address_of, numpy_dtype
from ftuner.runtime.cpu.memory import allocated
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.program import BoundProgram, ProgramWriter
from ftuner.runtime.cpu.run_states import RunState, RunStates
from ftuner.runtime.cpu.session import CpuSession
from ftuner.runtime.cpu.step_kind import CompiledStep
from ftuner.runtime.kept_memory import Keeper
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shapes.layout import Words

KNOWN_ORDERS = 4096
"""Numbers of rows of which the order of sums is kept. Derived: an entry is some 100 bytes."""
Launch = Callable[[BoundProgram, int, bool], None]
_OBJECT_WORDS = DATA_WORD // SLOT_BYTES + 1
"""What native code reads of an array object; the address of the elements is the last word."""


class Runner(Protocol):
    """A compiled graph, as `CompiledGraph`."""

    lowered: Lowered
    binding: Binding
    session: CpuSession

    @property
    def threads(self) -> int: ...
    def run(self, arrays: Sequence[Array]) -> list[Array]: ...
    def launched(
        self, program: BoundProgram, workers: int, objects: int, launch: Launch
    ) -> None: ...
    def launch_steps(
        self, program: BoundProgram, number: int, count: int, objects: int, alone: bool
    ) -> None: ...
    def ended(self, program: BoundProgram) -> None: ...


class _Turn(NamedTuple):
    """Successive steps of one of the two programs."""

    wise: bool
    """Whether they are row-wise."""
    first: int
    steps: int


class _Request(NamedTuple):
    """One request of a batch."""

    number: int
    arrays: Sequence[Array]
    shapes: tuple[tuple[int, ...], ...]
    symbols: list[int]
    rows: int


class RaggedGraph(Keeper):
    """Runs batches of requests. Safe to use from several threads."""

    def __init__(self, graph: Runner, steps: Sequence[CompiledStep], found: RaggedSteps) -> None:
        """`steps`: those of the graph; `found`: which of them are row-wise.

        Raises:
            UnsupportedKernelError: a step that is not row-wise holds shared buffers within others.
        """
        self._graph, self._rows, self.found = graph, found.rows, found
        self._division = division = divide(graph.lowered, found)
        binding, session = graph.binding, graph.session
        self._rows_of = compiled([found.rows.count], binding.names)
        self._sizes = compiled([b.elements for b in division.kept], binding.names)
        counted, *_ = symbols_of((found.rows.count,))
        equal = {name: binding.equal.get(name, name) for name in binding.names}
        self._total = [equal[name] == equal[counted] for name in binding.names]
        """For each symbol, whether it counts all rows where the others are one."""
        wise = [s for s, why in zip(steps, found.reasons, strict=True) if not why]
        rest = [s for s, why in zip(steps, found.reasons, strict=True) if why]
        self._wise = wise
        self._turns = _turns(found)

        def writer(lowered: Lowered, part: Sequence[CompiledStep], wise: bool) -> ProgramWriter:
            cuts = {turn.first for turn in self._turns if turn.wise is wise}
            lowered = replace(lowered, steps=tuple([compiled.step for compiled in part]))
            return ProgramWriter(
                lowered, part, binding, session.hardware, session.kernels.runtime, np.empty, cuts
            )

        rest = [_accessing(step, division.moved) for step in rest]
        self._row_writer = writer(division.by_rows, wise, True)
        self._own_writer = writer(division.of_request, rest, False)
        self._shared = [self._row_writer.places[buffer] for buffer in division.shared]
        self._shared_bytes = [self._width(b) * b.dtype.itemsize for b in division.shared]
        self._row_states, self._own_states = RunStates(session.cores), RunStates(session.cores)
        self._orders: RecentlyUsed[tuple[int, int], tuple[Hashable, ...]] = RecentlyUsed(
            KNOWN_ORDERS
        )

    @property
    def most_rows(self) -> int:
        """Rows that run together at most."""
        return self._graph.session.hardware.tuning.rows_together

    def rows(self, arrays: Sequence[Array]) -> int:
        """The rows of a request; raises ShapeError as a run does."""
        return int(*self._rows_of(self._graph.binding([x.shape for x in arrays])))

    def _width(self, buffer: Buffer) -> int:
        width = self._rows.width(buffer)
        assert width is not None
        return width

    @property
    def kept_bytes(self) -> int:
        return self._row_states.kept_bytes + self._own_states.kept_bytes

    def trim(self) -> None:
        self._row_states.trim()
        self._own_states.trim()

    def run(self, batch: Sequence[Sequence[Array]], exact: bool) -> list[list[Array]]:
        """The outputs of each request, for arrays as `CompiledGraph.run` takes them. Outputs of
        requests that run together may be views of one array. `exact`: as of `_groups`.

        Raises:
            As `CompiledGraph.run`, for any of the requests.
        """
        results: list[list[Array]] = [[]] * len(batch)
        workers = self._graph.threads
        for group in self._groups(batch, workers, exact):
            if len(group) == 1:
                outputs = [self._graph.run(group[0].arrays)]
            else:
                outputs = self._together(group, workers)
            for request, found in zip(group, outputs, strict=True):
                results[request.number] = found
        return results

    def _groups(
        self, batch: Sequence[Sequence[Array]], workers: int, exact: bool
    ) -> Iterator[list[_Request]]:
        """The requests that run together: if `exact`, all sums are taken in one order, whether they
        run alone or together. Any other request is a group of its own."""
        begun: dict[tuple[Hashable, ...], list[_Request]] = {}
        for number, arrays in enumerate(batch):
            shapes = tuple([x.shape for x in arrays])
            symbols = self._graph.binding(shapes)
            (rows,) = self._rows_of(symbols)
            request = _Request(number, arrays, shapes, symbols, rows)
            order: tuple[Hashable, ...] = (None,)
            if 0 < rows < self.most_rows:
                order = self._order(rows, workers) if exact else ()
            if None in order:
                yield [request]
                continue
            group = begun.setdefault(order, [])
            if _rows(group) + rows > self.most_rows:
                yield from self._agreeing(group, order, workers)
                group = begun[order] = []
            group.append(request)
        for order, group in begun.items():
            yield from self._agreeing(group, order, workers)

    def _agreeing(
        self, group: Sequence[_Request], order: tuple[Hashable, ...], workers: int
    ) -> Iterator[list[_Request]]:
        """A group without the requests that change the order of sums of all rows together."""
        left = list(group)
        while order and len(left) > 1 and self._order(_rows(left), workers) != order:
            yield [left.pop()]
        yield left

    def _order(self, rows: int, workers: int) -> tuple[Hashable, ...]:
        """The order of the sums of each row-wise step; None if it differs between rows."""
        found = self._orders.get((rows, workers))
        if found is None:
            found = tuple([s.order_of_sums(self._rows, rows, workers) for s in self._wise])
            self._orders.add((rows, workers), found)
        return found

    def _together(self, group: Sequence[_Request], workers: int) -> list[list[Array]]:
        row_state = self._row_states.take()
        try:
            own_state = self._own_states.take()
            try:
                by_rows = self._bound_rows(row_state, _rows(group), workers)
                own = self._bound_each(own_state, group, workers)
                return self._ran(by_rows, own, group, workers)
            finally:
                self._own_states.give_back(own_state)
        finally:
            self._row_states.give_back(row_state)

    def _bound_rows(self, state: RunState, rows: int, workers: int) -> BoundProgram:
        """The row-wise steps, bound to a number of rows."""
        symbols = [rows if total else 1 for total in self._total]
        pool = self._graph.session.kernels.runtime.pool.address
        return self._row_writer.bind(symbols, workers, pool, state.arena.grown)

    def _bound_each(
        self, state: RunState, group: Sequence[_Request], workers: int
    ) -> list[BoundProgram]:
        """The other steps, bound to the extents of each request."""
        pool = self._graph.session.kernels.runtime.pool.address
        found: dict[tuple[tuple[int, ...], ...], BoundProgram] = {}
        # The arena grows for the largest; what was bound before it moved is bound again.
        while not found or any(p.arena != state.arena.address for p in found.values()):
            for request in group:
                key = request.shapes, workers
                program = state.programs.get(key)
                if program is None or program.arena != state.arena.address:
                    program = self._own_writer.bind(
                        request.symbols, workers, pool, state.arena.grown
                    )
                    state.programs.add(key, program)
                found[request.shapes] = program
        return [found[request.shapes] for request in group]

    def _ran(
        self, by_rows: BoundProgram, own: Sequence[BoundProgram], group: Sequence[_Request],
        workers: int,
    ) -> list[list[Array]]:  # fmt: skip
        """The outputs of requests, by programs that are bound to them."""
        division, total = self._division, _rows(group)
        ends = np.cumsum([request.rows for request in group])
        begins = ends - [request.rows for request in group]
        inputs = {
            b.number: np.concatenate([request.arrays[b.number].reshape(-1) for request in group])
            for b in division.inputs
        }
        common = {
            b.number: allocated((total * self._width(b),), numpy_dtype(b.dtype))
            for b in division.outputs
        }
        parts = {
            n: np.split(array, ends[:-1] * (len(array) // total)) for n, array in common.items()
        }
        results = [
            [
                parts[n][i].reshape(shape) if n in parts else allocated(shape, dtype)
                for n, (shape, dtype) in enumerate(program.outputs)
            ]
            for i, program in enumerate(own)
        ]

        given, made = len(division.by_rows.inputs), len(own[0].outputs)
        shared, further = len(division.shared), len(division.moved)
        rows_io = _Objects(1, given + made)
        for number, array in inputs.items():
            rows_io.addresses[0, number] = address_of(array)
        for number, array in common.items():
            rows_io.addresses[0, given + number] = address_of(array)
        own_io = _Objects(len(group), given + further + made)
        # Both lists point into memory that must outlive the run.
        _memory, kept_at = self._kept(group)
        of_inputs, at = own_io.addresses[:, :given], own_io.addresses[:, given:]
        of_inputs[:] = [[address_of(x) for x in request.arrays] for request in group]
        at[:, :shared] = by_rows.buffers[self._shared] + np.outer(begins, self._shared_bytes)
        at[:, shared:further] = kept_at
        at[:, further:] = [[address_of(x) for x in found] for found in results]

        def launch(program: BoundProgram, objects: int, alone: bool) -> None:
            for wise, first, count in self._turns:
                if wise:
                    self._graph.launch_steps(program, first, count, objects, alone)
                    continue
                for one, io in zip(own, own_io.lists, strict=True):
                    self._graph.launch_steps(one, first, count, io, alone)

        self._graph.launched(by_rows, workers, rows_io.lists[0], launch)
        for program in own:
            self._graph.ended(program)
        return results

    def _kept(self, group: Sequence[_Request]) -> tuple[Array, Words]:
        """Memory for what each request keeps between turns, and the address of each buffer."""
        elements = [self._sizes(request.symbols) for request in group]
        items = np.array([b.dtype.itemsize for b in self._division.kept], np.int64)
        sizes = np.array(elements, np.int64).reshape(len(group), len(items)) * items
        ends = np.cumsum(aligned(sizes + SLACK_BYTES)).reshape(sizes.shape)
        memory = allocated((int(ends.max(initial=0)) + ALIGNMENT_BYTES,), np.uint8)
        return memory, aligned(address_of(memory)) + ends - aligned(sizes + SLACK_BYTES)


class _Objects:
    """What native code reads of arrays, without the arrays."""

    def __init__(self, lists: int, each: int) -> None:
        """`lists` of `each` array objects."""
        self._objects = np.zeros((lists, each, _OBJECT_WORDS), np.int64)
        self.addresses = self._objects[:, :, -1]
        """Of the elements of each, to be written."""
        places = np.arange(lists * each, dtype=np.int64).reshape(lists, each)
        self._places = address_of(self._objects) + places * (_OBJECT_WORDS * SLOT_BYTES)
        self.lists = [
            address_of(self._places) + number * each * SLOT_BYTES for number in range(lists)
        ]
        """Where the addresses of the objects of each list are."""


def _rows(group: Sequence[_Request]) -> int:
    return sum([request.rows for request in group])


def _turns(found: RaggedSteps) -> list[_Turn]:
    """The turns of the two programs."""
    turns: list[_Turn] = []
    next_of = {True: 0, False: 0}
    for wise, count in found.segments():
        turns.append(_Turn(wise, next_of[wise], count))
        next_of[wise] += count
    return turns


def _accessing(compiled: CompiledStep, moved: Mapping[Buffer, Buffer]) -> CompiledStep:
    """A step that accesses other buffers in the place of some.

    Raises:
        UnsupportedKernelError: it holds them within other steps.
    """
    step = compiled.step
    if moved.keys().isdisjoint((*step.reads, *step.writes)):
        return compiled
    given: Any = step
    changed = {f.name: _moved(getattr(given, f.name), moved) for f in fields(given)}
    step = replace(given, **changed)
    if not moved.keys().isdisjoint((*step.reads, *step.writes)):
        raise UnsupportedKernelError(f"a batch does not divide {step.title}")
    return replace(compiled, step=step)  # type: ignore[type-var]


def _moved(value: Any, moved: Mapping[Buffer, Buffer]) -> Any:
    if isinstance(value, Buffer):
        return moved.get(value, value)
    if isinstance(value, View):
        return replace(value, buffer=moved.get(value.buffer, value.buffer))
    if type(value) is tuple:
        return tuple([_moved(x, moved) for x in value])
    return value
