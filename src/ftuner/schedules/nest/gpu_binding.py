"""Nests on one GPU: a kernel for each schedule, and launches of the best for concrete extents."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ftuner.core.dim import Shape
from ftuner.core.gpu.schedule import Schedule, best_schedule, reduced_elements, schedules_of, splits
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.kernels import LATE
from ftuner.runtime.gpu.program import Launch
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.gpu.step_kind import (
    MAX_LAUNCHED,
    CompiledStep,
    Places,
    Setting,
    StepKind,
    TiledLaunch,
)
from ftuner.runtime.shapes.evaluation import Dims
from ftuner.schedules.nest.gpu_kernel import NestKernel, nest_kernel
from ftuner.schedules.nest.step import NestStep

LEAST_BLOCKS = 4
"""Fewest blocks of a part of a reduction. Assumed: with fewer, combining parts takes as long."""
EVEN = 16
"""Kernels that `nest_kernel` makes for even parameters run where these are multiples of this."""


class _Made(NamedTuple):
    """A nest by one of its schedules, and numbers of dims."""

    schedule: Schedule
    whatever: NestKernel
    even: NestKernel
    """For parameters that are multiples of what vectors ask for."""
    split: tuple[NestKernel, NestKernel] | None
    """Both kernels by the schedule split, if it can be."""
    lanes: int
    tiles: int
    parameters: tuple[int, ...]
    even_parameters: tuple[int, ...]


class CompiledNest(CompiledStep):
    """A nest by all its schedules."""

    def __init__(self, step: NestStep, session: GpuSession, dims: Dims) -> None:
        """Raises UnsupportedKernelError: something in the nest has no schedule on a GPU."""
        kernel, hardware = step.kernel, session.hardware
        self._step = step
        self._session = session
        self._kernels = session.kernels
        self._sizes = hardware.tuning.block_sizes
        self._schedules = schedules_of(kernel, self._sizes, hardware.warp_threads)
        self._reduced = dims.number(reduced_elements(kernel))
        self._made = []
        for schedule in self._schedules:
            made = nest_kernel(kernel, schedule)
            even = nest_kernel(kernel, schedule, even=True) if made.even_parameters else made
            split = None
            if splits(kernel, schedule):
                apart = replace(schedule, split=True)
                split = nest_kernel(kernel, apart), nest_kernel(kernel, apart, even=True)
            self._made.append(
                _Made(
                    schedule, made, even, split, dims.number(schedule.lanes(kernel)),
                    dims.number(made.tiles), dims.numbers(made.parameters),
                    dims.numbers(made.even_parameters),
                )
            )  # fmt: skip
        self.checks = tuple(self._made[0].whatever.checks)
        self.sources = [
            k.source for made in self._made for k in (made.whatever, made.even, *(made.split or ()))
        ]

    def bind(self, values: Sequence[int], memory: Places, status: Tensor | None) -> Launch | None:
        """The launch for values of the dims, or None if there is nothing to do."""
        made, is_even = self._best(values)
        tiles = values[made.tiles]
        if not tiles:
            return None
        places = [memory(buffer) for buffer in (*self._step.reads, *self._step.writes)]
        rest: list[Any] = [] if status is None else [status]
        rest += [values[n] for n in made.parameters]
        parts = self._parts(made, tiles, values[self._reduced])
        if parts > 1:
            assert made.split is not None
            nest = made.split[is_even]
            programs = tiles * parts
            return TiledLaunch(
                self._kernels.kernel(nest.source), programs, places, [*rest, LATE, LATE, parts],
                self._session.scratch, (programs * nest.part_elements, tiles),
            )  # fmt: skip
        kernel = self._kernels.kernel((made.even if is_even else made.whatever).source)
        return TiledLaunch(kernel, min(tiles, MAX_LAUNCHED), places, rest)

    def order_of_sums(self, values: Sequence[int]) -> Hashable:
        if values[self._reduced] == 1:
            return ()
        made, is_even = self._best(values)
        parts = self._parts(made, max(values[made.tiles], 1), values[self._reduced])
        return made.schedule, is_even, parts

    def _best(self, values: Sequence[int]) -> tuple[_Made, bool]:
        """The best schedule for values of the dims, and whether all parameters are even."""
        lanes = [values[made.lanes] for made in self._made]
        best = best_schedule(self._schedules, lanes, values[self._reduced], self._sizes)
        made = self._made[best]
        return made, all(values[n] % EVEN == 0 for n in made.even_parameters)

    def _parts(self, made: _Made, tiles: int, reduced: int) -> int:
        """The parts of a tile: one program for each multiprocessor, if each has some blocks."""
        room = made.schedule.room
        if made.split is None or room is None:
            return 1
        multiprocessors = self._session.hardware.multiprocessors
        return max(min(multiprocessors // tiles, reduced // (room * LEAST_BLOCKS)), 1)


class NestKind(StepKind[NestStep]):
    """A nest is one launch, by the best of its schedules for the extents."""

    def loops(self, step: NestStep) -> Shape:
        return step.kernel.axes

    def compiled(self, step: NestStep, setting: Setting) -> CompiledNest:
        return CompiledNest(step, setting.session, setting.dims)


KIND = NestKind()
