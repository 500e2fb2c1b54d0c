"""Schedules of users as steps on a CPU."""

from __future__ import annotations

from functools import reduce

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim, maximum
from ftuner.core.evaluation import Renaming, evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.ranges import after_coarse
from ftuner.core.units import count
from ftuner.cost.step import Machine, StepCost
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.step_kind import (
    CompiledStep,
    Extents,
    Loaded,
    RequiredFamilies,
    StepKind,
    StepReport,
    touched,
)
from ftuner.runtime.cpu.tasks import BoundTask, Field, PlanKey, Task, most_chunks
from ftuner.runtime.shapes.evaluation import DimValues, Layouts
from ftuner.tasks.cost import Costs, Tiles, kept_tiles
from ftuner.tasks.program import WORKERS, Program
from ftuner.tasks.schedule import text_of
from ftuner.tasks.step import ScheduledStep


@dataclass(frozen=True)
class ScheduledTask(Task):
    """Equal shares of the virtual workers, whose panels are in the workspace."""

    dims: tuple[int, int]
    """The numbers of the dims that are the shares, and the bytes of the panels of a worker."""

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        shares, size = self.dims
        chunks = min(values.fine[shares], most_chunks(workers, hardware))
        # Memory is for all panels of a coarse range.
        reserved = workers * (after_coarse(values.middle[size]) - 1)
        return BoundTask(workers, chunks, 0, False, (0,), reserved, 0, None)

    def plan_key(self, layouts: Layouts) -> PlanKey:
        shares, size = self.dims
        return PlanKey(ScheduledTask, fine=(shares,), middle=(size,))

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        return tuple(Field(place, dim, 1) for place, dim in zip((-1, 0), self.dims, strict=True))


@dataclass(frozen=True)
class CompiledScheduled(CompiledStep):
    """The kernel, and the prices of its programs."""

    step: ScheduledStep
    address: int
    prices: tuple[Dim, ...]
    panels_bytes: Dim
    """Of the panels of a worker, of any of the programs."""

    def lay_out(self, records: RecordLayout, at: int) -> None:
        step, first = self.step, len(self.prices)
        arrays = [(view.buffer, 0) for view in (*step.operands, *step.outputs)]
        given = (*self.prices, 0, self.panels_bytes, step.workers, *step.extents)
        dims = records.kernel(at, self.address, arrays, len(given))
        numbers = records.dims.numbers(given)
        for slot, number in enumerate(numbers):
            if slot not in (first, first + 1):
                records.dim(dims + slot, number)
        records.workspace(dims + first)
        task = ScheduledTask((numbers[first + 2], numbers[first + 1]))
        records.planned_tasks(task, [dims + first + 1])


class ScheduledKind(StepKind[ScheduledStep]):
    """One kernel, which has the programs of all tiles that are kept. Their prices, which extents
    decide, choose one of them."""

    has_workspace = True

    def bundle(self, step: ScheduledStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        programs = tuple(program for _, program in _kept(step, isa, hardware))
        row = instruction_set(isa.name)
        return kernel_bundle("ftuner.tasks.llvm_step", "scheduled", programs, row)

    def compiled(
        self, step: ScheduledStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledStep:
        kept = _kept(step, loaded.isa, loaded.hardware)
        renamed = Renaming({WORKERS: step.workers, **_values(step)})
        prices = tuple(renamed(Costs(p, loaded.isa, loaded.hardware).price) for _, p in kept)
        sizes = [renamed(p.panel_places()[1]) for _, p in kept]
        return CompiledScheduled(step, kernel, prices, reduce(maximum, sizes))

    def report(
        self, step: ScheduledStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        isa, hardware = machine.isa, machine.hardware
        values = {name: evaluate(dim, extents) for name, dim in _values(step).items()}
        values[WORKERS] = evaluate(step.workers, extents)
        costs = {tiles: Costs(p, isa, hardware) for tiles, p in _kept(step, isa, hardware)}
        tiles = min(costs, key=lambda t: evaluate(costs[t].price, values))
        used = min(machine.workers, values[WORKERS])
        estimate = costs[tiles].estimate([values[n] for n in step.programs[0].extents], used)
        reads, writes = (
            sum(touched(view, extents) for view in views) for views in (step.operands, step.outputs)
        )
        plan = f"tiles {text_of(tiles)}, {count(values[WORKERS], 'task')}"
        flops = evaluate(costs[tiles].flops, values)
        return StepReport(plan, StepCost(flops, reads, writes, estimate))


def _kept(step: ScheduledStep, isa: Isa, hardware: CpuHardware) -> list[tuple[Tiles, Program]]:
    by_tiles = dict(zip(step.tiles, step.programs, strict=True))
    return [(t, by_tiles[t]) for t in kept_tiles(by_tiles.items(), isa, hardware).kept]


def _values(step: ScheduledStep) -> dict[str, Dim]:
    return dict(zip(step.programs[0].extents, step.extents, strict=True))


KIND = ScheduledKind()
