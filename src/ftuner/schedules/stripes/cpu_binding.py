"""Chains of steps on a CPU that are walked stripe by stripe of rows."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.cpu.common_epilogue import LIMITS
from ftuner.core.cpu.schedule import MemberKernel, StripesKernel
from ftuner.core.cpu.tile import ROW, WINDOW
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.ranges import after_coarse, coarse_middle
from ftuner.core.units import count
from ftuner.cost.step import Estimate, Machine, StepCost
from ftuner.graph.buffers import View
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.planner import panel_problem, planner_for
from ftuner.runtime.cpu.operands import step_types
from ftuner.runtime.cpu.packed_weights import panel_covers
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.step_kind import (
    CompiledStep,
    Extents,
    Loaded,
    RequiredFamilies,
    StepKind,
    StepReport,
    kind_of,
    no_cost,
    touched,
)
from ftuner.runtime.cpu.tasks import BoundTask, Condition, PlanKey, Task, most_chunks, nothing_to_do
from ftuner.runtime.shapes.evaluation import Dims, DimValues, Layouts
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.depthwise.cpu_binding import kernel_of
from ftuner.schedules.depthwise.step import DepthwiseStep
from ftuner.schedules.product.cpu_binding import CompiledProduct, lay_out_limits, shared_epilogue
from ftuner.schedules.product.step import ProductStep
from ftuner.schedules.stripes.cpu_cost import Extents as MemberExtents
from ftuner.schedules.stripes.cpu_cost import Work
from ftuner.schedules.stripes.cpu_plan import (
    ProductWork,
    Stripes,
    StripesPlanner,
    kernel_work,
    stripes_planner,
)
from ftuner.schedules.stripes.cpu_record import StripeMember as MemberSlot
from ftuner.schedules.stripes.cpu_record import Stripes as StripesSlot
from ftuner.schedules.stripes.step import StripeMember, StripesStep
from ftuner.ukernels.cpu.library import build_library

BOUND_SLOTS = (MemberSlot.OFFSET, MemberSlot.CAPACITY)
"""Slots of a member that a plan decides, in the order in which binding gives their values."""
HEADER_SLOTS = (StripesSlot.PARTS, StripesSlot.STRIPE, StripesSlot.WORKER_BYTES)


@dataclass(frozen=True)
class Walked(Condition):
    """Whether a chain is walked by stripes."""

    planner: StripesPlanner
    images: int
    """The number of the dim of images."""
    numbers: tuple[int, ...]
    """The numbers of the dims of the members' extents, in the order of `Extents`."""

    def at(self, values: DimValues, workers: int) -> Stripes | None:
        """How it is walked at values of the dims; None if it is not."""
        coarse = [values.coarse[number] for number in self.numbers]
        return self.planner.at((workers, values[self.images], *coarse))

    def holds(self, values: DimValues, workers: int, hardware: CpuHardware) -> bool:
        return self.at(values, workers) is not None

    def plan_key(self) -> PlanKey:
        return PlanKey(None, (self.images,), coarse=self.numbers)


def walked(step: StripesStep, planner: StripesPlanner, dims: Dims) -> Walked:
    """What decides whether a chain is walked by stripes; `dims` of the program."""
    images, *numbers = dims.numbers(_extents(step))
    return Walked(planner, images, tuple(numbers))


def _extents(step: StripesStep) -> list[Dim]:
    """The dims of images and of the members' extents."""
    return [
        step.members[0].images,
        *(
            dim
            for m in step.members
            for dim in (m.rows, m.positions, m.read_rows, m.read_positions, m.begin)
        ),
    ]


def planner_of(step: StripesStep, hardware: CpuHardware, isa: Isa) -> StripesPlanner:
    """The planner of a chain."""
    chain = tuple(_work(member, hardware, isa) for member in step.members)
    return stripes_planner(chain, hardware, isa)


def _work(member: StripeMember, hardware: CpuHardware, isa: Isa) -> Work:
    step = member.step
    if isinstance(step, DepthwiseStep):
        channels = step.out.shape[-1]
        assert isinstance(channels, int)
        return kernel_work(kernel_of(step), channels, hardware, isa)
    epilogue = shared_epilogue(step).epilogue
    planner = planner_for(build_library(hardware, isa.name, step_types(step), epilogue))
    k, n = (extent for extent in step.b.shape if isinstance(extent, int))
    window = step.read_window
    layout = ROW if window is None else WINDOW
    # Of the estimate alone: a weight is packed in the width that `best_width` chooses.
    width = planner.library.widths[0]
    problem = panel_problem(n, k, width, 1, 1, layout, window=window)
    return ProductWork(planner, problem, member.stride, member.reach)


def stripes_at(step: StripesStep, extents: Extents, machine: Machine) -> Stripes | None:
    """How a chain is walked at values of the symbols; None if it is not."""
    middles = {name: coarse_middle(value) for name, value in extents.items()}
    images, *dims = _extents(step)
    values = [evaluate(images, extents), *[evaluate(dim, middles) for dim in dims]]
    return planner_of(step, machine.hardware, machine.isa).at((machine.workers, *values))


def compiled_chain(step: StripesStep, loaded: Loaded) -> tuple[StripesStep, StripesPlanner]:
    """The chain without the arrays of packed weights, and its planner, which its members share."""
    found = loaded.chains.get(id(step))
    if found is None:
        planner = planner_of(step, loaded.hardware, loaded.isa)
        members = tuple(
            m if isinstance(m.step, DepthwiseStep)
            else replace(m, step=replace(m.step, b=loaded.emptied(m.step.b)))
            for m in step.members
        )  # fmt: skip
        found = loaded.chains[id(step)] = replace(step, members=members), planner
    return found  # type: ignore[return-value]


@dataclass(frozen=True)
class _StripesTask(Task):
    """A chain to be planned."""

    walked: Walked

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        chain, stripes = self.walked.planner.chain, self.walked.at(values, workers)
        if stripes is None:
            return nothing_to_do(workers, len(HEADER_SLOTS) + len(chain) * len(BOUND_SLOTS))
        members: list[int] = []
        offset = 0
        for work, number, rows in zip(chain, self.positions, (*stripes.capacities, 0), strict=True):
            members += (offset, rows)
            if rows:
                most = after_coarse(values.middle[number]) - 1
                offset += aligned(rows * most * work.position_bytes + SLACK_BYTES)
        tasks = values[self.walked.images] * stripes.parts
        return BoundTask(
            workers, min(tasks, most_chunks(workers, hardware)), tasks, False,
            (stripes.parts, stripes.rows, offset, *members), workers * offset, 0, None,
        )  # fmt: skip

    @property
    def positions(self) -> tuple[int, ...]:
        """The numbers of the dims of the members' positions."""
        return self.walked.numbers[1 :: len(MemberExtents._fields)]

    def plan_key(self, layouts: Layouts) -> PlanKey:
        # Memory is for all positions of a coarse range.
        return self.walked.plan_key()._replace(form=self.walked, middle=self.positions[:-1])


@dataclass(frozen=True)
class CompiledStripes(CompiledStep):
    """A chain with the kernel that walks it and its compiled members."""

    step: StripesStep
    address: int
    planner: StripesPlanner
    members: tuple[CompiledProduct[Any] | int, ...]
    """Of a kernel, its address."""
    covers: tuple[tuple[array[int], array[int]], ...]
    """Of each member that is a product, for full panels and for the last one."""

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step, members = self.step, self.step.members
        records.constant(at + StepSlot.FUNCTION, self.address)
        records.point(at + StepSlot.ARGUMENT, self._lay_out_arrays(records))
        header = records.reserve(StripesSlot.MEMBERS + len(members) * MemberSlot.SIZE)
        records.point(at + StepSlot.DIMS, header)
        records.workspace(header + StripesSlot.WORKSPACE)
        chain = self.planner.chain
        bound = [header + slot for slot in HEADER_SLOTS]
        last = len(members) - 1
        for number, member in enumerate(members):
            first = header + StripesSlot.MEMBERS + number * MemberSlot.SIZE
            bound += [first + slot for slot in BOUND_SLOTS]
            row_bytes = member.positions * chain[number].position_bytes
            extents = {
                MemberSlot.ROWS: member.rows,
                MemberSlot.POSITIONS: member.positions,
                MemberSlot.READ_ROWS: member.read_rows,
                MemberSlot.BEGIN: member.begin,
                MemberSlot.ROW_BYTES: row_bytes,
            }
            for slot, dim in extents.items():
                records.dim(first + slot, records.dims.number(dim))
            records.constant(first + MemberSlot.STRIDE, member.stride)
            records.constant(first + MemberSlot.REACH, member.reach)
            compiled = self.members[number]
            if isinstance(compiled, CompiledProduct):
                self._lay_out_product(records, first, compiled, number)
            else:
                own = member.step
                assert isinstance(own, DepthwiseStep)
                records.constant(first + MemberSlot.FUNCTION, compiled)
                x = own.x if number == 0 else _private(own.x)
                out = own.out if number == last else _private(own.out)
                parameters = replace(own, x=x, out=out).parameters()
                dims = records.reserve(len(parameters))
                records.point(first + MemberSlot.DIMS, dims)
                for slot, dim in enumerate(records.dims.numbers(parameters), dims):
                    records.dim(slot, dim)
        task = _StripesTask(walked(step, self.planner, records.dims))
        records.planned_tasks(task, bound)

    def _lay_out_arrays(self, records: RecordLayout) -> int:
        """The addresses of arrays, in the order of the kernel's buffers."""
        views: list[tuple[View, bool] | int] = []
        members = self.step.members
        for number, member in enumerate(members):
            step = member.step
            # A kernel adds the offsets of its arrays itself.
            if isinstance(step, DepthwiseStep):
                views += [(step.x, False)] if number == 0 else []
                views += [(step.weight, False)] if step.weight is not None else []
                views += [(view, False) for view in step.operands]
            else:
                views += [(step.a, True)] if number == 0 else []
                views += [(view, True) for view in step.operands]
                dtype = step.c.layout.dtype
                views += lay_out_limits(records, shared_epilogue(step), dtype)
        last = members[-1]
        views.append((last.result, not isinstance(last.step, DepthwiseStep)))
        first = records.reserve(len(views))
        for slot, given in enumerate(views, first):
            if isinstance(given, int):
                records.point(slot, given)
            else:
                view, at_offset = given
                records.address(slot, view.buffer, view.layout.offset if at_offset else 0)
        return first

    def _lay_out_product(
        self, records: RecordLayout, first: int, compiled: CompiledProduct[Any], number: int
    ) -> None:
        step, panels = compiled.step, compiled.panels
        assert panels is not None
        library = compiled.products.compiled.library
        size = library.types.c.itemsize
        nr = panels.width * library.lanes
        covers, tail_covers = self.covers[number]
        constants = {
            MemberSlot.K: panels.k,
            MemberSlot.B: int(panels.packed.ctypes.data),
            MemberSlot.PANELS: panels.n // nr,
            MemberSlot.PANEL: nr,
            MemberSlot.TAIL: panels.n % nr,
            MemberSlot.COVERS: covers.buffer_info()[0],
            MemberSlot.TAIL_COVERS: tail_covers.buffer_info()[0],
            MemberSlot.FINISH: compiled.products.compiled.functions.finish,
        }
        for slot, value in constants.items():
            records.constant(first + slot, value)
        window = compiled.lay_out_window(records)
        distances = {MemberSlot.C_ROW: step.c.layout.strides[0]}
        if window is None:
            distances[MemberSlot.A_ROW] = step.a.layout.strides[0]
        else:
            records.point(first + MemberSlot.WINDOW, window)
        for i, view in enumerate(step.operands):
            distances[MemberSlot.OPERANDS + i] = view.layout.strides[0]
        for slot, distance in distances.items():
            records.dim(first + slot, records.dims.number(distance * size))


def _private(view: View) -> View:
    """The view of a result of which some rows are in a workspace, whatever the image."""
    _, *others = view.layout.strides
    return View(view.buffer, replace(view.layout, strides=(0, *others)))


class StripesKind(MatrixKind, StepKind[StripesStep]):
    """A chain is one kernel, which calls uKernels and the kernels of its members."""

    has_workspace = True

    def bundle(self, step: StripesStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        dtype = step.members[-1].result.layout.dtype
        members = tuple(_member_kernel(member.step) for member in step.members)
        emitter = "ftuner.schedules.stripes.cpu_kernel"
        return kernel_bundle(emitter, "stripes", StripesKernel(dtype, members), inlines=False)

    def compiled(
        self, step: StripesStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledStripes:
        hardware, isa = loaded.hardware, loaded.isa
        members: list[CompiledProduct[Any] | int] = []
        covers: list[tuple[array[int], array[int]]] = []
        for member in step.members:
            own = member.step
            kind = kind_of(own)
            if isinstance(own, DepthwiseStep):
                bundle = kind.bundle(own, hardware, isa)
                assert bundle is not None
                members.append(loaded.kernel(bundle))
                covers.append((array("q", ()), array("q", ())))
                continue
            needed = kind.required_families(own, hardware, isa.name, loaded.workers)
            compiled = kind.compiled(own, needed, 0, loaded)
            assert isinstance(compiled, CompiledProduct)
            members.append(compiled)
            covers.append(_covers(compiled, loaded))
        step, planner = compiled_chain(step, loaded)
        return CompiledStripes(step, kernel, planner, tuple(members), tuple(covers))

    def report(
        self, step: StripesStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        stripes = stripes_at(step, extents, machine)
        if stripes is None:
            return StepReport("nothing: the next steps do it", no_cost(machine))
        reports = [kind_of(m.step).report(m.step, extents, machine, 0) for m in step.members]
        flops = sum(report.cost.flops for report in reports)
        private = {member.result.buffer for member in step.members[:-1]}
        read = [v for m in step.members for v in m.step.views if v is not m.result]
        reads = sum(touched(view, extents) for view in read if view.buffer not in private)
        writes = touched(step.members[-1].result, extents)
        plan = (
            f"stripes of {count(stripes.rows, 'row')}, {count(stripes.parts, 'part')} of an image"
        )
        estimate = Estimate(issue_s=stripes.seconds)
        return StepReport(plan, StepCost(flops, reads, writes, estimate))


def _member_kernel(step: ProductStep | DepthwiseStep) -> MemberKernel:
    if isinstance(step, DepthwiseStep):
        return MemberKernel(len(step.operands), False, int(step.weight is not None))
    epilogue = shared_epilogue(step)
    places = (*epilogue.places, *range(LIMITS, LIMITS + len(epilogue.limits)))
    return MemberKernel(len(places), True, places=places)


def _covers(compiled: CompiledProduct[Any], loaded: Loaded) -> tuple[array[int], array[int]]:
    """The covers of full panels, and of the last one."""
    panels, products = compiled.panels, compiled.products
    assert panels is not None
    layout = ROW if compiled.step.read_window is None else WINDOW
    return panel_covers(products, panels.n, panels.width, panels.k, loaded.covers, layout)


KIND = StripesKind()
