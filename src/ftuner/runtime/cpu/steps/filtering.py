"""What both kinds of Winograd's products share on a CPU. A step of kind `convolution` follows each
of them, which does the work where these are slower."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from ftuner.codegen.llvm.native.kernel_records import Filtering
from ftuner.core.cpu.common_epilogue import COMMON
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.expr import Expr
from ftuner.core.product import product_types
from ftuner.cost.step import Machine, StepCost
from ftuner.cost.terms import Estimate
from ftuner.graph.buffers import View
from ftuner.graph.winograd_steps import LineWinogradStep, WinogradStep
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import Planner, planner_for
from ftuner.runtime.cpu.cover_records import COVER_SLOTS
from ftuner.runtime.cpu.covers import cover_slots
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.steps.contract import CompiledStep, Extents, StepKind, StepReport, no_cost
from ftuner.runtime.cpu.steps.views import addressed, touched
from ftuner.runtime.cpu.tasks import BoundTask, Task, most_chunks, nothing_to_do
from ftuner.runtime.shapes.evaluation import Layouts
from ftuner.runtime.shapes.strides import StridedArray
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.ukernels.cpu.library import LibraryName, build_library

S = TypeVar("S", bound=WinogradStep | LineWinogradStep)
C = TypeVar("C", bound="FilterChoice")


class FilterPlan(Protocol):
    """How Winograd's products are cut."""

    @property
    def estimate(self) -> Estimate: ...


class FilterChoice(Protocol):
    """The two ways to compute a convolution, between which the ranges of its extents decide."""

    def deciding(self, images: Dim, rows: Dim, positions: Dim) -> tuple[Dim, ...]:
        """What decides, by its fine range."""

    def decided(self, starts: Sequence[int], workers: int) -> FilterPlan | None:
        """The plan for the ranges of `deciding` that begin with some values; None where the product
        through the window is faster."""

    def plan(self, images: int, rows: int, positions: int, workers: int) -> FilterPlan | None:
        """How Winograd's products are cut; None where the product through the window is faster."""


class Planners(NamedTuple):
    """Those of the two ways to compute a convolution."""

    products: Planner
    """Of the products of transformed inputs."""
    direct: Planner
    """Of the product through the window."""


def planners_of(x: View, epilogue: Expr, hardware: CpuHardware, isa: str) -> Planners:
    """The planners of a convolution of x."""
    names = (library_of(x, expr) for expr in (COMMON, epilogue))
    return Planners(*(planner_for(build_library(hardware, isa, *name)) for name in names))


def library_of(x: View, epilogue: Expr = COMMON) -> LibraryName:
    """The library of the products of x: without an epilogue those of transformed inputs."""
    return LibraryName(product_types(x.layout.dtype), epilogue)


class FilterCut(NamedTuple):
    """The work at bound extents."""

    block: int
    """Rows of the products of a task."""
    last_block: int
    """The same of the last one; 0 if that is not smaller."""
    k: int
    tasks: int
    own: dict[int, int]
    """Values of slots that only one of the kernels has, and of those that divide the workspace."""


@dataclass(frozen=True)
class FilterTask(Task, Generic[C]):
    """Winograd's products, to be planned."""

    products: Products
    choice: C
    weight: int
    """The address of the weight in panels."""
    width: int
    """Vectors of a panel."""
    x: int
    """The number of the layout of x, as are `out` and `operands`."""
    out: int
    begin: tuple[int, ...]
    """The numbers of the dims of the padding before x."""
    operands: tuple[int, ...]

    first_operand: ClassVar[int]
    """The slot of the record after which those of operands follow."""

    @abstractmethod
    def cut(self, shape: tuple[int, ...], plan: Any, workers: int) -> FilterCut:
        """How the work is cut by a plan of the choice, for a result of a shape."""

    def bind(
        self, values: Sequence[int], layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        x, out = layouts.strided(self.x, values), layouts.strided(self.out, values)
        slots = self.first_operand + len(self.operands)
        images, rows, positions, _ = out.shape
        plan = self.choice.plan(images, rows, positions, workers)
        if plan is None:
            return nothing_to_do(workers, slots)
        cut = self.cut(out.shape, plan, workers)
        dims = [0] * slots
        dims[Filtering.BLOCK] = cut.block
        self._write_arrays(dims, x, out)
        self._write_panels(dims, cut, out.shape[-1])
        dims[Filtering.BEGIN_Y], dims[Filtering.BEGIN_X] = (values[n] for n in self.begin)
        for slot, value in cut.own.items():
            dims[slot] = value
        for slot, layout in enumerate(self.operands, self.first_operand):
            dims[slot] = layouts.strided(layout, values).strides[0]
        return BoundTask(
            workers, min(cut.tasks, most_chunks(workers, hardware)), cut.tasks, False, dims,
            workers * dims[Filtering.WORKER_BYTES], 0, None,
        )  # fmt: skip

    def _write_arrays(self, dims: list[int], x: StridedArray, out: StridedArray) -> None:
        dims[Filtering.HEIGHT], dims[Filtering.WIDTH] = x.shape[1:3]
        dims[Filtering.OUT_HEIGHT], dims[Filtering.OUT_WIDTH] = out.shape[1:3]
        dims[Filtering.OUT_CHANNELS] = out.shape[3]
        for first, array in ((Filtering.X_IMAGE, x), (Filtering.OUT_IMAGE, out)):
            dims[first : first + 3] = array.strides[:3]

    def _write_panels(self, dims: list[int], cut: FilterCut, columns: int) -> None:
        """The weight, and the covers of the rows of a block by its panels."""
        lanes = self.products.compiled.library.lanes
        nr = self.width * lanes
        dims[Filtering.PANEL], dims[Filtering.WEIGHT] = nr, self.weight
        tail = -(-(columns % nr) // lanes)
        at = Filtering.COVERS
        for height in (cut.block, cut.last_block):
            for vectors, is_tail in ((self.width if columns >= nr else 0, False), (tail, True)):
                if vectors:
                    dims[at : at + COVER_SLOTS] = cover_slots(
                        self.products, vectors, is_tail, cut.k, height
                    )
                at += COVER_SLOTS


@dataclass(frozen=True)
class CompiledFilter(CompiledStep, Generic[S, C]):
    """Winograd's products with their kernel, their library and the weight in panels."""

    step: S
    address: int
    products: Products
    choice: C
    planned: type[FilterTask[C]]
    panels: Panels

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step, number = self.step, records.layouts.number
        slots = self.planned.first_operand + len(step.operands)
        arrays = addressed((step.x, *step.operands, step.out))
        dims = records.kernel(at, self.address, arrays, slots)
        records.workspace(dims + Filtering.WORKSPACE)
        task = self.planned(
            self.products, self.choice, int(self.panels.packed.ctypes.data), self.panels.width,
            number(step.x.layout), number(step.out.layout), records.dims.numbers(step.begin),
            tuple(number(v.layout) for v in step.operands),
        )  # fmt: skip
        records.planned_tasks(task, range(dims, dims + slots))


class FilterKind(MatrixKind, StepKind[S], Generic[S, C]):
    """Winograd's products are one kernel, which calls uKernels of the library without an
    epilogue."""

    has_workspace = True

    @abstractmethod
    def choice(self, step: S, hardware: CpuHardware, isa: str) -> C:
        """The choice of a step."""

    @abstractmethod
    def described(
        self, choice: C, plan: Any, shape: tuple[int, ...], workers: int
    ) -> tuple[int, str]:
        """The multiply-adds of a plan, and the plan in words, for a result of a shape."""

    def report(
        self, step: S, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        shape = tuple(evaluate(n, extents) for n in step.out.shape)
        choice = self.choice(step, machine.hardware, machine.isa.name)
        images, rows, positions, _ = shape
        plan = choice.plan(images, rows, positions, machine.workers)
        if plan is None:
            return StepReport("nothing: the next step does it", no_cost(machine))
        products, text = self.described(choice, plan, shape, machine.workers)
        reads = sum(touched(v, extents) for v in (step.x, *step.operands))
        writes = touched(step.out, extents)
        return StepReport(text, StepCost(2 * products, reads, writes, plan.estimate))
