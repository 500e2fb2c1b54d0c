"""Matrix products on a CPU: plans of uKernels, and weights packed in panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from ftuner.codegen.llvm.native.records import PRODUCT_KINDS, Call
from ftuner.codegen.llvm.native.records import Plan as PlanSlot
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.core.cpu.common_epilogue import LIMITS, Shared, shared, unshared
from ftuner.core.dtype import DType, moved_as
from ftuner.core.frozen import dataclass
from ftuner.core.ranges import fine_start
from ftuner.core.units import count
from ftuner.cost.functions import expression_cycles, expression_operations
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of
from ftuner.graph.ragged import Rows
from ftuner.graph.steps import Step
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.plan import Plan, Problem
from ftuner.planner.cpu.planner import Planner, best_width, planner_for
from ftuner.runtime.cpu.arrays import numpy_dtype
from ftuner.runtime.cpu.operands import (
    ProblemOf,
    row_distances,
    step_operands,
    step_problem,
    step_types,
)
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.cpu.products import PlannedRanges, Products, Ready
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.step_kind import (
    CompiledStep,
    Extents,
    Loaded,
    RequiredFamilies,
    StepKind,
    StepReport,
    no_cost,
    packed_once,
    strided,
    touched,
)
from ftuner.runtime.cpu.tasks import BoundTask, Condition, PlanKey, Task, nothing_to_do
from ftuner.runtime.shapes.evaluation import DimValues, Layouts
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.product.step import ProductStep
from ftuner.ukernels.cpu.library import LibraryName, Operands, build_library

P = TypeVar("P", bound=ProductStep)


@dataclass(frozen=True)
class ProductTask(Task):
    """A product to be planned, of operands with any strides."""

    products: Products
    width: int
    """Vectors of a panel of its packed weight; 0 if it has none."""
    layouts: tuple[int, ...]
    """The numbers of the layouts of A, B, C and the operands of the epilogue."""
    epilogue: Shared
    problem_of: ProblemOf
    footprint_bytes: int
    """As in `Panels`; 0 without a weight."""

    def bind(
        self, values: Sequence[int], layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        a, b, c, *operands = [layouts.strided(n, values) for n in self.layouts]
        if 0 in c.shape:
            return nothing_to_do(workers, 1)
        problem, strides = self.problem_of(a, b, c, operands, self.width, workers, hardware)
        problem = problem._replace(b_footprint_bytes=self.footprint_bytes)
        strides = strides._replace(operands=self.epilogue.placed(strides.operands))
        return _bound(self.products.ready(problem, strides), workers)

    def plan_key(self, layouts: Layouts) -> PlanKey:
        forms, dims = layouts.plan_key(self.layouts)
        return PlanKey((replace(self, layouts=()), forms), dims)


@dataclass(frozen=True)
class RowsTask(Task):
    """A product with a packed weight, of which all but the number of rows is known when the graph
    is compiled: its rows are contiguous, with one stride."""

    products: Products
    problem: Problem
    """The problem of one row and one worker."""
    strides: Strides
    rows: int
    """The number of the dim that counts rows."""

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        rows = values.fine[self.rows]
        if not rows:
            return nothing_to_do(workers, 1)
        problem = self.problem._replace(m=rows, workers=workers)
        return _bound(self.products.ready_for_range(problem, self.strides), workers)

    def plan_key(self, layouts: Layouts) -> PlanKey:
        return PlanKey(replace(self, rows=-1), fine=(self.rows,))

    @property
    def plan_ranges(self) -> Callable[[tuple[int, ...], int], PlannedRanges]:
        def plan(firsts: tuple[int, ...], workers: int) -> PlannedRanges:
            problem = self.problem._replace(workers=workers)
            return self.products.plan_ranges(problem, self.strides, firsts)

        return plan


def _bound(ready: Ready, workers: int) -> BoundTask:
    """`workers`: of the run."""
    encoded = ready.encoded
    return BoundTask(
        encoded.workers if encoded.together else workers,
        encoded.records[PlanSlot.CHUNKS] or encoded.workers,
        0,
        encoded.together,
        (encoded.address,),
        encoded.workspace_bytes,
        0,
        ready,
    )


@dataclass(frozen=True)
class CompiledProduct(CompiledStep, Generic[P]):
    """A product with its library, and B in panels if that is a weight."""

    step: P
    products: Products
    problem_of: ProblemOf
    panels: Panels | None

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step, panels = self.step, self.panels
        call = records.reserve(Call.SIZE)
        records.point(at + StepSlot.ARGUMENT, call)
        dtype = self.products.compiled.library.types.a
        records.constant(at + StepSlot.KIND, PRODUCT_KINDS[moved_as(dtype)])
        records.workspace(call + Call.WORKSPACE)
        records.pool(call + Call.POOL)
        records.dim(call + Call.ROWS, records.dims.number(step.c.shape[-2]))
        epilogue = shared_epilogue(step)
        slots = (Call.A, Call.B, Call.C, *(Call.OPERANDS + place for place in epilogue.places))
        for slot, view in zip(slots, step.views, strict=True):
            if panels is not None and slot == Call.B:
                records.constant(call + slot, int(panels.packed.ctypes.data))
            else:
                records.address(call + slot, view.buffer, view.layout.offset)
        for i, limit in enumerate(lay_out_limits(records, epilogue, step_types(step).finished)):
            records.point(call + Call.OPERANDS + LIMITS + i, limit)
        records.planned_tasks(self.task(records), (call + Call.PLAN,), self.unless(records))
        window = self.lay_out_window(records)
        if window is not None:
            records.point(call + Call.WINDOW, window)

    @property
    def weight_panels(self) -> tuple[int, int]:
        panels = self.panels
        if panels is None:
            return 0, 0
        width = panels.width * self.products.compiled.library.lanes
        return -(-panels.n // width), int(panels.packed.nbytes)

    def order_of_sums(self, rows: Rows, count: int, workers: int) -> Hashable:
        each = rows.each(self.step.c.shape[0])
        one_row = None if self.panels is None else self.one_row(self.panels)
        if each is None or one_row is None:
            return None
        problem = one_row[0]._replace(m=each * count, workers=workers)
        return _steps_in_order(self.products.planner, problem)

    def lay_out_window(self, records: RecordLayout) -> int | None:
        """Lay out the window that A is read through, if there is one; returns its first slot."""
        return None

    def unless(self, records: RecordLayout) -> Condition | None:
        """The condition under which another step does the work."""
        return None

    def task(self, records: RecordLayout) -> Task:
        """What is planned when extents are bound."""
        step, panels = self.step, self.panels
        one_row = None if panels is None else self.one_row(panels)
        if one_row is not None:
            return RowsTask(self.products, *one_row, records.dims.number(step.c.shape[0]))
        layouts = tuple(records.layouts.number(view.layout) for view in step.views)
        width, footprint_bytes = 0, 0
        if panels is not None:
            width, footprint_bytes = panels.width, panels.footprint_bytes
        return ProductTask(
            self.products, width, layouts, shared_epilogue(step), self.problem_of, footprint_bytes
        )

    def one_row(self, panels: Panels) -> tuple[Problem, Strides] | None:
        """The problem of one row and one worker, and its strides; None unless the number of rows
        is all that is left to be known."""
        a = self.step.a.layout
        distances = row_distances((self.step.a, self.step.c, *self.step.operands))
        if a.strides[-1] != 1 or distances is None:
            return None
        a_row, c_row, *operands = distances
        placed = shared_epilogue(self.step).placed(operands)
        strides = Strides(a_row, a.dtype.itemsize, 0, 0, c_row, (), placed, False)
        return panels.problem(1, 1), strides


@lru_cache(maxsize=4096)
def _steps_in_order(planner: Planner, problem: Problem) -> int | None:
    """The k steps of a block, if all elements of a product with a packed weight are summed up step
    by step: no worker has a part of k, and no tile sums up chains or streams of steps apart."""
    plan = planner.plan_of_range(problem)
    # Native code reads k as the first rows of the range do.
    first = planner.plan_of_range(problem._replace(m=fine_start(problem.m)))
    bands = [*plan.bands(), *first.bands()]
    apart = plan.choice.grid.k > 1 or any(
        band.reading.streams_log2 or band.family.by_height[mr].tile.chains > 1
        for band in bands for mr, _ in band.segments
    )  # fmt: skip
    return None if apart else plan.choice.kc


def shared_epilogue(step: ProductStep) -> Shared:
    """The epilogue of a step in its library: products with a weight share one if they can."""
    return shared(step.epilogue) if step.by_weight else unshared(step.epilogue)


def lay_out_limits(records: RecordLayout, epilogue: Shared, dtype: DType) -> list[int]:
    """Lay out the limits of an epilogue; returns their slots."""
    slots = []
    for limit in epilogue.limits:
        word = np.zeros(1, np.int64)
        word.view(numpy_dtype(dtype))[0] = limit
        slots.append(records.reserve(1))
        records.constant(slots[-1], int(word[0]))
    return slots


class ProductKind(MatrixKind, StepKind[P]):
    """A product runs uKernels of the library of its dtypes and epilogue."""

    has_workspace = True

    def multiplied(self, step: Step) -> DType:
        """The dtype that is multiplied: words for narrow numbers."""
        assert isinstance(step, ProductStep)
        return step.a.layout.dtype

    def operands(self, step: P) -> Operands:
        """The layouts that A and B may have."""
        return step_operands(step)

    def problem_of(self, step: P) -> ProblemOf:
        """The function from the arrays of the step to its problem and their strides."""
        return step_problem

    def required_families(
        self, step: P, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        name = LibraryName(step_types(step), shared_epilogue(step).epilogue)
        library = build_library(hardware, isa, *name)
        operands = self.operands(step)
        k, n = (extent if isinstance(extent, int) else None for extent in step.b.shape[-2:])
        width = 0
        if step.by_weight:
            assert k is not None
            assert n is not None
            width = best_width(planner_for(library), n, k, workers)
        return RequiredFamilies(name, library.families(operands, n, width), width)

    def compiled(
        self, step: P, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledProduct[P]:
        assert required is not None
        return CompiledProduct(*self.parts(step, required, loaded))

    def parts(
        self, step: P, required: RequiredFamilies, loaded: Loaded
    ) -> tuple[P, Products, ProblemOf, Panels | None]:
        """The fields of a `CompiledProduct`: the step is without its array once that is packed."""
        products, width = loaded.products(required.library), required.width
        problem_of = self.problem_of(step)
        array = step.b.buffer.array
        if array is None or not width:
            return step, products, problem_of, None
        turned = not step.b.contiguous
        panels = packed_once(array, step.b.shape, products, width, loaded, turned)
        # The packed weight replaces the array.
        return replace(step, b=loaded.emptied(step.b)), products, problem_of, panels

    def report(
        self, step: P, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        hardware, isa, workers = machine.hardware, machine.isa, machine.workers
        a, b, c, *operands = (strided(view, extents) for view in step.views)
        reads = sum(touched(view, extents) for view in (step.a, step.b, *step.operands))
        writes = touched(step.c, extents)
        if 0 in (*a.shape, *c.shape):
            return StepReport("nothing", no_cost(machine))
        dtype, k = step_types(step).finished, b.shape[-2]
        need = self.required_families(step, hardware, isa.name, workers)
        planner = planner_for(build_library(hardware, isa.name, *need.library))
        problem, _ = self.problem_of(step)(a, b, c, operands, need.width, workers, hardware)
        if need.width:
            problem = problem._replace(b_footprint_bytes=resident_bytes)
        plan = planner.plan_of_range(problem) if need.width else planner.plan(problem)
        estimate = planner.estimate(plan)
        used = plan.workers
        # The planner's estimate does not include the epilogue, and weights that the rest of the
        # program has evicted from the caches.
        elements = math.prod(c.shape)
        vectors = elements / isa.lanes(dtype) / used
        streams = []
        if step.b.buffer.is_constant:
            streams = [Stream(touched(step.b, extents) / used, resident_bytes)]
        epilogue_cycles = vectors * expression_cycles(step.epilogue, dtype, isa, hardware.tuning)
        rest = estimate_of(machine, used, 0.0, 0.0, epilogue_cycles, streams)
        estimate = estimate._replace(
            l3_s=max(estimate.l3_s, rest.l3_s),
            dram_s=max(estimate.dram_s, rest.dram_s),
            tile_s=estimate.tile_s + rest.tile_s,
            synchronise_s=max(estimate.synchronise_s, rest.synchronise_s),
        )
        multiply_adds = k * step.a.layout.dtype.numbers
        flops = elements * (2 * multiply_adds + expression_operations(step.epilogue))
        return StepReport(_in_words(plan), StepCost(flops, reads, writes, estimate), plan)


def _in_words(plan: Plan) -> str:
    """The tiles of the first worker, and how workers share the axes."""
    tiles = [
        f"{segments} x {band.family.by_height[mr]}"
        for band in plan.shares[0].bands[:1]
        for mr, segments in band.segments
    ]
    cuts = [f"{axis} in {parts}" for axis, parts in plan.choice.grid._asdict().items() if parts > 1]
    chunks = [count(plan.chunks, "chunk")] if plan.chunks else []
    return ", ".join((*tiles, *cuts, *chunks))


KIND = ProductKind[ProductStep]()
