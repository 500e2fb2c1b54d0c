"""`@ftuner.schedule`: a Python function over workers, tasks, tiles and lanes as an operator."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import product as all_of
from typing import Any, NamedTuple, Protocol, TypeVar, overload, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from ftuner.core.caching import RecentlyUsed
from ftuner.core.dim import Dim, maximum, minimum, product, quotient
from ftuner.core.evaluation import Renaming, evaluate
from ftuner.errors import DTypeError, OperandError, ScheduleError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import Require
from ftuner.runtime.cpu.arrays import Array, address_of, any_tensor, as_array, tensor_of
from ftuner.runtime.cpu.memory import allocated
from ftuner.tasks.cost import Costs, Tiles, kept_tiles
from ftuner.tasks.coverage import Check
from ftuner.tasks.interpret import interpret
from ftuner.tasks.parse import parse
from ftuner.tasks.program import LINE_BYTES, WORKERS, Program
from ftuner.tasks.proofs import prove
from ftuner.tasks.source import Source, source_of, tile_parameters
from ftuner.ukernels.funnel import Funnel

MOST_TILES = 64
"""Combinations of tile parameters. Derived: each is a function that is compiled."""
MOST_SHAPES = 4096
"""Shapes that are kept with what was decided for them."""
PIECE_ELEMENTS, MOST_SHARES = 64, 256
"""In a graph: least elements of a result for each virtual worker, and the most of these. Derived:
a virtual worker costs some nanoseconds, and threads share them evenly."""
PIECE_S, MOST_PIECES = 20e-6, 16
"""Least time of a virtual worker, and the most of them for each thread. Derived: to take one costs
a tenth of a microsecond, and the last ones to end are then a small part of the whole."""
Definition = Callable[..., Any]
D = TypeVar("D", int, Dim)


@runtime_checkable
class Operator(Protocol):
    """`ftuner.Operator`, for which a schedule is used."""

    def reference(self, *arrays: Any) -> Any: ...

    def use(self, schedule: Schedule) -> None: ...

    def defined(self, operands: Sequence[Any]) -> Sequence[Any]: ...


class Bound(NamedTuple):
    """What is decided for the shapes of some operands."""

    extents: dict[str, int]
    """In the order of the program."""
    outputs: tuple[tuple[int, ...], ...]


class Launch(NamedTuple):
    """How operands of some shapes run on a session."""

    bound: Bound
    tiles: Tiles
    threads: int
    workers: int
    """The value of `workers`."""
    chunk: int
    """Virtual workers that a thread takes at once."""
    panels_bytes: int
    """Memory of each thread for its panels."""
    address: int
    job: Callable[[int, int], None]
    """The function at the address."""

    def head(self, memory: int) -> tuple[int, ...]:
        """The record of the job, up to the addresses of arrays. `memory`: of the panels."""
        return 0, self.chunk, self.workers, *self.bound.extents.values(), memory, self.panels_bytes


class Scheduled:
    """Programs that a node of a graph runs: one for each combination of tiles."""

    def __init__(self, name: str, programs: Mapping[Tiles, Program]) -> None:
        self.__name__, self.programs = name, programs
        self.checks: dict[Tiles, tuple[Check, ...]] = {}
        self._any = next(iter(programs.values()))
        self.dtype, self._inputs = self._any.dtype, self._any.inputs

    def workers_of(self, extents: Mapping[str, Dim]) -> Dim:
        """The value of `workers` in a graph."""
        elements = Renaming(extents)(product(self._any.outputs[0].shape))
        return minimum(quotient(elements, PIECE_ELEMENTS) + 1, MOST_SHARES)

    def results_of(
        self, types: Sequence[TensorType], extents: Mapping[str, Dim], require: Require
    ) -> tuple[TensorType, ...]:
        """The types of the results for operands in a graph. The conditions on extents, among them
        `checks`, are required. Raises ShapeError if one cannot hold."""
        renamed = Renaming({**extents, WORKERS: self.workers_of(extents)})
        for declared, given in zip(self._inputs, types, strict=True):
            for dim, extent in zip(declared.shape, given.shape, strict=True):
                require(renamed(dim), extent, f"{declared.name} of {self.__name__} is {given}")
        for check in dict.fromkeys(c for checks in self.checks.values() for c in checks):
            some = product(minimum(maximum(renamed(d), 0), 1) for d in check.some)
            require(some * maximum(-renamed(check.dim), 0), 0, check.message)
        outputs = [tuple(map(renamed, a.shape)) for a in self._any.outputs]
        return tuple(TensorType(self.dtype, shape) for shape in outputs)


class Schedule(Scheduled):
    """A schedule that is parsed and proved. It is called with arrays, and returns its outputs.

    Attributes:
        parameters: the candidates of each tile parameter.
        programs: a program for each combination of them.
        checks: the conditions that could not be decided for all extents; each call decides them.
        definition: what it computes, a function of NumPy arrays; None if it was not given.
        operator: the operator that it is a schedule of; None if there is none.
        arrays: what it reads, and then what it stores.
    """

    def __init__(
        self, function: Callable[..., Any], definition: Definition | Operator | None = None
    ) -> None:
        source = source_of(function)
        self.__doc__ = function.__doc__
        self.operator: Operator | None = None
        if isinstance(definition, Operator):
            self.operator, definition = definition, definition.reference
        self.definition: Definition | None = definition
        self.parameters = tile_parameters(source)
        combinations = [
            tuple(zip(self.parameters, values, strict=True))
            for values in all_of(*self.parameters.values())
        ]
        if len(combinations) > MOST_TILES:
            what = f"{len(combinations)} combinations of tiles; expected {MOST_TILES} at most"
            raise source.error(ScheduleError, source.node.lineno, what)
        programs = {tiles: parse(source, dict(tiles)) for tiles in combinations}
        super().__init__(source.node.name, programs)
        self.checks = {t: prove(p) for t, p in programs.items()}
        self.arrays = self._any.arrays
        self._numpy = np.dtype(self.dtype.name)
        self._expect_bound_extents(source)
        self._codes: WeakKeyDictionary[Any, Code] = WeakKeyDictionary()
        if self.operator is not None:
            self.operator.use(self)

    def _expect_bound_extents(self, source: Source) -> None:
        alone = {str(d) for a in self._any.inputs for d in a.shape}
        for name in self._any.extents:
            if name not in alone:
                what = f"extent {name!r} is of no input's axis alone"
                raise source.error(ScheduleError, source.node.lineno, what)

    def __repr__(self) -> str:
        arrays = ", ".join(
            f"{a.name}: {'Out ' if a.is_output else ''}{a.dtype}[{', '.join(map(str, a.shape))}]"
            for a in self._any.arrays
        )
        return f"<schedule {self.__name__}({arrays})>"

    def __call__(self, *operands: object) -> Any:
        """The outputs: one array, or a tuple of them.

        Args:
            operands: an array or CPU tensor for each input, of its dtype and number of axes.
                Strided ones are copied.

        Raises:
            ShapeError: extents that contradict the declaration, or a condition of `checks`.
            DTypeError, OperandError: operands of another dtype, or that are no arrays.
        """
        code = self.code()
        known = code.known.call(*operands)
        if known is not None and known is not False:
            return known
        arrays = self.admitted(operands)
        results: list[Any] = code.run(arrays)
        if known is False and len(results) == 1:
            code.remember(arrays)
        if any_tensor(*operands):
            results = [tensor_of(r) for r in results]
        return results[0] if len(results) == 1 else tuple(results)

    def admitted(self, operands: Sequence[object]) -> list[Array]:
        """The operands as contiguous arrays. Raises as a call."""
        inputs = self._inputs
        if len(operands) != len(inputs):
            names = ", ".join(a.name for a in inputs)
            raise OperandError(f"{len(operands)} operands; {self.__name__} takes {names}")
        found = []
        for given, declared in zip(operands, inputs, strict=True):
            operand = as_array(given, declared.name)
            if operand.dtype != self._numpy:
                what = f"{declared.name} has dtype {operand.dtype}"
                raise DTypeError(f"{what}; expected {declared.dtype}")
            if operand.ndim != len(declared.shape):
                wanted = ", ".join(map(str, declared.shape))
                what = f"{declared.name} has the shape {operand.shape}"
                raise ShapeError(f"{what}; expected ({wanted})")
            if not (operand.flags.c_contiguous and operand.flags.aligned):
                operand = np.require(operand, requirements=["C", "A"])
            found.append(operand)
        return found

    def bound(self, shapes: Sequence[tuple[int, ...]]) -> Bound:
        """The extents of the program, and the shapes of the outputs. Raises ShapeError."""
        values = self.extents_of(shapes)
        for owner, shape in zip(self._inputs, shapes, strict=True):
            for dim, extent in zip(owner.shape, shape, strict=True):
                if evaluate(dim, values) != extent:
                    what = f"{owner.name} has an extent {extent}, where {dim} is expected"
                    raise ShapeError(f"{what} ({text_of(values.items())})")
        outputs = tuple(tuple(evaluate(d, values) for d in a.shape) for a in self._any.outputs)
        for output, shape in zip(self._any.outputs, outputs, strict=True):
            if any(extent < 0 for extent in shape):
                raise ShapeError(f"the output {output.name} would have the shape {shape}")
        return Bound(values, outputs)

    def extents_of(self, shapes: Sequence[Sequence[D]]) -> dict[str, D]:
        """The extents of the programs for operands, in the order of the programs."""
        found: dict[str, D] = {}
        for declared, shape in zip(self._inputs, shapes, strict=True):
            for dim, extent in zip(declared.shape, shape, strict=True):
                found.setdefault(str(dim), extent)
        return {name: found[name] for name in self._any.extents}

    # In graphs.

    def reference(self, arrays: Sequence[Any], extents: Sequence[int]) -> Any:
        """The results of operands in a graph, by the definition."""
        assert self.definition is not None
        return self.definition(*arrays)

    def defined(self, operands: Sequence[Any]) -> Sequence[Any]:
        """The results as values of a graph, without the schedule."""
        assert self.operator is not None
        return self.operator.defined(operands)

    # Calls.

    def decide(self, tiles: Tiles, bound: Bound, workers: int) -> None:
        """Evaluate the checks of a program. Raises ShapeError if one does not hold."""
        values = {**bound.extents, WORKERS: workers}
        for check in self.checks[tiles]:
            if all(evaluate(d, values) > 0 for d in check.some) and evaluate(check.dim, values) < 0:
                raise ShapeError(f"{check.message} ({text_of(values.items())})")

    def interpret(self, *operands: object, workers: int = 1, **tiles: int) -> Any:
        """The outputs as the NumPy interpreter computes them: the meaning of the schedule.

        Args:
            operands: as of a call.
            workers: how many execute the tasks.
            tiles: values of tile parameters; by default the first candidates.

        Raises:
            ShapeError, DTypeError, OperandError: as a call.
            BoundsError: an element outside of an array.
        """
        chosen = tuple((k, tiles.get(k, values[0])) for k, values in self.parameters.items())
        if chosen not in self.programs or set(tiles) - set(self.parameters):
            raise ScheduleError(f"tiles {tiles}; expected some of {self.parameters}")
        arrays = self.admitted(operands)
        bound = self.bound([a.shape for a in arrays])
        self.decide(chosen, bound, workers)
        results = interpret(self.programs[chosen], arrays, bound.extents, workers)
        return results[0] if len(results) == 1 else tuple(results)

    def code(self, session: Any = None) -> Code:
        """The compiled schedule. `session`: of an ISA; by default that of the CPU's back end."""
        if session is None:
            session = _default_backend()
        found = self._codes.get(session)
        if found is None:
            found = self._codes[session] = Code(self, session)
        return found

    def explain(self) -> str:
        """The tiles that are kept and pruned on this machine, why, and the checks of each call."""
        funnel = self.code().funnel
        lines = [repr(self)]
        if self.parameters:
            lines.append("tiles kept: " + "; ".join(map(text_of, funnel.kept)))
        for pruned in funnel.pruned:
            if pruned.tiles:
                lines.append(f"pruned, {pruned.name}: {'; '.join(map(text_of, pruned.tiles))}")
                lines.append(f"  {pruned.reason}")
        checks = dict.fromkeys(c.message for t in funnel.kept for c in self.checks[t])
        lines += [f"each call checks: {message}" for message in checks] or [
            "proved for all extents: bounds, each element stored once, no races"
        ]
        return "\n".join(lines)


@cache
def _default_backend() -> Any:
    return import_module("ftuner.runtime.cpu.backend").default_backend()


def text_of(numbers: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in numbers) or "none"


class Code:
    """A schedule on one session, compiled once for any shapes. Several threads may use it."""

    def __init__(self, made: Schedule, session: Any) -> None:
        self._schedule, self._session = made, session
        kernels = session.kernels
        isa, hardware = kernels.isa, kernels.hardware
        self.funnel: Funnel[Tiles] = kept_tiles(made.programs.items(), isa, hardware)
        self._costs = {t: Costs(made.programs[t], isa, hardware) for t in self.funnel.kept}
        bundle = import_module("ftuner.codegen.llvm.objects.bundle")
        row = import_module("ftuner.hardware.isa").instruction_set(isa.name)
        bundles = {
            tiles: bundle.kernel_bundle("ftuner.tasks.llvm", "schedule", made.programs[tiles], row)
            for tiles in self.funnel.kept
        }
        self._loaded = kernels.loaded([*bundles.values()])
        self.addresses = {t: self._loaded.addresses[b.symbol] for t, b in bundles.items()}
        """Of the job of each kept tile."""
        self._launches: RecentlyUsed[tuple[object, ...], Launch] = RecentlyUsed(MOST_SHAPES)
        self._symbols = symbols = import_module("ftuner.codegen.llvm.native.symbols")
        threads = import_module("ftuner.runtime.cpu.threads")
        self._runtime, self._pool = kernels.runtime, kernels.runtime.pool
        self._run = threads.RUN_TYPE(kernels.runtime.addresses[symbols.POOL_RUN_SYMBOL])
        self._dtype = np.dtype(made.dtype.name)
        self._calls = import_module("ftuner.runtime.cpu.call_cache")
        self.known = self._calls.KnownCalls(session)
        """Runs calls of known layouts without Python."""

    def launch(self, shapes: tuple[tuple[int, ...], ...], tiles: Tiles | None = None) -> Launch:
        """How operands of some shapes run. `tiles`: by default those with the best estimate.

        Raises:
            ShapeError: as a call.
        """
        key = (shapes, self._session.threads, tiles)
        found = self._launches.get(key)
        if found is None:
            found = self._decided(shapes, self._session.threads, tiles)
            self._launches.add(key, found)
        return found

    def _decided(
        self, shapes: tuple[tuple[int, ...], ...], threads: int, tiles: Tiles | None
    ) -> Launch:
        bound = self._schedule.bound(shapes)
        seconds, _, chosen, used = min(
            (self._costs[t].estimate((*bound.extents.values(),), count).seconds, number, t, count)
            for number, t in enumerate(self.funnel.kept if tiles is None else [tiles])
            for count in dict.fromkeys((1, threads))
        )
        workers = 1
        if used > 1:
            pieces = int(seconds * used / PIECE_S)
            workers = min(max(pieces, used), used * MOST_PIECES)
        self._schedule.decide(chosen, bound, workers)
        address, program = self.addresses[chosen], self._schedule.programs[chosen]
        values = {**bound.extents, WORKERS: workers}
        chunk = max(evaluate(program.tasks.workers, values) // (used * MOST_PIECES), 1)
        size = evaluate(program.panel_places()[1], values)
        return Launch(bound, chosen, used, workers, chunk, size, address, _JOB(address))

    def run(self, arrays: Sequence[Array], tiles: Tiles | None = None) -> list[Array]:
        """The outputs for contiguous arrays. Raises ShapeError as a call."""
        launch = self.launch(tuple([a.shape for a in arrays]), tiles)
        outputs = [allocated(shape, self._dtype) for shape in launch.bound.outputs]
        addresses = [address_of(a) for a in (*arrays, *outputs)]
        memory = 0
        if launch.panels_bytes:
            # It lives to the end of the run.
            panels = np.empty(launch.threads * launch.panels_bytes + LINE_BYTES, np.uint8)
            memory = -(-address_of(panels) // LINE_BYTES) * LINE_BYTES
        record = array("q", (*launch.head(memory), *addresses))
        self._execute(launch, record.buffer_info()[0])
        return outputs

    def remember(self, arrays: Sequence[Array]) -> None:
        """Have `known` run later calls with arrays of such layouts."""
        known, launch = self.known, self.launch(tuple([a.shape for a in arrays]))
        size = launch.threads * launch.panels_bytes
        if not known.admits(arrays) or size > self._calls.MAX_WORKSPACE_BYTES:
            return
        head, count = launch.head(known.arena.grown(size)), len(arrays) + 1
        words = launch.address, self._pool.address, launch.threads, count, len(head)
        plan = array("q", (*words, *head, *[0] * count))
        output = launch.bound.outputs[0], self._dtype
        found = self._calls.KnownProgram(
            self._symbols.TASKS_SYMBOL, plan.buffer_info()[0], launch.threads, np.empty, output,
            (self, plan, known.arena.memory),
        )  # fmt: skip
        known.remember_program(self._runtime, arrays, found, self._session.threads)

    def _execute(self, launch: Launch, record: int) -> None:
        """Run a job on the pool; on the calling thread alone if another one has the workers."""
        threads, pool = launch.threads, self._pool
        if threads > 1 and pool.lock.acquire(blocking=False):
            try:
                if pool.threads >= threads or pool.grow(threads):
                    self._run(pool.address, launch.address, record, threads, 0, 0)
                    return
            finally:
                pool.lock.release()
        launch.job(record, 0)


_JOB = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


@overload
def schedule(function: Callable[..., Any]) -> Schedule: ...
@overload
def schedule(*, definition: Definition | Operator) -> Callable[[Callable[..., Any]], Schedule]: ...
def schedule(
    function: Callable[..., Any] | None = None, *, definition: Definition | Operator | None = None
) -> Schedule | Callable[[Callable[..., Any]], Schedule]:
    """Make an operator of a function over workers, tasks, tiles and lanes; see docs/schedules.md.

    Args:
        function: read from its source, never executed. Each parameter is annotated as an array or
            `Out` array with an extent for each axis, or is a tile parameter.
        definition: what it computes, on NumPy arrays: `ftuner.check` compares both. Or an
            `ftuner.operator`, which is then computed by this schedule wherever operands have its
            dtype, and fused with what stands around.

    Raises:
        UnsupportedStatementError, UndefinedNameError, MappingError: what the language does not
            have.
        BoundsError, CoverageError, RaceError: what is wrong for all extents.
        ScheduleError: the function has no source, or too many combinations of tiles.
    """
    if function is None:
        return lambda given: Schedule(given, definition)
    return Schedule(function, definition)
