"""A step that is one compiled kernel over tasks that take equally long."""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.core.dim import Dim
from ftuner.graph.steps import Step
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.steps.contract import CompiledStep


@dataclass(frozen=True)
class CompiledKernel(CompiledStep):
    """The kernel reads the addresses of the step's buffers and the values of some dims."""

    step: Step
    address: int
    parameters: tuple[Dim, ...]
    tasks: Dim
    checks: tuple[str, ...] = ()
    """What a status of n + 1 means."""

    def lay_out(self, records: RecordLayout, at: int) -> None:
        arrays = [(buffer, 0) for buffer in (*self.step.reads, *self.step.writes)]
        dims = records.kernel(at, self.address, arrays, len(self.parameters))
        for slot, number in enumerate(records.dims.numbers(self.parameters), dims):
            records.dim(slot, number)
        records.equal_tasks(self.tasks)
        if self.checks:
            records.check(at + StepSlot.STATUS, self.checks)
