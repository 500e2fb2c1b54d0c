"""Models: graphs compiled for this machine, run at any extents."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftuner.codegen.llvm.abi import PROGRAM_SYMBOL
from ftuner.codegen.llvm.bundle import AttentionBundle, GraphBundle, NestBundle, TopKBundle
from ftuner.core.dim import symbols_of
from ftuner.core.schedule import checks, schedule_of, task_count
from ftuner.errors import IndexRangeError, InputError, OperandError
from ftuner.graph.evaluate import bind
from ftuner.graph.ir import Graph
from ftuner.graph.lowering import (
    AttentionStep,
    Lowered,
    NestStep,
    ProductStep,
    Step,
    TopKStep,
    lower,
)
from ftuner.hardware.model import Isa
from ftuner.runtime.arrays import DATA_WORD, Array, as_array
from ftuner.runtime.backend import Progress
from ftuner.runtime.panels import pack
from ftuner.runtime.products import forget_oldest
from ftuner.runtime.program import (
    BoundProgram,
    Compiled,
    CompiledAttention,
    CompiledNest,
    CompiledProduct,
    ProgramWriter,
)
from ftuner.runtime.session import Session

MAX_PROGRAMS = 256
"""Programs kept by a model. One is some kilobytes of records."""


@dataclass(frozen=True)
class TensorSpec:
    """A name, element type and shape of a model's input or output; extents are numbers, or the
    names of symbols."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Model:
    """A graph compiled for this machine. Safe to use from several threads."""

    def __init__(
        self,
        graph: Graph,
        session: Session,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Lower, compile and pack a graph. `threads`: of a run; by default the session's.

        Raises:
            UnsupportedOperatorError: an operator without a schedule.
        """
        self.graph = graph
        self._session = session
        self._threads = threads
        self.lowered: Lowered = lower(graph)
        self._symbols = symbols_of(d for v in graph.inputs for d in v.shape)
        self._writer = self._compiled(progress)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            session.backend.runtime.addresses[PROGRAM_SYMBOL]
        )
        self._names = [v.name for v in graph.inputs]
        self._dtypes = [np.dtype(v.dtype.name) for v in graph.inputs]
        self._programs: dict[tuple[object, ...], BoundProgram] = {}
        self._lock = threading.Lock()
        self._arena = np.empty(0, np.uint8)

    @property
    def threads(self) -> int:
        """Threads that a run uses, the caller's own included."""
        return self._session.threads if self._threads is None else self._threads

    @property
    def inputs(self) -> list[TensorSpec]:
        return [_spec(v.name, v.dtype.name, v.shape) for v in self.graph.inputs]

    @property
    def outputs(self) -> list[TensorSpec]:
        return [_spec(name, v.dtype.name, v.shape) for name, v in self.graph.outputs]

    def _compiled(self, progress: Progress | None) -> ProgramWriter:
        session = self._session
        backend = session.backend
        steps = self.lowered.steps
        bundles = {step: bundle for step in steps if (bundle := _bundle(step, backend.isa))}
        self._loaded = backend.loaded(list(dict.fromkeys(bundles.values())), progress)
        # One weight may have several products.
        packed: dict[tuple[int, object], CompiledProduct] = {}
        made: list[Compiled] = []
        for step in steps:
            if isinstance(step, ProductStep):
                products = session.products(step.a.layout.dtype, step.epilogue)
                made.append(self._product(step, products, packed))
                continue
            address = self._loaded.addresses[bundles[step].symbol]
            if isinstance(step, AttentionStep):
                made.append(CompiledAttention(address, session.products(step.q.layout.dtype)))
            elif isinstance(step, TopKStep):
                made.append(CompiledNest(address, step.parameters(), step.rows, ()))
            else:
                kernel = step.kernel
                tasks = task_count(kernel, schedule_of(kernel, backend.isa.vector_bytes))
                texts = tuple(checks(kernel))
                made.append(CompiledNest(address, kernel.parameters(), tasks, texts))
        return ProgramWriter(
            self.lowered, made, self._symbols, backend.runtime.pool.address,
            session.hardware.page_bytes,
        )  # fmt: skip

    def _product(
        self, step: ProductStep, products: Any, packed: dict[tuple[int, object], CompiledProduct]
    ) -> CompiledProduct:
        array = step.b.buffer.array
        if array is None or len(step.b.shape) != 2 or not step.b.contiguous:
            return CompiledProduct(products, None)
        key = (id(array), step.epilogue)
        if key not in packed:
            panels = pack(products, array.T, self.threads)
            packed[key] = CompiledProduct(products, panels)
        return packed[key]

    def __call__(self, **inputs: object) -> dict[str, Array]:
        """Run the model on arrays given by name; returns the outputs by name."""
        results = self.run(inputs)
        return {name: x for (name, _), x in zip(self.graph.outputs, results, strict=True)}

    def run(self, feeds: Mapping[str, object]) -> list[Array]:
        """Run the model; returns the outputs in order.

        Args:
            feeds: an array for each input, by name.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes.
            ShapeError: extents that contradict the model.
            IndexRangeError: an index in the data that is out of range.
        """
        arrays = self._arrays(feeds)
        with self._lock:
            return self._locked(arrays)

    def _arrays(self, feeds: Mapping[str, object]) -> list[Array]:
        if len(feeds) != len(self._names) or any(n not in feeds for n in self._names):
            missing = [n for n in self._names if n not in feeds]
            unknown = [n for n in feeds if n not in self._names]
            raise InputError(
                f"inputs are {', '.join(self._names)}; missing: {', '.join(missing) or 'none'}; "
                f"unknown: {', '.join(map(str, unknown)) or 'none'}"
            )
        arrays = []
        for name, dtype, value in zip(self._names, self._dtypes, self.graph.inputs, strict=True):
            try:
                x = as_array(feeds[name], name)
            except OperandError as error:
                raise InputError(str(error)) from None
            if x.dtype != dtype:
                raise InputError(f"input {name} has dtype {x.dtype}; the model takes {dtype}")
            if x.ndim != value.rank:
                raise InputError(f"input {name} is {x.shape}; the model takes {value.type}")
            arrays.append(np.require(x, requirements=["C", "A"]))
        return arrays

    def _locked(self, arrays: Sequence[Array]) -> list[Array]:
        pool = self._session.backend.runtime.pool
        workers = self.threads
        alone = workers == 1 or not pool.lock.acquire(blocking=False)
        try:
            if not alone and pool.threads < workers and not pool.grow(workers):
                pool.lock.release()
                alone = True
            program = self._program(arrays, 1 if alone else workers)
            outputs = [np.empty(shape, dtype) for shape, dtype in program.outputs]
            words = np.array([id(x) + DATA_WORD for x in (*arrays, *outputs)], np.uint64)
            self._run(program.address, words.ctypes.data)
        finally:
            if not alone:
                pool.lock.release()
        for slot, texts in program.checked:
            status = program.records[slot]
            if status:
                program.records[slot] = 0
                raise IndexRangeError(f"{texts[status - 1]}: an index is out of range")
        return outputs

    def _program(self, arrays: Sequence[Array], workers: int) -> BoundProgram:
        shapes = tuple([x.shape for x in arrays])
        key = (shapes, workers)
        found = self._programs.get(key)
        if found is None or found.arena_address != self._arena_address():
            values = bind(self.graph, shapes)
            symbols = [values[name] for name in self._symbols]
            found = self._writer.bind(symbols, workers, self._grown_arena)
            forget_oldest(self._programs, MAX_PROGRAMS)
            self._programs[key] = found
        return found

    def _arena_address(self) -> int:
        return -(-int(self._arena.ctypes.data) // 64) * 64

    def _grown_arena(self, size: int) -> int:
        if self._arena.nbytes < size + 64:
            self._arena = np.empty(size + 64, np.uint8)
        return self._arena_address()


def _bundle(step: Step, isa: Isa) -> GraphBundle | None:
    """What is to be compiled for a step; products have libraries of their own."""
    if isinstance(step, NestStep):
        return NestBundle(step.kernel, isa.vector_bytes, isa.fused)
    if isinstance(step, TopKStep):
        return TopKBundle(step.x.layout.dtype, step.largest)
    if isinstance(step, AttentionStep):
        axes, masked = len(step.q.shape) - 2, step.mask is not None
        return AttentionBundle(step.q.layout.dtype, axes, masked, isa.vector_bytes, isa.fused)
    return None


def _spec(name: str, dtype: str, shape: Sequence[Any]) -> TensorSpec:
    return TensorSpec(name, dtype, tuple(d if isinstance(d, int) else str(d) for d in shape))
