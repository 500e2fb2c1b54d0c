"""Schedules of users as steps on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import Renaming, evaluate
from ftuner.core.units import count
from ftuner.cost.step import Machine, StepCost
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.step_kind import (
    CompiledKernel,
    CompiledStep,
    Extents,
    Loaded,
    RequiredFamilies,
    StepKind,
    StepReport,
    touched,
)
from ftuner.tasks.cost import Costs, Tiles, kept_tiles
from ftuner.tasks.program import WORKERS, Program
from ftuner.tasks.schedule import text_of
from ftuner.tasks.step import ScheduledStep


class ScheduledKind(StepKind[ScheduledStep]):
    """One kernel, which has the programs of all tiles that are kept. Their prices, which extents
    decide, choose one of them."""

    def bundle(self, step: ScheduledStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        programs = tuple(program for _, program in _kept(step, isa, hardware))
        row = instruction_set(isa.name)
        return kernel_bundle("ftuner.tasks.llvm_step", "scheduled", programs, row)

    def compiled(
        self, step: ScheduledStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledStep:
        kept = _kept(step, loaded.isa, loaded.hardware)
        renamed = Renaming({WORKERS: step.workers, **_values(step)})
        prices = (Costs(p, loaded.isa, loaded.hardware).price for _, p in kept)
        parameters = (*map(renamed, prices), step.workers, *step.extents)
        return CompiledKernel(step, kernel, parameters, step.workers)

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
