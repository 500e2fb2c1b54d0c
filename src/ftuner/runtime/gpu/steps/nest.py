"""Nests on one GPU: a kernel for each schedule, and launches of the best for concrete extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ftuner.codegen.triton.nest import NestKernel, nest_kernel
from ftuner.core.gpu.schedule import (
    Schedule,
    best_schedule,
    reduced_elements,
    schedules_of,
)
from ftuner.graph.steps import NestStep
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.kernels import Kernel, Kernels
from ftuner.runtime.gpu.program import Launch
from ftuner.runtime.gpu.steps.contract import CompiledStep, Setting, StepKind
from ftuner.runtime.gpu.steps.operand import Places
from ftuner.runtime.shapes.evaluation import Dims

MAX_LAUNCHED = 1 << 20
"""Programs of a launch: those beyond take several tiles each."""

EVEN = 16
"""Kernels that `nest_kernel` makes for even parameters run where these are multiples of this."""


class _Made(NamedTuple):
    """A nest by one of its schedules, and numbers of dims."""

    schedule: Schedule
    whatever: NestKernel
    even: NestKernel
    """For parameters that are multiples of what vectors ask for."""
    lanes: int
    tiles: int
    parameters: tuple[int, ...]
    even_parameters: tuple[int, ...]


class BoundNest(Launch):
    """A nest at known extents."""

    def __init__(
        self, kernel: Kernel, programs: int, buffers: Sequence[Tensor | int],
        rest: Sequence[Tensor | int],
    ) -> None:  # fmt: skip
        """`buffers`: tensors, or the numbers of arrays of the run. `rest`: the other arguments."""
        self._kernel = kernel
        self._programs = programs
        self._buffers = buffers
        self._rest = rest

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        given = [_bytes(arrays[x]) if isinstance(x, int) else x for x in self._buffers]
        self._kernel(self._programs, *given, *self._rest)


class CompiledNest(CompiledStep):
    """A nest by all its schedules."""

    def __init__(self, step: NestStep, kernels: Kernels, dims: Dims, hardware: GpuHardware) -> None:
        """Raises UnsupportedKernelError: something in the nest has no schedule on a GPU."""
        kernel = step.kernel
        self._step = step
        self._kernels = kernels
        self._sizes = hardware.tuning.block_sizes
        self._schedules = schedules_of(kernel, self._sizes, hardware.warp_threads)
        self._reduced = dims.number(reduced_elements(kernel))
        self._made = []
        for schedule in self._schedules:
            made = nest_kernel(kernel, schedule)
            even = nest_kernel(kernel, schedule, even=True) if made.even_parameters else made
            self._made.append(
                _Made(
                    schedule, made, even, dims.number(schedule.lanes(kernel)),
                    dims.number(made.tiles), dims.numbers(made.parameters),
                    dims.numbers(made.even_parameters),
                )
            )  # fmt: skip
        self.checks = tuple(self._made[0].whatever.checks)
        self.sources = [k.source for made in self._made for k in (made.whatever, made.even)]

    def bind(self, values: Sequence[int], memory: Places, status: Tensor | None) -> Launch | None:
        """The launch for values of the dims, or None if there is nothing to do."""
        lanes = [values[made.lanes] for made in self._made]
        best = best_schedule(self._schedules, lanes, values[self._reduced], self._sizes)
        made = self._made[best]
        tiles = values[made.tiles]
        if not tiles:
            return None
        is_even = all(values[n] % EVEN == 0 for n in made.even_parameters)
        source = (made.even if is_even else made.whatever).source
        kernel = self._kernels.kernel(source)
        places = [memory(buffer) for buffer in (*self._step.reads, *self._step.writes)]
        rest: list[Tensor | int] = [] if status is None else [status]
        rest += [values[n] for n in made.parameters]
        programs = min(tiles, MAX_LAUNCHED)

        # What stays where it is becomes an argument once.
        known = [place if isinstance(place, int) else _bytes(place) for place in places]
        return BoundNest(kernel, programs, known, rest)


def _bytes(x: Tensor) -> Tensor:
    """Booleans as bytes, which kernels read them as."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x


class NestKind(StepKind[NestStep]):
    """A nest is one launch, by the best of its schedules for the extents."""

    def compiled(self, step: NestStep, setting: Setting) -> CompiledNest:
        session = setting.session
        return CompiledNest(step, session.kernels, setting.dims, session.hardware)


KIND = NestKind()
