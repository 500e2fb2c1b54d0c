"""Convolutions by windows of 3 x 3 on a CPU, as Winograd's products of tiles, and what these share
with those along one axis. A step of kind `convolution` follows each of both, which does the work
where they are slower.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.cpu.common_epilogue import COMMON
from ftuner.core.dim import Dim, ceil_quotient, maximum
from ftuner.core.evaluation import evaluate
from ftuner.core.expr import Expr
from ftuner.core.frozen import dataclass
from ftuner.core.product import product_types
from ftuner.core.ranges import after_coarse, coarse_start, middle
from ftuner.core.units import count
from ftuner.core.winograd import WINDOW
from ftuner.cost.step import Machine, StepCost
from ftuner.graph.buffers import View
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.planner import Planner, best_width, planner_for
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
    packed_once,
    touched,
)
from ftuner.runtime.cpu.tasks import BoundTask, PlanKey, Task, most_chunks, nothing_to_do
from ftuner.runtime.shapes.evaluation import DimValues, Layouts
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.convolution.cpu_binding import Choice
from ftuner.schedules.convolution.step import ConvolutionStep
from ftuner.schedules.winograd.cpu_cost import WinogradProblem
from ftuner.schedules.winograd.cpu_plan import (
    WinogradPlan,
    epilogue_cycles_of,
    faster_winograd,
    outputs_of,
)
from ftuner.schedules.winograd.cpu_record import Winograd, WinogradCommon
from ftuner.schedules.winograd.step import CommonWinogradStep, WinogradStep, step_of
from ftuner.ukernels.cpu.library import build_library

S = TypeVar("S", bound=CommonWinogradStep)
C = TypeVar("C", bound="CommonWinogradChoice")


class CommonWinogradChoice(Choice, Protocol):
    """That of a convolution which Winograd's products may do."""

    @property
    def columns(self) -> int: ...

    def blocks(self, middles: Sequence[int], plan: Any, workers: int) -> int:
        """The number of blocks by the plan for ranges; no more than what is cut has."""


class Planners(NamedTuple):
    """The planners of the two ways to compute a convolution."""

    products: Planner
    """Of the products of transformed inputs."""
    direct: Planner
    """Of the product through the window."""


def planners_of(x: View, epilogue: Expr, hardware: CpuHardware, isa: str) -> Planners:
    """The planners of a convolution of x."""
    types = product_types(x.layout.dtype)
    libraries = (build_library(hardware, isa, types, expr) for expr in (COMMON, epilogue))
    return Planners(*map(planner_for, libraries))


class CommonWinogradCut(NamedTuple):
    """The work at bound extents."""

    blocks: int
    tasks: int
    """The least of the range, if that does not decide."""
    worker_bytes: int
    """Each worker's part of the workspace."""
    own: tuple[int, ...]
    """Values of `CommonWinogradTask.own`."""
    variant: int = 0


@dataclass(frozen=True)
class CommonWinogradTask(Task, Generic[C]):
    """Winograd's products, to be planned."""

    products: Products
    choice: C
    width: int
    """Vectors of a panel."""
    deciding: tuple[int, ...]
    """The numbers of the dims that decide, as of the choice."""

    first_operand: ClassVar[int]
    """The slot of the record after which those of operands follow."""
    own: ClassVar[tuple[int, ...]]
    """Slots of the record that a plan decides, beside those that all kinds have."""

    @abstractmethod
    def cut(self, middles: Sequence[int], plan: Any, workers: int) -> CommonWinogradCut:
        """How the work is cut by the plan of the choice for ranges."""

    @abstractmethod
    def constants(self) -> dict[int, int]:
        """The slots that only one of the kernels has and no extents decide."""

    @classmethod
    @abstractmethod
    def counts(cls, choice: C, images: Dim, rows: Dim, positions: Dim) -> dict[int, Dim]:
        """The slots that only one of the kernels has and extents of the result decide."""

    @classmethod
    def bound(cls) -> tuple[int, ...]:
        """The slots that a plan decides, in the order in which binding gives their values."""
        return (WinogradCommon.BLOCKS, WinogradCommon.WORKER_BYTES, *cls.own)

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        middles = [values.middle[number] for number in self.deciding]
        plan = self.choice.decided(middles, workers)
        if plan is None:
            return nothing_to_do(workers, len(self.bound()))
        cut = self.cut(middles, plan, workers)
        chunks = min(cut.tasks, most_chunks(workers, hardware))
        return BoundTask(
            workers, chunks, cut.tasks, False, (cut.blocks, cut.worker_bytes, *cut.own),
            workers * cut.worker_bytes, 0, None, cut.variant,
        )  # fmt: skip

    def plan_key(self, layouts: Layouts) -> PlanKey:
        return PlanKey(replace(self, deciding=()), middle=self.deciding)


@dataclass(frozen=True)
class CompiledWinograd(CompiledStep, Generic[S, C]):
    """Winograd's products with their kernel, their library and the weight in panels."""

    step: S
    address: int
    products: Products
    choice: C
    planned: type[CommonWinogradTask[C]]
    covers: tuple[array[int], array[int]]
    """For full panels and for the last one."""
    panels: Panels

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step, choice, kind = self.step, self.choice, self.planned
        x, out, size = step.x.layout, step.out.layout, step.out.layout.dtype.itemsize
        images, *extents = out.shape[:3]
        operands = [v.layout.strides[0] * v.layout.dtype.itemsize for v in step.operands]
        arrays = addressed((step.x, *step.operands, step.out))
        first = records.kernel(at, self.address, arrays, kind.first_operand + len(operands))
        records.workspace(first + WinogradCommon.WORKSPACE)
        deciding = records.dims.numbers(choice.deciding(images, *extents))
        task = kind(self.products, choice, self.panels.width, deciding)
        constants = {
            WinogradCommon.OUT_CHANNELS: choice.columns,
            WinogradCommon.PANEL: self.panels.width * self.products.compiled.library.lanes,
            WinogradCommon.WEIGHT: int(self.panels.packed.ctypes.data),
            WinogradCommon.COVERS: self.covers[0].buffer_info()[0],
            WinogradCommon.TAIL_COVERS: self.covers[1].buffer_info()[0],
            **task.constants(),
        }
        for slot, value in constants.items():
            records.constant(first + slot, value)
        lists: dict[int, Sequence[Dim]] = {
            WinogradCommon.HEIGHT: x.shape[1:3],
            WinogradCommon.BEGIN_Y: step.begin,
            WinogradCommon.X_IMAGE: [stride * x.dtype.itemsize for stride in x.strides[:3]],
            WinogradCommon.OUT_HEIGHT: extents,
            WinogradCommon.OUT_IMAGE: [stride * size for stride in out.strides[:3]],
            kind.first_operand: operands,
        }
        dims = kind.counts(choice, images, *extents)
        dims |= {begin + i: dim for begin, found in lists.items() for i, dim in enumerate(found)}
        for slot, dim in dims.items():
            records.dim(first + slot, records.dims.number(dim))
        records.planned_tasks(task, [first + slot for slot in kind.bound()])


class CommonWinogradKind(MatrixKind, StepKind[S], Generic[S, C]):
    """Winograd's products are one kernel, which calls uKernels of the library without an
    epilogue."""

    has_workspace = True

    @abstractmethod
    def choice(self, step: S, hardware: CpuHardware, isa: str) -> C:
        """The choice of a step."""

    step_of: Callable[[ConvolutionStep], S | None]
    """The step that precedes a convolution."""
    task: type[CommonWinogradTask[C]]

    @abstractmethod
    def tile(self, choice: C) -> int:
        """The size of tiles that the kernel is for."""

    @abstractmethod
    def packed(
        self, choice: C, array: Array, products: Products, width: int, loaded: Loaded
    ) -> tuple[Panels, int]:
        """The weight in panels of `width` vectors, and the k steps of products."""

    def bundle(self, step: S, hardware: CpuHardware, isa: Isa) -> Bundle:
        dtype, tile = step.x.layout.dtype, self.tile(self.choice(step, hardware, isa.name))
        emitter = f"ftuner.schedules.{step.kind}.cpu_kernel"
        given = dtype, tile, step.epilogue, isa.lanes(dtype), isa.fused
        return kernel_bundle(emitter, step.kind, *given, inlines=False)

    def compiled(
        self, step: S, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledWinograd[S, C]:
        assert required is not None
        products = loaded.products(required.library)
        choice = self.choice(step, loaded.hardware, loaded.isa.name)
        array = step.weight.buffer.array
        assert array is not None
        panels, k = self.packed(choice, array, products, required.width, loaded)
        step = replace(step, weight=loaded.emptied(step.weight))
        covers = panel_covers(products, choice.columns, panels.width, k, loaded.covers)
        return CompiledWinograd(step, kernel, products, choice, self.task, covers, panels)

    def choice_for(self, convolution: ConvolutionStep, hardware: CpuHardware, isa: str) -> C:
        """The choice of the step that precedes a convolution."""
        step = self.step_of(convolution)
        assert step is not None
        return self.choice(step, hardware, isa)

    @abstractmethod
    def described(
        self, choice: C, blocks: int, shape: tuple[int, ...], workers: int
    ) -> tuple[int, str]:
        """The multiply-adds, and the plan in words, for a result of a shape."""

    def report(
        self, step: S, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        shape = tuple(evaluate(n, extents) for n in step.out.shape)
        choice = self.choice(step, machine.hardware, machine.isa.name)
        middles = [middle(evaluate(n, extents)) for n in choice.deciding(*step.out.shape[:3])]
        plan = choice.decided(middles, machine.workers)
        if plan is None:
            return StepReport("nothing: the next step does it", no_cost(machine))
        blocks = choice.blocks(middles, plan, machine.workers)
        products, text = self.described(choice, blocks, shape, machine.workers)
        reads = sum(touched(v, extents) for v in (step.x, *step.operands))
        writes = touched(step.out, extents)
        return StepReport(text, StepCost(2 * products, reads, writes, plan.estimate))


class WinogradChoice(NamedTuple):
    """A `CommonWinogradChoice` of windows of 3 x 3."""

    planners: Planners
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

    def deciding(self, images: Dim, rows: Dim, positions: Dim) -> tuple[Dim, Dim]:
        """Tiles, and how many positions of a row of a tile there are in the mean."""
        m = self.outputs
        tiles = images * ceil_quotient(rows, m) * ceil_quotient(positions, m)
        # Half of it rounds.
        row = m * maximum(tiles, 1)
        return tiles, (2 * images * rows * positions + row) // (2 * row)

    def decided(self, middles: Sequence[int], workers: int) -> WinogradPlan | None:
        tiles, positions = middles
        return _plan(self, self.problem(tiles, self.outputs, positions, workers))

    def blocks(self, middles: Sequence[int], plan: WinogradPlan, workers: int) -> int:
        # All workers have as many.
        each = -(-middles[0] // (plan.blocks.tiles * workers))
        return min(each * workers, coarse_start(middles[0]))


@lru_cache(maxsize=4096)
def _plan(choice: WinogradChoice, problem: WinogradProblem) -> WinogradPlan | None:
    return faster_winograd(*choice.planners, problem, choice.epilogue_cycles)


@dataclass(frozen=True)
class WinogradTask(CommonWinogradTask[WinogradChoice]):
    """Winograd's products of tiles, to be planned."""

    first_operand: ClassVar[int] = Winograd.OPERANDS
    own: ClassVar[tuple[int, ...]] = (
        Winograd.SUMS_OFFSET, Winograd.PATCH_OFFSET, Winograd.WEIGHT_OFFSET, Winograd.CHANNEL_BLOCK,
        Winograd.BLOCK,
    )  # fmt: skip

    def constants(self) -> dict[int, int]:
        return {Winograd.CHANNELS: self.choice.channels}

    @classmethod
    def counts(
        cls, choice: WinogradChoice, images: Dim, rows: Dim, positions: Dim
    ) -> dict[int, Dim]:
        return {
            Winograd.TILES: choice.deciding(images, rows, positions)[0],
            Winograd.TILE_ROWS: ceil_quotient(rows, choice.outputs),
            Winograd.TILE_COLUMNS: ceil_quotient(positions, choice.outputs),
        }

    def cut(self, middles: Sequence[int], plan: WinogradPlan, workers: int) -> CommonWinogradCut:
        library, channels = self.products.compiled.library, self.choice.channels
        blocks, part = self.choice.blocks(middles, plan, workers), plan.blocks.channels
        # An odd number: matrices that are apart by a multiple of a page evict each other from L1.
        block = -(-(after_coarse(middles[0]) - 1) // blocks) | 1
        nr, size = self.width * library.lanes, library.types.c.itemsize
        matrices = self.choice.problem(0, 0, 0, 1).matrices
        pieces = (block * channels, block * nr, channels, part * nr)
        sums, patch, weight, end = accumulate(
            aligned(matrices * elements * size + SLACK_BYTES) for elements in pieces
        )
        return CommonWinogradCut(blocks, blocks, end, (sums, patch, weight, part, block))


class WinogradKind(CommonWinogradKind[WinogradStep, WinogradChoice]):
    """Winograd's products of tiles."""

    step_of = staticmethod(step_of)
    task = WinogradTask

    def choice(self, step: WinogradStep, hardware: CpuHardware, isa: str) -> WinogradChoice:
        planners = planners_of(step.x, step.epilogue, hardware, isa)
        channels, columns = (n for n in step.weight.shape[-2:] if isinstance(n, int))
        cycles = epilogue_cycles_of(planners.direct.library)
        return WinogradChoice(planners, channels, columns, outputs_of(*step.out.shape[1:3]), cycles)

    def required_families(
        self, step: WinogradStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        choice = self.choice(step, hardware, isa)
        products, direct = choice.planners
        # The panels are those of the product through the window.
        width = best_width(direct, choice.columns, WINDOW**2 * choice.channels, workers)
        return for_packed_weight(products.library, choice.columns, width)

    def tile(self, choice: WinogradChoice) -> int:
        return choice.outputs

    def packed(
        self, choice: WinogradChoice, array: Array, products: Products, width: int, loaded: Loaded
    ) -> tuple[Panels, int]:
        shape = (WINDOW**2 * choice.channels, choice.columns)
        return packed_once(array, shape, products, width, loaded), choice.channels

    def described(
        self, choice: WinogradChoice, blocks: int, shape: tuple[int, ...], workers: int
    ) -> tuple[int, str]:
        images, rows, positions, columns = shape
        problem, m = choice.problem(images, rows, positions, workers), choice.outputs
        products = problem.matrices * problem.tiles * choice.channels * columns
        text = f"tiles of {m} x {m}, {count(blocks, 'task')} of {-(-problem.tiles // blocks)}"
        return products, text


KIND = WinogradKind()
