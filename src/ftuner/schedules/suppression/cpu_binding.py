"""Non-maximum suppression on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.units import count
from ftuner.cost.cpu.selection import top_k_cost
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.step_kind import Extents, KernelKind, StepReport
from ftuner.schedules.suppression.step import LANES, SuppressionStep


class SuppressionKind(KernelKind[SuppressionStep]):
    """Non-maximum suppression is one kernel, with a task for each label of an image."""

    def bundle(self, step: SuppressionStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        emitter = "ftuner.schedules.suppression.cpu_kernel"
        return kernel_bundle(emitter, "suppression", step.dtype, LANES, step.centred)

    def tasks(self, step: SuppressionStep) -> Dim:
        return step.tasks

    def report(
        self, step: SuppressionStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        """Priced as finding the highest scores, as if few of these boxes overlapped."""
        _, _, boxes = (evaluate(d, extents) for d in step.scores.shape)
        rows, limit = evaluate(step.tasks, extents), evaluate(step.limit, extents)
        cost = top_k_cost(machine, rows, boxes, limit, step.dtype.itemsize)
        return StepReport(count(rows, "task"), cost)


KIND = SuppressionKind()
