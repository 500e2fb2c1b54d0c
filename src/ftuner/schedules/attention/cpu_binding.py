"""Attention on a CPU: one kernel, and its record with covers, blocks and tasks at bound extents."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.cpu.common_epilogue import COMMON
from ftuner.core.cpu.tile import PACKED, ROW
from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum, product, remainder
from ftuner.core.dtype import DType, moved_as
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import Operand
from ftuner.core.product import product_types
from ftuner.core.ranges import after_coarse
from ftuner.core.units import count
from ftuner.cost.step import Machine, StepCost
from ftuner.graph.steps import Step
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.planner import planner_for
from ftuner.runtime.cpu.packed_weights import covers_of
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.step_kind import (
    CompiledStep,
    Extents,
    Loaded,
    RequiredFamilies,
    StepKind,
    StepReport,
    addressed,
    no_cost,
    strided,
    touched,
)
from ftuner.runtime.cpu.tasks import BoundTask, Field, PlanKey, Task, most_chunks, nothing_to_do
from ftuner.runtime.shapes.evaluation import DimValues, Layouts
from ftuner.runtime.shapes.layout import StridedArray
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.attention.cpu_cost import AttentionLayout, AttentionProblem
from ftuner.schedules.attention.cpu_plan import attention_blocks, attention_estimate
from ftuner.schedules.attention.cpu_record import Attention
from ftuner.schedules.attention.step import AttentionStep
from ftuner.ukernels.cpu.library import LibraryName, build_library

SOFTMAX_OPERATIONS = 5
"""Operations on a score: scale, maximum, difference, power, sum. A cap is two more."""


class AttentionDims(NamedTuple):
    """What decides how an attention is cut: dims, or their values."""

    as_rows: Dim
    """1 where heads of one position that share k and v are rows of one product, because all of them
    see all keys that any sees; 0 elsewhere."""
    elements: Dim
    """As in `AttentionProblem`, as are the next three."""
    groups: Dim
    rows: Dim
    steps: Dim

    @classmethod
    def of(cls, q: Operand, k: Operand, v: Operand, offset: Dim | None) -> AttentionDims:
        """The dims of operands that all have the same batch axes; `offset` is the value of
        `AttentionSoftmax.causal`."""
        *batch, rows, _ = q.shape
        steps = v.shape[-2]
        if offset is not None:
            # Keys that no row sees are left out.
            steps = maximum(minimum(steps, rows + offset), 0)
        # Along each batch axis 1 if k or v differ, else 0.
        pairs = zip(k.strides[:-2], v.strides[:-2], strict=True)
        differ = [maximum(*(minimum(maximum(s, -s), 1) for s in pair)) for pair in pairs]
        as_rows: Dim = 0
        elements, groups, apart = product(batch), product(()), as_rows
        for extent, differs in zip(reversed(batch), reversed(differ), strict=True):
            # Outside of an axis along which they differ, k and v are not shared.
            apart = maximum(apart, differs * minimum(maximum(extent - 1, 0), 1))
            groups = groups * (1 + apart * (extent - 1))
        if batch:
            one_row = minimum(rows, 1) - minimum(maximum(rows - 1, 0), 1)
            as_rows = one_row * (1 - differ[-1])
            more = as_rows * (batch[-1] - 1)
            elements = product(batch[:-1]) * (batch[-1] - more)
            rows = rows + more
        return cls(as_rows, elements, groups, rows, steps)


class AttentionPlan(NamedTuple):
    """How attentions of a range are cut and covered."""

    slots: tuple[int, ...]
    """The slots of `cpu_record.Attention` before the batch axes; 0 in those that extents decide
    within the plan's range."""
    splits: int
    """Tasks of a batch element."""
    runs: int
    """Runs of consecutive tasks, which chunks do not divide. The tasks of a run share k and v,
    where there are enough such runs."""
    worker_bytes: int
    """Each worker's part of the workspace."""


def attention_plan(
    products: Products, softmax: AttentionSoftmax, problem: AttentionProblem, tail_k: int
) -> AttentionPlan:
    """The plan of all problems whose rows, and vectors of keys, are in the coarse ranges of one, if
    `tail_k` vectors of keys are left beside full panels."""
    library = products.compiled.library
    depth, columns = problem.depth, problem.columns
    size, lanes = library.types.c.itemsize, library.lanes
    width = library.widths[0]
    nr = width * lanes
    tail_v = -(-(columns % nr) // lanes)
    # Memory is for the last keys of their range.
    padded_steps = (after_coarse(-(-problem.steps // lanes)) - 1) * lanes
    packed_steps = library.types.depth(padded_steps)
    padded_columns = columns - columns % nr + tail_v * lanes
    block, tile, splits, runs = attention_blocks(products.planner, problem)
    dims = [0] * Attention.AXES
    dims[Attention.DEPTH] = depth
    dims[Attention.COLUMNS] = columns
    for slot, bits in _constants(softmax, library.types.c.name):
        dims[slot] = bits
    dims[Attention.SPLITS] = splits
    dims[Attention.BLOCK], dims[Attention.TILE] = block, tile
    dims[Attention.PACK] = products.kernels.runtime.pack_addresses[moved_as(library.types.a)]
    # The last panel of k is twice as long before it is rounded to words of two numbers.
    k_columns = padded_steps + nr * (library.types.a.numbers - 1)
    v_offset = aligned(k_columns * depth * size + SLACK_BYTES)
    scores_offset = v_offset + aligned(padded_columns * packed_steps * size + SLACK_BYTES)
    sums_offset = scores_offset + aligned(block * padded_steps * size + SLACK_BYTES)
    worker_bytes = sums_offset + aligned(block * size)
    dims[Attention.WORKER_BYTES] = worker_bytes
    dims[Attention.V_OFFSET] = v_offset
    dims[Attention.SCORES_OFFSET] = scores_offset
    dims[Attention.SUMS_OFFSET] = sums_offset
    dims[Attention.COLUMN_PADDED] = tail_v * lanes
    dims[Attention.PANEL] = nr
    panels = (width, False, depth), (tail_k, True, depth), (tail_v, True, packed_steps)
    for slot, (vectors, tail, length) in enumerate(panels, Attention.COVERS):
        if vectors:
            covers = covers_of(products, vectors, tail, length)
            dims[slot] = covers.buffer_info()[0]
        else:
            # Read, and not used.
            dims[slot] = dims[Attention.COVERS]
    return AttentionPlan(tuple(dims), splits, runs, worker_bytes)


@lru_cache(maxsize=256)
def _constants(softmax: AttentionSoftmax, dtype: str) -> tuple[tuple[int, int], ...]:
    """The slots of what depends on no extents, and their bits."""
    numbers = {
        Attention.SCALE: softmax.inner_scale,
        Attention.HIDDEN: softmax.hidden,
        Attention.FLOOR: float(np.finfo(dtype).min) if softmax.safe else -math.inf,
        Attention.BROKEN: 0.0 if softmax.hides_nan else math.nan,
        Attention.CAP: softmax.softcap,
    }
    bits = np.array([*numbers.values()], np.float64).view(np.int64)
    return tuple(zip(numbers, bits.tolist(), strict=True))


def _heads_as_rows(x: StridedArray) -> StridedArray:
    """Exchange the axis of rows, of extent 1, with the last batch axis."""
    (*batch, heads, row, element), (*outer, by_head, by_row, by_element) = x.shape, x.strides
    return StridedArray(
        (*batch, row, heads, element), (*outer, by_row, by_head, by_element), x.itemsize
    )


def _record_slots(batch_axes: int) -> int:
    return Attention.AXES + batch_axes * Attention.AXIS_SIZE


@dataclass(frozen=True)
class AttentionTask(Task):
    """Plans an attention."""

    products: Products
    softmax: AttentionSoftmax
    """Without its limit on keys."""
    causal: bool
    exact: tuple[int, ...]
    """The numbers of dims that decide the plan: `AttentionDims.as_rows`, elements and groups as far
    as they decide, depth, columns, and vectors of keys beside full panels."""
    ranges: tuple[int, int]
    """Of those that decide by their coarse ranges: rows, and vectors of keys."""
    elements: int
    """The number of a dim, as are the next two."""
    steps: int
    limit: int
    """Of the limit on keys; of `steps` if there is none."""
    layouts: tuple[int, ...]
    """The numbers of the layouts of q, k, v, the mask and the sinks if there are any, and the
    result."""

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        as_rows, elements, groups, depth, columns, tail = (values[n] for n in self.exact)
        rows, vectors = (values.middle[n] for n in self.ranges)
        slots = _record_slots(len(layouts.numbered(self.layouts[0]).shape) - 2)
        if not elements or not rows or not columns:
            return nothing_to_do(workers, slots)
        steps = vectors * self.products.compiled.library.lanes
        offset = 0 if self.causal and not as_rows else None
        problem = AttentionProblem(elements, groups, rows, depth, steps, columns, offset, workers)
        plan = attention_plan(self.products, self.softmax, problem, tail)
        return BoundTask(
            workers,
            min(plan.runs, most_chunks(workers, hardware)),
            0,
            False,
            (*plan.slots, *(0,) * (slots - len(plan.slots))),
            workers * plan.worker_bytes,
            plan.worker_bytes,
            None,
            2 * plan.splits + as_rows,
        )

    def plan_key(self, layouts: Layouts) -> PlanKey:
        axes = len(layouts.numbered(self.layouts[0]).shape)
        form = replace(self, exact=(), ranges=(0, 0), elements=0, steps=0, limit=0, layouts=())
        return PlanKey((form, axes), self.exact, middle=self.ranges)

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        """Variants: twice the tasks of a batch element, and 1 more where heads are rows."""
        splits, as_rows = divmod(variant, 2)
        q, k, v, *optional, out = [layouts.numbered(n) for n in self.layouts]
        if as_rows:
            q, *optional, out = [_heads_as_rows(x) for x in (q, *optional, out)]
        sinks = optional.pop() if self.softmax.sinks else None
        mask = optional.pop() if optional else None
        limit = self.steps if as_rows else self.limit
        library, (rows, vectors) = self.products.compiled.library, self.ranges
        found = [
            Field(-1, self.elements, splits),
            Field(Attention.ROWS, rows, 1),
            Field(Attention.STEPS, self.steps, 1),
            Field(Attention.CAUSAL, limit, 1),
            Field(Attention.SCORE_ROW, vectors, library.lanes * library.types.c.itemsize),
            Field(Attention.STEP_PADDED, self.exact[-1], library.lanes),
        ]

        def stride(index: int, x: StridedArray | None, axis: int) -> None:
            if x is not None:
                found.append(Field(index, x.strides[axis], x.itemsize))

        stride(Attention.Q_ROW, q, -2)
        stride(Attention.K_DEPTH, k, -2)
        stride(Attention.K_STEP, k, -1)
        stride(Attention.V_STEP, v, -2)
        stride(Attention.V_COLUMN, v, -1)
        stride(Attention.MASK_ROW, mask, -2)
        stride(Attention.SINKS_ROW, sinks, -2)
        stride(Attention.OUT_ROW, out, -2)
        for axis, extent in enumerate(q.shape[:-2]):
            at = Attention.AXES + axis * Attention.AXIS_SIZE
            found.append(Field(at, extent, 1))
            for index, x in enumerate((q, k, v, mask, sinks, out), at + 1):
                stride(index, x, axis)
        return tuple(found)


@dataclass(frozen=True)
class CompiledAttention(CompiledStep):
    """An attention with its kernel, and the library of the uKernels that the kernel calls."""

    step: AttentionStep
    address: int
    products: Products

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step = self.step
        slots = _record_slots(len(step.q.shape) - 2)
        dims = records.kernel(at, self.address, addressed(step.views), slots)
        records.workspace(dims + Attention.WORKSPACE)
        records.planned_tasks(self._task(records), range(dims, dims + slots))

    def _task(self, records: RecordLayout) -> AttentionTask:
        step, library, dims = self.step, self.products.compiled.library, records.dims
        causal, lanes = step.softmax.causal, library.lanes
        found = AttentionDims.of(step.q.layout, step.k.layout, step.v.layout, causal)
        tuning, steps = library.hardware.tuning, dims.number(found.steps)
        # More elements, or groups, are enough for all workers.
        tasks = max(tuning.attention_tasks_per_worker, tuning.chunks_per_worker)
        most = tasks * library.hardware.cores
        tail = remainder(found.steps, library.widths[0] * lanes)
        exact = (
            found.as_rows, minimum(found.elements, most), minimum(found.groups, most),
            step.q.shape[-1], step.v.shape[-1], ceil_quotient(tail, lanes),
        )  # fmt: skip
        return AttentionTask(
            self.products,
            replace(step.softmax, causal=None),
            causal is not None,
            dims.numbers(exact),
            (dims.number(found.rows), dims.number(ceil_quotient(found.steps, lanes))),
            dims.number(found.elements),
            steps,
            steps if causal is None else dims.number(causal),
            tuple(records.layouts.number(view.layout) for view in step.views),
        )


class AttentionKind(MatrixKind, StepKind[AttentionStep]):
    """An attention is one kernel, which calls uKernels of the library without an epilogue."""

    has_workspace = True

    def multiplied(self, step: Step) -> DType:
        """The dtype that is multiplied: words for bfloat16."""
        assert isinstance(step, AttentionStep)
        return step.q.layout.dtype

    def required_families(
        self, step: AttentionStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        name = LibraryName(product_types(step.q.layout.dtype), COMMON)
        library = build_library(hardware, isa, *name)
        full = library.family(library.widths[0], False, ROW, PACKED)
        # The number of keys is known at run time only, so that any tail may be met.
        tails = [library.family(v, True, ROW, PACKED) for v in range(1, max(library.widths) + 1)]
        return RequiredFamilies(name, (full, *tails), 0)

    def bundle(self, step: AttentionStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        mask = None if step.mask is None else step.mask.layout.dtype
        causal, capped = step.softmax.causal is not None, bool(step.softmax.softcap)
        axes, dtype = len(step.q.shape) - 2, step.q.layout.dtype
        return kernel_bundle(
            "ftuner.schedules.attention.cpu_kernel", "attention",
            dtype, axes, mask, causal, capped, step.softmax.sinks,
            step.k.layout.dtype != step.q.layout.dtype, isa.vector_bytes, isa.fused,
        )  # fmt: skip

    def compiled(
        self, step: AttentionStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledAttention:
        assert required is not None
        products = loaded.products(required.library)
        products.planner.prepare_covers()
        return CompiledAttention(step, kernel, products)

    def report(
        self, step: AttentionStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        q, k, v, *_ = (strided(x, extents) for x in step.views)
        reads = sum(touched(x, extents) for x in step.views[:-1])
        writes = touched(step.out, extents)
        if 0 in (*q.shape, *v.shape):
            return StepReport("nothing", no_cost(machine))
        need = self.required_families(step, machine.hardware, machine.isa.name, machine.workers)
        planner = planner_for(build_library(machine.hardware, machine.isa.name, *need.library))
        limit = step.softmax.causal
        dims = AttentionDims.of(step.q.layout, step.k.layout, step.v.layout, limit)
        as_rows, elements, groups, rows, keys = (evaluate(dim, extents) for dim in dims)
        offset = None if limit is None or as_rows else evaluate(limit, extents)
        problem = AttentionProblem(
            elements, groups, rows, q.shape[-1], keys, v.shape[-1], offset, machine.workers
        )
        masked, capped = step.mask is not None, bool(step.softmax.softcap)
        layout = AttentionLayout(
            masked, k.strides[-1] == k.itemsize, v.strides[-1] == v.itemsize, capped
        )
        estimate = attention_estimate(planner, problem, layout, reads + writes)
        columns = problem.columns
        scores = elements * sum(problem.seen(row + 1) for row in range(rows))
        flops = (
            2 * scores * (problem.depth * step.q.layout.dtype.numbers + columns)
            + (SOFTMAX_OPERATIONS + masked + 2 * capped) * scores
        )
        flops += elements * rows * columns
        block, _, splits, _ = attention_blocks(planner, problem)
        plan = f"blocks of {count(block, 'row')}, {count(elements * splits, 'task')}"
        return StepReport(plan, StepCost(flops, reads, writes, estimate))


KIND = AttentionKind()
