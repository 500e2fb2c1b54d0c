"""Executables: graphs compiled for this machine, run at any extents."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING

from ftuner.codegen.llvm.native.symbols import PROGRAM_SYMBOL
from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.errors import MemoryLimitError, ShapeError, UnsupportedKernelError
from ftuner.graph.appending import Appended
from ftuner.graph.ir import Graph
from ftuner.graph.lowering import lower
from ftuner.graph.ragged import RaggedSteps
from ftuner.graph.splitting import Compiled
from ftuner.graph.steps import Lowered
from ftuner.runtime.backend import Executable, Joined, Options
from ftuner.runtime.cpu.appending import Extension, extend, keep, shown, undo
from ftuner.runtime.cpu.arrays import Array, items_address
from ftuner.runtime.cpu.call_cache import MAX_WORKSPACE_BYTES, KnownCalls, KnownProgram
from ftuner.runtime.cpu.launching import Launch, Launcher
from ftuner.runtime.cpu.memory import OutputPool
from ftuner.runtime.cpu.program import BoundProgram, ProgramWriter
from ftuner.runtime.cpu.run_states import RunState, RunStates
from ftuner.runtime.cpu.session import CpuSession
from ftuner.runtime.cpu.step_compilation import StepCompiler
from ftuner.runtime.cpu.step_kind import KINDS, CompiledStep
from ftuner.runtime.cpu.threads import checked_threads
from ftuner.runtime.kept_memory import Memory
from ftuner.runtime.shapes.binding import Binding

if TYPE_CHECKING:
    from ftuner.graph.ops.control import Iterations
    from ftuner.runtime.cpu.ragged import RaggedGraph

# Batches and loops are imported by name: most processes run neither.

Shapes = tuple[tuple[int, ...], ...]
"""Of the inputs."""
# Most models have these: loading one, perhaps by several threads or beside a fork, imports no more.
for _kind in ("nest", "product", "convolution", "depthwise", "stripes", "whole", "attention"):
    KINDS.named(_kind)


class CompiledGraph(Executable):
    """A compiled graph without data-dependent shapes. Safe to use from several threads: runs are
    concurrent, each with its own state (`RunStates`)."""

    def __init__(
        self, graph: Graph, session: CpuSession, options: Options,
        appended: Sequence[Appended] = (), compiled: Compiled | None = None,
    ) -> None:  # fmt: skip
        """Lower, compile and pack a graph, which loses its nodes. `appended`: the outputs that
        append to an input in place. `compiled`: what another process compiled of the graph, which
        then has no nodes.

        Raises:
            UnsupportedOperatorError: an operator without a schedule.
            ConfigurationError: a number of threads out of range.
        """
        self.session = session
        given = options.threads
        self._threads = None if given is None else checked_threads(given)
        self.binding = Binding(graph)
        graph = graph.moved()
        if compiled is None:
            lowered = lower(graph, runs=KINDS.runs, appended=appended)
            self._steps = StepCompiler(session, self.threads)
        else:
            lowered = compiled.lowered
            self._steps = StepCompiler(session, compiled.workers)
        # The original of a weight is freed when the last step that reads it has been packed.
        graph, steps = replace(graph, nodes=()), list(lowered.steps)
        lowered = replace(lowered, graph=graph, steps=())
        compiled_steps = self._steps.compile(steps, options, compiled)
        self.lowered = replace(lowered, steps=tuple(step.step for step in compiled_steps))
        self.pasts = [graph.inputs[pair.input].name for pair in appended]
        """The names of the inputs that outputs append to."""
        self.weights_bytes = _weights_bytes(self.lowered, compiled_steps)
        self._kept = options.kept
        self._pool = OutputPool(self._kept)
        kernels, make = session.kernels, self._pool.array
        self._writer = ProgramWriter(
            self.lowered, compiled_steps, self.binding, kernels, make, demands=True
        )
        if options.plans_ahead and (compiled is None or not compiled.plans):
            self._writer.plan_ahead(self.threads)
        self.launch = Launcher(session.kernels.runtime)
        self.states = RunStates(session.cores, self._writer.forget)
        self._kept.add(self.states)
        self._compiled = compiled_steps

    @cached_property
    def _apart(self) -> RaggedGraph | None:
        """What runs requests in one launch, of which no rows run together; None if they share no
        weights."""
        steps = len(self._compiled)
        found = self._batches_by(RaggedSteps((), (None,) * steps, ("",) * steps))
        return found if found is not None and found.shares_panels else None

    def _batches_by(self, found: RaggedSteps | None) -> RaggedGraph | None:
        # Where a run writes over rows of an input, an error would use up those of other requests.
        if found is None or any(pair.writes for pair in self.lowered.appended):
            return None
        try:
            room = import_module("ftuner.runtime.cpu.ragged")
            made: RaggedGraph = room.RaggedGraph(weakref.proxy(self), self._compiled, found)
        except UnsupportedKernelError:
            return None
        self._kept.add(made.states)
        return made

    leaves_out_padding = True

    @property
    def threads(self) -> int:
        """Number of threads that a run uses, including the caller's."""
        return self.session.threads if self._threads is None else self._threads

    @property
    def isa(self) -> str:
        return self.session.kernels.isa.name

    def compiled(self) -> Compiled:
        return self._steps.compiled(self.lowered, self._writer.plan_ahead(self.threads))

    def bundles(self) -> list[Bundle]:
        """All that the graph needs machine code of."""
        return self._steps.bundles(self.lowered)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs; an input that an output appends to may have any strides.

        Raises:
            MemoryLimitError: a run needs more than the model may keep.
            InputError: an output of an earlier run, which another run has written over.
        """
        state = self.states.take()
        try:
            return self._in(state, arrays)
        finally:
            self._give_back(state)

    @property
    def _joining(self) -> Joined | None:
        """What runs several requests in one launch, if the model may keep what it needs."""
        return (self._batches or self._apart) if self._kept.limit is None else None

    def run_apart(self, batch: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Like `run_batch`, for requests of which no rows run together."""
        found = self._apart if len(batch) > 1 else None
        return [*map(self.run, batch)] if found is None else found.run(batch, True)

    def repeat(
        self, arrays: Sequence[Array], carried: int, conditional: bool, most: int
    ) -> Iterations | None:
        """Iterations whose carried values keep their extents: one bound program, of which an
        iteration changes addresses alone. None if these extents change."""
        with self._state() as state:
            program = self._program(state, _shapes(arrays), self.threads)
            kept = program.outputs[int(conditional) : int(conditional) + carried]
            if [shape for shape, _ in kept] != [x.shape for x in arrays[:carried]]:
                return None
            room = import_module("ftuner.runtime.cpu.repeated")
            operands = room.Repeated(program.outputs, program.makes, arrays, carried, conditional)
            going, number = True, 0
            while going and number < most:
                operands.begin(number, most)
                self.launch(program, program.workers, operands.objects, self.launch.all)
                number += 1
                going = operands.end()
            found: Iterations = operands.results(number, going)
            return found

    def timed(self, arrays: Sequence[Array]) -> tuple[list[Array], list[float]]:
        """A step of several workers takes the start of a job longer than within `run`."""
        seconds: list[float] = []

        def launch(program: BoundProgram, objects: int, alone: bool) -> None:
            # Wakes workers that fell asleep since the last run.
            self.launch.steps(program, 0, 0, objects, alone)
            for i in range(len(self.lowered.steps)):
                began = time.perf_counter()
                self.launch.steps(program, i, 1, objects, alone)
                seconds.append(time.perf_counter() - began)

        with self._state() as state:
            return self._in(state, arrays, launch), seconds

    def step_seconds(self, arrays: Sequence[Array]) -> list[float]:
        arrays = list(arrays)
        for pair in self.lowered.appended:
            if pair.writes:
                # A run would use it up.
                arrays[pair.input] = arrays[pair.input].copy()
        return super().step_seconds(arrays)

    def memory(self, arrays: Sequence[Array]) -> Memory:
        with self._state() as state:
            program = self._program(state, _shapes(arrays), self.threads)
        return Memory(
            self.weights_bytes,
            program.arena_bytes,
            program.workspace_bytes,
            program.attention_worker_bytes,
            program.outputs_bytes,
            program.kept_bytes,
        )

    def prepare(self, cases: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Bind programs in the state of a single caller, and have the system allocate the pages of
        its arena, those of the outputs of the last shapes, and the workers."""
        workers, refused = self.threads, []
        with self._state() as state:
            program = None
            for shapes in cases:
                try:
                    program = self._program(state, tuple(map(tuple, shapes)), workers)
                except ShapeError as error:
                    refused.append(str(error))
            state.arena.touch()
            if program is not None:
                for output in program.fresh_outputs():
                    output.fill(0)
        pool = self.session.kernels.runtime.pool
        with pool.lock:
            pool.grow(workers)
        return refused

    def remembered(
        self, calls: KnownCalls | None, arrays: Sequence[Array], outputs: Sequence[Array]
    ) -> KnownCalls:
        """The cache runs a program of its own."""
        calls = KnownCalls(self.session) if calls is None else calls
        limited = self._threads is not None or self._kept.limit is not None
        if len(outputs) > 1 or self.pasts or limited or not calls.admits((*arrays, *outputs)):
            return calls
        shapes, threads = _shapes(arrays), self.threads
        with self._state() as state:
            known = self._program(state, shapes, threads)
        few = known.arena_bytes + known.workspace_bytes <= MAX_WORKSPACE_BYTES
        if not known.checked and few and outputs[0].size:
            runtime, arena = self.session.kernels.runtime, calls.arena
            symbols = self.binding(shapes)
            own = self._writer.bind(symbols, threads, arena.grown)
            own.take_results(known)
            # A call runs without what holds the code and the weights otherwise.
            named = self, own, arena.memory
            (make,), (output,) = own.makes, own.outputs
            found = KnownProgram(PROGRAM_SYMBOL, own.address, own.workers, make, output, named)
            calls.remember_program(runtime, arrays, found, threads)
        return calls

    @contextmanager
    def _state(self) -> Iterator[RunState]:
        """A state, which `run` takes itself: that is faster."""
        state = self.states.take()
        try:
            yield state
        finally:
            self._give_back(state)

    def _give_back(self, state: RunState) -> None:
        self.states.give_back(state)
        if self._kept.crowded:
            self._kept.settle()

    def _in(
        self, state: RunState, arrays: Sequence[Array], launch: Launch | None = None
    ) -> list[Array]:
        """Run in a state, by `launch` if it is given. Both run the same program, with the same
        bits."""
        program = self._program(state, _shapes(arrays), self.threads)
        outputs: list[Array] = program.fresh_outputs()
        launch = launch or self.launch.all
        if not self.pasts:
            self._execute(program, (*arrays, *outputs), launch)
            return outputs
        written = outputs.copy()
        extensions: list[Extension] = []
        begun = False
        try:
            appended = self.lowered.appended
            extend(arrays, appended, program.growths, self.pasts, outputs, written, extensions)
            if extensions:
                arrays = self._unwritten(arrays, extensions)
            begun = True
            self._execute(program, (*arrays, *written), launch)
        except BaseException:
            for *_, taken in extensions:
                undo(taken, begun)
            raise
        keep(extensions)
        return outputs

    def _unwritten(
        self, arrays: Sequence[Array], extensions: Sequence[Extension]
    ) -> Sequence[Array]:
        """The inputs, copied where they show memory that the run may write over."""
        memories = [view.memory for *_, view in extensions if view is not None and view.writes]
        if not memories:
            return arrays
        pasts = {pair.input for pair in self.lowered.appended}
        return [
            x.copy() if number not in pasts and shown(x, memories) else x
            for number, x in enumerate(arrays)
        ]

    def _execute(self, program: BoundProgram, arrays: tuple[Array, ...], launch: Launch) -> None:
        """Run a program on the arrays of the inputs and of the outputs."""
        self.launch(program, program.workers, items_address(arrays), launch)

    def _program(self, state: RunState, shapes: Shapes, workers: int) -> BoundProgram:
        key = (shapes, workers)
        found: BoundProgram | None = state.programs.get(key)
        if found is None or found.arena != state.arena.address:
            symbols = self.binding.read(shapes)
            found = self._within(state, partial(self._writer.bind, symbols, workers))
            state.programs.add(key, found)
        return found

    def _within(
        self, state: RunState, bind: Callable[[Callable[[int], int]], BoundProgram]
    ) -> BoundProgram:
        """A new program. If there is a limit, other memory of the model is freed for it.

        Raises:
            MemoryLimitError: it needs more than the limit.
        """
        limit = self._kept.limit
        if limit is None:
            return bind(state.arena.grown)

        def arena(size: int) -> int:
            if size > limit:
                raise _over(size, limit)
            return state.arena.grown(size)

        def bound() -> BoundProgram:
            found = bind(arena)
            needed = state.arena.size + found.kept_bytes
            if needed > limit:
                raise _over(needed, limit)
            return found

        for last in (False, True):
            try:
                found = bound()
                break
            except MemoryLimitError:
                # The arena may have been made for larger shapes, and places for longer inputs.
                state.forget()
                self._writer.forget()
                if last:
                    raise
        room = limit - found.kept_bytes
        if not self._kept.fit(room):
            state.programs.clear()
            self._writer.forget()
            self._kept.crowded = not self._kept.fit(room)
        return found


def _shapes(arrays: Sequence[Array]) -> Shapes:
    return tuple([x.shape for x in arrays])


def _over(needed: int, limit: int) -> MemoryLimitError:
    return MemoryLimitError(
        f"a run on such inputs needs {needed} bytes for intermediate results and its program, and "
        f"memory_limit is {limit}"
    )


def _weights_bytes(lowered: Lowered, compiled: Sequence[CompiledStep]) -> int:
    """Bytes of packed weights, and of constants that are read as the graph has them."""
    packed = {id(s.panels): int(s.panels.packed.nbytes) for s in compiled if s.panels is not None}
    others = {buffer for step in lowered.steps for buffer in step.reads}
    return sum(packed.values()) + sum(buffer.elements_bytes for buffer in others)
