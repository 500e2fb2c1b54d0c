"""Nests of loops on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import NestBundle
from ftuner.core.cpu.schedule import checks, schedule_of, task_count
from ftuner.graph.steps import NestStep
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.required_families import RequiredFamilies
from ftuner.runtime.cpu.steps.contract import CompiledStep, Loaded, StepKind
from ftuner.runtime.cpu.steps.kernel import CompiledKernel


class NestKind(StepKind[NestStep]):
    """A nest is one kernel, whose tasks are iterations of its outer loops."""

    def bundle(self, step: NestStep, hardware: CpuHardware, isa: Isa) -> NestBundle:
        block = hardware.tuning.nest_block_elements
        return NestBundle(step.kernel.numbered(), isa.vector_bytes, isa.fused, block)

    def compiled(
        self, step: NestStep, required: RequiredFamilies | None, loaded: Loaded
    ) -> CompiledStep:
        kernel, bundle = step.kernel, self.bundle(step, loaded.hardware, loaded.isa)
        schedule = schedule_of(kernel, bundle.vector_bytes, bundle.block_elements)
        address, tasks = loaded.addresses[bundle.symbol], task_count(kernel, schedule)
        return CompiledKernel(step, address, kernel.parameters(), tasks, tuple(checks(kernel)))


KIND = NestKind()
