"""The planner for a GPU: from a library and a run-time shape to the cheapest exact cover.

Candidates are the tiles of the library and their pairs. A pair covers the first rows by its taller
tile, in whole waves or as many as fit, and the others by the lower one. Single tiles that are fewer
than the multiprocessors use split-k. The candidate with the lowest closed-form estimate
(`candidates`) is the plan. Planning is arithmetic: nothing is compiled or measured.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import NamedTuple

from ftuner.core.caching import RecentlyUsed
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.gpu.tile import BlockTile, ProductKernel
from ftuner.cost.gpu.product import (
    ProductEstimate,
    TileSchedule,
    chip_of,
    estimate_product,
    tiling_of,
)
from ftuner.cost.gpu.tile import ProductForm, tile_cost
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.planner.gpu.candidates import ENDLESS, Candidate, CandidateEstimate
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.ukernels.gpu.library import GpuLibrary

MAX_PROBLEMS = 1024
"""Problems, for any m, whose candidates are kept."""
MAX_KERNELS = 4096
"""Kernels that are kept, so that equal plans share one object."""


def estimate_plan(hardware: GpuHardware, plan: ProductPlan) -> ProductEstimate:
    """Returns the estimate of a plan on a chip, by terms. The chip may differ in rates and
    constants from the one that the plan was made for; the plan's tiles fit both."""
    problem, kernel = plan.problem, plan.kernel
    form, costs = ProductForm(kernel.dtype, kernel.multiply, kernel.alignment), []
    for tile in kernel.tiles:
        cost = tile_cost(hardware, tile, form, kernel.warpgroups)
        assert cost is not None
        costs.append(cost)
    tiling = tiling_of(
        tuple(costs), problem.n, problem.k, problem.batch, kernel.loads == "descriptors",
        problem.window,
    )  # fmt: skip
    heights = [-(-(last - first) // tile.bm) for tile, first, last in plan.bands]
    row_tiles = (heights[0], heights[1] if len(heights) > 1 else 0)
    schedule = TileSchedule(row_tiles, plan.split_k, plan.swizzle, plan.programs)
    return estimate_product(chip_of(hardware, kernel.dtype), tiling, schedule, problem.m)


class RankedCandidate(NamedTuple):
    """A candidate with the numbers that planning reads of all candidates: a tuple unpacks faster
    than attributes are read."""

    least_s: float
    least_s_per_row: float
    granule: int
    entries: dict[int, CandidateEstimate]
    candidate: Candidate


class ProductPlanner:
    """Plans for one library. Keeps a bounded number of estimates; safe to use from several
    threads."""

    def __init__(self, library: GpuLibrary) -> None:
        self.library = library
        self._chip = chip_of(library.hardware, library.dtype)
        self._exponent = self._chip.overlap_exponent
        self._root = 1.0 / self._exponent
        self._ranked: RecentlyUsed[tuple[object, ...], tuple[RankedCandidate, ...]] = RecentlyUsed(
            MAX_PROBLEMS
        )
        self._kernels: dict[tuple[object, ...], ProductKernel] = {}

    def plan(self, problem: ProductProblem, epilogue: Expr = ACCUMULATOR) -> ProductPlan:
        """Returns the cheapest plan; every extent of the problem is positive."""
        m = problem.m
        known = self._ranked.get(problem[1:])
        if known is None:
            known = self._known(problem)
        least, best, chosen = inf, ENDLESS, None
        exponent, root = self._exponent, self._root
        for least_s, least_s_per_row, granule, entries, candidate in known:
            if least_s + m * least_s_per_row < least:
                found = entries.get(-(-m // granule))
                if found is None:
                    found = candidate.at(m, least)
                near_s, around_s = found[0], found[1]
                if m < found[6]:
                    around_s += found[7] * (found[6] - m)
                if near_s + around_s >= least:
                    continue
                # `CandidateEstimate.seconds`, without calls; a test holds both equal.
                l2_s = found[2] + m * found[3]
                dram_s = found[4] + m * found[5]
                powers = near_s**exponent + l2_s**exponent + dram_s**exponent
                seconds = around_s + powers**root
                if seconds < least:
                    least, best, chosen = seconds, found, candidate
        assert chosen is not None
        kernel = self._kernel(problem, chosen.tiles, best.split_k > 1, epilogue)
        return ProductPlan(
            problem, kernel, best.rows or m, best.split_k, best.swizzle, best.programs
        )

    def estimate(self, plan: ProductPlan) -> ProductEstimate:
        """Returns the estimate of any plan for this library, by terms."""
        return estimate_plan(self.library.hardware, plan)

    def candidates(self, problem: ProductProblem) -> tuple[Candidate, ...]:
        """Returns the candidates of a problem for any m: every tile and pair that is not too wide
        for n."""
        known = self._ranked.get(problem[1:])
        return tuple(ranked.candidate for ranked in known or self._known(problem))

    def _known(self, problem: ProductProblem) -> tuple[RankedCandidate, ...]:
        # A cheap candidate first, so that others are rejected by their lower bounds; single tiles
        # before pairs.
        made = self._make_candidates(problem)
        found = tuple(
            RankedCandidate(c.least_s, c.least_s_per_row, c.granule, c.entries, c)
            for c in sorted(made, key=lambda c: (c.least_s_per_row, len(c.tiles)))
        )
        self._ranked.add(problem[1:], found)
        return found

    def _make_candidates(self, problem: ProductProblem) -> tuple[Candidate, ...]:
        library, tuning = self.library, self.library.hardware.tuning
        axes = 0 if problem.window is None else problem.window.axes
        covers = library.covers(problem.alignment, axes)
        narrowest = min(tiles[0].bn for tiles in covers)
        chained = library.loads(problem.alignment, axes) == "descriptors"
        found = []
        for tiles in covers:
            # At most twice as wide as needed, unless there is no narrower one.
            if tiles[0].bn >= 2 * problem.n and tiles[0].bn > narrowest:
                continue
            groups = tuning.specialised_warpgroups
            if groups > 1:
                groups = self._kernel(problem, tiles, False, ACCUMULATOR).warpgroups
            costs = tuple(library.cost(tile, problem.alignment, groups) for tile in tiles)
            tiling = tiling_of(costs, problem.n, problem.k, problem.batch, chained, problem.window)
            found.append(Candidate(self._chip, tiles, tiling, tuning))
        return tuple(found)

    def _kernel(
        self, problem: ProductProblem, tiles: tuple[BlockTile, ...], split: bool, epilogue: Expr
    ) -> ProductKernel:
        key = (
            tiles, problem.a_order, problem.b_order, problem.alignment, split, epilogue,
            problem.c_aligned, 0 if problem.window is None else problem.window.axes,
        )  # fmt: skip
        found = self._kernels.get(key)
        if found is None:
            found = self.library.kernel(*key)
            if len(self._kernels) >= MAX_KERNELS:
                self._kernels.clear()
            self._kernels[key] = found
        return found


@lru_cache(maxsize=64)
def product_planner_for(library: GpuLibrary) -> ProductPlanner:
    """Returns the one planner of a library, with its tables."""
    return ProductPlanner(library)
