"""Whether and how a chain of steps is walked stripe by stripe of rows."""

from __future__ import annotations

import math
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from ftuner.core.recently_used import RecentlyUsed
from ftuner.cost.cpu.stripes import (
    Cycles,
    Extents,
    StripesProblem,
    Work,
    all_row_bytes,
    capacities,
    seconds_apart,
    seconds_by_stripes,
)
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.planner import Planner
from ftuner.planner.cpu.problem import Problem

MAX_PLANS = 256
"""Plans that a chain keeps."""


class ProductWork(NamedTuple):
    """A product by a weight."""

    planner: Planner
    problem: Problem
    """Of one row and one worker."""

    @property
    def columns(self) -> int:
        return self.problem.n

    def read_bytes(self, extents: Extents) -> int:
        problem, size = self.problem, self.planner.library.types.a.itemsize
        new = problem.k if problem.window is None else problem.k / problem.window.reuse
        return math.ceil(extents.positions * new * size / extents.stride)

    def cycles(self, extents: Extents, rows: int, machine: Machine) -> Cycles:
        planner, problem = self.planner, self.problem
        lanes, layout = planner.library.lanes, problem.a_layout
        full, left = divmod(problem.n, problem.width * lanes)
        panels = [(full, problem.width, False), (int(left > 0), -(-left // lanes), True)]
        issue = stall = fixed = 0.0
        window = 0 if problem.window is None else problem.k // problem.window.run
        address_cycles = window * machine.hardware.tuning.window_element_cycles
        for number, vectors, tail in panels:
            if number:
                _, table = planner.cover(vectors, tail, problem.k, layout)
                cover = table[rows * extents.positions]
                issue += number * problem.k * cover.issue
                stall += number * problem.k * (cover.step - cover.issue)
                fixed += number * (cover.fixed + cover.tiles * address_cycles)
        return Cycles(issue, stall, fixed)


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

    def __init__(
        self, chain: tuple[Work, ...], itemsize: int, hardware: CpuHardware, isa: Isa
    ) -> None:
        self.chain, self.itemsize = chain, itemsize
        self._hardware, self._isa = hardware, isa
        self._found: RecentlyUsed[StripesProblem, tuple[Stripes | None]] = RecentlyUsed(MAX_PLANS)

    def stripes(self, problem: StripesProblem) -> Stripes | None:
        """The fastest way to walk the chain; None if its steps are faster one after the other."""
        found = self._found.get(problem)
        if found is None:
            found = (self._fastest(problem),)
            self._found.add(problem, found)
        return found[0]

    def _fastest(self, problem: StripesProblem) -> Stripes | None:
        chain, extents = self.chain, problem.extents
        if not problem.images or any(min(e.rows, e.positions) < 1 for e in extents):
            return None
        rows = _rows_of_a_stripe(chain, self.itemsize, problem, self._hardware)
        machine = Machine(self._hardware, self._isa, problem.workers)
        room = capacities(extents, rows)
        found = [
            Stripes(parts, rows, room,
                  seconds_by_stripes(chain, self.itemsize, problem, rows, parts, machine))
            for parts in _parts(problem, extents[-1].rows, self._hardware)
        ]  # fmt: skip
        best = min(found, key=lambda stripes: stripes.seconds)
        apart = seconds_apart(chain, self.itemsize, problem, machine)
        worthwhile = (1.0 - self._hardware.tuning.least_gain_of_stripes) * apart
        return best if best.seconds < worthwhile else None


@lru_cache(maxsize=256)
def stripes_planner(
    chain: tuple[Work, ...], itemsize: int, hardware: CpuHardware, isa: Isa
) -> StripesPlanner:
    """The one planner of a chain, with what it has found. `itemsize`: of all elements."""
    return StripesPlanner(chain, itemsize, hardware, isa)


def _parts(problem: StripesProblem, rows: int, hardware: CpuHardware) -> list[int]:
    """Numbers of tasks of an image, such that all workers have equally many."""
    workers = problem.workers
    if workers == 1:
        return [1]
    each = workers // math.gcd(workers, problem.images)
    most = max(hardware.tuning.chunks_per_worker * workers // problem.images, each)
    return [parts for parts in range(each, most + 1, each) if parts <= rows] or [1]


def _rows_of_a_stripe(
    chain: tuple[Work, ...], itemsize: int, problem: StripesProblem, hardware: CpuHardware
) -> int:
    """The most rows of a stripe of which all other results fit their share of L2; at least one."""
    levels = hardware.levels
    l2_bytes = levels[min(1, len(levels) - 1)].capacity_bytes
    room = hardware.tuning.stripes_share_of_l2 * l2_bytes
    row_bytes = all_row_bytes(chain, itemsize, problem)

    def taken(rows: int) -> int:
        found = sum(map(mul, capacities(problem.extents, rows), row_bytes))
        return int(found + rows * row_bytes[-1])

    one, two = taken(1), taken(2)
    more = int((room - one) // max(two - one, 1))
    return min(1 + max(more, 0), problem.extents[-1].rows)
