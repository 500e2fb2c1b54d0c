"""Convolutions of two spatial axes on a CPU, as Winograd's products along the last one where these
are faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.dim import Dim, ceil_quotient
from ftuner.core.frozen import dataclass
from ftuner.core.product import ReadWindow
from ftuner.core.ranges import after_coarse, coarse_start
from ftuner.core.units import count
from ftuner.core.winograd import LINE_OUTPUTS, line_transforms, taps_of
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import best_width
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.step_kind import Loaded, RequiredFamilies, for_packed_weight, packed_as
from ftuner.runtime.cpu.tasks import Field
from ftuner.runtime.shapes.evaluation import Layouts
from ftuner.schedules.line_winograd.cpu_cost import LineProblem
from ftuner.schedules.line_winograd.cpu_plan import LinePlan, faster_lines
from ftuner.schedules.line_winograd.cpu_record import LineWinograd
from ftuner.schedules.line_winograd.step import LineWinogradStep, step_of
from ftuner.schedules.winograd.cpu_binding import (
    CommonWinogradCut,
    CommonWinogradKind,
    CommonWinogradTask,
    Planners,
    planners_of,
)
from ftuner.schedules.winograd.cpu_plan import epilogue_cycles_of


class LineChoice(NamedTuple):
    """A `CommonWinogradChoice` of windows of any size."""

    planners: Planners
    kernel: tuple[int, int]
    strides: tuple[int, int]
    channels: int
    columns: int
    width: int
    """Vectors of a panel of the transformed weights."""
    epilogue_cycles: float
    """Of one vector."""

    @property
    def taps(self) -> int:
        return taps_of(self.kernel[1], self.strides[1])

    def problem(self, images: int, rows: int, positions: int, workers: int) -> LineProblem:
        run = self.channels * self.strides[1]
        return LineProblem(
            images, rows, positions, self.taps, run, self.kernel[0], self.strides[0], self.columns,
            workers,
        )  # fmt: skip

    def deciding(self, images: Dim, rows: Dim, positions: Dim) -> tuple[Dim, Dim]:
        """Rows, and lines of all images in a row."""
        return rows, images * ceil_quotient(positions, LINE_OUTPUTS[self.taps])

    def decided(self, middles: Sequence[int], workers: int) -> LinePlan | None:
        rows, lines = middles
        if not rows or not lines:
            return None
        # The number of lines hardly decides: the middle of its octave.
        lines = 3 << lines.bit_length() >> 2
        return _plan(self, self.problem(1, rows, lines * LINE_OUTPUTS[self.taps], workers))

    def blocks(self, middles: Sequence[int], plan: LinePlan, workers: int) -> int:
        return min(-(-middles[0] // plan.block), coarse_start(middles[0]))


@lru_cache(maxsize=4096)
def _plan(choice: LineChoice, problem: LineProblem) -> LinePlan | None:
    elements = math.prod(choice.kernel)
    window = ReadWindow(2, choice.channels, max(elements / math.prod(choice.strides), 1.0))
    k = elements * choice.channels
    return faster_lines(*choice.planners, problem, choice.width, window, k, choice.epilogue_cycles)


@dataclass(frozen=True)
class LineTask(CommonWinogradTask[LineChoice]):
    """Winograd's products along lines, to be planned."""

    first_operand: ClassVar[int] = LineWinograd.OPERANDS
    own: ClassVar[tuple[int, ...]] = (
        LineWinograd.SUMS_OFFSET, LineWinograd.PATCH_OFFSET, LineWinograd.INPUTS_BYTES,
        LineWinograd.SUMS_BYTES,
    )  # fmt: skip

    def constants(self) -> dict[int, int]:
        choice, library = self.choice, self.products.compiled.library
        problem, lanes = choice.problem(0, 0, 0, 1), library.lanes
        vectors = -(-choice.columns // lanes)
        return {
            LineWinograd.RUN: problem.run,
            LineWinograd.KERNEL_ROWS: problem.kernel_rows,
            LineWinograd.STRIDE_Y: choice.strides[0],
            LineWinograd.STRIDE_X: choice.strides[1],
            LineWinograd.WEIGHT_BYTES: problem.k * vectors * lanes * library.types.c.itemsize,
        }

    @classmethod
    def counts(cls, choice: LineChoice, images: Dim, rows: Dim, positions: Dim) -> dict[int, Dim]:
        return {LineWinograd.LINES: ceil_quotient(positions, LINE_OUTPUTS[choice.taps])}

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        """Each variant has as many tasks of a line."""
        return (Field(-1, self.deciding[1], variant),)

    def cut(self, middles: Sequence[int], plan: LinePlan, workers: int) -> CommonWinogradCut:
        rows, lines = middles
        problem, library = self.choice.problem(0, rows, 0, 1), self.products.compiled.library
        lanes, size = library.lanes, library.types.c.itemsize
        blocks = self.choice.blocks(middles, plan, workers)
        block = -(-(after_coarse(rows) - 1) // blocks)
        # A vector may be stored beyond the last row.
        inputs_bytes = aligned(problem.read_rows(block) * problem.run * size + SLACK_BYTES)
        sums_bytes = aligned(block * self.width * lanes * size)
        sums = problem.points * inputs_bytes
        patch = sums + problem.points * sums_bytes + SLACK_BYTES
        end = aligned(patch + aligned(problem.points * problem.run * size + SLACK_BYTES))
        own = (sums, patch, inputs_bytes, sums_bytes)
        return CommonWinogradCut(blocks, blocks * coarse_start(lines), end, own, blocks)


def transformed(weight: Array, stride: int) -> Array:
    """A weight of (rows, positions, channels, columns) as a matrix of columns and k for each point:
    G g of all phases, computed in float64."""
    rows, positions, channels, columns = weight.shape
    taps = taps_of(positions, stride)
    phases = np.zeros((rows, taps * stride, channels, columns))
    phases[:, :positions] = weight
    phases = phases.reshape(rows, taps, stride * channels, columns)
    matrix = np.array([[float(c) for c in row] for row in line_transforms(taps).weight])
    found: Array = np.einsum("pt,ytkn->pnyk", matrix, phases)
    return found.reshape(len(matrix), columns, -1).astype(weight.dtype)


class LineWinogradKind(CommonWinogradKind[LineWinogradStep, LineChoice]):
    """Winograd's products along lines."""

    step_of = staticmethod(step_of)
    task = LineTask

    def choice(self, step: LineWinogradStep, hardware: CpuHardware, isa: str) -> LineChoice:
        planners = planners_of(step.x, step.epilogue, hardware, isa)
        shape = (n for n in step.weight.shape if isinstance(n, int))
        rows, positions, channels, columns = shape
        # One thread decides the width: the weight is packed once for any number of workers.
        k = rows * step.strides[1] * channels
        width = best_width(planners.products, columns, k, 1)
        return LineChoice(
            planners, (rows, positions), step.strides, channels, columns, width,
            epilogue_cycles_of(planners.direct.library),
        )  # fmt: skip

    def required_families(
        self, step: LineWinogradStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        choice = self.choice(step, hardware, isa)
        return for_packed_weight(choice.planners.products.library, choice.columns, choice.width)

    def tile(self, choice: LineChoice) -> int:
        return choice.taps

    def packed(
        self, choice: LineChoice, array: Array, products: Products, width: int, loaded: Loaded
    ) -> tuple[Panels, int]:
        shape = (*choice.kernel, choice.channels, choice.columns)
        stride = choice.strides[1]
        k = choice.kernel[0] * stride * choice.channels
        panels = packed_as(
            array, ("lines", *shape, stride), (choice.columns, k),
            lambda x: transformed(x.reshape(shape), stride), products, width, loaded,
        )  # fmt: skip
        return panels, k

    def described(
        self, choice: LineChoice, blocks: int, shape: tuple[int, ...], workers: int
    ) -> tuple[int, str]:
        images, rows, positions, columns = shape
        problem = choice.problem(images, rows, positions, workers)
        products = problem.points * images * rows * problem.lines * problem.k * columns
        tasks, block = images * problem.lines * blocks, count(-(-rows // blocks), "row")
        text = f"lines of {LINE_OUTPUTS[problem.taps]}, {count(tasks, 'task')} of {block}"
        return products, text


KIND = LineWinogradKind()
