"""Products of a mixture of experts on a CPU: one kernel, and its record at bound extents."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import accumulate

from ftuner.codegen.llvm.native.records import SLACK_BYTES, SLOT_BYTES
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.cpu.common_epilogue import COMMON
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.product import product_types
from ftuner.core.ranges import after_coarse
from ftuner.core.units import count
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.planner import best_width, planner_for
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.packed_weights import Panels, panel_covers
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
    for_packed_weight,
    no_cost,
    packed_as,
    touched,
)
from ftuner.runtime.cpu.tasks import BoundTask, PlanKey, Task, most_chunks, nothing_to_do
from ftuner.runtime.shapes.evaluation import DimValues, Layouts
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.experts.cpu_cost import experts_cost
from ftuner.schedules.experts.cpu_record import Experts
from ftuner.schedules.experts.step import ExpertsStep
from ftuner.ukernels.cpu.library import build_library

BOUND_SLOTS = (
    Experts.BLOCK,
    Experts.WORKER_BYTES,
    Experts.ENDS_OFFSET,
    Experts.A_OFFSET,
    Experts.C_OFFSET,
)
"""The slots that a plan decides, in the order in which binding gives their values."""


@dataclass(frozen=True)
class ExpertsTask(Task):
    """Cuts the panels of the experts' weights into chunks, and divides the workspace."""

    experts: int
    k: int
    nr: int
    """Columns of a full panel."""
    panels: int
    """Panels of an expert."""
    itemsize: int
    rows: int
    """The number of the dim that counts rows of the result."""

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        # Memory is for all rows of a coarse range.
        rows = after_coarse(values.middle[self.rows]) - 1
        if not rows:
            return nothing_to_do(workers, len(BOUND_SLOTS))
        block = min(rows, block_rows(hardware, self.k, self.itemsize))
        pieces = (
            rows * SLOT_BYTES,
            self.experts * SLOT_BYTES,
            block * self.k * self.itemsize + SLACK_BYTES,
            block * self.nr * self.itemsize + SLACK_BYTES,
        )
        *offsets, worker_bytes = accumulate(map(aligned, pieces))
        chunks = min(self.panels, most_chunks(workers, hardware))
        return BoundTask(
            workers, chunks, self.panels, False, (block, worker_bytes, *offsets),
            workers * worker_bytes, 0, None,
        )  # fmt: skip

    def plan_key(self, layouts: Layouts) -> PlanKey:
        return PlanKey(replace(self, rows=0), middle=(self.rows,))


def block_rows(hardware: CpuHardware, k: int, itemsize: int) -> int:
    """Rows of x of a block, which stay in L2 while the panels stream by."""
    tuning = hardware.tuning
    most = int(tuning.block_share_of_l2 * hardware.l2_bytes) // (k * itemsize)
    # Rows of several tiles at least, or panels would be read for too few.
    return max(most, tuning.block_rows // 4)


@dataclass(frozen=True)
class CompiledExperts(CompiledStep):
    """Expert products with their kernel, their library and the packed weights."""

    step: ExpertsStep
    address: int
    products: Products
    covers: tuple[array[int], array[int]]
    """Those of full panels and of the last one."""
    panels: Panels
    """Of all experts, one after the other; `n` and `k` are those of one."""

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step, panels = self.step, self.panels
        dims = records.kernel(at, self.address, addressed(step.views), Experts.SIZE)
        records.workspace(dims + Experts.WORKSPACE)
        experts, k, n = step.extents
        nr = panels.width * self.products.compiled.library.lanes
        covers, tail_covers = self.covers
        constants = {
            Experts.EXPERTS: experts,
            Experts.K: k,
            Experts.COLUMNS: n,
            Experts.WEIGHT: int(panels.packed.ctypes.data),
            Experts.WEIGHT_BYTES: panels.packed.nbytes // experts,
            Experts.PANEL: nr,
            Experts.PANELS: n // nr,
            Experts.COVERS: covers.buffer_info()[0],
            Experts.TAIL_COVERS: tail_covers.buffer_info()[0],
        }
        for slot, value in constants.items():
            records.constant(dims + slot, value)
        size, number = step.x.layout.dtype.itemsize, records.dims.number
        extents = {
            Experts.ROWS: step.rows,
            Experts.SLOTS: step.slots,
            Experts.X_ROW: step.x.layout.strides[0] * size,
            Experts.OUT_ROW: step.out.layout.strides[0] * size,
        }
        for slot, dim in extents.items():
            records.dim(dims + slot, number(dim))
        task = ExpertsTask(experts, k, nr, -(-n // nr), size, number(step.rows))
        records.planned_tasks(task, [dims + slot for slot in BOUND_SLOTS])
        where = f"{step.node}: " if step.node else ""
        records.check(at + StepSlot.STATUS, (f"{where}number of an expert",))


class ExpertsKind(MatrixKind, StepKind[ExpertsStep]):
    """Expert products are one kernel, which calls uKernels of the library."""

    has_workspace = True

    def required_families(
        self, step: ExpertsStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        _, k, n = step.extents
        library = build_library(hardware, isa, product_types(step.x.layout.dtype), COMMON)
        return for_packed_weight(library, n, best_width(planner_for(library), n, k, workers))

    def bundle(self, step: ExpertsStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        dtype = step.x.layout.dtype
        emitter = "ftuner.schedules.experts.cpu_kernel"
        return kernel_bundle(emitter, "experts", dtype, isa.lanes(dtype), step.bias is not None)

    def compiled(
        self, step: ExpertsStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledExperts:
        assert required is not None
        products = loaded.products(required.library)
        given = step.weight.buffer.array
        assert given is not None

        def matrices(given: Array) -> Array:
            weights = given.reshape(step.weight.shape)
            return weights if step.transposed else weights.swapaxes(1, 2)

        experts, k, n = step.extents
        panels = packed_as(
            given, ("experts", experts, step.transposed), (n, k), matrices,
            products, required.width, loaded,
        )  # fmt: skip
        covers = panel_covers(products, n, panels.width, k, loaded.covers)
        return CompiledExperts(
            replace(step, weight=loaded.emptied(step.weight)), kernel, products, covers, panels
        )

    def report(
        self, step: ExpertsStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        rows = evaluate(step.rows, extents)
        if not rows:
            return StepReport("nothing", no_cost(machine))
        need = self.required_families(step, machine.hardware, machine.isa.name, machine.workers)
        planner = planner_for(build_library(machine.hardware, machine.isa.name, *need.library))
        ukernels = planner.ukernels(need.width)
        *reads, writes = (touched(view, extents) for view in (step.x, step.index, step.out))
        cost = experts_cost(
            machine, ukernels, step.extents, rows, step.bias is not None, sum(reads), writes,
            resident_bytes,
        )  # fmt: skip
        panels = -(-step.extents[2] // (need.width * ukernels.lanes))
        return StepReport(f"{count(rows, 'row')} by expert, {count(panels, 'task')}", cost)


KIND = ExpertsKind()
