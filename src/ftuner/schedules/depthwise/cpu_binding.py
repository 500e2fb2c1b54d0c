"""Windows of single channels on a CPU: depthwise convolutions and pooling."""

from __future__ import annotations

from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.cpu.schedule import BLOCK, DepthwiseKernel
from ftuner.core.dim import Dim, ceil_quotient
from ftuner.core.evaluation import evaluate
from ftuner.core.units import count
from ftuner.cost.step import Machine
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.step_kind import Extents, KernelKind, StepReport
from ftuner.schedules.depthwise.cpu_cost import depthwise_cost
from ftuner.schedules.depthwise.step import DepthwiseStep


def kernel_of(step: DepthwiseStep) -> DepthwiseKernel:
    """What the code of the step depends on."""
    return DepthwiseKernel(
        step.x.layout.dtype, step.reduction, step.window, step.strides, step.dilations,
        step.epilogue, step.group,
    )  # fmt: skip


class DepthwiseKind(KernelKind[DepthwiseStep]):
    """A depthwise convolution is one kernel, whose tasks are blocks of rows of the result."""

    def bundle(self, step: DepthwiseStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        kernel = kernel_of(step)
        emitter = "ftuner.schedules.depthwise.cpu_kernel"
        lanes = isa.lanes(kernel.dtype)
        row = instruction_set(isa.name)
        return kernel_bundle(emitter, "depthwise", kernel, lanes, row, inlines=False)

    def tasks(self, step: DepthwiseStep) -> Dim:
        images, rows, positions, _ = step.out.shape
        return images * rows * ceil_quotient(positions, BLOCK)

    def report(
        self, step: DepthwiseStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        shape = tuple(evaluate(n, extents) for n in step.out.shape)
        elements = evaluate(step.x.buffer.elements, extents)
        tasks = shape[0] * shape[1] * -(-shape[2] // BLOCK)
        cost = depthwise_cost(machine, kernel_of(step), shape, elements)
        return StepReport(count(tasks, "task"), cost)


KIND = DepthwiseKind()
