"""The planner for a GPU: from a library and a run-time shape to the cheapest exact cover.

Candidates are the tiles of the library and their pairs. A pair covers the first rows by its taller
tile, whole waves of it or all that fit, and the rest by the lower one; k is cut into parts where
tiles are fewer than multiprocessors. Each candidate is priced in closed form (`block_price`), and
the cheapest is the plan. Arithmetic only: nothing is compiled or measured.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, sqrt
from typing import NamedTuple

from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.gpu.tile import BlockTile, ProductKernel
from ftuner.core.recently_used import RecentlyUsed
from ftuner.cost.gpu.product import (
    ProductEstimate,
    Walk,
    chip_of,
    estimate_product,
    work_of,
)
from ftuner.planner.gpu.candidates import ENDLESS, Candidate, CandidateEstimate, limit_rows
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.ukernels.gpu.library import GpuLibrary

MAX_PROBLEMS = 1024
"""Problems, apart from m, whose candidates are kept."""
MAX_KERNELS = 4096
"""uKernels that are kept, so that equal plans share one."""


class Option(NamedTuple):
    """A candidate with what planning looks at first; a tuple, because it does so for each."""

    first_row: int
    last_row: int
    least_s: float
    least_s_per_row: float
    granule: int
    entries: dict[int, CandidateEstimate]
    candidate: Candidate


class ProductPlanner:
    """Plans for one library. Holds tables of prices, a bounded number of them; safe to use from
    several threads."""

    def __init__(self, library: GpuLibrary) -> None:
        self.library = library
        self._chip = chip_of(library.hardware, library.dtype)
        self._options: RecentlyUsed[tuple[object, ...], tuple[Option, ...]] = RecentlyUsed(
            MAX_PROBLEMS
        )
        self._kernels: dict[tuple[object, ...], ProductKernel] = {}

    def plan(self, problem: ProductProblem, epilogue: Expr = ACCUMULATOR) -> ProductPlan:
        """The cheapest plan; every extent of the problem is positive."""
        m = problem.m
        known = self._options.get(problem[1:])
        if known is None:
            known = self._known(problem)
        least, best, chosen = inf, ENDLESS, None
        for first_row, last_row, least_s, least_s_per_row, granule, entries, candidate in known:
            if first_row <= m <= last_row and least_s + m * least_s_per_row < least:
                priced = entries.get(-(-m // granule))
                if priced is None:
                    priced = candidate.at(m, least)
                near_s = priced[0]
                if near_s + priced[1] >= least:
                    continue
                # `CandidateEstimate.seconds`, without calls.
                l2_s = priced[2] + m * priced[3]
                dram_s = priced[4] + m * priced[5]
                near_s *= near_s
                l2_s *= l2_s
                dram_s *= dram_s
                near_s *= near_s
                l2_s *= l2_s
                dram_s *= dram_s
                powers = near_s * near_s + l2_s * l2_s + dram_s * dram_s
                seconds = priced[1] + sqrt(sqrt(sqrt(powers)))
                if seconds < least:
                    least, best, chosen = seconds, priced, candidate
        assert chosen is not None
        kernel = self._kernel(problem, chosen.tiles, best.parts > 1, epilogue)
        return ProductPlan(problem, kernel, best.rows or m, best.parts, best.group, best.programs)

    def estimate(self, plan: ProductPlan) -> ProductEstimate:
        """What a plan takes, term by term; it need not be one that would be chosen."""
        problem, tiles = plan.problem, plan.kernel.tiles
        work = work_of(
            tuple(self.library.cost(tile) for tile in tiles), problem.n, problem.k, problem.batch,
            plan.kernel.loads == "descriptors",
        )  # fmt: skip
        heights = [-(-(last - first) // tile.bm) for tile, first, last in plan.bands]
        row_tiles = (heights[0], heights[1] if len(heights) > 1 else 0)
        walk = Walk(row_tiles, plan.parts, plan.group, plan.programs)
        return estimate_product(self._chip, work, walk, problem.m)

    def candidates(self, problem: ProductProblem) -> tuple[Candidate, ...]:
        """The candidates of a problem, priced for any m: every tile and pair no wider than n
        needs."""
        known = self._options.get(problem[1:])
        return tuple(option.candidate for option in known or self._known(problem))

    def _known(self, problem: ProductProblem) -> tuple[Option, ...]:
        # What may be the fastest comes first: it spares others their price.
        found = tuple(
            Option(c.first_row, c.last_row, c.least_s, c.least_s_per_row, c.granule, c.entries, c)
            for c in sorted(self._make_candidates(problem), key=_promise)
        )
        self._options.add(problem[1:], found)
        return found

    def _make_candidates(self, problem: ProductProblem) -> tuple[Candidate, ...]:
        library = self.library
        covers = library.covers(problem.aligned)
        narrowest = min(tiles[0].bn for tiles in covers)
        chained = library.loads(problem.aligned) == "descriptors"
        found = []
        for tiles in covers:
            # No more than twice as wide as needed, unless there is no narrower one.
            if tiles[0].bn >= 2 * problem.n and tiles[0].bn > narrowest:
                continue
            costs = tuple(library.cost(tile) for tile in tiles)
            work = work_of(costs, problem.n, problem.k, problem.batch, chained)
            found.append(Candidate(self._chip, tiles, work))
        limit_rows(found, self._chip.multiprocessors)
        return tuple(found)

    def _kernel(
        self, problem: ProductProblem, tiles: tuple[BlockTile, ...], split: bool, epilogue: Expr
    ) -> ProductKernel:
        key = (
            tiles, problem.a_order, problem.b_order, problem.aligned, split, epilogue,
            problem.c_aligned,
        )  # fmt: skip
        found = self._kernels.get(key)
        if found is None:
            found = self.library.kernel(*key)
            if len(self._kernels) >= MAX_KERNELS:
                self._kernels.clear()
            self._kernels[key] = found
        return found


def _promise(candidate: Candidate) -> tuple[float, int]:
    """The least that a candidate may take, and of those that are alike the simplest first."""
    return candidate.least_s_per_row, len(candidate.tiles)


@lru_cache(maxsize=64)
def product_planner_for(library: GpuLibrary) -> ProductPlanner:
    """The one planner of a library, with its tables."""
    return ProductPlanner(library)
