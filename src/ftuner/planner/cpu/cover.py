"""Exact covers of one axis: tile heights, and the number of tiles of each.

A dynamic programme over the heights of a family, solved once up to a few times the tallest; larger
extents are the solution of their remainder plus more of the main tile, so that a look-up is O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from ftuner.core.cpu.tile import DOT, MAX_SEGMENTS
from ftuner.cost.cpu.product import Cover
from ftuner.cost.cpu.tile import (
    dot_step_cycles,
    dot_tile_cycles,
    step_cycles,
    tile_cycles,
    widen_cycles,
)
from ftuner.hardware.model import Isa
from ftuner.hardware.tuning import CpuTuning
from ftuner.ukernels.cpu.library import Family

PERIODS = 3
"""Multiples of the tallest tile that are solved outright. Derived: with fewer than two tallest
tiles in the remainder an uneven split (4 + 4 for 8 rows) would be missed."""


class TileCycles(NamedTuple):
    """Cycles of one row tile on one panel."""

    step: float
    """Cycles of one k step."""
    issue: float
    """The part of `step` that multiply-adds take."""
    fixed: float
    """Cycles of entering and leaving the tile."""


class CoverTable:
    """Exact covers by one family, at one length of k and one source of B.

    `steps`: length of k that weighs a tile's k steps against entering it. `row_of_b_cycles`: cycles
    to fetch one k step of the panel for each tile but the first, 0 where it stays in L1.
    """

    def __init__(
        self, family: Family, isa: Isa, tuning: CpuTuning, steps: int, row_of_b_cycles: float
    ) -> None:
        self._tiles: dict[int, TileCycles] = {}
        scratch = family.tail and not isa.masked
        for kernel in family.kernels:
            if family.b_layout == DOT:
                terms = dot_step_cycles(kernel.tile, isa, kernel.types)
                fixed = dot_tile_cycles(kernel.tile, kernel.lanes, tuning)
            else:
                terms = step_cycles(kernel.tile, isa, kernel.types)
                fixed = tile_cycles(kernel.tile, tuning, scratch)
            widen = widen_cycles(kernel.tile, isa) if kernel.types.widens else 0.0
            cycles = max(terms.cycles, terms.issue + widen, row_of_b_cycles)
            self._tiles[kernel.mr] = TileCycles(cycles, terms.issue, fixed)
        cost = {mr: steps * tile.step + tile.fixed for mr, tile in self._tiles.items()}
        # Parts pass B once for more rows than a tile has. After another tile, or before one, that
        # saves nothing: B is in L2 by then.
        alone = {k.mr: cost.pop(k.mr) for k in family.kernels if k.tile.parts > 1}
        self._main = min(cost, key=lambda mr: (cost[mr] / mr, -mr))
        limit = max(PERIODS * max(cost), family.max_mr)
        empty: tuple[int, ...] = ()
        best = [(0.0, empty)]
        for rows in range(1, limit + 1):
            least, chosen = inf, empty
            for mr, cycles in cost.items():
                if mr > rows:
                    continue
                before, heights = best[rows - mr]
                if before + cycles > least:
                    continue
                used = (*heights, mr)
                better = (before + cycles, used) < (least, chosen)
                if better and len(set(used)) <= MAX_SEGMENTS:
                    least, chosen = before + cycles, used
            best.append((least, chosen))
        self._rests = [self._cover(used) for _, used in best]
        """Covers that follow main tiles."""
        self._solved = list(self._rests)
        for mr, cycles in alone.items():
            if cycles <= tuning.parts_tolerance * best[mr][0]:
                self._solved[mr] = self._cover((mr,))
        self._limit = limit
        self._last = (0, self._solved[0])
        self.issue_per_row = self._tiles[self._main].issue / self._main
        """Cycles of multiply-adds for one row and one k step."""

    def _cover(self, heights: tuple[int, ...]) -> Cover:
        distinct = sorted(set(heights), key=lambda mr: (mr != self._main, -mr))
        segments = tuple((mr, heights.count(mr)) for mr in distinct)
        step = sum(self._tiles[mr].step for mr in heights)
        issue = sum(self._tiles[mr].issue for mr in heights)
        fixed = sum(self._tiles[mr].fixed for mr in heights)
        first = self._tiles[distinct[0]].step if heights else 0.0
        return Cover(segments, len(heights), step, issue, fixed, first)

    @property
    def main(self) -> int:
        """The height with the fewest cycles a row."""
        return self._main

    @property
    def solved(self) -> Sequence[Cover]:
        """The covers of 0, 1, ... rows that are listed."""
        return self._solved

    @property
    def rests(self) -> Sequence[Cover]:
        """The covers of as many rows where main tiles come before."""
        return self._rests

    def __getitem__(self, rows: int) -> Cover:
        if rows <= self._limit:
            return self._solved[rows]
        last = self._last
        if last[0] == rows:
            # The planner asks for the same rows several times in a row.
            return last[1]
        more = (rows - self._limit) // self._main + 1
        rest = self._rests[rows - more * self._main]
        step, issue, fixed = self._tiles[self._main]
        if rest.segments and rest.segments[0][0] == self._main:
            segments = ((self._main, rest.segments[0][1] + more), *rest.segments[1:])
        else:
            segments = ((self._main, more), *rest.segments)
        cover = Cover(
            segments,
            rest.tiles + more,
            rest.step + more * step,
            rest.issue + more * issue,
            rest.fixed + more * fixed,
            step,
        )
        self._last = (rows, cover)
        return cover
