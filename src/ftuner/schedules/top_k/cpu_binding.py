"""The best elements of rows on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.units import count
from ftuner.cost.cpu.selection import top_k_cost
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.step_kind import Extents, KernelKind, StepReport
from ftuner.schedules.top_k.step import TopKStep


class TopKKind(KernelKind[TopKStep]):
    """A top-k is one kernel, with a task for each row."""

    def bundle(self, step: TopKStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        emitter = "ftuner.schedules.top_k.cpu_kernel"
        tuning = hardware.tuning
        return kernel_bundle(
            emitter, "top_k", step.x.layout.dtype, step.largest, step.keys is not None,
            tuning.top_k_heap_most, tuning.top_k_heap_share,
        )  # fmt: skip

    def tasks(self, step: TopKStep) -> Dim:
        return step.rows

    def report(
        self, step: TopKStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        rows, extent, wanted = (evaluate(d, extents) for d in (step.rows, step.count, step.wanted))
        cost = top_k_cost(machine, rows, extent, wanted, step.x.layout.dtype.itemsize)
        return StepReport(count(rows, "task"), cost)


KIND = TopKKind()
