"""Graphs on one GPU, run at any extents.

Compiling makes a kernel of every schedule of every step; binding extents evaluates dims, asks the
planners, and leaves a list of launches. Nothing is compiled while binding, but for kernels of
products whose operands lie in a way that only extents tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ftuner.core.dtype import GPU_DTYPES, DType
from ftuner.core.expr import operands as operands_of
from ftuner.errors import IndexRangeError, ShapeError, UnsupportedOperatorError
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.evaluate import Binding
from ftuner.graph.ir import Graph
from ftuner.graph.lowering import lower
from ftuner.graph.precision import held_types
from ftuner.graph.steps import AttentionStep, Lowered, NestStep, ProductStep, TopKStep
from ftuner.runtime.backend import Progress
from ftuner.runtime.extents import Dims, Layouts, evaluated
from ftuner.runtime.gpu.nests import CompiledNest
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.gpu.tensors import ALIGNMENT_BYTES, TORCH_DTYPES, Tensor, multiply_of
from ftuner.runtime.places import Span, places

MAX_PROGRAMS = 256
"""Programs kept by a graph: lists of launches."""
BUFFER_BYTES = 256
"""What buffers of the arena begin at multiples of: torch's allocator does the same."""

Launch = Callable[[Sequence[Tensor]], None]
"""What a step does, given the inputs and outputs of the run."""
Memory = Callable[[Buffer], Tensor | int]
"""The elements of a buffer, or the number of an array of the run."""


class _Program(NamedTuple):
    """A graph bound to extents."""

    launches: tuple[Launch, ...]
    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    status: Tensor | None
    """Of all checks, one after the other; zero, unless an index was out of range."""
    checks: tuple[tuple[str, ...], ...]
    arena: Tensor


class GpuGraph:
    """A graph without extents that only data tells, on one GPU. Safe to use from several threads:
    runs follow each other."""

    def __init__(
        self, graph: Graph, session: GpuSession, progress: Progress | None = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        """Lower a graph, compile its kernels and move its constants. `dtype`: what float32 is held
        in, if not as it is; see `graph.precision`.

        Raises:
            UnsupportedOperatorError: steps that have no kernel on a GPU; all of them are listed.
            HardwareError: an element type that the chip does not multiply.
        """
        self._session = session
        self._binding = Binding(graph)
        self.lowered = lower(graph, held_types(graph, dtype))
        self.graph = graph
        for element in _expect_supported(self.lowered):
            session.library(element, multiply_of(element))
        self._dims = Dims()
        self._layouts = Layouts(self._dims)
        self._constants = _moved_constants(self.lowered, session.device)
        self._nests = {
            step: CompiledNest(step.kernel, session.kernels, self._dims)
            for step in self.lowered.steps
            if isinstance(step, NestStep)
        }
        session.kernels.prepare(
            [source for nest in self._nests.values() for source in nest.sources], progress
        )
        for step in self.lowered.steps:
            for view in getattr(step, "views", ()):
                self._layouts.number(view.layout)
            if isinstance(step, TopKStep):
                self._dims.numbers((step.rows, *step.parameters()))
            if isinstance(step, AttentionStep) and step.weighting.causal is not None:
                self._dims.number(step.weighting.causal)
        self._spans = _spans(self.lowered)
        self._sizes = {b: self._dims.number(b.elements) for b in self._spans}
        self._outputs = [
            (self._dims.numbers(v.shape), TORCH_DTYPES[v.layout.dtype.name])
            for v in self.lowered.outputs
        ]
        self._extents = {*self._sizes.values(), *(n for shape, _ in self._outputs for n in shape)}
        self._evaluate = self._dims.compiled(self._binding.names)
        self._programs: dict[tuple[tuple[int, ...], ...], _Program] = {}
        self._arena = torch.empty(0, dtype=torch.uint8, device=session.device)
        self._stream: Any = None
        self._lock = threading.Lock()

    @property
    def threads(self) -> int:
        return 1

    def run(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, for a tensor for each input: of its dtype and rank, contiguous, on the
        device. Launched on the current stream; waits only where an index may be out of range.

        Raises:
            ShapeError: extents that contradict the graph.
            IndexRangeError: an index in the data that is out of range.
        """
        with self._lock:
            self._follow()
            program = self._program(arrays)
            device = self._session.device
            outputs = [torch.empty(s, dtype=t, device=device) for s, t in program.outputs]
            given = [*(_aligned(x) for x in arrays), *outputs]
            for launch in program.launches:
                launch(given)
            if program.status is not None:
                _raise_status(program.status, program.checks)
        return outputs

    def _follow(self) -> None:
        """Have the current stream wait for the one that used the arena before."""
        if self._session.device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._session.device)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def _program(self, arrays: Sequence[Tensor]) -> _Program:
        key = tuple([tuple(x.shape) for x in arrays])
        found = self._programs.get(key)
        if found is None or found.arena is not self._arena:
            found = self._bind(self._binding(key))
            while len(self._programs) >= MAX_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[key] = found
        return found

    def _bind(self, symbols: Sequence[int]) -> _Program:
        """The launches for values of the symbols.

        Raises:
            ShapeError: extents that come out negative or are divided by zero, a product over an
                axis of no elements.
        """
        values = evaluated(self._evaluate, symbols, self._extents)
        memory = self._memory(values)
        checks = [nest.checks for nest in self._nests.values() if nest.checks]
        device = self._session.device
        status = torch.zeros(len(checks), dtype=torch.int32, device=device) if checks else None
        words = iter(status.unbind() if status is not None else ())
        launches: list[Launch] = []
        for step in self.lowered.steps:
            launch: Launch | None
            if isinstance(step, NestStep):
                nest = self._nests[step]
                word = next(words).unsqueeze(0) if nest.checks else None
                launch = nest.bind(step, values, memory, word)
            elif isinstance(step, ProductStep):
                launch = self._product(step, values, memory)
            elif isinstance(step, TopKStep):
                launch = self._top_k(step, values, memory)
            else:
                launch = self._attention(step, values, memory)
            if launch is not None:
                launches.append(launch)
        outputs = tuple((tuple(values[n] for n in shape), dtype) for shape, dtype in self._outputs)
        return _Program(tuple(launches), outputs, status, tuple(checks), self._arena)

    def _memory(self, values: Sequence[int]) -> Memory:
        """A place for each buffer, such that those of the arena that live together are apart."""
        spans = []
        for buffer, (first, last) in self._spans.items():
            size = max(values[self._sizes[buffer]], 1) * buffer.dtype.itemsize
            spans.append(Span(-(-size // BUFFER_BYTES) * BUFFER_BYTES, first, last))
        found, total = places(spans)
        offsets = dict(zip(self._spans, found, strict=True))
        if total > self._arena.numel():
            # Programs bound before keep the old one until they are bound again.
            self._arena = torch.empty(total, dtype=torch.uint8, device=self._session.device)
        arena, inputs = self._arena, len(self.lowered.inputs)

        def memory(buffer: Buffer) -> Tensor | int:
            if buffer.kind == "constant":
                return self._constants[buffer]
            if buffer.kind in ("input", "output"):
                return buffer.number + (inputs if buffer.kind == "output" else 0)
            size = max(values[self._sizes[buffer]], 1) * buffer.dtype.itemsize
            part = arena[offsets[buffer] : offsets[buffer] + size]
            return part.view(TORCH_DTYPES[buffer.dtype.name])

        return memory

    def _operand(self, view: View, values: Sequence[int], memory: Memory) -> _Operand:
        number = self._layouts.number(view.layout)
        lies = self._layouts.strided(number, values)
        size = view.layout.dtype.itemsize
        strides = tuple(stride // size for stride in lies.strides)
        offset = values[self._layouts.offsets[number]]
        return _Operand(memory(view.buffer), lies.shape, strides, offset)

    def _product(self, step: ProductStep, values: Sequence[int], memory: Memory) -> Launch | None:
        a, b, c, *others = (self._operand(v, values, memory) for v in step.views)
        if 0 in c.shape:
            return None
        if a.shape[-1] == 0:
            raise ShapeError(f"{step.title}: a product over an axis of no elements")
        names = [o.name for o in operands_of(step.epilogue)]
        vectors = {o.name for o in operands_of(step.epilogue) if o.kind != "matrix"}
        products, epilogue = self._session.products, step.epilogue

        def launch(arrays: Sequence[Tensor]) -> None:
            given = {
                name: x.tensor(arrays).reshape(-1) if name in vectors else x.tensor(arrays)
                for name, x in zip(names, others, strict=True)
            }
            products.run(a.tensor(arrays), b.tensor(arrays), c.tensor(arrays), epilogue, given)

        return launch

    def _top_k(self, step: TopKStep, values: Sequence[int], memory: Memory) -> Launch | None:
        rows, count, wanted, distance, offset = (
            values[n] for n in self._dims.numbers((step.rows, *step.parameters()))
        )
        if not rows * wanted:
            return None
        # Rows whose elements are `distance` apart lie side by side.
        blocks = rows // distance

        def lies(along: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            return (blocks, along, distance), (along * distance, distance, 1)

        x = _Operand(memory(step.x.buffer), *lies(count), offset)
        out = [_Operand(memory(b), *lies(wanted), 0) for b in (step.values, step.positions)]

        def launch(arrays: Sequence[Tensor]) -> None:
            # In order of position where elements are equal, as the definition says.
            found = x.tensor(arrays).sort(dim=1, descending=step.largest, stable=True)
            for target, source in zip(out, found, strict=True):
                target.tensor(arrays).copy_(source[:, :wanted])

        return launch

    def _attention(
        self, step: AttentionStep, values: Sequence[int], memory: Memory
    ) -> Launch | None:
        q, k, v, *masks, out = (self._operand(view, values, memory) for view in step.views)
        if 0 in out.shape:
            return None
        if 0 in v.shape or 0 in q.shape:
            raise ShapeError(f"{step.title}: attention over an axis of no elements")
        weighting, attentions = step.weighting, self._session.attentions
        past = None
        if weighting.causal is not None:
            past = values[self._dims.number(weighting.causal)]

        def launch(arrays: Sequence[Tensor]) -> None:
            mask = masks[0].tensor(arrays) if masks else None
            attentions.run(
                q.tensor(arrays), k.tensor(arrays), v.tensor(arrays), out.tensor(arrays), mask,
                weighting, past,
            )  # fmt: skip

        return launch


class _Operand(NamedTuple):
    """A tensor in a buffer, for concrete extents."""

    memory: Tensor | int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def tensor(self, arrays: Sequence[Tensor]) -> Tensor:
        memory = arrays[self.memory] if isinstance(self.memory, int) else self.memory
        return memory.as_strided(self.shape, self.strides, memory.storage_offset() + self.offset)


def _aligned(x: Tensor) -> Tensor:
    """The tensor, or a copy at an address that kernels take."""
    return x.clone() if x.data_ptr() % ALIGNMENT_BYTES else x


def _expect_supported(lowered: Lowered) -> list[DType]:
    """The element types that are multiplied."""
    found: dict[str, int] = {}
    dtypes: dict[DType, None] = {}
    for step in lowered.steps:
        if not isinstance(step, ProductStep | AttentionStep):
            continue
        dtype = step.views[0].layout.dtype
        dtypes.setdefault(dtype)
        if dtype.name not in GPU_DTYPES:
            name = f"{step.title} of {dtype}"
            found[name] = found.get(name, 0) + 1
    if found:
        listed = ", ".join(f"{name} ({count})" for name, count in found.items())
        raise UnsupportedOperatorError(f"no kernels on a GPU for: {listed}")
    return list(dtypes)


def _moved_constants(lowered: Lowered, device: torch.device) -> Mapping[Buffer, Tensor]:
    """Constants on the device, each once, in the element types that they are held in."""
    moved: dict[Buffer, Tensor] = {}
    for step in lowered.steps:
        for buffer in step.reads:
            if buffer.array is not None and buffer not in moved:
                flat = torch.from_numpy(buffer.array.copy()).reshape(-1)
                moved[buffer] = flat.to(device, TORCH_DTYPES[buffer.dtype.name])
    return moved


def _spans(lowered: Lowered) -> dict[Buffer, tuple[int, int]]:
    """Each arena buffer with the first and the last step that touches it."""
    spans: dict[Buffer, tuple[int, int]] = {}
    for number, step in enumerate(lowered.steps):
        for buffer in (*step.writes, *step.reads):
            if buffer.kind == "arena":
                first, _ = spans.get(buffer, (number, number))
                spans[buffer] = (first, number)
    return spans


def _raise_status(status: Tensor, checks: Sequence[Sequence[str]]) -> None:
    """Wait for a run, and tell what was out of range."""
    found = status.tolist()
    if any(found):
        status.zero_()
        number, texts = next((n, t) for n, t in zip(found, checks, strict=True) if n)
        raise IndexRangeError(f"{texts[number - 1]}: an index is out of range")
