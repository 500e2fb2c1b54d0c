"""Nests on one GPU: a kernel for each schedule, and launches of the best for concrete extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ftuner.codegen.triton.nest import nest_kernel
from ftuner.codegen.triton.source import Source
from ftuner.core.affine import Kernel
from ftuner.core.block_schedule import best_schedule, block_schedules
from ftuner.graph.buffers import Buffer
from ftuner.graph.steps import NestStep
from ftuner.runtime.extents import Dims
from ftuner.runtime.gpu.launching import Kernels
from ftuner.runtime.gpu.tensors import Tensor

MAX_LAUNCHED = 1 << 20
"""Programs of a launch: those beyond take several tiles each."""

Launch = Callable[[Sequence[Tensor]], None]


class CompiledNest:
    """A nest by all its schedules."""

    def __init__(self, kernel: Kernel, kernels: Kernels, dims: Dims) -> None:
        """Raises UnsupportedKernelError: something in the nest has no schedule on a GPU."""
        self._kernel = kernel
        self._kernels = kernels
        schedules = block_schedules(kernel)
        self._made = [nest_kernel(kernel, schedule) for schedule in schedules]
        self.checks = self._made[0].checks
        self._numbers = [
            (
                dims.number(schedule.lanes(kernel)),
                dims.number(schedule.reduced(kernel)),
                dims.number(made.tiles),
                dims.numbers(made.parameters),
            )
            for schedule, made in zip(schedules, self._made, strict=True)
        ]

    @property
    def sources(self) -> list[Source]:
        return [made.source for made in self._made]

    def bind(
        self, step: NestStep, values: Sequence[int], memory: Callable[[Buffer], Tensor | int],
        status: Tensor | None,
    ) -> Launch | None:  # fmt: skip
        """The launch for values of the dims, or None if there is nothing to do."""
        sizes = [(values[lanes], values[reduced]) for lanes, reduced, _, _ in self._numbers]
        chosen = best_schedule(self._kernel, sizes)
        _, _, tiles_number, parameter_numbers = self._numbers[chosen]
        tiles = values[tiles_number]
        if not tiles:
            return None
        kernel = self._kernels.kernel(self._made[chosen].source)
        places = [memory(buffer) for buffer in (*step.reads, *step.writes)]
        rest: list[Tensor | int] = [] if status is None else [status]
        rest += [values[n] for n in parameter_numbers]
        programs = min(tiles, MAX_LAUNCHED)

        def launch(arrays: Sequence[Tensor]) -> None:
            found = [arrays[place] if isinstance(place, int) else place for place in places]
            kernel(programs, *map(_bytes, found), *rest)

        return launch


def _bytes(x: Tensor) -> Tensor:
    """Booleans as bytes, which kernels read them as."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x
