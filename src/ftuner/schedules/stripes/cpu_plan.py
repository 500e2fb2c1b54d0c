"""Whether and how a chain of steps is walked by stripes of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from ftuner.core.caching import RecentlyUsed
from ftuner.core.cpu.schedule import DepthwiseKernel
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import Planner
from ftuner.schedules.depthwise.cpu_cost import vector_cycles
from ftuner.schedules.stripes.cpu_cost import (
    Chain,
    Extents,
    StripesProblem,
    bytes_of_rows,
    capacities,
    least_tasks,
    seconds_apart,
    seconds_of_part,
)

MAX_PLANS = 256
"""Plans that a chain keeps."""


class ProductWork(NamedTuple):
    """A product by a weight."""

    planner: Planner
    problem: Problem
    """Of one row and one worker."""
    stride: int = 1
    reach: int = 1

    @property
    def position_bytes(self) -> int:
        return self.problem.n * self.planner.library.types.c.itemsize

    def read_bytes(self, extents: Extents) -> float:
        problem, size = self.problem, self.planner.library.types.a.itemsize
        new = problem.k if problem.window is None else problem.k / problem.window.reuse
        return extents.positions * new * size / self.stride

    def seconds(self, positions: int) -> float:
        planner, problem = self.planner, self.problem
        library = planner.library
        tuning = library.hardware.tuning
        full, left = divmod(problem.n, problem.width * library.lanes)
        panels = ((full, problem.width, False), (int(left > 0), -(-left // library.lanes), True))
        window = 0 if problem.window is None else problem.k // problem.window.run
        address_cycles = window * tuning.window_element_cycles
        cycles = 0.0
        for number, vectors, tail in panels:
            if number:
                _, table = planner.cover(vectors, tail, problem.k, problem.a_layout)
                cover = table[positions]
                tile_cycles = cover.fixed + cover.tiles * address_cycles
                cycles += number * (problem.k * cover.step + tile_cycles)
        return cycles / library.hardware.clock_hz


class KernelWork(NamedTuple):
    """A depthwise convolution, or a reduction of windows."""

    stride: int
    reach: int
    position_bytes: int
    position_s: float

    def read_bytes(self, extents: Extents) -> float:
        return extents.read_positions * self.position_bytes

    def seconds(self, positions: int) -> float:
        return positions * self.position_s


def kernel_work(
    kernel: DepthwiseKernel, channels: int, hardware: CpuHardware, isa: Isa
) -> KernelWork:
    """The work of a depthwise convolution or a reduction of windows."""
    cycles = sum(vector_cycles(kernel, isa, hardware.tuning))
    position_s = -(-channels // isa.lanes(kernel.dtype)) * cycles / hardware.clock_hz
    reach = (kernel.window[0] - 1) * kernel.dilations[0] + 1
    return KernelWork(kernel.strides[0], reach, channels * kernel.dtype.itemsize, position_s)


class Stripes(NamedTuple):
    """How a chain is walked."""

    parts: int
    """Tasks of each image: ranges of rows of the last result."""
    rows: int
    """Of the last result that are computed at a time."""
    capacities: tuple[int, ...]
    """Rows of each other result that there is memory for."""
    seconds: float
    """Estimated, of the busiest worker."""


class StripesPlanner:
    """Plans one chain. Keeps what it has found; safe to use from several threads."""

    def __init__(self, chain: Chain, hardware: CpuHardware, isa: Isa) -> None:
        self.chain = chain
        self._hardware, self._isa = hardware, isa
        self._found: RecentlyUsed[tuple[int, ...], tuple[Stripes | None]] = RecentlyUsed(MAX_PLANS)

    def at(self, values: Sequence[int]) -> Stripes | None:
        """`stripes` of numbers in a row: workers, images, and the extents of each member."""
        key = tuple(values)
        found = self._found.get(key)
        if found is None:
            workers, images, *extents = key
            found = (self.stripes(StripesProblem(images, extents_of(extents), workers)),)
            self._found.add(key, found)
        return found[0]

    def stripes(self, problem: StripesProblem) -> Stripes | None:
        """The fastest way to walk the chain; None if its steps are faster one after the other."""
        chain, extents, tuning = self.chain, problem.extents, self._hardware.tuning
        if not problem.images or any(min(e.rows, e.positions) < 1 for e in extents):
            return None
        machine = Machine(self._hardware, self._isa, problem.workers)
        apart = seconds_apart(chain, problem, machine)
        if apart is None:
            return None
        rows = _rows_of_a_stripe(chain, problem, self._hardware)
        part = seconds_of_part(chain, problem, rows, machine)
        waited = tuning.waited_share_of_task if problem.workers > 1 else 0.0
        parts = _parts(problem, least_tasks(part, problem, waited), self._hardware)
        tasks = -(-problem.images * parts // problem.workers)
        seconds = (tasks + waited) * (part.rows / parts + part.border) + machine.synchronise_s
        if seconds > (1.0 - tuning.least_gain_of_stripes) * apart:
            return None
        return Stripes(parts, rows, capacities(chain, rows), seconds)


def extents_of(values: Sequence[int]) -> tuple[Extents, ...]:
    """The extents of all members, of numbers in a row."""
    size = len(Extents._fields)
    return tuple(Extents(*values[i : i + size]) for i in range(0, len(values), size))


@lru_cache(maxsize=256)
def stripes_planner(chain: Chain, hardware: CpuHardware, isa: Isa) -> StripesPlanner:
    """The one planner of a chain, with what it has found."""
    return StripesPlanner(chain, hardware, isa)


def _parts(problem: StripesProblem, tasks: float, hardware: CpuHardware) -> int:
    """The number of tasks of an image, such that all workers have equally many: about `tasks`."""
    workers, images = problem.workers, problem.images
    if workers == 1:
        return 1
    each = workers // math.gcd(workers, images)
    tasks = min(tasks, hardware.tuning.chunks_per_worker)
    parts = max(round(tasks * workers / images / each), 1) * each
    return parts if parts <= problem.extents[-1].rows else 1


def _rows_of_a_stripe(chain: Chain, problem: StripesProblem, hardware: CpuHardware) -> int:
    """The most rows of a stripe of which all other results fit their share of L2; at least one."""
    room = hardware.tuning.stripes_share_of_l2 * hardware.l2_bytes
    row_bytes = bytes_of_rows(chain, problem.extents)

    def taken(rows: int) -> int:
        return sum(map(mul, (*capacities(chain, rows), rows), row_bytes))

    one, two = taken(1), taken(2)
    more = int((room - one) // max(two - one, 1))
    return min(1 + max(more, 0), problem.extents[-1].rows)
