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
        records.constant(at + StepSlot.FUNCTION, self.address)
        buffers = (*self.step.reads, *self.step.writes)
        argument = records.reserve(len(buffers))
        records.point(at + StepSlot.ARGUMENT, argument)
        for slot, buffer in enumerate(buffers, argument):
            records.address(slot, buffer)
        dims = records.reserve(len(self.parameters))
        records.point(at + StepSlot.DIMS, dims)
        for slot, number in enumerate(records.dims.numbers(self.parameters), dims):
            records.dim(slot, number)
        records.equal_tasks(self.tasks)
        if self.checks:
            records.check(at + StepSlot.STATUS, self.checks)
