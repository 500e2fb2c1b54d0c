"""Recurrent layers on a CPU: one kernel, and its record with covers and tasks at bound extents."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ftuner.codegen.llvm.native.records import LevelPanel
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.cpu.common_epilogue import COMMON
from ftuner.core.dtype import INT8, INT8X4, INT16, UINT8, DType
from ftuner.core.frozen import dataclass
from ftuner.core.product import WORD_PRODUCTS, ProductTypes, product_types
from ftuner.core.recurrence import Cell
from ftuner.core.units import count
from ftuner.cost.step import Machine
from ftuner.graph.arrays import held_in
from ftuner.hardware.constants import part_of
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.hardware.tuning import NativeTuning
from ftuner.planner.cpu.planner import Planner, best_width, planner_for
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.packed_weights import Panels, packed_levels, panel_covers
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
    kept_panels,
    no_cost,
    packed_as,
    strided,
    touched,
)
from ftuner.runtime.cpu.tasks import BoundTask, Field, PlanKey, Task, nothing_to_do
from ftuner.runtime.shapes.evaluation import Layouts
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.recurrence.cpu_cost import RecurrenceProblem, gate_panels, recurrence_cost
from ftuner.schedules.recurrence.cpu_plan import recurrence_cut
from ftuner.schedules.recurrence.cpu_record import Recurrence
from ftuner.schedules.recurrence.step import RecurrenceStep
from ftuner.ukernels.cpu.library import build_library


@dataclass(frozen=True)
class RecurrenceTask(Task):
    """Cuts the sequences of a batch, or the columns of the weight, into tasks."""

    products: Products
    weight: int
    """The address of the weight in panels; 0 if the kernel packs it."""
    width: int
    """Vectors of a panel."""
    covers: tuple[int, ...]
    """The addresses of those of full panels and of the last one; none of those of `LevelPanel`."""
    levels: bool
    """Whether panels are those of `LevelPanel`."""
    hidden: int
    cell: Cell
    directions: int
    rows: int
    """The number of the dim that counts sequences."""
    x: int
    """The number of the layout of x, as are `y` and `last`."""
    y: int
    last: tuple[int, ...]

    def bind(
        self, values: Sequence[int], layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        rows = values[self.rows]
        if not rows:
            return nothing_to_do(workers, Recurrence.SIZE)
        products, width, hidden = self.products, self.width, self.hidden
        lanes = products.compiled.library.lanes
        columns = len(self.cell.gates) * hidden
        nr = (LevelPanel.VECTORS if self.levels else width) * lanes
        most = _most_tasks(workers, self.directions, bool(self.weight))
        cut = recurrence_cut(products.planner, self.cell, width, hidden, rows, most)
        block = cut.block
        tail = -(-(columns % nr) // lanes)
        dims = [0] * Recurrence.SIZE
        dims[Recurrence.ROWS] = rows
        dims[Recurrence.HIDDEN], dims[Recurrence.BLOCK] = hidden, block
        dims[Recurrence.TEAM] = cut.team
        dims[Recurrence.GATE_PANELS] = gate_panels(hidden, nr, cut.team)
        dims[Recurrence.PANEL], dims[Recurrence.WEIGHT] = nr, self.weight
        dims[Recurrence.PACK] = products.kernels.runtime.pack_addresses[
            products.compiled.library.types.c
        ]
        dims[Recurrence.TAIL] = tail * lanes
        dims[Recurrence.COVERS : Recurrence.COVERS + len(self.covers)] = self.covers
        tasks = cut.tasks(rows)
        return BoundTask(workers, tasks, tasks, False, dims, 0, 0, None)

    def plan_key(self, layouts: Layouts) -> PlanKey:
        return PlanKey(replace(self, rows=0, x=0, y=0, last=()), (self.rows,))

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        x, y = layouts.numbered(self.x), layouts.numbered(self.y)
        strides = {
            Recurrence.X_STEP: (x, 0), Recurrence.X_ROW: (x, 1),
            Recurrence.Y_STEP: (y, 0), Recurrence.Y_ROW: (y, 2),
        }  # fmt: skip
        rows = zip((Recurrence.H_ROW, Recurrence.C_ROW), self.last, strict=False)
        strides |= {slot: (layouts.numbered(number), 1) for slot, number in rows}
        fields = [Field(slot, v.strides[axis], v.itemsize) for slot, (v, axis) in strides.items()]
        return (Field(Recurrence.STEPS, x.shape[0], 1), *fields)


def _most_tasks(workers: int, directions: int, is_constant: bool) -> int:
    """The tasks of a direction: its share of the workers. They would pack a weight that is not a
    constant into the same memory."""
    return max(workers // directions, 1) if is_constant else 1


@dataclass(frozen=True)
class CompiledRecurrence(CompiledStep):
    """A recurrence with its kernel, its library and its packed weight, if that is a constant."""

    step: RecurrenceStep
    address: int
    products: Products
    width: int
    covers: tuple[array[int], ...]
    """Of full panels and of the last one."""
    panels: Panels | None

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step = self.step
        memory = (step.planes,) if step.panels is None else (step.planes, step.panels)
        arrays = [*addressed(step.views), *((buffer, 0) for buffer in memory)]
        dims = records.kernel(at, self.address, arrays, Recurrence.SIZE)
        number = records.layouts.number
        packed = 0 if self.panels is None else int(self.panels.packed.ctypes.data)
        task = RecurrenceTask(
            self.products, packed, self.width, tuple(x.buffer_info()[0] for x in self.covers),
            not self.covers, step.hidden, step.cell, step.directions,
            records.dims.number(step.x.shape[1]), number(step.x.layout), number(step.y.layout),
            tuple(number(v.layout) for v in step.last),
        )  # fmt: skip
        records.planned_tasks(task, range(dims, dims + Recurrence.SIZE))
        if step.lengths is not None:
            where = f"{step.node}: " if step.node else ""
            records.check(at + StepSlot.STATUS, (f"{where}length of a sequence",))


def _columns(step: RecurrenceStep) -> int:
    columns = step.weight.shape[0]
    assert isinstance(columns, int)
    return columns


def _multiplied(step: RecurrenceStep, isa: Isa) -> DType:
    """What the state is multiplied as; see `cpu_kernel.emit`."""
    if step.weight.layout.dtype != INT8:
        return step.x.layout.dtype
    return UINT8 if UINT8 in isa.narrow_dtypes else INT16


def _planner(step: RecurrenceStep, hardware: CpuHardware, isa: str) -> tuple[Planner, int]:
    """The planner of the products, and the width of the weight's panels."""
    words = _multiplied(step, hardware.isa(isa)) == UINT8
    types = WORD_PRODUCTS[UINT8] if words else product_types(step.x.layout.dtype)
    planner = planner_for(build_library(hardware, isa, types, COMMON))
    # One worker multiplies all columns.
    return planner, best_width(planner, _columns(step), types.depth(step.hidden), 1)


def _in_words(weight: Array, types: ProductTypes) -> Array:
    """A weight of (columns, hidden) as products read it: levels are words, filled up with zeros."""
    if types.b != INT8X4:
        return weight
    whole: Array = np.pad(weight, ((0, 0), (0, -weight.shape[1] % INT8X4.numbers)))
    return whole.view(held_in(INT8X4))


class RecurrenceKind(MatrixKind, StepKind[RecurrenceStep]):
    """A recurrence is one kernel, which calls uKernels of the library without an epilogue."""

    writes_apart = True

    def required_families(
        self, step: RecurrenceStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        planner, width = _planner(step, hardware, isa)
        return for_packed_weight(planner.library, _columns(step), width)

    def bundle(self, step: RecurrenceStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        dtype, packs = step.x.layout.dtype, step.panels is not None
        return kernel_bundle(
            "ftuner.schedules.recurrence.cpu_kernel", "recurrence",
            dtype, step.cell, packs, _multiplied(step, isa), isa.lanes(dtype), isa.fused,
            part_of(hardware.tuning, NativeTuning),
        )  # fmt: skip

    def compiled(
        self, step: RecurrenceStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledRecurrence:
        assert required is not None
        products = loaded.products(required.library)
        panels, weight, types = None, step.weight, required.library.types
        k = types.depth(step.hidden)
        exact = weight.layout.dtype == INT8 and types.b != INT8X4
        if step.panels is None:
            array, offset = weight.buffer.array, weight.layout.offset
            assert array is not None
            assert isinstance(offset, int)
            columns, hidden = _columns(step), step.hidden
            extents = columns, k

            def matrix(array: Array) -> Array:
                rows = array.reshape(-1)[offset : offset + columns * hidden]
                return rows.reshape(columns, hidden)

            form = ("recurrence", offset)
            if exact:
                lanes = products.compiled.library.lanes
                panels = kept_panels(
                    array, (form, *extents, lanes), extents,
                    lambda x: packed_levels(matrix(x), lanes), LevelPanel.VECTORS, loaded,
                )  # fmt: skip
            else:
                panels = packed_as(
                    array, form, extents, lambda x: _in_words(matrix(x), types)[None], products,
                    required.width, loaded,
                )  # fmt: skip
            step = replace(step, weight=loaded.emptied(weight))
        covers = None
        if not exact:
            covers = panel_covers(products, _columns(step), required.width, k, loaded.covers)
        return CompiledRecurrence(step, kernel, products, required.width, covers or (), panels)

    def report(
        self, step: RecurrenceStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        steps, rows, _ = strided(step.x, extents).shape
        if not rows:
            return StepReport("nothing", no_cost(machine))
        planner, width = _planner(step, machine.hardware, machine.isa.name)
        most = _most_tasks(machine.workers, step.directions, step.panels is None)
        cut = recurrence_cut(planner, step.cell, width, step.hidden, rows, most)
        problem = RecurrenceProblem(step.cell, steps, rows, step.hidden, *cut)
        writes = sum(touched(v, extents) for v in (step.y, *step.last))
        cost = recurrence_cost(machine, planner.ukernels(width), problem, writes)
        tasks = count(cut.tasks(rows), "task")
        if cut.team > 1:
            return StepReport(f"{tasks} that share {count(rows, 'sequence')} by columns", cost)
        return StepReport(f"{tasks} of {count(cut.block, 'sequence')}", cost)


KIND = RecurrenceKind()
