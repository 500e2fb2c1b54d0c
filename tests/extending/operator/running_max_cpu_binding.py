from collections.abc import Mapping

from running_max_step import RunningMaxStep

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.step_kind import KernelKind, StepReport


class RunningMaxKind(KernelKind[RunningMaxStep]):
    """One kernel, with a task for each row."""

    def bundle(self, step: RunningMaxStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        return kernel_bundle("running_max_cpu_kernel", "running_max", step.x.layout.dtype)

    def tasks(self, step: RunningMaxStep) -> Dim:
        return step.rows

    def report(
        self, step: RunningMaxStep, extents: Mapping[str, int], machine: Machine,
        resident_bytes: int,
    ) -> StepReport:  # fmt: skip
        rows, count = evaluate(step.rows, extents), evaluate(step.count, extents)
        size = rows * count * step.x.layout.dtype.itemsize
        workers = max(min(rows, machine.workers), 1)
        cycles = rows * count * machine.hardware.tuning.loop_cycles / workers
        streams = [Stream(2 * size / workers, 2 * size)]
        estimate = estimate_of(machine, workers, cycles, 0.0, 0.0, streams)
        return StepReport(f"{rows} tasks", StepCost(rows * count, size, size, estimate))


KIND = RunningMaxKind()
