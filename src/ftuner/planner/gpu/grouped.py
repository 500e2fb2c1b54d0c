"""Plans for grouped products on a GPU: one tile of a library for all groups of a launch.

The tiles of all groups form one list, longest k first, so that the last wave is short (list
scheduling, Graham 1969). Program p of P does tiles p, p + P, ... Because k never grows along the
list, the first multiprocessor is the busiest: it does every S-th tile from the first on, which for
a group with tiles `begin` to `end` are `ceil(end / S) - ceil(begin / S)`. Other terms are those of
`cost.gpu.product`. Planning is arithmetic: nothing is compiled or measured.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.core.caching import RecentlyUsed
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, MOST_COUNTED, BlockTile, Order, ProductKernel
from ftuner.cost.gpu.product import chip_of
from ftuner.ukernels.gpu.library import GpuLibrary

MAX_PLANS = 1024
"""Problems whose plans are kept."""

_Numbers = npt.NDArray[np.float64]


class GroupedProblem(NamedTuple):
    """The extents of all groups, and the orders of their operands."""

    sizes: tuple[tuple[int, int, int], ...]
    """m, n and k of each group, all positive; one group at least."""
    a_order: Order = "k"
    b_order: Order = "k"


class GroupedPlan(NamedTuple):
    """The exact cover of all groups by one tile."""

    problem: GroupedProblem
    kernel: ProductKernel
    order: tuple[int, ...]
    """Numbers of the groups in the order in which their tiles are taken."""
    ends: tuple[int, ...]
    """The end of the tiles of each group in the list of all, in that order."""
    swizzle: int
    """As in `ProductPlan`, for every group."""
    programs: int
    seconds: float
    """Estimated."""

    @property
    def tiles(self) -> int:
        return self.ends[-1]


class GroupedPlanner:
    """Plans for one library and alignment of operands. Keeps a bounded number of plans; safe to use
    from several threads."""

    def __init__(self, library: GpuLibrary, alignment: int) -> None:
        """`alignment`: as in `ProductKernel`, of all groups."""
        self.library = library
        self.alignment = alignment
        self._tiles = library.fitting(alignment)
        self._chip = chip_of(library.hardware, library.dtype)
        self._plans: RecentlyUsed[GroupedProblem, GroupedPlan] = RecentlyUsed(MAX_PLANS)
        self._costs = [library.cost(tile, alignment) for tile in self._tiles]

        def column(values: list[Any], kind: type) -> npt.NDArray[Any]:
            return np.array(values, kind)[:, np.newaxis]

        self._bm = column([tile.bm for tile in self._tiles], int)
        self._bn = column([tile.bn for tile in self._tiles], int)
        self._bk = column([tile.bk for tile in self._tiles], int)
        self._blocks = np.array([cost.blocks for cost in self._costs])
        self._fill_s = np.array([cost.fill_s for cost in self._costs])
        self._store_s = np.array([cost.store_s for cost in self._costs])
        most = int(self._blocks.max())
        self._step_s = np.array(
            [[cost.seconds_of_step(max(r, 1)) for r in range(most + 1)] for cost in self._costs]
        )
        """Seconds of a step of each tile, by resident blocks."""

    def plan(self, problem: GroupedProblem) -> GroupedPlan:
        """Returns the cheapest plan."""
        found = self._plans.get(problem)
        if found is None:
            found = self._make(problem)
            self._plans.add(problem, found)
        return found

    def kernel(self, tile: BlockTile, a_order: Order, b_order: Order) -> ProductKernel:
        """Returns the uKernel of a tile for grouped products."""
        found = self.library.kernel((tile,), a_order, b_order, self.alignment)
        return replace(found, loads="pointers", specialised=False, warpgroups=1, grouped=True)

    def kernels(self, a_order: Order, b_order: Order) -> tuple[ProductKernel, ...]:
        """Returns every uKernel that a plan may launch for such operands."""
        return tuple(self.kernel(tile, a_order, b_order) for tile in self._tiles)

    def _make(self, problem: GroupedProblem) -> GroupedPlan:
        sizes = np.array(problem.sizes)
        order = np.argsort(-sizes[:, 2], kind="stable")
        m, n, k = sizes[order].T
        rows, columns = -(-m // self._bm), -(-n // self._bn)
        tiles = rows * columns
        ends = tiles.cumsum(axis=1)
        seconds = self._seconds(m, n, k, rows, columns, tiles, ends)
        best = int(seconds.argmin())
        tile, cost = self._tiles[best], self._costs[best]
        programs = min(int(ends[best, -1]), cost.blocks * self._chip.multiprocessors)
        # Square waves, as for one product; the tiles of a swizzle are counted with 32 bits.
        square = isqrt(programs * tile.bn // tile.bm) or 1
        counted = max(MOST_COUNTED // int(columns[best].max()), 1)
        return GroupedPlan(
            problem,
            self.kernel(tile, problem.a_order, problem.b_order),
            tuple(order.tolist()),
            tuple(ends[best].tolist()),
            min(square, counted),
            programs,
            float(seconds[best]),
        )

    def _seconds(
        self, m: npt.NDArray[Any], n: npt.NDArray[Any], k: npt.NDArray[Any],
        rows: npt.NDArray[Any], columns: npt.NDArray[Any], tiles: npt.NDArray[Any],
        ends: npt.NDArray[Any],
    ) -> _Numbers:  # fmt: skip
        """Returns the seconds by each tile of the library. `m`, `n` and `k` are by group, the other
        arrays by tile of the library and group."""
        chip, sms = self._chip, self._chip.multiprocessors
        steps = -(-k // self._bk)
        units = ends[:, -1]
        programs = np.minimum(units, self._blocks * sms)
        resident = np.minimum(self._blocks, -(-units // sms))
        # The busiest multiprocessor.
        shares = -(-ends // sms) - -(-(ends - tiles) // sms)
        step_s = np.take_along_axis(self._step_s, resident[:, np.newaxis], 1)[:, 0]
        near_s = (shares * steps).sum(axis=1) * step_s
        # Other blocks hide fills and stores, except for the first fill and the last store.
        around_s = self._fill_s + self._store_s
        rounds = -(-units // programs)
        around_s = around_s * (rounds / resident + 1.0 - 1.0 / resident) + chip.launch_s
        # L2 is read for each tile, DRAM as often as L2 does not hold operands.
        bytes_a, bytes_b = (chip.itemsize * extent * k.astype(float) for extent in (m, n))
        written = chip.itemsize * (m * n.astype(float)).sum()
        l2_bytes = (bytes_a * columns + bytes_b * rows).sum(axis=1) + written
        at_once = programs[:, np.newaxis]
        swizzle = np.minimum(np.maximum(np.sqrt(at_once * self._bn / self._bm) // 1.0, 1.0), rows)
        kept_bytes = chip.held_bytes / 2
        passes_b = np.where(bytes_b <= kept_bytes, 1.0, np.ceil(rows / swizzle))
        kept_a = swizzle * self._bm * k * chip.itemsize <= kept_bytes
        passes_a = np.where(kept_a, 1.0, np.ceil(swizzle * columns / at_once))
        once = bytes_a + bytes_b
        again = bytes_a * passes_a + bytes_b * passes_b
        dram_bytes = np.where(once <= chip.held_bytes, once, again)
        dram_s = (dram_bytes.sum(axis=1) + written) / chip.dram_bytes_per_s
        # `cost.gpu.tile.overlapped_seconds` of arrays; a test holds both equal.
        exponent = chip.overlap_exponent
        powers = sum(s**exponent for s in (near_s, l2_bytes / chip.l2_bytes_per_s, dram_s))
        return np.asarray(powers ** (1.0 / exponent) + around_s)


@lru_cache(maxsize=64)
def grouped_planner_for(library: GpuLibrary, alignment: int = ALIGNMENT_BYTES) -> GroupedPlanner:
    """Returns the one planner of a library and alignment, with its plans."""
    return GroupedPlanner(library, alignment)
