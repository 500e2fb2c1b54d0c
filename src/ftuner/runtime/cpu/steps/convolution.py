"""Convolutions on a CPU as products whose A is read through a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ftuner.codegen.llvm.native.records import WINDOW_AXES, Call
from ftuner.codegen.llvm.native.records import Window as WindowSlot
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.cost.step import Machine
from ftuner.graph.steps import ConvolutionStep, ProductStep
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.required_families import RequiredFamilies
from ftuner.runtime.cpu.steps.contract import Extents, Loaded, StepReport, no_cost
from ftuner.runtime.cpu.steps.product import CompiledProduct, ProductKind
from ftuner.runtime.cpu.steps.winograd import WinogradChoice, choice_of
from ftuner.runtime.cpu.tasks import BoundTask, Task, nothing_to_do
from ftuner.runtime.shapes.evaluation import Layouts


@dataclass(frozen=True)
class _UnlessWinograd(Task):
    """The task of a product, where Winograd's products do not do the work."""

    product: Task
    choice: WinogradChoice
    extents: tuple[int, ...]
    """The numbers of the dims of images, rows and positions."""

    def bind(
        self, values: Sequence[int], layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        images, rows, positions = (values[n] for n in self.extents)
        if self.choice.is_faster(images, rows, positions, workers):
            return nothing_to_do(workers, 1)
        return self.product.bind(values, layouts, workers, hardware)


@dataclass(frozen=True)
class CompiledConvolution(CompiledProduct):
    """A product with the record of its window."""

    zeros: Array | None = None
    """What is read outside of x."""

    def task(self, records: RecordLayout) -> Task:
        step, task = self.step, super().task(records)
        assert isinstance(step, ConvolutionStep)
        if not step.winograd:
            return task
        library = self.products.compiled.library
        choice = _choice_of(step, library.hardware, library.isa)
        numbers = records.dims.numbers((step.a.shape[0], *step.window.extents))
        return _UnlessWinograd(task, choice, tuple(numbers))

    def lay_out_window(self, records: RecordLayout, call: int) -> None:
        step = self.step
        assert isinstance(step, ConvolutionStep)
        assert self.zeros is not None
        record = records.reserve(WindowSlot.SIZE)
        records.point(call + Call.WINDOW, record)
        window, layout = step.window, step.a.layout
        size = layout.dtype.itemsize
        distances = [stride * size for stride in layout.strides]
        lists: tuple[tuple[int, Sequence[Dim], int], ...] = (
            (WindowSlot.EXTENTS, layout.shape[1:-1], 1),
            (WindowSlot.OUTPUTS, window.extents, 1),
            (WindowSlot.KERNEL, window.kernel, 1),
            (WindowSlot.STRIDES, window.strides, 1),
            (WindowSlot.DILATIONS, window.dilations, 1),
            (WindowSlot.BEGIN, window.begin, 0),
            (WindowSlot.AXIS_BYTES, distances[1:-1], 0),
        )
        for first, values, missing in lists:
            # Missing axes come first: the last one is that of neighbouring rows.
            whole = [missing] * (WINDOW_AXES - len(values)) + list(values)
            for slot, value in enumerate(whole, record + first):
                records.dim(slot, records.dims.number(value))
        records.dim(record + WindowSlot.IMAGE_BYTES, records.dims.number(distances[0]))
        records.constant(record + WindowSlot.RUN, window.run)
        records.constant(record + WindowSlot.ZEROS, int(self.zeros.ctypes.data))


def _choice_of(step: ConvolutionStep, hardware: CpuHardware, isa: Isa) -> WinogradChoice:
    channels = (step.window.run, step.b.shape[-1])
    return choice_of(step.a, channels, step.window.extents, step.epilogue, hardware, isa.name)


class ConvolutionKind(ProductKind):
    """A convolution runs uKernels that read A through a window."""

    def compiled(
        self, step: ProductStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledConvolution:
        assert required is not None
        assert isinstance(step, ConvolutionStep)
        zeros = np.zeros(step.window.run, step.a.layout.dtype.name)
        return CompiledConvolution(*self.packed(step, required, loaded), zeros)

    def report(
        self, step: ProductStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        assert isinstance(step, ConvolutionStep)
        if step.winograd:
            positions = (step.a.shape[0], *step.window.extents)
            images, rows, columns = (evaluate(n, extents) for n in positions)
            choice = _choice_of(step, machine.hardware, machine.isa)
            if choice.is_faster(images, rows, columns, machine.workers):
                return StepReport("nothing: the step before does it", no_cost(machine))
        return super().report(step, extents, machine, resident_bytes)


KIND = ConvolutionKind()
