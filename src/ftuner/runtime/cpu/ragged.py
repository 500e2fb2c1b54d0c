"""Batches of requests of unequal length: row-wise steps run once for all of them.

Programs share the steps of a graph (`graph.ragged`): one of the row-wise steps of each kind, bound
to the rows of all requests together, and one of the others, bound to the extents of each request as
a run of that request alone is. They take turns, all in one launch (`joint_program`), in which
workers share the requests. Buffers that both access are in the arena of the first ones, in which
the rows of requests follow each other; the others read and write their part of these. What a
request needs later, and has no rows, is kept for each one apart.

Each row has the bits that it has alone. Plans of products differ with the number of rows, and so
may the order of the sums over k: requests run together only if that order is one for all. Where it
may differ (`exact=False`), steps by fewer rows, such as those of last tokens, run once, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.evaluation import compiled
from ftuner.errors import UnsupportedKernelError
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ragged import RaggedSteps, RowPart, Rows, divide
from ftuner.graph.steps import Lowered
from ftuner.runtime.cpu.appending import Extension, extend, keep, undo
from ftuner.runtime.cpu.arrays import Array, address_of, numpy_dtype
from ftuner.runtime.cpu.joint_program import JointProgram, arena_bytes, copied
from ftuner.runtime.cpu.launching import Launcher, ended
from ftuner.runtime.cpu.memory import allocated
from ftuner.runtime.cpu.output_forms import made_elsewhere
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.program import BoundProgram, ProgramWriter
from ftuner.runtime.cpu.record_layout import FIRST_BUFFER
from ftuner.runtime.cpu.run_states import RunState, RunStates
from ftuner.runtime.cpu.session import CpuSession
from ftuner.runtime.cpu.shared_panels import SharedPanels
from ftuner.runtime.cpu.step_kind import CompiledStep
from ftuner.runtime.grouping import Orders, groups
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shapes.layout import Words


class Runner(Protocol):
    """A compiled graph, as `CompiledGraph`."""

    lowered: Lowered
    binding: Binding
    session: CpuSession
    launch: Launcher
    pasts: Sequence[str]
    threads: int

    def run(self, arrays: Sequence[Array]) -> list[Array]: ...
    def run_apart(self, batch: Sequence[Sequence[Array]]) -> list[list[Array]]: ...


class _Request(NamedTuple):
    """One request of a batch."""

    number: int
    arrays: Sequence[Array]
    symbols: list[int]
    rows: list[int]
    """Of each kind."""
    size: int
    """As of `RaggedGraph.room`."""


class _Template(NamedTuple):
    """A program for values of the symbols, of which `copied` makes those that run, and what is the
    same for all of these."""

    program: BoundProgram
    kept: Sequence[int]
    """The bytes of each buffer that a request keeps between turns."""
    arena_bytes: int
    """Without those."""
    able: Words | None
    """The steps that may be walked panel by panel (`SharedPanels.able`); None if there are no
    panels."""

    @property
    def kept_bytes(self) -> int:
        return self.program.kept_bytes


class _AllRows(NamedTuple):
    """The arrays and addresses of the row-wise steps of one kind, with the rows of all requests."""

    copy: tuple[int, ...]
    """As of `copied`."""
    inputs: Sequence[Array]
    """Kept until the steps have run."""
    outputs: Sequence[tuple[int, int, Array]]
    """The number of each, the elements of a row, and those of all rows."""
    shared: Sequence[tuple[int, int]]
    """The address of each buffer that steps of requests access, and the bytes of a row."""


class _RowProgram:
    """The row-wise steps of one kind, which run once for the rows of all requests."""

    def __init__(
        self, part: RowPart, rows: Rows, steps: Sequence[CompiledStep], writer: ProgramWriter,
        binding: Binding, arrays: int,
    ) -> None:  # fmt: skip
        """`arrays`: the number of the inputs and outputs of the graph."""
        self.part, self.steps, self.writer, self._arrays = part, steps, writer, arrays
        self.symbols = binding.counting(rows.count)
        """Gives values of the symbols for a number of rows."""
        self._shared = [
            (FIRST_BUFFER + writer.places[b], width * b.dtype.itemsize)
            for b, width in rows.widths(part.shared).items()
        ]
        """The source of each buffer, and the bytes of a row."""
        self._outputs = [
            (b.number, width, numpy_dtype(b.dtype))
            for b, width in rows.widths(part.outputs).items()
        ]
        """The number, the elements of a row, and the dtype of each output."""

    def of_all(
        self, program: BoundProgram, arena: int, group: Sequence[_Request], rows: int
    ) -> _AllRows:
        """What a program for all rows accesses, with an arena at an address.

        Raises:
            AllocationError: the system does not have the memory for the outputs.
        """
        inputs = {
            b.number: np.concatenate([x.arrays[b.number] for x in group], axis=None)
            for b in self.part.inputs
        }
        outputs = [(n, width, allocated((rows * width,), t)) for n, width, t in self._outputs]
        addresses, first = [0] * self._arrays, len(group[0].arrays)
        for number, x in inputs.items():
            addresses[number] = address_of(x)
        for number, _, x in outputs:
            addresses[first + number] = address_of(x)
        shared = [(arena + program.sources[n], size) for n, size in self._shared]
        return _AllRows(copied(program, arena, *addresses), [*inputs.values()], outputs, shared)


class RaggedGraph:
    """Runs batches of requests. Safe to use from several threads."""

    def __init__(self, graph: Runner, steps: Sequence[CompiledStep], found: RaggedSteps) -> None:
        """`steps`: those of the graph; `found`: which of them are row-wise.

        Raises:
            UnsupportedKernelError: a step that is not row-wise holds shared buffers within others.
        """
        self._graph, self.found = graph, found
        division = divide(graph.lowered, found)
        binding, session = graph.binding, graph.session
        self._rows_of = compiled([rows.count for rows in found.rows], binding.names)
        self._sizes = compiled([b.elements for b in division.kept], binding.names)
        self._item_bytes = [b.dtype.itemsize for b in division.kept]
        buffers = graph.lowered.lifetimes()
        bytes_ = dict.fromkeys([b.elements * b.dtype.itemsize for b in buffers])
        self._bytes_of = compiled([*bytes_], binding.names)
        turns = found.turns()
        arrays = len(graph.lowered.inputs) + len(graph.lowered.outputs)

        def writer(
            lowered: Lowered, part: Sequence[CompiledStep], kind: int | None
        ) -> ProgramWriter:
            cuts = {turn.first for turn in turns if turn.kind == kind}
            lowered = replace(lowered, steps=tuple([compiled.step for compiled in part]))
            return ProgramWriter(
                lowered, part, binding, session.kernels, np.empty, cuts, kind is None
            )

        def of_kind(kind: int | None) -> list[CompiledStep]:
            return [s for s, its in zip(steps, found.kinds, strict=True) if its == kind]

        rest = [_accessing(step, division.moved) for step in of_kind(None)]
        self._programs = []
        for kind, (part, rows) in enumerate(zip(division.parts, found.rows, strict=True)):
            own = of_kind(kind)
            made = writer(part.steps, own, kind)
            self._programs.append(_RowProgram(part, rows, own, made, binding, arrays))
        self._own_writer = writer(division.of_request, rest, None)
        accessed = {*self._own_writer.patches[1].tolist()}
        inputs, moved = len(graph.lowered.inputs), len(division.moved)
        self._reads = [n in accessed for n in range(inputs)]
        """Of each input whether steps of a request read it. A past that outputs append to is at
        their addresses."""
        self._writes = [n in accessed for n in range(inputs + moved, arrays + moved)]
        """Of each output whether they access it."""
        self._of_rows = {b.number for part in division.parts for b in part.outputs}
        """The numbers of the outputs that row-wise steps access."""
        self._panels = SharedPanels(rest, session.hardware)
        counts = [arrays] * len(self._programs) + [arrays + len(division.moved)]
        self._joint = JointProgram(
            session.kernels.runtime, turns, [program.writer for program in self._programs],
            self._own_writer, counts, self._panels,
        )  # fmt: skip
        self.states = RunStates(session.cores)
        self._orders = Orders()

    @property
    def shares_panels(self) -> bool:
        """Whether requests share panels of weights."""
        return bool(self._panels)

    @property
    def room(self) -> int:
        """Rows that run together at most; of requests that run together by no rows the bytes of
        their largest results."""
        hardware = self._graph.session.hardware
        if self._programs:
            return hardware.tuning.rows_together
        return int(hardware.tuning.results_together * hardware.l2_bytes)

    def size(self, arrays: Sequence[Array]) -> int:
        """What a request takes of the room; raises ShapeError as a run does."""
        symbols = self._graph.binding([x.shape for x in arrays])
        return self._size(symbols, self._rows_of(symbols))

    def _size(self, symbols: Sequence[int], rows: Sequence[int]) -> int:
        return int(rows[0] if rows else max(self._bytes_of(symbols), default=1))

    def run(self, batch: Sequence[Sequence[Array]], exact: bool) -> list[list[Array]]:
        """The outputs of each request, for arrays as `CompiledGraph.run` takes them. Outputs of
        requests that run together may be views of one array. `exact`: as of `_groups`.

        Raises:
            As `CompiledGraph.run`, for any of the requests.
        """
        results: list[list[Array]] = [[]] * len(batch)
        workers = self._graph.threads
        alone: list[_Request] = []
        for group in self._groups(batch, workers, exact):
            if len(group) == 1:
                alone += group
                continue
            for request, found in zip(group, self._together(group, workers), strict=True):
                results[request.number] = found
        left = [request.arrays for request in alone]
        outputs = self._graph.run_apart(left) if self._programs else map(self._graph.run, left)
        for request, found in zip(alone, outputs, strict=True):
            results[request.number] = found
        return results

    def _groups(
        self, batch: Sequence[Sequence[Array]], workers: int, exact: bool
    ) -> Iterator[list[_Request]]:
        """The requests that run together: if `exact`, with the bits that each has alone. Any other
        request is a group of its own."""
        hardware = self._graph.session.hardware
        most = float(hardware.tuning.rows_joined)
        if not self._programs:
            most = min(self.room, hardware.tuning.result_share_of_l2 * hardware.l2_bytes)
        requests = []
        for number, arrays in enumerate(batch):
            symbols = self._graph.binding([x.shape for x in arrays])
            rows = self._rows_of(symbols)
            requests.append(_Request(number, arrays, symbols, rows, self._size(symbols, rows)))

        def order(size: int) -> int:
            return self._order(size, workers) if exact and self._programs else 0

        for group in groups([request.size for request in requests], most, self.room, order):
            yield [requests[number] for number in group]

    def _order(self, rows: int, workers: int) -> int:
        """The number of the order of sums."""

        def found() -> tuple[Hashable, ...]:
            steps = self._programs[0].steps
            return tuple([s.order_of_sums(self.found.rows[0], rows, workers) for s in steps])

        return self._orders((rows, workers), found)

    def _together(self, group: Sequence[_Request], workers: int) -> list[list[Array]]:
        state = self.states.take()
        extensions: list[Extension] = []
        try:
            by_rows = [
                self._template(state, kind, program.symbols(total), workers)
                for kind, program in enumerate(self._programs)
                for total in (sum([request.rows[kind] for request in group]),)
            ]
            own = [self._template(state, None, request.symbols, workers) for request in group]
            results = self._ran(state, by_rows, own, group, workers, extensions)
        except BaseException:
            for *_, taken in extensions:
                undo(taken, begun=True)
            raise
        finally:
            self.states.give_back(state)
        keep(extensions)
        return results

    def _template(
        self, state: RunState, kind: int | None, symbols: Sequence[int], workers: int
    ) -> _Template:
        # Symbols are compared faster than the shapes of hundreds of inputs.
        key = (*symbols, workers, kind)
        found: _Template | None = state.programs.get(key)
        if found is not None:
            return found
        writer = self._own_writer if kind is None else self._programs[kind].writer
        program = writer.bind(symbols, workers, lambda size: 0)
        kept: Sequence[int] = ()
        able = None
        if kind is None:
            kept = self._kept_bytes(symbols)
            able = self._panels.able(program, workers) if self._panels else None
            makes = enumerate(program.makes)
            program = program._replace(
                makes=tuple([made_elsewhere if n in self._of_rows else m for n, m in makes]),
                plain=program.plain and not self._of_rows,
            )
        found = _Template(program, kept, arena_bytes(program), able)
        state.programs.add(key, found)
        return found

    def _ran(
        self, state: RunState, by_rows: Sequence[_Template], own: Sequence[_Template],
        group: Sequence[_Request], workers: int, extensions: list[Extension],
    ) -> list[list[Array]]:  # fmt: skip
        """The outputs of requests, by templates for their rows together, of each kind, and for each
        of them. Those that append to inputs are added to `extensions`."""
        lowered = self._graph.lowered
        # The arena: that of the row-wise steps, then for each request what it keeps, and its own.
        # The records follow.
        records = sum([t.arena_bytes for t in (*by_rows, *own)]) + sum([sum(t.kept) for t in own])
        memory = state.arena.grown(records + self._joint.record_bytes(len(group)))
        *bases, at = accumulate([t.arena_bytes for t in by_rows], initial=memory)
        wise = [
            program.of_all(
                template.program, base, group, sum([request.rows[kind] for request in group])
            )
            for kind, (program, template, base) in enumerate(
                zip(self._programs, by_rows, bases, strict=True)
            )
        ]
        copies: list[int] = []
        results: list[list[Array]] = []
        begins = [0] * len(wise)
        for request, template in zip(group, own, strict=True):
            program = template.program
            outputs = program.fresh_outputs()
            results.append(outputs)
            places: list[int] = []
            for kind, rows in enumerate(wise):
                begin = begins[kind]
                begins[kind] = end = begin + request.rows[kind]
                places += [first + begin * size for first, size in rows.shared]
                for number, width, array in rows.outputs:
                    piece = array[begin * width : end * width]
                    outputs[number] = piece.reshape(program.outputs[number][0])
            written = outputs
            if lowered.appended:
                written = outputs.copy()
                extend(
                    request.arrays, lowered.appended, program.growths, self._graph.pasts, outputs,
                    written, extensions,
                )  # fmt: skip
            *own_places, at = accumulate(template.kept, initial=at)
            places += own_places
            inputs = [
                address_of(x) if reads else 0
                for x, reads in zip(request.arrays, self._reads, strict=True)
            ]
            made = [
                address_of(x) if writes else 0
                for x, writes in zip(written, self._writes, strict=True)
            ]
            copies += copied(program, at, *inputs, *places, *made)
            at += template.arena_bytes
        able = [template.able for template in own if template.able is not None]
        every = [*[rows.copy for rows in wise], copies]
        joined = self._joint(every, workers, able, state.arena, records)
        programs = [template.program for template in (*by_rows, *own)]

        def launch(program: BoundProgram, objects: int, alone: bool) -> None:
            self._graph.launch.native(joined.header.buffer_info()[0], objects, alone)
            self._joint.note(joined.table, programs)

        self._graph.launch(programs[0], workers, 0, launch)
        for program in programs[1:]:
            if program.checked or program.results:
                ended(program)
        return results

    def _kept_bytes(self, symbols: Sequence[int]) -> list[int]:
        """The bytes of each buffer that a request keeps between turns."""
        pairs = zip(self._sizes(symbols), self._item_bytes, strict=True)
        return [aligned(elements * size + SLACK_BYTES) for elements, size in pairs]


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
