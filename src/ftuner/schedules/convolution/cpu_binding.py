"""Convolutions on a CPU as products whose A is read through a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Any, Protocol

import numpy as np

from ftuner.codegen.llvm.native.records import WINDOW_AXES
from ftuner.codegen.llvm.native.records import Window as WindowSlot
from ftuner.core.cpu.tile import WINDOW
from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.product import ReadWindow
from ftuner.core.ranges import middle
from ftuner.cost.step import Machine
from ftuner.graph.arrays import held_in
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.operands import ProblemOf, row_distances
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.step_kind import (
    KINDS,
    Extents,
    Loaded,
    RequiredFamilies,
    StepReport,
    no_cost,
)
from ftuner.runtime.cpu.tasks import Condition, PlanKey
from ftuner.runtime.shapes.evaluation import DimValues
from ftuner.runtime.shapes.layout import StridedArray
from ftuner.schedules.convolution.step import ConvolutionStep
from ftuner.schedules.product.cpu_binding import CompiledProduct, ProductKind, shared_epilogue
from ftuner.ukernels.cpu.library import Operands


class Choice(Protocol):
    """The two ways to compute a convolution, between which the ranges of its extents decide. The
    kind of a step before it has `choice_for(convolution, hardware, isa)`."""

    def deciding(self, images: Dim, rows: Dim, positions: Dim) -> tuple[Dim, ...]:
        """What decides, by its coarse range."""

    def decided(self, middles: Sequence[int], workers: int) -> Any | None:
        """The plan of the step before for the ranges of `deciding` that have some middles; None
        where the product through the window is faster."""


@dataclass(frozen=True)
class _OtherIsFaster(Condition):
    choice: Choice
    deciding: tuple[int, ...]
    """The numbers of the dims that decide."""

    def holds(self, values: DimValues, workers: int, hardware: CpuHardware) -> bool:
        middles = [values.middle[number] for number in self.deciding]
        return self.choice.decided(middles, workers) is not None

    def plan_key(self) -> PlanKey:
        return PlanKey(None, middle=self.deciding)


@dataclass(frozen=True)
class CompiledConvolution(CompiledProduct[ConvolutionStep]):
    """A product with the record of its window."""

    zeros: Array = field(kw_only=True)
    """What is read outside of x."""

    def unless(self, records: RecordLayout) -> Condition | None:
        step = self.step
        if not step.faster:
            return None
        library = self.products.compiled.library
        choice, deciding = _choice_of(step, library.hardware, library.isa)
        return _OtherIsFaster(choice, records.dims.numbers(deciding))

    def one_row(self, panels: Panels) -> tuple[Problem, Strides] | None:
        step = self.step
        distances = row_distances((step.c, *step.operands))
        if distances is None:
            return None
        c_row, *operands = distances
        strides = _strides(c_row, *shared_epilogue(step).placed(operands))
        return panels.problem(1, 1, WINDOW, window=step.read_window), strides

    def lay_out_window(self, records: RecordLayout) -> int:
        step = self.step
        record = records.reserve(WindowSlot.SIZE)
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
        return record


def _window_problem(
    window: ReadWindow, a: StridedArray, b: StridedArray, c: StridedArray,
    operands: Sequence[StridedArray], width: int, workers: int, hardware: CpuHardware,
) -> tuple[Problem, Strides]:  # fmt: skip
    """`step_problem` of an A that is read through a window, and of a B in panels."""
    k, n = b.shape
    problem = panel_problem(n, k, width, c.shape[0], workers, WINDOW, window=window)
    return problem, _strides(*(x.strides[0] for x in (c, *operands)))


def _strides(c_row: int, *operands: int) -> Strides:
    """The record of the window has the strides of A."""
    return Strides(0, 0, 0, 0, c_row, (), operands, False)


def _choice_of(
    step: ConvolutionStep, hardware: CpuHardware, isa: Isa
) -> tuple[Choice, tuple[Dim, ...]]:
    """The choice, and the dims that decide it."""
    faster: Any = KINDS.named(step.faster)
    found: Choice = faster.choice_for(step, hardware, isa.name)
    rows, positions = step.window.extents
    return found, found.deciding(step.a.shape[0], rows, positions)


class ConvolutionKind(ProductKind[ConvolutionStep]):
    """A convolution runs uKernels that read A through a window."""

    def operands(self, step: ConvolutionStep) -> Operands:
        return Operands((WINDOW,), ("panels",))

    def problem_of(self, step: ConvolutionStep) -> ProblemOf:
        return partial(_window_problem, step.read_window)

    def compiled(
        self, step: ConvolutionStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledConvolution:
        assert required is not None
        zeros = np.zeros(step.window.run, held_in(step.a.layout.dtype))
        return CompiledConvolution(*self.parts(step, required, loaded), zeros=zeros)

    def report(
        self, step: ConvolutionStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        if step.faster:
            choice, deciding = _choice_of(step, machine.hardware, machine.isa)
            middles = [middle(evaluate(dim, extents)) for dim in deciding]
            if choice.decided(middles, machine.workers) is not None:
                return StepReport("nothing: the step before does it", no_cost(machine))
        return super().report(step, extents, machine, resident_bytes)


KIND = ConvolutionKind()
