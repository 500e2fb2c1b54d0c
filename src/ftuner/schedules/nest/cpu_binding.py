"""Nests of loops on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.access import Kernel
from ftuner.core.cpu.schedule import Schedule, schedule_of, task_count, walked
from ftuner.core.dim import Shape
from ftuner.core.evaluation import evaluate
from ftuner.core.units import count
from ftuner.cost.step import Machine
from ftuner.graph.buffers import Buffer
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
)
from ftuner.schedules.nest.cpu_cost import NestCost, Operand
from ftuner.schedules.nest.step import NestStep


class NestKind(StepKind[NestStep]):
    """A nest is one kernel, whose tasks are iterations of its outer loops."""

    def loops(self, step: NestStep) -> Shape:
        # Data says how much is reduced: mostly parts of an axis that add up to all of it.
        counted = any(stage.count is not None for stage in step.kernel.stages)
        return step.kernel.kept if counted else step.kernel.axes

    def bundle(self, step: NestStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        emitter = "ftuner.schedules.nest.cpu_kernel"
        kernel = walked(step.kernel)
        schedule = _schedule_of(kernel, hardware, isa)
        row = instruction_set(isa.name)
        return kernel_bundle(emitter, "nest", kernel.numbered(), schedule, row)

    def compiled(
        self, step: NestStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledStep:
        nest = walked(step.kernel)
        tasks = task_count(nest, _schedule_of(nest, loaded.hardware, loaded.isa))
        return CompiledKernel(step, kernel, nest.parameters(), tasks, nest.checks())

    def report(
        self, step: NestStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        def operand(buffer: Buffer) -> Operand:
            size = evaluate(buffer.elements, extents) * buffer.dtype.itemsize
            return Operand(size, resident_bytes if buffer.is_constant else 0)

        cost = NestCost(walked(step.kernel), extents, machine)
        total = cost.total([operand(b) for b in step.reads], [operand(b) for b in step.writes])
        schedule = cost.schedule
        walk = "scalars"
        if schedule.vector is not None:
            walk = f"{schedule.lanes} lanes along axis {schedule.vector}"
        return StepReport(f"{walk}, {count(cost.tasks, 'task')}", total)


def _schedule_of(kernel: Kernel, hardware: CpuHardware, isa: Isa) -> Schedule:
    return schedule_of(kernel, isa.vector_bytes, hardware.tuning.nest_block_elements)


KIND = NestKind()
