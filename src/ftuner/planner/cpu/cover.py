"""Exact covers of one axis: tile heights, and the number of tiles of each.

A dynamic programme over the heights of a family, solved once up to a few times the tallest; larger
extents are the solution of their remainder plus more of the main tile, so that a look-up is O(1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from ftuner.core.cpu.tile import DOT, MAX_SEGMENTS
from ftuner.core.frozen import dataclass
from ftuner.cost.cpu.correction import Correction
from ftuner.cost.cpu.correction_features import KINDS, cover_features
from ftuner.cost.cpu.product import Cover
from ftuner.cost.cpu.tile import (
    AT_HAND,
    SEVERAL,
    FarPanel,
    Reading,
    dot_step_cycles,
    dot_tile_cycles,
    kind_of,
    overlapped,
    reading,
    step_cycles,
    tile_cycles,
    widen_cycles,
)
from ftuner.hardware.model import Isa
from ftuner.hardware.tuning import CpuTuning
from ftuner.ukernels.cpu.library import Family

_SEVERAL = KINDS.index(SEVERAL)
Segments = tuple[tuple[int, int], ...]
"""(mr, tiles) of successive row tiles."""
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


@dataclass(frozen=True)
class OneCover:
    """One cover for any number of rows: of plans that are measured beside the planner's own."""

    cover: Cover
    main: int
    """Of the table that the cover is from."""

    def __getitem__(self, rows: int) -> Cover:
        return self.cover


class CoverTable:
    """Exact covers by one family, at one length of k and one source of B.

    `steps`: length of k that weighs a tile's k steps against entering it. `row_of_b_cycles`: cycles
    to fetch one k step of the panel from L2, 0 where it stays in L1. `far`: where the panel comes
    from before, if that is after L2. `ways`: rows that L1 holds side by side, if rows of A are
    apart by multiples of its ways; 0 if they are not. `correction`: what was learned of the errors
    of estimates. `farther`: where the panel may come from besides, in other programs: a short cover
    is the one that loses least in the worse case of both.
    """

    def __init__(
        self, family: Family, isa: Isa, tuning: CpuTuning, steps: int, row_of_b_cycles: float,
        far: FarPanel | None = None, ways: int = 0, correction: Correction | None = None,
        farther: FarPanel | None = None,
    ) -> None:  # fmt: skip
        self._farther = farther
        self._family, self._isa, self._tuning = family, isa, tuning
        self._steps, self._in_l1, self._far = steps, row_of_b_cycles == 0.0, far
        # Nothing is learned of panels that are at hand, and of tails.
        self._correction = None if far is None or family.tail else correction
        self._tiles: dict[int, TileCycles] = {}
        scratch = family.tail and not isa.masked
        for kernel in family.kernels:
            if family.b_layout == DOT:
                terms = dot_step_cycles(kernel.tile, isa, kernel.types)
                fixed = dot_tile_cycles(kernel.tile, kernel.lanes, tuning)
            else:
                terms = step_cycles(kernel.tile, isa, kernel.types)
                fixed = tile_cycles(kernel.tile, tuning, scratch)
            widens = kernel.types.widens or kernel.types.of_bytes
            widen = widen_cycles(kernel.tile, isa, kernel.types.b) if widens else 0.0
            each = kernel.types.steps
            cycles = each * max(terms.cycles, terms.issue + widen)
            cycles = overlapped(cycles, row_of_b_cycles, tuning.l2_overlap)
            if 0 < ways < kernel.mr:
                cycles += each * tuning.crowded_row_cycles * kernel.mr * kernel.tile.parts
            self._tiles[kernel.mr] = TileCycles(cycles, each * terms.issue, fixed)
        cost = {mr: steps * tile.step + tile.fixed for mr, tile in self._tiles.items()}
        # Parts pass B once for more rows than a tile has. After another tile, or before one, that
        # saves nothing: B is in L2 by then.
        for kernel in family.kernels:
            if kernel.tile.parts > 1 and not kernel.tile.matrix:
                del cost[kernel.mr]
        self.main = min(cost, key=lambda mr: (cost[mr] / mr, -mr))
        """The height with the fewest cycles a row."""
        self._limit = max(PERIODS * max(cost), family.max_mr)
        self._heights = _cheapest(cost, self._limit, self.main)
        self._rests: list[Cover | None] = [None] * len(self._heights)
        """Covers that follow main tiles, as far as they were asked for."""
        self._solved = list(self._rests)
        if self._correction is not None:
            self._solve_all()
        self._several, self._reading = None, AT_HAND
        """How a far panel is taken in by several tiles, whichever of them is first."""
        if far is not None:
            self._several = far.intake(tuning, family.by_height[self.main].tile, False)
            self._reading = reading(self._several)
        self._last = (0, self._listed(0))
        self.issue_per_row = self._tiles[self.main].issue / self.main
        """Cycles of multiply-adds for one row and one k step."""

    def _solve_all(self) -> None:
        """Solve all that is listed: what was learned is evaluated for many covers together."""
        rests = self._corrected([self._cover(used) for used in self._heights])
        tiles = [(mr, used) for mr in self._tiles for used in self._ways(mr)]
        covers = self._corrected([self._cover(used) for _, used in tiles])
        self._rests[:], self._solved[:] = rests, rests
        for mr in self._tiles:
            known = [c for (rows, _), c in zip(tiles, covers, strict=True) if rows == mr]
            self._solved[mr] = self._best(known)

    def _listed(self, rows: int) -> Cover:
        """The cover of at most `_limit` rows."""
        found = self._solved[rows]
        if found is None:
            if rows in self._tiles:
                found = self._best([self._cover(used) for used in self._ways(rows)])
            else:
                found = self._rest(rows)
            self._solved[rows] = found
        return found

    def _rest(self, rows: int) -> Cover:
        """The cover of at most `_limit` rows where main tiles come before."""
        found = self._rests[rows]
        if found is None:
            found = self._rests[rows] = self._cover(self._heights[rows])
        return found

    def _cycles(self, cover: Cover) -> float:
        return cover.cycles(self._steps) * (cover.factor or 1.0)

    def _best(self, covers: Sequence[Cover]) -> Cover:
        """The cover that loses least, wherever the panel comes from."""
        sources = [covers]
        if self._farther is not None:
            sources.append([self._waiting(cover, self._farther) for cover in covers])
        cycles = [[self._cycles(cover) for cover in found] for found in sources]
        losses = [
            max(x / min(c) for x, c in zip(some, cycles, strict=True))
            for some in zip(*cycles, strict=True)
        ]
        return covers[losses.index(min(losses))]

    def _ways(self, mr: int) -> list[tuple[int, ...]]:
        """The heights of covers of as many rows as a tile has, which one tile and several wait for
        differently if the panel is far."""
        heights = self._heights
        ways = [heights[mr], (mr,)]
        ways += [(*heights[low], *heights[mr - low]) for low in range(1, mr // 2 + 1)]
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        for used in ways:
            found.setdefault(tuple(sorted(used)), used)
        return [used for used in found.values() if len(set(used)) <= MAX_SEGMENTS]

    def cover(self, heights: tuple[int, ...]) -> Cover:
        """The cover by tiles of some heights, whether or not it is the cheapest."""
        return self._corrected([self._cover(heights)])[0]

    def _cover(self, heights: tuple[int, ...]) -> Cover:
        """The cover, without the factor of the correction."""
        distinct = sorted(set(heights), key=lambda mr: (mr != self.main, -mr))
        segments = tuple([(mr, heights.count(mr)) for mr in distinct])
        tiles = [self._tiles[mr] for mr in heights]
        step, issue, fixed = map(sum, zip(*tiles, strict=True)) if tiles else (0.0, 0.0, 0.0)
        cover = Cover(segments, len(heights), step, issue, fixed, 0.0, AT_HAND, self.kind(segments))
        return self._waiting(cover, self._far)

    def kind(self, segments: Segments) -> int:
        """The kind of a cover by some row tiles."""
        if not segments:
            return 0
        tile = self._family.by_height[segments[0][0]].tile
        alone = sum(tiles for _, tiles in segments) == 1
        return KINDS.index(kind_of(self._tuning, tile, alone))

    def features(self, segments: Segments) -> tuple[float, ...]:
        """The features of a cover by some row tiles, for a learned correction. Covers that are not
        listed have those of the listed one that they extend by main tiles."""
        rows = sum(mr * tiles for mr, tiles in segments)
        mr, tiles = segments[0]
        if rows > self._limit:
            tiles = max(tiles - ((rows - self._limit) // mr + 1), 1)
            others = tuple((mr, min(tiles, self._limit)) for mr, tiles in segments[1:])
            segments = ((mr, min(tiles, self._limit)), *others)
        heights = tuple(mr for mr, tiles in segments for _ in range(tiles))
        return self._features(self._cover(heights))

    def _features(self, cover: Cover) -> tuple[float, ...]:
        return cover_features(
            cover, self._family.by_height[cover.segments[0][0]].tile, self._isa,
            main=self.main, kind=cover.kind, steps=self._steps, far=self._far, in_l1=self._in_l1,
        )  # fmt: skip

    def _corrected(self, covers: list[Cover]) -> list[Cover]:
        """Covers with their factors of the correction, if there is one."""
        if self._correction is None:
            return covers
        known = [cover for cover in covers if cover.tiles]
        factors = iter(self._correction.cover_factors([self._features(c) for c in known]))
        return [c._replace(factor=next(factors)) if c.tiles else c for c in covers]

    def _waiting(self, cover: Cover, far: FarPanel | None) -> Cover:
        """A cover with what it waits for a far panel, and how that is read."""
        if far is None or not cover.tiles:
            return cover
        first = self._family.by_height[cover.segments[0][0]].tile
        intake = far.intake(self._tuning, first, cover.tiles == 1)
        return cover._replace(wait=far.wait(intake, cover.step), reading=reading(intake))

    def reading(self, rows: int) -> Reading:
        """How the first tile of a cover reads the panel: as of all covers of several tiles, beyond
        what is listed."""
        return self._reading if rows > self._limit else self._listed(rows).reading

    @property
    def solved(self) -> Sequence[Cover]:
        """The covers of 0, 1, ... rows that are listed."""
        return [self._listed(rows) for rows in range(len(self._heights))]

    @property
    def rests(self) -> Sequence[Cover]:
        """The covers of as many rows where main tiles come before."""
        return [self._rest(rows) for rows in range(len(self._heights))]

    def __getitem__(self, rows: int) -> Cover:
        if rows <= self._limit:
            return self._solved[rows] or self._listed(rows)
        last = self._last
        if last[0] == rows:
            # The planner asks for the same rows several times in a row.
            return last[1]
        more = (rows - self._limit) // self.main + 1
        rest = self._rest(rows - more * self.main)
        step, issue, fixed = self._tiles[self.main]
        if rest.segments and rest.segments[0][0] == self.main:
            segments = ((self.main, rest.segments[0][1] + more), *rest.segments[1:])
        else:
            segments = ((self.main, more), *rest.segments)
        step = rest.step + more * step
        wait = 0.0
        if self._far is not None and self._several is not None:
            wait = self._far.wait(self._several, step)
        cover = Cover(
            segments,
            rest.tiles + more,
            step,
            rest.issue + more * issue,
            rest.fixed + more * fixed,
            wait,
            self._reading,
            _SEVERAL,
            rest.factor,
        )
        self._last = (rows, cover)
        return cover


def one_or_two_heights(m: int, heights: int) -> Iterator[Segments]:
    """All covers of `m` rows by one height, or by one and up to three tiles of another."""
    for main in range(1, min(heights, m) + 1):
        tiles, rest = divmod(m, main)
        if rest == 0:
            yield ((main, tiles),)
        for other in range(1, heights + 1):
            for count in (1, 2, 3):
                left = m - count * other
                if other != main and left > 0 and left % main == 0:
                    yield ((main, left // main), (other, count))


def _cheapest(cost: Mapping[int, float], limit: int, main: int) -> list[tuple[int, ...]]:
    """The heights of the cheapest tiles for 0, 1, ... `limit` rows, `cost` being that of one. They
    may follow tiles of height `main`."""
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
            if better and len({main, *used}) <= MAX_SEGMENTS:
                least, chosen = before + cycles, used
        best.append((least, chosen))
    return [heights for _, heights in best]
