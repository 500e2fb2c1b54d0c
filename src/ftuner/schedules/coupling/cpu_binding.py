"""Pairwise coupling on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.units import count
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.step_kind import Extents, KernelKind, StepReport
from ftuner.schedules.coupling.step import ROWS, CouplingStep

ROUNDS = 10
"""Rounds that a row takes. Assumed: few of the 100 that it may take."""


class CouplingKind(KernelKind[CouplingStep]):
    """Pairwise coupling is one kernel, with a task for each block of rows."""

    def bundle(self, step: CouplingStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        emitter = "ftuner.schedules.coupling.cpu_kernel"
        return kernel_bundle(emitter, "coupling", step.dtype, ROWS)

    def tasks(self, step: CouplingStep) -> Dim:
        return step.tasks

    def report(
        self, step: CouplingStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        """Priced by the loads of rounds, of which none is of a vector."""
        rows, pairs = (evaluate(d, extents) for d in step.pairs.shape)
        tasks = evaluate(step.tasks, extents)
        workers = max(min(tasks, machine.workers), 1)
        elements = ROUNDS * rows * step.classes**2
        size = step.dtype.itemsize
        reads, writes = rows * pairs * size, rows * step.classes * size
        cycles = 4 * elements / machine.isa.load_per_cycle
        streams = [Stream(n / workers, n) for n in (reads, writes)]
        estimate = estimate_of(machine, workers, cycles / workers, 0.0, 0.0, streams)
        return StepReport(count(tasks, "task"), StepCost(elements, reads, writes, estimate))


KIND = CouplingKind()
