"""Convolutions of two spatial axes on a CPU, as Winograd's products along the last one where these
are faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.kernel_records import LineWinograd
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.line_winograd import OUTPUTS, line_transforms, taps_of
from ftuner.core.product import ReadWindow, product_types
from ftuner.core.units import count
from ftuner.cost.cpu.line_winograd import LineProblem
from ftuner.cost.step import Machine, StepCost
from ftuner.graph.buffers import View
from ftuner.graph.winograd_steps import LineWinogradStep
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.line_winograd import LinePlan, faster_lines
from ftuner.planner.cpu.panel_width import best_width
from ftuner.planner.cpu.planner import Planner, planner_for
from ftuner.planner.cpu.winograd import epilogue_cycles_of
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.covers import COVER_SLOTS, cover_slots
from ftuner.runtime.cpu.packed_weights import Panels, pack_several
from ftuner.runtime.cpu.plan_records import SLACK_BYTES, aligned
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.required_families import RequiredFamilies, for_packed_weight
from ftuner.runtime.cpu.steps.contract import (
    CompiledStep,
    Extents,
    Loaded,
    StepKind,
    StepReport,
    no_cost,
)
from ftuner.runtime.cpu.steps.views import addressed, touched
from ftuner.runtime.cpu.tasks import BoundTask, Task, most_chunks, nothing_to_do
from ftuner.runtime.shapes.evaluation import Layouts
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.ukernels.cpu.library import LibraryName, build_library


class LineChoice(NamedTuple):
    """The two ways to compute a convolution, between which its extents decide."""

    planner: Planner
    """Of the products of transformed inputs."""
    direct: Planner
    """Of the product through the window."""
    kernel: tuple[int, int]
    strides: tuple[int, int]
    channels: int
    columns: int
    width: int
    """Vectors of a panel of the transformed weights."""
    epilogue_cycles: float
    """Of one vector."""

    @property
    def taps(self) -> int:
        return taps_of(self.kernel[1], self.strides[1])

    def problem(self, images: int, rows: int, positions: int, workers: int) -> LineProblem:
        run = self.channels * self.strides[1]
        return LineProblem(
            images, rows, positions, self.taps, run, self.kernel[0], self.strides[0], self.columns,
            workers,
        )  # fmt: skip

    def is_faster(self, images: int, rows: int, positions: int, workers: int) -> bool:
        """Whether Winograd's products are used, and not the product through the window."""
        return self.plan(images, rows, positions, workers) is not None

    def plan(self, images: int, rows: int, positions: int, workers: int) -> LinePlan | None:
        """How Winograd's products are cut, where they are faster."""
        if 0 in (images, rows, positions):
            return None
        return _plan(self, self.problem(images, rows, positions, workers))


@lru_cache(maxsize=4096)
def _plan(choice: LineChoice, problem: LineProblem) -> LinePlan | None:
    elements = math.prod(choice.kernel)
    window = ReadWindow(2, choice.channels, max(elements / math.prod(choice.strides), 1.0))
    k = elements * choice.channels
    return faster_lines(
        choice.planner, choice.direct, problem, choice.width, window, k, choice.epilogue_cycles
    )


def choice_of(
    x: View, weight_shape: Sequence[Dim], strides: tuple[int, int], epilogue: Expr,
    hardware: CpuHardware, isa: str,
) -> LineChoice:  # fmt: skip
    """The choice of a convolution of x by a weight of (rows, positions, channels, columns)."""
    planner, direct = (
        planner_for(build_library(hardware, isa, *_library(x, expr)))
        for expr in (ACCUMULATOR, epilogue)
    )
    rows, positions, channels, columns = (n for n in weight_shape if isinstance(n, int))
    # One thread decides the width: the weight is packed once for any number of workers.
    width = best_width(planner, columns, rows * strides[1] * channels, 1)
    return LineChoice(
        planner, direct, (rows, positions), strides, channels, columns, width,
        epilogue_cycles_of(direct.library),
    )  # fmt: skip


def _choice_of(step: LineWinogradStep, hardware: CpuHardware, isa: str) -> LineChoice:
    return choice_of(step.x, step.weight.shape, step.strides, step.epilogue, hardware, isa)


def _library(x: View, epilogue: Expr) -> LibraryName:
    return LibraryName(product_types(x.layout.dtype), epilogue)


@dataclass(frozen=True)
class LineTask(Task):
    """Winograd's products along lines, to be planned."""

    products: Products
    choice: LineChoice
    weight: int
    """The address of the transformed weights in panels."""
    x: int
    """The number of the layout of x, as are `out` and `operands`."""
    out: int
    begin: tuple[int, int]
    """The numbers of the dims of the padding before x."""
    operands: tuple[int, ...]

    def bind(
        self, values: Sequence[int], layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        x, out = layouts.strided(self.x, values), layouts.strided(self.out, values)
        images, rows, positions, columns = out.shape
        slots = LineWinograd.OPERANDS + len(self.operands)
        choice = self.choice
        plan = choice.plan(images, rows, positions, workers)
        if plan is None:
            return nothing_to_do(workers, slots)
        problem, block = choice.problem(images, rows, positions, workers), plan.block
        library = self.products.compiled.library
        lanes, size = library.lanes, library.types.c.itemsize
        nr = choice.width * lanes
        row_blocks = -(-rows // block)
        dims = [0] * slots
        dims[LineWinograd.ROW_BLOCKS], dims[LineWinograd.LINES] = row_blocks, problem.lines
        dims[LineWinograd.BLOCK], dims[LineWinograd.RUN] = block, problem.run
        dims[LineWinograd.HEIGHT], dims[LineWinograd.WIDTH] = x.shape[1:3]
        dims[LineWinograd.KERNEL_ROWS] = problem.kernel_rows
        dims[LineWinograd.STRIDE_Y], dims[LineWinograd.STRIDE_X] = choice.strides
        dims[LineWinograd.BEGIN_Y], dims[LineWinograd.BEGIN_X] = (values[n] for n in self.begin)
        dims[LineWinograd.OUT_HEIGHT], dims[LineWinograd.OUT_WIDTH] = rows, positions
        dims[LineWinograd.OUT_CHANNELS], dims[LineWinograd.PANEL] = columns, nr
        for first, array in ((LineWinograd.X_IMAGE, x), (LineWinograd.OUT_IMAGE, out)):
            dims[first : first + 3] = array.strides[:3]
        # A vector may be stored beyond the last row.
        inputs_bytes = aligned(problem.read_rows(block) * problem.run * size + SLACK_BYTES)
        sums_bytes = aligned(block * nr * size)
        patch_bytes = aligned(problem.points * problem.run * size + SLACK_BYTES)
        dims[LineWinograd.INPUTS_BYTES], dims[LineWinograd.SUMS_BYTES] = inputs_bytes, sums_bytes
        dims[LineWinograd.SUMS_OFFSET] = problem.points * inputs_bytes
        dims[LineWinograd.PATCH_OFFSET] = problem.points * (inputs_bytes + sums_bytes) + SLACK_BYTES
        worker_bytes = aligned(dims[LineWinograd.PATCH_OFFSET] + patch_bytes)
        dims[LineWinograd.WORKER_BYTES] = worker_bytes
        dims[LineWinograd.WEIGHT] = self.weight
        dims[LineWinograd.WEIGHT_BYTES] = problem.k * -(-columns // lanes) * lanes * size
        tail = -(-(columns % nr) // lanes)
        at = LineWinograd.COVERS
        for height in (block, rows % block):
            for vectors, is_tail in ((choice.width if columns >= nr else 0, False), (tail, True)):
                if vectors:
                    dims[at : at + COVER_SLOTS] = cover_slots(
                        self.products, vectors, is_tail, problem.k, height
                    )
                at += COVER_SLOTS
        for i, layout in enumerate(self.operands):
            dims[LineWinograd.OPERANDS + i] = layouts.strided(layout, values).strides[0]
        tasks = images * row_blocks * problem.lines
        return BoundTask(
            workers, min(tasks, most_chunks(workers, hardware)), tasks, False, dims,
            workers * worker_bytes, 0, None,
        )  # fmt: skip


@dataclass(frozen=True)
class CompiledLineWinograd(CompiledStep):
    """Winograd's products along lines with their kernel, their library and the transformed
    weights."""

    step: LineWinogradStep
    address: int
    products: Products
    choice: LineChoice
    panels: Panels

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step = self.step
        slots = LineWinograd.OPERANDS + len(step.operands)
        arrays = addressed((step.x, *step.operands, step.out))
        dims = records.kernel(at, self.address, arrays, slots)
        records.workspace(dims + LineWinograd.WORKSPACE)
        begin = records.dims.numbers(step.begin)
        task = LineTask(
            self.products, self.choice, int(self.panels.packed.ctypes.data),
            records.layouts.number(step.x.layout), records.layouts.number(step.out.layout),
            (begin[0], begin[1]),
            tuple(records.layouts.number(v.layout) for v in step.operands),
        )  # fmt: skip
        records.planned_tasks(task, range(dims, dims + slots))


def transformed(weight: Array, stride: int) -> Array:
    """A weight of (rows, positions, channels, columns) as a matrix of columns and k for each point:
    G g of all phases, computed in float64."""
    rows, positions, channels, columns = weight.shape
    taps = taps_of(positions, stride)
    phases = np.zeros((rows, taps * stride, channels, columns))
    phases[:, :positions] = weight
    phases = phases.reshape(rows, taps, stride * channels, columns)
    matrix = np.array([[float(c) for c in row] for row in line_transforms(taps).weight])
    found: Array = np.einsum("pt,ytkn->pnyk", matrix, phases)
    return found.reshape(len(matrix), columns, -1).astype(weight.dtype)


class LineWinogradKind(MatrixKind, StepKind[LineWinogradStep]):
    """Winograd's products are one kernel, which calls uKernels of the library without an epilogue.
    A step of kind `convolution` follows, which does the work where this one has none."""

    has_workspace = True

    def required_families(
        self, step: LineWinogradStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        choice = _choice_of(step, hardware, isa)
        library = build_library(hardware, isa, *_library(step.x, ACCUMULATOR))
        return for_packed_weight(library, choice.columns, choice.width)

    def bundle(self, step: LineWinogradStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        choice, dtype = _choice_of(step, hardware, isa.name), step.x.layout.dtype
        return kernel_bundle(
            "ftuner.codegen.llvm.kernels.line_winograd", "line_winograd",
            dtype, choice.taps, step.epilogue, isa.lanes(dtype), isa.fused,
        )  # fmt: skip

    def compiled(
        self, step: LineWinogradStep, required: RequiredFamilies | None, kernel: int,
        loaded: Loaded,
    ) -> CompiledLineWinograd:  # fmt: skip
        assert required is not None
        products = loaded.products(required.library)
        choice = _choice_of(step, loaded.hardware, loaded.isa.name)
        array = step.weight.buffer.array
        assert array is not None
        weight = array.reshape(*choice.kernel, choice.channels, choice.columns)
        key = (id(array), (*weight.shape, *step.strides), choice.width)
        panels = loaded.packed.get(key)
        if panels is None:
            panels = loaded.packed[key] = pack_several(
                products, transformed(weight, step.strides[1]), choice.width, loaded.weights_bytes
            )
        weight_buffer = replace(step.weight.buffer, array=None)
        step = replace(step, weight=View(weight_buffer, step.weight.layout))
        return CompiledLineWinograd(step, kernel, products, choice, panels)

    def report(
        self, step: LineWinogradStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        shape = tuple(evaluate(n, extents) for n in step.out.shape)
        workers = machine.workers
        choice = _choice_of(step, machine.hardware, machine.isa.name)
        images, rows, positions, columns = shape
        found = choice.plan(images, rows, positions, workers)
        if found is None:
            return StepReport("nothing: the next step does it", no_cost(machine))
        problem = choice.problem(images, rows, positions, workers)
        reads = sum(touched(v, extents) for v in (step.x, *step.operands))
        writes = touched(step.out, extents)
        lines = images * rows * problem.lines
        flops = 2 * problem.points * lines * problem.k * columns
        tasks = images * problem.lines * -(-rows // found.block)
        plan = f"lines of {OUTPUTS[problem.taps]}, {count(tasks, 'task')} of {found.block} rows"
        return StepReport(plan, StepCost(flops, reads, writes, found.estimate))


KIND = LineWinogradKind()
