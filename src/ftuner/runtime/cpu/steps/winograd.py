"""Convolutions by windows of 3 x 3 on a CPU, as Winograd's products where these are faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, NamedTuple

from ftuner.codegen.llvm.native.kernel_records import Winograd
from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.codegen.llvm.objects.bundle import Bundle, kernel_bundle
from ftuner.core.dim import Dim, ceil_quotient, maximum
from ftuner.core.expr import Expr
from ftuner.core.ranges import fine_start
from ftuner.core.units import count
from ftuner.core.winograd import WINDOW
from ftuner.cost.cpu.winograd import WinogradProblem
from ftuner.graph.buffers import View
from ftuner.graph.winograd_steps import WinogradStep
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.panel_width import best_width
from ftuner.planner.cpu.winograd import (
    WinogradPlan,
    epilogue_cycles_of,
    faster_winograd,
    outputs_of,
)
from ftuner.runtime.cpu.covers import panel_covers
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.required_families import RequiredFamilies, for_packed_weight
from ftuner.runtime.cpu.steps.contract import Loaded, packed_once
from ftuner.runtime.cpu.steps.winograd_common import (
    CommonWinogradCut,
    CommonWinogradKind,
    CommonWinogradTask,
    CompiledWinograd,
    Planners,
    planners_of,
)


class WinogradChoice(NamedTuple):
    """A `CommonWinogradChoice` of windows of 3 x 3."""

    planners: Planners
    channels: int
    columns: int
    outputs: int
    """Outputs of a tile along both axes."""
    epilogue_cycles: float
    """Of one vector."""

    def problem(self, images: int, rows: int, positions: int, workers: int) -> WinogradProblem:
        return WinogradProblem(
            images, rows, positions, self.channels, self.columns, self.outputs, workers
        )

    def deciding(self, images: Dim, rows: Dim, positions: Dim) -> tuple[Dim, Dim]:
        """Tiles, and how many positions of a row of a tile there are in the mean."""
        m = self.outputs
        tiles = images * ceil_quotient(rows, m) * ceil_quotient(positions, m)
        # Half of it rounds.
        row = m * maximum(tiles, 1)
        return tiles, (2 * images * rows * positions + row) // (2 * row)

    def decided(self, starts: Sequence[int], workers: int) -> WinogradPlan | None:
        tiles, positions = starts
        return _plan(self, self.problem(tiles, self.outputs, positions, workers))

    def plan(self, deciding: Sequence[int], workers: int) -> WinogradPlan | None:
        tiles = deciding[0]
        starts = [fine_start(value) for value in deciding]
        found = self.decided(starts, workers)
        if found is None:
            return None
        blocks = found.blocks
        number = -(-starts[0] // blocks.tiles)
        return found._replace(blocks=blocks._replace(tiles=-(-tiles // number)))


@lru_cache(maxsize=4096)
def _plan(choice: WinogradChoice, problem: WinogradProblem) -> WinogradPlan | None:
    return faster_winograd(*choice.planners, problem, choice.epilogue_cycles)


def choice_of(
    x: View, weight_shape: Sequence[Dim], extents: Sequence[Dim], epilogue: Expr,
    hardware: CpuHardware, isa: str,
) -> WinogradChoice:  # fmt: skip
    """The choice of a convolution of x by a weight of (..., channels, columns). `extents`: rows and
    positions of the result."""
    planners = planners_of(x, epilogue, hardware, isa)
    channels, columns = (n for n in weight_shape[-2:] if isinstance(n, int))
    cycles = epilogue_cycles_of(planners.direct.library)
    return WinogradChoice(planners, channels, columns, outputs_of(*extents), cycles)


@dataclass(frozen=True)
class WinogradTask(CommonWinogradTask[WinogradChoice]):
    """Winograd's products of tiles, to be planned."""

    first_operand: ClassVar[int] = Winograd.OPERANDS
    own: ClassVar[tuple[int, ...]] = (
        Winograd.SUMS_OFFSET, Winograd.PATCH_OFFSET, Winograd.WEIGHT_OFFSET, Winograd.CHANNEL_BLOCK,
    )  # fmt: skip

    def constants(self) -> dict[int, int]:
        return {Winograd.CHANNELS: self.choice.channels}

    @classmethod
    def counts(
        cls, choice: WinogradChoice, images: Dim, rows: Dim, positions: Dim
    ) -> dict[int, Dim]:
        return {
            Winograd.TILES: choice.deciding(images, rows, positions)[0],
            Winograd.TILE_ROWS: ceil_quotient(rows, choice.outputs),
            Winograd.TILE_COLUMNS: ceil_quotient(positions, choice.outputs),
        }

    def cut(self, deciding: Sequence[int], plan: WinogradPlan) -> CommonWinogradCut:
        tiles, (block, part) = deciding[0], plan.blocks
        library, channels = self.products.compiled.library, self.choice.channels
        nr, size = self.width * library.lanes, library.types.c.itemsize
        matrices = self.choice.problem(0, 0, 0, 1).matrices
        pieces = (block * channels, block * nr, channels, part * nr)
        sums, patch, weight, end = accumulate(
            aligned(matrices * elements * size + SLACK_BYTES) for elements in pieces
        )
        own = (sums, patch, weight, part)
        return CommonWinogradCut(block, -(-tiles // block), end, own)


class WinogradKind(CommonWinogradKind[WinogradStep, WinogradChoice]):
    """Winograd's products of tiles."""

    def choice(self, step: WinogradStep, hardware: CpuHardware, isa: str) -> WinogradChoice:
        extents = step.out.shape[1:3]
        return choice_of(step.x, step.weight.shape, extents, step.epilogue, hardware, isa)

    def required_families(
        self, step: WinogradStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies:
        choice = self.choice(step, hardware, isa)
        products, direct = choice.planners
        # The panels are those of the product through the window.
        width = best_width(direct, choice.columns, WINDOW**2 * choice.channels, workers)
        return for_packed_weight(products.library, choice.columns, width)

    def bundle(self, step: WinogradStep, hardware: CpuHardware, isa: Isa) -> Bundle:
        choice, dtype = self.choice(step, hardware, isa.name), step.x.layout.dtype
        return kernel_bundle(
            "ftuner.codegen.llvm.kernels.winograd", "winograd",
            dtype, choice.outputs, step.epilogue, isa.lanes(dtype), isa.fused,
            inlines=False,
        )  # fmt: skip

    def compiled(
        self, step: WinogradStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledWinograd[WinogradStep, WinogradChoice]:
        assert required is not None
        products = loaded.products(required.library)
        choice = self.choice(step, loaded.hardware, loaded.isa.name)
        array = step.weight.buffer.array
        assert array is not None
        shape = (WINDOW**2 * choice.channels, choice.columns)
        panels = packed_once(array, shape, products, required.width, loaded)
        step = replace(step, weight=loaded.emptied(step.weight))
        covers = panel_covers(
            products, choice.columns, panels.width, choice.channels, loaded.covers
        )
        return CompiledWinograd(step, kernel, products, choice, WinogradTask, covers, panels)

    def described(
        self, choice: WinogradChoice, plan: WinogradPlan, shape: tuple[int, ...], workers: int
    ) -> tuple[int, str]:
        images, rows, positions, columns = shape
        problem, block, m = (
            choice.problem(images, rows, positions, workers), plan.blocks.tiles, choice.outputs
        )  # fmt: skip
        products = problem.matrices * problem.tiles * choice.channels * columns
        return (
            products,
            f"tiles of {m} x {m}, {count(-(-problem.tiles // block), 'task')} of {block}",
        )


KIND = WinogradKind()
