"""Ensembles of trees on a CPU."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.units import count
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.step_kind import Extents, KernelKind, StepReport
from ftuner.schedules.trees.step import ROWS, TreesStep

LOADS = 4
"""Loads of a walk at one level."""


class TreesKind(KernelKind[TreesStep]):
    """All trees are one kernel, with a task for each block of rows."""

    def bundle(self, step: TreesStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        emitter = "ftuner.schedules.trees.cpu_kernel"
        return kernel_bundle(emitter, "trees", step.dtype, step.missing, step.levels, ROWS)

    def tasks(self, step: TreesStep) -> Dim:
        return step.tasks

    def report(
        self, step: TreesStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        """Priced as if each walk went to the deepest leaf."""
        rows, columns = (evaluate(d, extents) for d in step.x.shape)
        tasks = evaluate(step.tasks, extents)
        workers = max(min(tasks, machine.workers), 1)
        levels = rows * step.trees * step.depth
        nodes = step.nodes.elements_bytes
        reads, writes = rows * columns * step.dtype.itemsize + nodes, 4 * rows * step.trees
        cycles = levels * LOADS / machine.isa.load_per_cycle
        estimate = estimate_of(
            machine, workers, cycles / workers, 0.0, 0.0,
            [Stream(tasks * nodes / workers, nodes), Stream(writes / workers, writes)],
        )  # fmt: skip
        return StepReport(count(tasks, "task"), StepCost(levels, reads, writes, estimate))


KIND = TreesKind()
