"""Convolutions by windows of 3 x 3 on a CPU, as Winograd's products where these are faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ftuner.codegen.llvm.native.kernel_records import Winograd
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.product import product_types
from ftuner.core.units import count
from ftuner.core.winograd import WINDOW
from ftuner.cost.cpu.winograd import WinogradProblem
from ftuner.cost.step import Machine, StepCost
from ftuner.graph.buffers import View
from ftuner.graph.winograd_steps import WinogradStep
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.panel_width import best_width
from ftuner.planner.cpu.planner import Planner, planner_for
from ftuner.planner.cpu.winograd import (
    WinogradPlan,
    epilogue_cycles_of,
    faster_winograd,
    outputs_of,
)
from ftuner.runtime.cpu.covers import COVER_SLOTS, cover_slots
from ftuner.runtime.cpu.packed_weights import Panels
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
    packed_once,
)
from ftuner.runtime.cpu.steps.views import addressed, touched
from ftuner.runtime.cpu.tasks import BoundTask, Task, most_chunks, nothing_to_do
from ftuner.runtime.shapes.evaluation import Layouts
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.ukernels.cpu.library import LibraryName, build_library


class WinogradChoice(NamedTuple):
    """The two ways to compute a convolution, between which its extents decide."""

    planner: Planner
    """Of the products of transformed inputs."""
    direct: Planner
    """Of the product through the window."""
    channels: int
    columns: int
    outputs: int
    """Outputs of a tile along both axes."""
    epilogue_cycles: float
    """Of one vector."""

    def problem(self, images: int, rows: int, positions: int, workers: int) -> WinogradProblem:
        return WinogradProblem(
            images, rows, positions, self.channels, self.columns, self.outputs, workers
        )

    def is_faster(self, images: int, rows: int, positions: int, workers: int) -> bool:
        """Whether Winograd's products are used, and not the product through the window."""
        return self.plan(images, rows, positions, workers) is not None

    def plan(self, images: int, rows: int, positions: int, workers: int) -> WinogradPlan | None:
        """How Winograd's products are cut, where they are faster."""
        return _plan(self, self.problem(images, rows, positions, workers))


@lru_cache(maxsize=4096)
def _plan(choice: WinogradChoice, problem: WinogradProblem) -> WinogradPlan | None:
    return faster_winograd(choice.planner, choice.direct, problem, choice.epilogue_cycles)


def choice_of(
    x: View, weight_shape: Sequence[Dim], extents: Sequence[Dim], epilogue: Expr,
    hardware: CpuHardware, isa: str,
) -> WinogradChoice:  # fmt: skip
    """The choice of a convolution of x by a weight of (..., channels, columns). `extents`: rows and
    positions of the result."""
    planner, direct = (
        planner_for(build_library(hardware, isa, *_library(x, expr)))
        for expr in (ACCUMULATOR, epilogue)
    )
    channels, columns = (n for n in weight_shape[-2:] if isinstance(n, int))
    cycles = epilogue_cycles_of(direct.library)
    return WinogradChoice(planner, direct, channels, columns, outputs_of(*extents), cycles)


def _choice_of(step: WinogradStep, hardware: CpuHardware, isa: Isa) -> WinogradChoice:
    extents = step.out.shape[1:3]
    return choice_of(step.x, step.weight.shape, extents, step.epilogue, hardware, isa.name)


def _library(x: View, epilogue: Expr) -> LibraryName:
    return LibraryName(product_types(x.layout.dtype), epilogue)


@dataclass(frozen=True)
class WinogradTask(Task):
    """Winograd's products, to be planned."""

    products: Products
    choice: WinogradChoice
    weight: int
    """The address of the weight in panels."""
    width: int
    """Vectors of a panel."""
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
        slots = Winograd.OPERANDS + len(self.operands)
        plan = None
        if 0 not in out.shape:
            plan = self.choice.plan(images, rows, positions, workers)
        if plan is None:
            return nothing_to_do(workers, slots)
        problem = self.choice.problem(images, rows, positions, workers)
        library = self.products.compiled.library
        lanes, size, width = library.lanes, library.types.c.itemsize, self.width
        blocks = plan.blocks
        block, nr, channels, m = blocks.tiles, width * lanes, problem.channels, problem.outputs
        dims = [0] * slots
        dims[Winograd.TILES] = problem.tiles
        dims[Winograd.TILE_ROWS], dims[Winograd.TILE_COLUMNS] = -(-rows // m), -(-positions // m)
        dims[Winograd.HEIGHT], dims[Winograd.WIDTH] = x.shape[1:3]
        dims[Winograd.CHANNELS], dims[Winograd.OUT_CHANNELS] = channels, columns
        dims[Winograd.OUT_HEIGHT], dims[Winograd.OUT_WIDTH] = rows, positions
        dims[Winograd.BEGIN_Y], dims[Winograd.BEGIN_X] = (values[n] for n in self.begin)
        for first, array in ((Winograd.X_IMAGE, x), (Winograd.OUT_IMAGE, out)):
            dims[first : first + 3] = array.strides[:3]
        dims[Winograd.BLOCK] = block
        sizes = {
            Winograd.SUMS_OFFSET: block * channels,
            Winograd.PATCH_OFFSET: block * nr,
            Winograd.WEIGHT_OFFSET: channels,
            Winograd.WORKER_BYTES: blocks.channels * nr,
        }
        offset = 0
        # Each offset is where the piece before it ends.
        for slot, elements in sizes.items():
            offset += aligned(problem.matrices * elements * size + SLACK_BYTES)
            dims[slot] = offset
        worker_bytes = offset
        dims[Winograd.PANEL], dims[Winograd.WEIGHT] = nr, self.weight
        dims[Winograd.CHANNEL_BLOCK] = blocks.channels
        tail = -(-(columns % nr) // lanes)
        at = Winograd.COVERS
        for height in (block, problem.tiles % block):
            for vectors, is_tail in ((width if columns >= nr else 0, False), (tail, True)):
                if vectors:
                    dims[at : at + COVER_SLOTS] = cover_slots(
                        self.products, vectors, is_tail, channels, height
                    )
                at += COVER_SLOTS
        for i, layout in enumerate(self.operands):
            dims[Winograd.OPERANDS + i] = layouts.strided(layout, values).strides[0]
        tasks = -(-problem.tiles // block)
        return BoundTask(
            workers, min(tasks, most_chunks(workers, hardware)), tasks, False, dims,
            workers * worker_bytes, 0, None,
        )  # fmt: skip


@dataclass(frozen=True)
class CompiledWinograd(CompiledStep):
    """Winograd's products with their kernel, their library and the transformed weight."""

    step: WinogradStep
    address: int
    products: Products
    choice: WinogradChoice
    panels: Panels

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step, choice = self.step, self.choice
        slots = Winograd.OPERANDS + len(step.operands)
        arrays = addressed((step.x, *step.operands, step.out))
        dims = records.kernel(at, self.address, arrays, slots)
        records.workspace(dims + Winograd.WORKSPACE)
        packed = self.panels.packed
        begin = records.dims.numbers(step.begin)
        task = WinogradTask(
            self.products, choice, int(packed.ctypes.data), self.panels.width,
            records.layouts.number(step.x.layout), records.layouts.number(step.out.layout),
            (begin[0], begin[1]),
            tuple(records.layouts.number(v.layout) for v in step.operands),
        )  # fmt: skip
        records.planned_tasks(task, range(dims, dims + slots))


class WinogradKind(MatrixKind, StepKind[WinogradStep]):
    """Winograd's products are one kernel, which calls uKernels of the library without an epilogue.
    A step of kind `convolution` follows, which does the work where this one has none."""

    has_workspace = True

    def required_families(
        self, step: WinogradStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        channels, columns = (n for n in step.weight.shape[-2:] if isinstance(n, int))
        direct = planner_for(build_library(hardware, isa, *_library(step.x, step.epilogue)))
        # The panels are those of the product through the window.
        width = best_width(direct, columns, WINDOW**2 * channels, workers)
        library = build_library(hardware, isa, *_library(step.x, ACCUMULATOR))
        return for_packed_weight(library, columns, width)

    def bundle(self, step: WinogradStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        choice, dtype = _choice_of(step, hardware, isa), step.x.layout.dtype
        return kernel_bundle(
            "ftuner.codegen.llvm.kernels.winograd", "winograd",
            dtype, choice.outputs, step.epilogue, isa.lanes(dtype), isa.fused,
        )  # fmt: skip

    def compiled(
        self, step: WinogradStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledWinograd:
        assert required is not None
        products = loaded.products(required.library)
        array = step.weight.buffer.array
        assert array is not None
        channels, columns = step.weight.shape[-2:]
        panels = packed_once(
            array, (WINDOW**2 * channels, columns), products, required.width, loaded
        )
        weight_buffer = replace(step.weight.buffer, array=None)
        choice = _choice_of(step, loaded.hardware, loaded.isa)
        step = replace(step, weight=View(weight_buffer, step.weight.layout))
        return CompiledWinograd(step, kernel, products, choice, panels)

    def report(
        self, step: WinogradStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        shape = tuple(evaluate(n, extents) for n in step.out.shape)
        workers = machine.workers
        choice = _choice_of(step, machine.hardware, machine.isa)
        images, rows, positions, columns = shape
        found = None if 0 in shape else choice.plan(images, rows, positions, workers)
        if found is None:
            return StepReport("nothing: the next step does it", no_cost(machine))
        problem = choice.problem(images, rows, positions, workers)
        block = found.blocks.tiles
        reads = sum(touched(v, extents) for v in (step.x, *step.operands))
        writes = touched(step.out, extents)
        flops = 2 * problem.matrices * problem.tiles * choice.channels * columns
        m = choice.outputs
        plan = f"tiles of {m} x {m}, {count(-(-problem.tiles // block), 'task')} of {block}"
        return StepReport(plan, StepCost(flops, reads, writes, found.estimate))


KIND = WinogradKind()
