"""The best elements of rows on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import TopKBundle
from ftuner.graph.steps import TopKStep
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.required_families import RequiredFamilies
from ftuner.runtime.cpu.steps.contract import CompiledStep, Loaded, StepKind
from ftuner.runtime.cpu.steps.kernel import CompiledKernel


class TopKKind(StepKind[TopKStep]):
    """A top-k is one kernel, with a task for each row."""

    def bundle(self, step: TopKStep, hardware: CpuHardware, isa: Isa) -> TopKBundle:
        return TopKBundle(step.x.layout.dtype, step.largest)

    def compiled(
        self, step: TopKStep, required: RequiredFamilies | None, loaded: Loaded
    ) -> CompiledStep:
        address = loaded.addresses[self.bundle(step, loaded.hardware, loaded.isa).symbol]
        return CompiledKernel(step, address, step.parameters(), step.rows)


KIND = TopKKind()
