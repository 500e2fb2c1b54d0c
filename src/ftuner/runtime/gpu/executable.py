"""Graphs compiled for one GPU, run at any extents.

Compiling makes the kernels of all schedules of nests and all kernels that products and attention
may launch. Binding extents evaluates dims, plans, and makes a list of launches.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice, product
from typing import Any, TypeVar

import torch

from ftuner.codegen.triton.source import Source
from ftuner.core.caching import RecentlyUsed
from ftuner.core.dtype import GPU_DTYPES, DType
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.errors import (
    IndexRangeError,
    ShapeError,
    UnsupportedKernelError,
    UnsupportedOperatorError,
)
from ftuner.graph.buffers import Buffer
from ftuner.graph.ir import Array, Graph
from ftuner.graph.lowering import lower
from ftuner.graph.passes.channels_last import pad_channels
from ftuner.graph.precision import held_types
from ftuner.graph.ragged import RaggedSteps, ragged_steps
from ftuner.graph.steps import Lowered
from ftuner.runtime.backend import Executable, Options
from ftuner.runtime.gpu.arrays import TORCH_DTYPES, Tensor, allocated, allows_tf32
from ftuner.runtime.gpu.launching import is_capturing
from ftuner.runtime.gpu.program import Program
from ftuner.runtime.gpu.ragged import BUFFER_BYTES, RaggedGraph, for_several
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.gpu.step_kind import (
    KINDS,
    CompiledStep,
    Places,
    Setting,
    kind_of,
    nowhere,
)
from ftuner.runtime.kept_memory import Keeper, Memory
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shapes.evaluation import (
    Dims,
    Layouts,
    Outputs,
    addressable,
    evaluated,
    loops_of,
    picked,
)
from ftuner.runtime.shapes.layout import Lifetime, first_fit
from ftuner.runtime.shared_weights import SharedWeights

MAX_LAUNCHES = 1 << 18
"""Launches of all programs that a graph keeps, at about 3 KiB of the host's memory each. At least
half of this is kept: 1,000 shapes of an encoder of twelve layers."""
KINDS_OF_EXTENTS = (5, 64, 1)
"""Values of symbols with which kernels of products are found: unaligned extents, aligned extents,
and one row, for which any stride is valid."""
MAX_REHEARSALS = 162
"""Sets of extents that are tried: all for up to four symbols, and for five those in which at most
two differ from the others."""
log = logging.getLogger(__name__)
T = TypeVar("T")


class CompiledGraph(Executable, Keeper):
    """A graph without data-dependent shapes, compiled for one GPU. Safe to use from several
    threads: runs follow each other."""

    def __init__(self, graph: Graph, session: GpuSession, options: Options) -> None:
        """Lowers a graph, compiles its kernels and moves its constants.

        Raises:
            UnsupportedOperatorError: steps that have no kernel on a GPU; all of them are listed.
            HardwareError: the chip does not multiply an element type of the graph.
        """
        if any(value.dtype.on_host for value in graph.inputs):
            raise UnsupportedOperatorError("strings and maps are computed on a CPU alone")
        self.session = session
        self.binding = Binding(graph)
        graph = pad_channels(held_types(graph, options.held))(graph)
        lowered = lower(graph, held_types(graph, options.held), KINDS.runs)
        steps = tuple(kind_of(step).arranged(step) for step in lowered.steps)
        self.lowered = replace(lowered, steps=steps)
        for element in _expect_supported(self.lowered):
            session.library(element)
        self.constants = _moved_constants(self.lowered, session.device, options.shared)
        self.weights_bytes = sum(x.nbytes for x in self.constants.values())
        dims = Dims()
        setting = Setting(session, allows_tf32(), dims, Layouts(dims))
        self.steps = [kind_of(step).compiled(step, setting) for step in steps]
        lifetimes = self.lowered.lifetimes()
        self._lifetimes = [Lifetime(*stages) for stages in lifetimes.values()]
        self.sizes = {b: dims.number(b.elements) for b in lifetimes}
        """The numbers of the dims that count the elements of buffers of the arena."""
        self.outputs = [
            (dims.numbers(v.shape), TORCH_DTYPES[v.layout.dtype.name]) for v in self.lowered.outputs
        ]
        """Numbers of the dims of each, and its dtype."""
        self._extents = picked(
            {*self.sizes.values(), *(n for shape, _ in self.outputs for n in shape)}
        )
        self._loops = picked(loops_of((kind_of(step).loops(step) for step in steps), dims))
        self.evaluate = dims.compiled(self.binding.names)
        """Gives the values of all dims for those of the symbols."""
        sources = [source for step in self.steps for source in step.sources]
        session.kernels.prepare([*sources, *self._rehearsed()], options.progress)
        self._checks = [step.checks for step in self.steps if step.checks]
        self.status = torch.zeros(len(self._checks), dtype=torch.int32, device=session.device)
        """A status word for each nest with checks: 0, or the number of the check that failed."""
        self._programs: RecentlyUsed[tuple[tuple[int, ...], ...], Program] = RecentlyUsed(
            MAX_LAUNCHES,
            size=lambda program: max(program.launches, 1),
            forgotten=lambda program: _retire(session.device, program.memory),
        )
        self._recorder = session.recorder()
        self._arena = torch.empty(0, dtype=torch.uint8, device=session.device)
        self._stream: Any = None
        """The stream of the last run; at first that of the constants."""
        if session.device.type == "cuda":
            self._stream = torch.cuda.current_stream(session.device)
        self._lock = fork_safe_lock()
        options.kept.add(self)

    @property
    def kept_bytes(self) -> int:
        recorded = sum(program.kept_bytes for program in self._programs.values())
        return self._arena.nbytes + recorded

    def trim(self) -> None:
        with self._lock:
            self._replace_arena(0)

    def prepare(self, cases: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Bind programs, and run each on zeros until its shapes are recorded, or once if they never
        are, so that kernels are on the device and the allocator has its memory."""
        refused = []
        inputs = self.lowered.inputs
        for shapes in cases:
            dtypes = [TORCH_DTYPES[buffer.dtype.name] for buffer in inputs]
            pairs = zip(shapes, dtypes, strict=True)
            zeros = [torch.zeros(*x, dtype=t, device=self.session.device) for x, t in pairs]
            runs = self.session.hardware.tuning.recorded_run if self.recording else 1
            try:
                for _ in range(runs):
                    self.run(zeros)
            except (IndexRangeError, ShapeError) as error:
                refused.append(str(error))
        return refused

    threads = 1

    def timed(self, arrays: Sequence[Tensor]) -> tuple[list[Tensor], list[float]]:
        with self._lock:
            found = self._uncaptured(arrays).timed(arrays)
            if self._checks:
                self._raise_status()
        return found

    def memory(self, arrays: Sequence[Tensor]) -> Memory:
        with self._lock:
            return self._uncaptured(arrays).memory_use(arrays, self.weights_bytes)

    def _uncaptured(self, arrays: Sequence[Tensor]) -> Program:
        """Returns the program of a run on the current stream.

        Raises:
            UnsupportedKernelError: a CUDA graph is being captured.
        """
        if is_capturing(self.session.device):
            raise UnsupportedKernelError(
                "the steps of a model cannot be measured while a CUDA graph is captured"
            )
        self._follow()
        return self._program(_shapes(arrays))

    def run(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Launches on the current stream; waits only if the graph checks indices.

        While a CUDA graph is captured, launches get their own memory. An index that a replay finds
        out of range is reported by the next run that is not captured.
        """
        with self._lock:
            if is_capturing(self.session.device):
                return self._bind(_shapes(arrays)).run(arrays)
            return self._checked(partial(self.launched, arrays))

    def _checked(self, launch: Callable[[], T]) -> T:
        """Returns what `launch` does, which is all that writes to status words meanwhile."""
        self._follow()
        try:
            found = launch()
        except BaseException:
            # Launches before the error may have found an index, of which no later run is to hear.
            self.status.zero_()
            raise
        if self._checks:
            self._raise_status()
        return found

    def _raise_status(self) -> None:
        """Waits for a run; raises IndexRangeError if a check failed."""
        found = self.status.tolist()
        if any(found):
            self.status.zero_()
            number, texts = next((n, t) for n, t in zip(found, self._checks, strict=True) if n)
            raise IndexRangeError(f"{texts[number - 1]}: an index is out of range")

    def launched(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Like `run`, with errors of indices left in the status words."""
        program = self._program(_shapes(arrays))
        if self.recording and self._recorder.usable and program.is_due(arrays):
            self._record(program, arrays)
        return program.run(arrays)

    def _batches_by(self, found: RaggedSteps | None) -> RaggedGraph | None:
        return None if found is None else RaggedGraph(weakref.proxy(self), found)

    def run_batch(self, batch: Sequence[Sequence[Tensor]], exact: bool) -> list[list[Tensor]]:
        found = self._joined(batch, exact)
        if found is None or is_capturing(self.session.device):
            return [*map(self.run, batch)]
        with self._lock:
            return self._checked(partial(found.run, batch, exact))

    def _follow(self) -> None:
        """Makes the current stream wait for that of the previous run, which used the arena."""
        if self.session.device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self.session.device)
        if self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def _program(self, shapes: tuple[tuple[int, ...], ...]) -> Program:
        found = self._programs.get(shapes)
        if found is None:
            found = self._bind(shapes)
            self._programs.add(shapes, found)
        return found

    def _record(self, program: Program, arrays: Sequence[Tensor]) -> None:
        """Records a program, and forgets the oldest recordings if memory is short."""
        hardware = self.session.hardware
        room = int(hardware.tuning.recorded_share_of_dram * hardware.dram_bytes)
        room -= program.bytes_to_keep(arrays)
        if room < 0:
            return
        recorded = [other for other in self._programs.values() if other.memory]
        kept = sum(other.kept_bytes for other in recorded)
        for oldest in recorded:
            if kept <= room:
                break
            kept -= oldest.kept_bytes
            _retire(self.session.device, oldest.memory)
            oldest.forget()
        try:
            program.record(arrays, self._recorder)
        except Exception as error:
            log.warning("a program is not recorded: %s", error)

    def _bind(self, shapes: tuple[tuple[int, ...], ...]) -> Program:
        """Returns the launches for shapes of the inputs.

        Raises:
            ShapeError: extents contradict the graph, are negative or are divided by zero.
            AllocationError: the device does not have the memory.
        """
        values, outputs = self.values(self.binding(shapes))
        memory, arena_bytes = self._places(values)
        launches = [step.bind(values, memory, word) for step, word in self.steps_with_words()]
        session = self.session
        return Program(
            launches, outputs, session.device, session.hardware, session.scratch, arena_bytes
        )

    def values(self, symbols: Sequence[int]) -> tuple[list[int], Outputs]:
        """Returns the values of all dims, and shapes and dtypes of outputs; raises as `_bind`."""
        values = evaluated(self.evaluate, symbols, self._extents)
        outputs = tuple([(tuple([values[n] for n in s]), dtype) for s, dtype in self.outputs])
        addressable(values, outputs, self._loops)
        return values, outputs

    def steps_with_words(self) -> list[tuple[CompiledStep, Tensor | None]]:
        """Returns each step with the status word that its checks write to."""
        words = iter(self.status.unbind())
        return [(step, next(words).unsqueeze(0) if step.checks else None) for step in self.steps]

    def _places(self, values: Sequence[int]) -> tuple[Places, int]:
        """Returns a place for each buffer, and the bytes that all take of the arena. Buffers of the
        arena share memory only if no step needs both."""
        sizes = []
        for buffer, number in self.sizes.items():
            size = max(values[number], 1) * buffer.dtype.itemsize
            sizes.append(-(-size // BUFFER_BYTES) * BUFFER_BYTES)
        found, total = first_fit(self._lifetimes, sizes)
        offsets = dict(zip(self.sizes, found, strict=True))
        arena, inputs = self._room(total), len(self.lowered.inputs)

        def memory(buffer: Buffer) -> Tensor | int:
            if buffer.is_constant:
                return self.constants[buffer]
            if buffer.kind in ("input", "output"):
                return buffer.number + (inputs if buffer.kind == "output" else 0)
            size = max(values[self.sizes[buffer]], 1) * buffer.dtype.itemsize
            part = arena[offsets[buffer] : offsets[buffer] + size]
            return part.view(TORCH_DTYPES[buffer.dtype.name])

        return memory, total

    def _room(self, size: int) -> Tensor:
        """Returns the arena, of at least `size` bytes; a new one while a CUDA graph is captured."""
        device = self.session.device
        if is_capturing(device):
            return allocated((size,), torch.uint8, device)
        if size > self._arena.numel():
            self._replace_arena(size)
        return self._arena

    def _replace_arena(self, size: int) -> None:
        # Bound programs are dropped first: there may not be memory for both arenas.
        device = self.session.device
        self._programs.clear()
        _retire(device, [self._arena])
        self._arena = torch.empty(0, dtype=torch.uint8, device=device)
        self._arena = allocated((size,), torch.uint8, device)

    def _rehearsed(self) -> list[Source]:
        """Returns the kernels that products and attention may launch, also for the requests of a
        batch, found at extents of each kind."""
        found: dict[Source, None] = {}
        ragged = ragged_steps(self.lowered)
        several = for_several(self.steps, self.lowered, ragged) if ragged else {}
        for symbols in islice(_kinds(len(self.binding.names)), MAX_REHEARSALS):
            try:
                values = evaluated(self.evaluate, symbols, self._extents)
                bound = [step.rehearsal(values, nowhere) for step in self.steps]
            except ShapeError:
                # These extents contradict each other.
                continue
            for launch in bound:
                if launch is not None and launch.exists:
                    found.update(dict.fromkeys(launch.wanted()))
            for together in several.values():
                found.update(dict.fromkeys(together.wanted(values)))
        return list(found)


def _retire(device: torch.device, tensors: Sequence[Tensor]) -> None:
    """Delays the reuse of freed memory until the launches so far on the current stream, that of
    the last run, are done."""
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device)
        for x in tensors:
            x.record_stream(stream)


def _kinds(symbols: int) -> Iterator[tuple[int, ...]]:
    """Yields kinds of extents for all symbols: all equal, then one that differs, then two."""
    seen = set()
    for others in range(symbols + 1):
        for kind, where in product(KINDS_OF_EXTENTS, combinations(range(symbols), others)):
            for chosen in product(KINDS_OF_EXTENTS, repeat=others):
                found = [kind] * symbols
                for place, other in zip(where, chosen, strict=True):
                    found[place] = other
                if tuple(found) not in seen:
                    seen.add(tuple(found))
                    yield tuple(found)


def _shapes(arrays: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple([tuple(x.shape) for x in arrays])


def _expect_supported(lowered: Lowered) -> list[DType]:
    """Returns the element types that are multiplied; raises UnsupportedOperatorError if a GPU does
    not multiply one."""
    multiplied = [(step.title, kind_of(step).multiplied(step)) for step in lowered.steps]
    pairs = [(title, dtype) for title, dtype in multiplied if dtype is not None]
    found = Counter(f"{title} of {x}" for title, x in pairs if x.name not in GPU_DTYPES)
    if found:
        listed = ", ".join(f"{name} ({count})" for name, count in found.items())
        raise UnsupportedOperatorError(f"no kernels on a GPU for: {listed}")
    return list(dict.fromkeys(dtype for _, dtype in pairs))


def _moved_constants(
    lowered: Lowered, device: torch.device, shared: SharedWeights | None
) -> Mapping[Buffer, Tensor]:
    """Returns the constants on the device, each once, in the dtypes that they are held in."""

    def moved_to(array: Array, dtype: DType) -> Tensor:
        flat = torch.from_numpy(array.copy()).reshape(-1)
        return flat.to(device, TORCH_DTYPES[dtype.name])

    moved: dict[Buffer, Tensor] = {}
    for step in lowered.steps:
        for buffer in step.reads:
            array, dtype = buffer.array, buffer.dtype
            if array is not None and buffer not in moved:
                make = partial(moved_to, array, dtype)
                moved[buffer] = make() if shared is None else shared.get(array, dtype, make)
    return moved
