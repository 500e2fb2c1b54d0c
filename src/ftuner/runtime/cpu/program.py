"""Programs: a lowered graph bound to concrete extents, as records that native code walks.

`ProgramWriter` holds what does not depend on extents: compiled functions, packed weights, the order
of steps, which buffers live when. Binding evaluates dims, asks the planner for each product, lays
the arena out and fills in the records. Nothing is compiled or measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.native.records import (
    PRODUCT_KINDS,
    SLOT_BYTES,
    Attention,
    Call,
    Patch,
    Program,
    Step,
)
from ftuner.codegen.llvm.native.records import Plan as PlanSlot
from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.dim import Dim
from ftuner.graph.buffers import Buffer
from ftuner.graph.steps import (
    AttentionStep,
    Lowered,
    NestStep,
    ProductStep,
    TopKStep,
)
from ftuner.graph.steps import Step as AnyStep
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.attention_record import AttentionRecord
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.plan_records import SLACK_BYTES, aligned
from ftuner.runtime.cpu.products import Products, Ready
from ftuner.runtime.cpu.step_plans import Planned, Task, by_rows, planned, workspace_bytes
from ftuner.runtime.shapes.arena import Span, places
from ftuner.runtime.shapes.evaluation import (
    Dims,
    Layouts,
    Outputs,
    addressable,
    evaluated,
    loops_of,
)


class CompiledNest(NamedTuple):
    """The function of a nest, or of another kernel whose tasks are alike."""

    address: int
    parameters: tuple[Dim, ...]
    tasks: Dim
    checks: tuple[str, ...]
    """What a status of n + 1 means."""


class CompiledProduct(NamedTuple):
    """What a product step runs with."""

    products: Products
    panels: Panels | None
    """B, if it is a weight."""


class CompiledAttention(NamedTuple):
    """The attention kernel, and the library of its uKernels."""

    address: int
    products: Products


Compiled = CompiledNest | CompiledProduct | CompiledAttention


class _Fill(NamedTuple):
    """What is written to a slot: `fixed + sources[source] + dim * factor`."""

    slot: int
    fixed: int
    source: int
    """Nothing, the records themselves, or a buffer of the arena."""
    dim: int
    """The number of a dim."""
    factor: int


NOTHING, RECORDS, FIRST_BUFFER = range(3)
"""Sources of fills."""


class BoundProgram(NamedTuple):
    """Records ready to run, and what keeps them valid."""

    records: npt.NDArray[np.int64]
    address: int
    outputs: Outputs
    checked: tuple[tuple[int, tuple[str, ...]], ...]
    """The slot of each status, and what its numbers mean."""
    arena: int
    """Where the arena was when the records were written."""
    kept: tuple[Ready, ...]
    """Plans that the records point to."""
    arena_bytes: int
    """Of intermediate results; the workspace lies behind them."""
    workspace_bytes: int
    attention_worker_bytes: int
    """Of the workspace, what each worker has in the largest attention."""

    @property
    def outputs_bytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.outputs)

    @property
    def records_bytes(self) -> int:
        plans = {id(r.encoded): len(r.encoded.records) for r in self.kept}
        return int(self.records.nbytes) + SLOT_BYTES * sum(plans.values())


class ProgramWriter:
    """Writes the programs of one lowered graph.

    The records of all its programs have one layout: an image of them is written once, and a program
    fills in what depends on extents.
    """

    def __init__(
        self,
        lowered: Lowered,
        made: Sequence[Compiled],
        names: Sequence[str],
        hardware: CpuHardware,
    ) -> None:
        self._hardware = hardware
        self._kept = (lowered, made)
        """What records hold addresses of: constants, packed weights."""
        self._inputs = len(lowered.inputs)
        dims = Dims()
        self._layouts = Layouts(dims)
        self._stages = stages(lowered.steps)
        arena = _arena_buffers(lowered, self._stages)
        self._arena = [
            (dims.number(b.elements), b.dtype.itemsize, first, last) for b, first, last in arena
        ]
        self._arena_numbers = {b: i for i, (b, _, _) in enumerate(arena)}
        self._fills: list[_Fill] = []
        self._none = dims.number(0)
        self._patches: list[tuple[int, int, int, int]] = []
        """Slot, array of the caller, number of the offset's dim, bytes of an element."""
        self._checked: list[tuple[int, tuple[str, ...]]] = []
        self._tasks: dict[Task, int] = {}
        """What is to be planned; equal tasks once."""
        self._attentions: list[tuple[int, int]] = []
        """Dims record, and the number of the task."""
        self._products: list[int] = []
        """The number of the task of each product."""
        self._product_slots: list[int] = []
        """Those that `_product_values` are for, product by product."""
        self._works: list[tuple[int, int]] = []
        """For each step, the dim of its tasks or -1, and the number of its task or -1."""
        image = [0] * (Program.SIZE + len(lowered.steps) * Step.SIZE)
        for i, (step, code) in enumerate(zip(lowered.steps, made, strict=True)):
            at = Program.SIZE + i * Step.SIZE
            if isinstance(step, (NestStep, TopKStep)):
                assert isinstance(code, CompiledNest)
                self._add_nest(image, at, step, code, dims)
            else:
                assert not isinstance(code, CompiledNest)
                self._add_planned(image, at, step, code, dims)
        self._point(Program.STEPS, Program.SIZE)
        self._point(Program.PATCHES, len(image))
        image[Program.STEP_COUNT] = len(lowered.steps)
        image[Program.PATCH_COUNT] = len(self._patches)
        for slot, number, offset, itemsize in self._patches:
            self._point(len(image) + Patch.SLOT, slot)
            self._fills.append(_Fill(len(image) + Patch.OFFSET, 0, NOTHING, offset, itemsize))
            image += (0, number, 0)
        self._image = np.array(image, np.int64)
        # What binding fills in, column by column.
        self._fill_columns = _columns(self._fills)
        firsts = Program.SIZE + np.arange(len(lowered.steps)) * Step.SIZE
        slots = (Step.WORKERS, Step.CHUNKS, Step.TASKS, Step.BEFORE)
        self._step_slots = np.concatenate([firsts + slot for slot in slots])
        self._outputs = [
            (dims.numbers(v.shape), np.dtype(v.layout.dtype.name)) for v in lowered.outputs
        ]
        self._extents = {n for shape, _ in self._outputs for n in shape}
        self._extents |= {number for number, *_ in self._arena}
        self._loops = loops_of((s.kernel for s in lowered.steps if isinstance(s, NestStep)), dims)
        self._evaluate = dims.compiled(names)

    def _add_nest(
        self, image: list[int], at: int, step: NestStep | TopKStep, code: CompiledNest, dims: Dims
    ) -> None:
        image[at + Step.FUNCTION] = code.address
        self._point(at + Step.ARGUMENT, len(image))
        for buffer in (*step.reads, *step.writes):
            self._add_address(len(image), buffer, self._none)
            image.append(0)
        self._point(at + Step.DIMS, len(image))
        for number in dims.numbers(code.parameters):
            self._fills.append(_Fill(len(image), 0, NOTHING, number, 1))
            image.append(0)
        self._works.append((dims.number(code.tasks), -1))
        if code.checks:
            self._checked.append((at + Step.STATUS, code.checks))

    def _point(self, slot: int, to: int) -> None:
        """Have the address of a slot written to another."""
        self._fills.append(_Fill(slot, to * SLOT_BYTES, RECORDS, self._none, 0))

    def _add_planned(
        self, image: list[int], at: int, step: ProductStep | AttentionStep,
        code: CompiledProduct | CompiledAttention, dims: Dims,
    ) -> None:  # fmt: skip
        layouts = tuple(self._layouts.number(v.layout) for v in step.views)
        panels = code.panels if isinstance(code, CompiledProduct) else None
        weighting = step.weighting if isinstance(step, AttentionStep) else None
        causal = None if weighting is None else weighting.causal
        offset = -1 if causal is None else dims.number(causal)
        width = panels.width if panels is not None else 0
        known = None
        if isinstance(step, ProductStep) and width:
            known = by_rows(step, width, dims)
        task = Task(step.title, code.products, weighting, offset, width, layouts, known)
        number = self._tasks.setdefault(task, len(self._tasks))
        self._works.append((-1, number))
        argument = len(image)
        self._point(at + Step.ARGUMENT, argument)
        if isinstance(step, AttentionStep):
            assert isinstance(code, CompiledAttention)
            image[at + Step.FUNCTION] = code.address
            image += [0] * len(step.views)
            slots = list(range(argument, len(image)))
            self._point(at + Step.DIMS, len(image))
            self._attentions.append((len(image), number))
            image += [0] * (Attention.AXES + (len(step.q.shape) - 2) * Attention.AXIS_SIZE)
        else:
            assert isinstance(code, CompiledProduct)
            image += [0] * Call.SIZE
            assert len(step.operands) <= MAX_OPERANDS
            names = (Call.A, Call.B, Call.C, *range(Call.OPERANDS, Call.SIZE))
            slots = [argument + n for n, _ in zip(names, step.views, strict=False)]
            image[at + Step.KIND] = PRODUCT_KINDS[code.products.compiled.library.dtype]
            self._products.append(number)
            self._product_slots += (
                at + Step.TOGETHER, argument + Call.PLAN, argument + Call.WORKSPACE,
                argument + Call.POOL,
            )  # fmt: skip
        for slot, view in zip(slots, step.views, strict=True):
            offset = self._layouts.offsets[self._layouts.number(view.layout)]
            if panels is not None and view is step.views[1]:
                image[slot] = int(panels.packed.ctypes.data)
            else:
                self._add_address(slot, view.buffer, offset)

    def _add_address(self, slot: int, buffer: Buffer, offset: int) -> None:
        """Have the address of an element written to a slot."""
        size = buffer.dtype.itemsize
        if buffer.kind in ("input", "output"):
            number = buffer.number + (self._inputs if buffer.kind == "output" else 0)
            self._patches.append((slot, number, offset, size))
            return
        place = self._arena_numbers.get(buffer)
        source = NOTHING if place is None else FIRST_BUFFER + place
        fixed = 0 if buffer.array is None else int(buffer.array.ctypes.data)
        self._fills.append(_Fill(slot, fixed, source, offset, size))

    def plan_few_rows(self, workers: int) -> None:
        """Plan products with weights for the shortest inputs, ahead of their first runs."""
        plans_ahead = self._hardware.tuning.plans_ahead
        known = [(t.products, t.by_rows) for t in self._tasks if t.by_rows is not None]
        for rows in range(1, plans_ahead // max(len(known), 1) + 1):
            for products, (problem, strides, _) in known:
                products.ready(problem._replace(m=rows, workers=workers), strides)

    def bind(
        self, symbols: Sequence[int], workers: int, pool: int, arena: Callable[[int], int]
    ) -> BoundProgram:
        """The program for values of the symbols.

        `pool` is the address of the thread pool; `arena` gives the address of as many bytes as it
        is told.

        Raises:
            ShapeError: extents that come out negative or are divided by zero, loops that would not
                end.
            AllocationError: arrays that no process has addresses for.
        """
        values = evaluated(self._evaluate, symbols, self._extents)
        outputs = tuple([(tuple([values[n] for n in s]), t) for s, t in self._outputs])
        offsets, arena_bytes = self._arena_places(values)
        # Before anything is planned: plans are made for what there can be.
        bound = addressable(values, outputs, self._loops, arena_bytes)
        layouts, hardware = self._layouts, self._hardware
        found = [planned(t, values, layouts, workers, hardware) for t in self._tasks]
        most = max(map(workspace_bytes, found), default=0)
        base = arena(arena_bytes + most)
        workspace = base + arena_bytes

        records = self._image.copy()
        here = int(records.ctypes.data)
        records[Program.WORKERS] = workers
        records[Program.POOL] = pool
        slots, fixed, sources, numbers, factors = self._fill_columns
        begins = np.array([0, here, *(base + offset for offset in offsets)], np.int64)
        records[slots] = fixed + begins[sources] + bound[numbers] * factors
        records[self._product_slots] = self._product_values(found, workspace, pool)
        records[self._step_slots] = self._dealt(found, values, workers)
        for place, number in self._attentions:
            record = found[number]
            if isinstance(record, AttentionRecord):
                records[place : place + len(record.dims)] = record.dims
                records[place + Attention.WORKSPACE] = workspace
        kept = tuple([r for r in found if isinstance(r, Ready)])
        attentions = [r.worker_bytes for r in found if isinstance(r, AttentionRecord)]
        return BoundProgram(
            records, here, outputs, tuple(self._checked), base, kept, arena_bytes, most,
            max(attentions, default=0),
        )  # fmt: skip

    def _product_values(self, found: Sequence[Planned], workspace: int, pool: int) -> list[int]:
        """Togetherness, plan, workspace and pool of each product."""
        written: list[int] = []
        for number in self._products:
            ready = found[number]
            if isinstance(ready, Ready):
                encoded = ready.encoded
                written += (int(encoded.together), encoded.address, workspace, pool)
            else:
                # Without chunks, nobody looks at it.
                written += (0, 0, 0, 0)
        return written

    def _dealt(self, found: Sequence[Planned], values: Sequence[int], workers: int) -> list[int]:
        """The work of all steps, cut into chunks: their workers, then their chunks, then their
        tasks, then how many chunks come before them."""
        most = self._hardware.tuning.chunks_per_worker * workers if workers > 1 else 1
        sharing: list[int] = []
        chunks: list[int] = []
        tasks: list[int] = []
        for dim, number in self._works:
            record = found[number] if number >= 0 else None
            if isinstance(record, Ready):
                encoded = record.encoded
                sharing.append(encoded.workers if encoded.together else workers)
                chunks.append(encoded.records[PlanSlot.CHUNKS] or encoded.workers)
                tasks.append(0)
                continue
            sharing.append(workers)
            count = values[dim] if dim >= 0 else 0
            runs = count
            if isinstance(record, AttentionRecord):
                count, runs = record.tasks, record.runs
            tasks.append(count)
            chunks.append(min(runs, most))
        done = [0, *accumulate(chunks)]
        return [*sharing, *chunks, *tasks, *(done[stage] for stage in self._stages)]

    def _arena_places(self, values: Sequence[int]) -> tuple[list[int], int]:
        """An offset for each arena buffer, and the bytes of all."""
        return places(
            Span(aligned(values[number] * itemsize + SLACK_BYTES), first, last)
            for number, itemsize, first, last in self._arena
        )


def _columns(fills: Sequence[_Fill]) -> npt.NDArray[np.int64]:
    columns: npt.NDArray[np.int64] = np.array(fills, np.int64).reshape(-1, 5).T.copy()
    return columns


def stages(steps: Sequence[AnyStep]) -> list[int]:
    """The stage of each step, named by its first step. Steps of one stage do not depend on each
    other and run side by side; those of the next begin when all of them have ended."""
    found: list[int] = []
    first, works = 0, False
    read: set[Buffer] = set()
    written: set[Buffer] = set()
    for i, step in enumerate(steps):
        reads, writes = set(step.reads), set(step.writes)
        # There is one workspace.
        has_workspace = isinstance(step, (ProductStep, AttentionStep))
        if writes & (read | written) or reads & written or (works and has_workspace):
            first, works = i, False
            read, written = set(), set()
        read |= reads
        written |= writes
        works = works or has_workspace
        found.append(first)
    return found


def _arena_buffers(lowered: Lowered, stages: Sequence[int]) -> list[tuple[Buffer, int, int]]:
    """Each arena buffer with the first and the last stage that touches it."""
    spans: dict[Buffer, list[int]] = {}
    for stage, step in zip(stages, lowered.steps, strict=True):
        for buffer in (*step.writes, *step.reads):
            if buffer.kind == "arena":
                spans.setdefault(buffer, [stage, stage])[1] = stage
    return [(buffer, first, last) for buffer, (first, last) in spans.items()]
