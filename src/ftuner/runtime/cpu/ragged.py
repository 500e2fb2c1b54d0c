"""Batches of requests of unequal length: row-wise steps run once for all of them.

Two programs share the steps of a graph (`graph.ragged`): one of the row-wise steps, bound to the
rows of all requests together, and one of the others, bound to the extents of each request as a run
of that request alone is. They take turns, all in one launch (`joint_program`), in which workers
share the requests. Buffers that both access are in the arena of the first one, in which the rows of
requests follow each other; the others read and write their part of these. What a request needs
later, and has no rows, is kept for each one apart.

Each row has the bits that it has alone. Plans of products differ with the number of rows, and so
may the order of the sums over k: requests run together only if that order is one for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.caching import RecentlyUsed
from ftuner.core.dim import symbols_of
from ftuner.core.evaluation import compiled
from ftuner.errors import UnsupportedKernelError
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ragged import RaggedSteps, divide
from ftuner.graph.steps import Lowered
from ftuner.runtime.cpu.appending import Extension, extend, keep, undo
from ftuner.runtime.cpu.arrays import Array, address_of, numpy_dtype
from ftuner.runtime.cpu.joint_program import JointSteps, arena_bytes, placed, turns_of
from ftuner.runtime.cpu.launching import Launcher, ended
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


class Runner(Protocol):
    """A compiled graph, as `CompiledGraph`."""

    lowered: Lowered
    binding: Binding
    session: CpuSession
    launch: Launcher
    pasts: Sequence[str]

    @property
    def threads(self) -> int: ...
    def run(self, arrays: Sequence[Array]) -> list[Array]: ...


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
        turns = turns_of(found)

        def writer(lowered: Lowered, part: Sequence[CompiledStep], wise: bool) -> ProgramWriter:
            cuts = {turn.first for turn in turns if turn.wise is wise}
            lowered = replace(lowered, steps=tuple([compiled.step for compiled in part]))
            return ProgramWriter(
                lowered,
                part,
                binding,
                session.hardware,
                session.kernels.runtime,
                np.empty,
                cuts,
                not wise,
            )

        rest = [_accessing(step, division.moved) for step in rest]
        self._row_writer = writer(division.by_rows, wise, True)
        self._own_writer = writer(division.of_request, rest, False)
        accessed = {*self._own_writer.patches[1].tolist()}
        self._read = [n for n in range(len(graph.lowered.inputs)) if n in accessed]
        """The numbers of the inputs that steps of a request read. A past that outputs append to is
        at their addresses."""
        self._shared = [self._row_writer.places[buffer] for buffer in division.shared]
        self._shared_bytes = [self._width(b) * b.dtype.itemsize for b in division.shared]
        self._joint = JointSteps(turns, self._row_writer.stages, self._own_writer.stages)
        self._states = RunStates(session.cores)
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
        return self._states.kept_bytes

    def trim(self) -> None:
        self._states.trim()

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
        state = self._states.take()
        extensions: list[Extension] = []
        try:
            total = _rows(group)
            symbols = [total if counts else 1 for counts in self._total]
            by_rows = self._template(state, self._row_writer, symbols, ((total,),), workers)
            own = [
                self._template(state, self._own_writer, request.symbols, request.shapes, workers)
                for request in group
            ]
            results = self._ran(state, by_rows, own, group, workers, extensions)
        except BaseException:
            for *_, taken in extensions:
                undo(taken, begun=True)
            raise
        finally:
            self._states.give_back(state)
        for _, _, view, _ in extensions:
            keep(view)
        return results

    def _template(
        self, state: RunState, writer: ProgramWriter, symbols: Sequence[int],
        shapes: tuple[tuple[int, ...], ...], workers: int,
    ) -> BoundProgram:  # fmt: skip
        """A program for values of the symbols, of which `placed` makes those that run."""
        key = shapes, workers, writer is self._row_writer
        found = state.programs.get(key)
        if found is None:
            pool = self._graph.session.kernels.runtime.pool.address
            found = writer.bind(symbols, workers, pool, lambda size: 0)
            state.programs.add(key, found)
        return found

    def _ran(
        self, state: RunState, by_rows: BoundProgram, own: Sequence[BoundProgram],
        group: Sequence[_Request], workers: int, extensions: list[Extension],
    ) -> list[list[Array]]:  # fmt: skip
        """The outputs of requests, by templates for their rows together and for each of them. Those
        that append to inputs are added to `extensions`."""
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
        results = [program.fresh_outputs() for program in own]
        for number, array in common.items():
            pieces = np.split(array, ends[:-1] * (len(array) // total))
            for outputs, piece in zip(results, pieces, strict=True):
                outputs[number] = piece.reshape(outputs[number].shape)
        written = [outputs.copy() for outputs in results]
        appended, names = self._graph.lowered.appended, self._graph.pasts
        for request, program, outputs, memories in zip(group, own, results, written, strict=True):
            extend(request.arrays, appended, program.growths, names, outputs, memories, extensions)

        # The arena: that of the row-wise steps, then for each request what it keeps, and its own.
        kept = self._kept_bytes(group)
        sizes = np.array([arena_bytes(program) for program in (by_rows, *own)], np.int64)
        sizes[1:] += kept.sum(axis=1)
        bases = np.cumsum(sizes) - sizes
        bases += state.arena.grown(int(sizes.sum()))
        kept_at = bases[1:, None] + np.cumsum(kept, axis=1) - kept

        given, made = len(division.by_rows.inputs), len(own[0].outputs)
        shared, further = len(division.shared), len(division.moved)
        of_rows = np.zeros((1, given + made), np.int64)
        for number, array in inputs.items():
            of_rows[0, number] = address_of(array)
        for number, array in common.items():
            of_rows[0, given + number] = address_of(array)
        of_each = np.empty((len(group), given + further + made), np.int64)
        of_inputs, at = of_each[:, :given], of_each[:, given:]
        for number in self._read:
            of_inputs[:, number] = [address_of(request.arrays[number]) for request in group]
        rows_at = bases[0] + by_rows.buffers[self._shared]
        at[:, :shared] = rows_at + np.outer(begins, self._shared_bytes)
        at[:, shared:further] = kept_at
        at[:, further:] = [[address_of(x) for x in found] for found in written]

        records = (
            placed(self._row_writer, [by_rows], bases[:1], of_rows),
            placed(self._own_writer, own, bases[1:] + kept.sum(axis=1), of_each),
        )
        steps, joint = self._joint(*records, by_rows)

        def launch(program: BoundProgram, objects: int, alone: bool) -> None:
            self._graph.launch.native(address_of(joint), objects, alone)
            self._joint.note(steps, (by_rows, *own))

        self._graph.launch(by_rows, workers, 0, launch)
        for program in own:
            ended(program)
        return results

    def _kept_bytes(self, group: Sequence[_Request]) -> Words:
        """The bytes of each buffer that each request keeps between turns."""
        kept = self._division.kept
        elements = [self._sizes(request.symbols) for request in group]
        items = np.array([b.dtype.itemsize for b in kept], np.int64)
        sizes = np.array(elements, np.int64).reshape(len(group), len(kept)) * items
        return aligned(sizes + SLACK_BYTES)


def _rows(group: Sequence[_Request]) -> int:
    return sum([request.rows for request in group])


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
